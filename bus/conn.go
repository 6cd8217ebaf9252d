package bus

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem/mesh"
)

// Options configures Connect. Identity and one of URL and Server are required.
type Options struct {
	// Identity is this process: role worker or gateway.
	Identity *mesh.Identity
	// URL is one or more NATS addresses, separated by commas: tls://host:4222.
	URL string
	// Server is a server in this process, connected to without a socket. It wins over URL.
	Server *Server
	// Events tells the host about the connection.
	Events Events
	// DialTimeout bounds one attempt [5 s].
	DialTimeout time.Duration
	// ReconnectMin and ReconnectMax bound the wait between attempts, which doubles with jitter [50 ms, 5 s].
	ReconnectMin, ReconnectMax time.Duration
}

// Events are callbacks of a connection; each may be nil. They come one at a time, in order, on a goroutine of the
// connection, and must not block it or close the connection.
type Events struct {
	// Disconnected: the connection broke; reconnecting goes on until Close.
	Disconnected func(err error)
	// Reconnected: the connection and all subscriptions are back. What was sent meanwhile is lost: announce again.
	Reconnected func()
	// Closed: the connection has ended for good; err is nil after Close.
	Closed func(err error)
	// Problem: ErrSlow, ErrForbidden, ErrMalformed or a failed reconnect. The connection goes on.
	Problem func(err error)
}

// Stats counts what a connection did since it was made.
type Stats struct {
	SentMessages, SentBytes         uint64
	ReceivedMessages, ReceivedBytes uint64
	Reconnects                      uint64
	Dropped                         uint64 // messages that this process was too slow for
	Malformed                       uint64 // messages that were ignored
}

// Conn is one process's connection to the bus. All methods are safe for concurrent use.
type Conn struct{}

// Connect connects, trying again with backoff until ctx ends where the server cannot be reached, and failing at once where
// trying again cannot help (another CA, a wrong role, bad options).
func Connect(ctx context.Context, opts Options) (*Conn, error) { return &Conn{}, nil }

// Connected reports whether the connection is up now.
func (c *Conn) Connected() bool { return false }

// Stats returns the counters.
func (c *Conn) Stats() Stats { return Stats{} }

// Close stops taking messages, lets handlers finish those received, sends what is queued, and closes. When ctx ends first
// it closes at once. It is safe to call twice.
func (c *Conn) Close(ctx context.Context) error { return nil }
