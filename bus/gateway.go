package bus

import (
	"context"

	"github.com/tandem-llm/tandem/bus/buspb"
)

// GatewayHandler is what a gateway does with messages. Each function is called from one goroutine of its own, in order of
// arrival, and must not block. Messages belong to the callee.
type GatewayHandler struct {
	// Registration: a worker announced itself (or, with Leaving, took leave). Feed it to a Registry.
	Registration func(*buspb.Registration)
	// Statuses: what happened on a worker; s.Worker is verified. A status without a body is of a newer release.
	Statuses func(s *buspb.Statuses)
}

// GatewayLink is a gateway's end of the bus. All methods are safe for concurrent use.
type GatewayLink struct{}

// ServeGateway subscribes to what is for this gateway. It returns when the server has confirmed the subscriptions.
func ServeGateway(c *Conn, incarnation uint64, h GatewayHandler) (*GatewayLink, error) {
	return &GatewayLink{}, nil
}

// Command sends one command and waits for its reply, until ctx ends (5 s where ctx has no deadline). It fills in gateway
// and its incarnation. Errors: ErrNoWorker, ErrTimeout, ErrDisconnected, ErrTooLarge, ErrClosed, or ctx's cause when
// it was cancelled. A refusal by the worker is a Reply, not an error.
func (l *GatewayLink) Command(ctx context.Context, worker string, cmd *buspb.Command) (*buspb.Reply, error) {
	return nil, nil
}

// Post sends one command without waiting for, or wanting, a reply: for acknowledgements. It never blocks.
func (l *GatewayLink) Post(worker string, cmd *buspb.Command) error { return nil }

// Hello asks every worker to announce itself now.
func (l *GatewayLink) Hello() error { return nil }

// Heartbeat tells every worker that this gateway lives. Call it once a Beat.
func (l *GatewayLink) Heartbeat() error { return nil }

// Goodbye is the last heartbeat: workers may end what they own for this gateway.
func (l *GatewayLink) Goodbye() error { return nil }

// Close stops taking messages; the connection stays open.
func (l *GatewayLink) Close() error { return nil }
