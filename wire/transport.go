package wire

import (
	"context"
	"io"
	"time"
)

// transport is what a node stands on: UDP and TCP sockets, or memory in tests. Everything above it is the same code.
// Implementations authenticate: a link or lane exists only after its peer proved a worker's name.
type transport interface {
	// dial connects the control connection to the worker want.
	dial(ctx context.Context, to Endpoint, want string) (link, error)
	// dialLane connects one bulk connection to the worker want.
	dialLane(ctx context.Context, to Endpoint, want string) (lane, error)
	// dialLocal connects one bulk connection to the process that listens under name on this host.
	dialLocal(ctx context.Context, name string) (lane, error)
	// serve hands over incoming, authenticated connections, each on a goroutine of its own, and returns after close,
	// when all of these have returned.
	serve(onLink func(link), onLane func(lane))
	// endpoint returns where serve listens.
	endpoint() Endpoint
	// local returns the name for dialLocal, or "" where there is no same-host lane.
	local() string
	// close ends serve and dials. Open links and lanes are the owners' to close before.
	close() error
}

// link is one authenticated control connection, used by both sides alike.
type link interface {
	// peer is the other worker's proven name.
	peer() string
	// open and accept make bidirectional streams, openBulk and acceptBulk unidirectional ones.
	open(ctx context.Context) (stream, error)
	accept(ctx context.Context) (stream, error)
	openBulk(ctx context.Context) (bulk, error)
	acceptBulk(ctx context.Context) (bulk, error)
	// export returns n secret bytes that only the two ends know, the same for the same label.
	export(label string, n int) ([]byte, error)
	rtt() time.Duration
	// close ends the connection and tells the peer why. done is closed after that, or when the peer is lost; cause then
	// says why.
	close(code Code, detail string)
	done() <-chan struct{}
	cause() error
}

// stream is a bidirectional control stream.
type stream interface {
	io.ReadWriter
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	// closeWrite ends the own direction after what was written; stop ends both at once.
	closeWrite()
	stop()
}

// bulk carries frames. It has three implementations: a TLS connection and a same-host connection, shared by handoffs and
// used both ways, and a QUIC stream, one per handoff and one way.
type bulk interface {
	// Read may fail with os.ErrDeadlineExceeded and go on later without loss.
	io.ReadWriter
	SetReadDeadline(time.Time) error
	// flush hands everything written to the kernel.
	flush() error
	// finish ends the own direction after what was written.
	finish()
	// stop ends everything at once; a Read or Write under way returns.
	stop()
	// kind is "tls", "quic" or "local".
	kind() string
}

// lane is a bulk connection of its own, beside the link.
type lane interface {
	bulk
	SetWriteDeadline(time.Time) error
	// peer is the other worker's proven name, or empty where only the lane's proof shows it.
	peer() string
	// export is link.export, of this connection.
	export(label string, n int) ([]byte, error)
	// shared returns the memory that both ends map, own and theirs; nil for a lane that carries the bytes itself.
	shared() (*arena, *mapping)
	// unmap lets go of that memory; nobody uses the lane any more.
	unmap()
}

// linkEnd is what a stream's Read returns when its connection ended, with the reason: an [*Error] that is not about what
// the peer said on the stream.
type linkEnd struct{ error }

// Unwrap returns the reason.
func (e linkEnd) Unwrap() error { return e.error }
