package bus

import (
	"strings"
	"time"

	"github.com/tandem-llm/tandem/mesh"
)

// Beat is how often workers announce themselves and gateways send heartbeats.
const Beat = time.Second

// CapHandoff is the capability of workers that hand state over and take it, in the first version of the protocol.
const CapHandoff = "handoff/1"

// CapPrefix is the capability of workers that look for the tokens of a reservation in a prefix cache of their own.
const CapPrefix = "prefix/1"

// The subjects, all below one versioned prefix. The sender's name is always the last token, so that permissions can bind
// it: nobody publishes in another's name. Only inboxes end with a token of the server's client.
const (
	prefix         = "tandem.v1."
	prefixWorkers  = prefix + "workers."  // + worker: Registration
	prefixGateways = prefix + "gateways." // + gateway: GatewayBeat
	prefixHello    = prefix + "hello."    // + gateway: Hello
	prefixCommand  = prefix + "cmd."      // + worker.gateway: Command, answered with Reply
	prefixStatus   = prefix + "status."   // + gateway.worker: Statuses
	prefixInbox    = prefix + "inbox."    // + gateway.>: Replies
)

// Permissions is what one process may publish and subscribe. A worker may besides answer each message that carries a
// reply subject, once (NATS allow_responses).
type Permissions struct {
	Publish, Subscribe []string
	Responses          bool
}

// PermissionsOf returns the permissions of a verified peer. Bus servers and unknown roles have none.
func PermissionsOf(p mesh.Peer) (Permissions, bool) {
	n := p.Name
	if !mesh.ValidName(n) {
		return Permissions{}, false
	}
	switch p.Role {
	case mesh.RoleWorker:
		return Permissions{
			Publish:   []string{prefixWorkers + n, prefixStatus + "*." + n},
			Subscribe: []string{prefixCommand + n + ".*", prefixHello + "*", prefixGateways + "*"},
			Responses: true,
		}, true
	case mesh.RoleGateway:
		return Permissions{
			Publish:   []string{prefixGateways + n, prefixHello + n, prefixCommand + "*." + n},
			Subscribe: []string{prefixWorkers + "*", prefixStatus + n + ".*", prefixInbox + n + ".>"},
		}, true
	}
	return Permissions{}, false
}

// sender returns the last token of a subject: the name that the server allowed to publish on it.
func sender(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }
