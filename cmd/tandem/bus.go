package main

import (
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/mesh"
)

type busCmd struct {
	Config busConfigCmd `cmd:"" help:"Print a nats-server configuration with the TLS, users and permissions that Tandem needs."`
}

type busConfigCmd struct {
	Peer   []string `required:"" help:"Processes that may connect, as role/name: gateway/main,worker/prefill-0." placeholder:"ROLE/NAME"`
	Dir    string   `required:"" help:"Directory on the server's machine with its identity (role bus)." placeholder:"DIR"`
	Listen string   `default:"0.0.0.0:4222" help:"Address the server listens on."`
}

func (c *busConfigCmd) Run(a *app) error {
	var peers []mesh.Peer
	for _, p := range c.Peer {
		role, name, ok := strings.Cut(p, "/")
		if !ok {
			return usageError{fmt.Errorf("--peer %q: write role/name, such as worker/decode-0", p)}
		}
		peers = append(peers, mesh.Peer{Role: mesh.Role(role), Name: name})
	}
	text, err := bus.ExternalConfig(bus.ExternalOptions{Peers: peers, Dir: c.Dir, Listen: c.Listen})
	if err != nil {
		return usageError{err}
	}
	_, err = fmt.Fprint(a.stdout, text)
	return err
}
