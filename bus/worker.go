package bus

import "github.com/tandem-llm/tandem/bus/buspb"

// WorkerHandler is what a worker does with messages. Each function is called from one goroutine of its own, in order of
// arrival, and must not block: post to the owner and return. Functions may be nil, except Command.
type WorkerHandler struct {
	// Command handles one command; reply answers it, once, from any goroutine, now or later (within two minutes). A nil
	// reply, or none, leaves the gateway to repeat it. The message belongs to the callee; cmd.Gateway is verified; a
	// command for another incarnation and one without a known body have been refused already.
	Command func(cmd *buspb.Command, reply func(*buspb.Reply))
	// Hello: a gateway wants an announcement now.
	Hello func(gateway string, incarnation uint64)
	// GatewaySeen: a heartbeat. Leaving is the last one.
	GatewaySeen func(gateway string, incarnation uint64, leaving bool)
}

// WorkerLink is a worker's end of the bus. All methods are safe for concurrent use and never block.
type WorkerLink struct{}

// ServeWorker subscribes to what is for this worker. It returns when the server has confirmed the subscriptions.
func ServeWorker(c *Conn, incarnation uint64, h WorkerHandler) (*WorkerLink, error) {
	return &WorkerLink{}, nil
}

// Announce publishes a registration to all gateways. It fills in worker, incarnation and seq; the rest is the caller's.
// Call it once a Beat and on every change that gateways should know at once.
func (l *WorkerLink) Announce(r *buspb.Registration) error { return nil }

// Goodbye announces that this incarnation is gone for good.
func (l *WorkerLink) Goodbye() error { return nil }

// Statuses sends what happened to one gateway. It fills in worker and incarnation, and sends several messages where one
// would be too large.
func (l *WorkerLink) Statuses(gateway string, s *buspb.Statuses) error { return nil }

// Close stops taking messages; the connection stays open.
func (l *WorkerLink) Close() error { return nil }
