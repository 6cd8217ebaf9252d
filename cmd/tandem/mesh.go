package main

import (
	"fmt"
	"time"

	"github.com/tandem-llm/tandem/mesh"
)

type meshCmd struct {
	Init  meshInitCmd  `cmd:"" help:"Make a certificate authority in a directory."`
	Issue meshIssueCmd `cmd:"" help:"Issue the identity of one gateway, worker or bus server."`
}

type meshInitCmd struct {
	Dir string        `required:"" help:"Directory for the authority's certificate and key. Keep it off the serving machines." placeholder:"DIR"`
	TTL time.Duration `name:"ttl" default:"87600h" help:"How long the authority is valid."`
}

func (c *meshInitCmd) Run(a *app) error {
	ca, err := mesh.NewCA(nil, c.TTL)
	if err != nil {
		return err
	}
	if err := ca.Save(c.Dir); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "certificate authority written to %s\nnext: tandem mesh issue --ca %s --role worker --name NAME --dir DIR\n", c.Dir, c.Dir)
	return nil
}

type meshIssueCmd struct {
	CA   string        `name:"ca" required:"" help:"Directory of the certificate authority." placeholder:"DIR"`
	Role string        `required:"" enum:"gateway,worker,bus" help:"gateway, worker or bus (an external NATS server)."`
	Name string        `required:"" help:"Name of the process, unique within its role." placeholder:"NAME"`
	Host []string      `help:"DNS names and addresses under which others reach it; needed for a gateway that carries the bus and for a bus server." placeholder:"HOST"`
	Dir  string        `required:"" help:"Directory for the identity; copy it to the machine that uses it." placeholder:"DIR"`
	TTL  time.Duration `name:"ttl" default:"8760h" help:"How long the identity is valid."`
}

func (c *meshIssueCmd) Run(a *app) error {
	ca, err := mesh.LoadCA(c.CA, nil)
	if err != nil {
		return err
	}
	id, err := ca.Issue(mesh.Role(c.Role), c.Name, c.Host, c.TTL)
	if err != nil {
		return usageError{err}
	}
	if err := id.Save(c.Dir); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "%s written to %s, valid until %s\n", id.Peer(), c.Dir, id.Expires().Format(time.DateOnly))
	return nil
}
