package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem/mesh"
)

// Options configures Connect. Identity and one of URL and Server are required.
type Options struct {
	// Identity is this process: role worker or gateway.
	Identity *mesh.Identity
	// URL is one or more NATS addresses, separated by commas: tls://host:4222.
	URL string
	// Server is a server in this process; it wins over URL. It is reached by memory, without a socket or TLS, with
	// the permissions of Identity like any other client.
	Server *Server
	// Events tells the host about the connection.
	Events Events
	// DialTimeout bounds one attempt [5 s].
	DialTimeout time.Duration
	// ReconnectMin and ReconnectMax bound the wait between attempts, which doubles with jitter [50 ms, 5 s].
	ReconnectMin, ReconnectMax time.Duration

	pending int // messages that may wait for one handler; 0: pendingMessages
}

// Events are callbacks of a connection; each may be nil. They come one at a time on goroutines of the connection, state
// changes in order, and must neither block nor close the connection.
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
type Conn struct {
	peer    mesh.Peer
	events  Events
	pending int

	// Lock order: eventMu before mu. Events are called with eventMu held.
	eventMu sync.Mutex

	mu      sync.Mutex
	nc      *nats.Conn
	subs    []*nats.Subscription
	waiters map[*waiter]struct{}
	closing bool
	down    bool // Disconnected was told and Reconnected not yet

	malformed atomic.Uint64
	dropped   atomic.Uint64 // of subscriptions that have ended
	closed    chan struct{}
}

// waiter is somebody who wants to know at once when the connection breaks.
type waiter struct{ fail func() }

// Connected reports whether the connection is up now.
func (c *Conn) Connected() bool { return c.nc.IsConnected() }

// Stats returns the counters.
func (c *Conn) Stats() Stats {
	s := c.nc.Stats()
	out := Stats{
		SentMessages: s.OutMsgs, SentBytes: s.OutBytes, ReceivedMessages: s.InMsgs, ReceivedBytes: s.InBytes,
		Reconnects: s.Reconnects, Malformed: c.malformed.Load(), Dropped: c.dropped.Load(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, sub := range c.subs {
		if n, err := sub.Dropped(); err == nil && n > 0 {
			out.Dropped += uint64(n)
		}
	}
	return out
}

// Close stops taking messages, lets handlers finish those received, sends what is queued, and closes. When ctx ends first
// it closes at once and returns ctx's error. It is safe to call twice.
func (c *Conn) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	// Drain closes at once where there is no connection to drain; its error says only that.
	if err := c.nc.Drain(); err != nil {
		c.nc.Close()
	}
	select {
	case <-c.closed:
		return nil
	case <-ctx.Done():
		c.nc.Close()
		<-c.closed
		return &Error{Kind: ErrClosed, Detail: "closed without draining", Cause: context.Cause(ctx)}
	}
}

// ---- Callbacks of nats.go, on its one callback goroutine ----

func (c *Conn) onDisconnect(_ *nats.Conn, err error) {
	c.failWaiters()
	c.mu.Lock()
	known := c.closing || c.down // the host's own Close is no news, nor is a reconnect that failed half way
	c.down = true
	c.mu.Unlock()
	if known {
		return
	}
	c.event(func() {
		if c.events.Disconnected != nil {
			c.events.Disconnected(&Error{Kind: ErrDisconnected, Cause: err})
		}
	})
}

func (c *Conn) onReconnect(nc *nats.Conn) {
	// nats.go has only queued the subscriptions. Wait until the server has them: whoever is told to announce itself again
	// would otherwise speak to nobody.
	for nc.FlushTimeout(defaultDialTimeout) != nil {
		if !nc.IsConnected() {
			return // broken again; the next reconnect tells
		}
	}
	c.mu.Lock()
	c.down = false
	c.mu.Unlock()
	c.event(func() {
		if c.events.Reconnected != nil {
			c.events.Reconnected()
		}
	})
}

func (c *Conn) onClosed(nc *nats.Conn) {
	c.failWaiters()
	c.mu.Lock()
	connected, closing := c.nc != nil, c.closing
	c.mu.Unlock()
	if !connected {
		return // a failed first attempt; Connect reports it
	}
	var err error
	if !closing {
		err = &Error{Kind: ErrClosed, Detail: "the connection ended", Cause: nc.LastError()}
	}
	c.event(func() {
		if c.events.Closed != nil {
			c.events.Closed(err)
		}
	})
	close(c.closed)
}

func (c *Conn) onError(_ *nats.Conn, sub *nats.Subscription, err error) {
	switch {
	case errors.Is(err, nats.ErrSlowConsumer) && sub != nil:
		n, _ := sub.Dropped() // 0 where the subscription has just ended
		c.problem(&Error{Kind: ErrSlow, Detail: fmt.Sprintf("%d so far on %s", n, sub.Subject)})
	case errors.Is(err, nats.ErrPermissionViolation):
		c.problem(&Error{Kind: ErrForbidden, Cause: err})
	default:
		c.problem(reconnectProblem(err))
	}
}

func (c *Conn) event(fn func()) {
	c.eventMu.Lock()
	defer c.eventMu.Unlock()
	fn()
}

func (c *Conn) problem(err error) {
	c.event(func() {
		if c.events.Problem != nil {
			c.events.Problem(err)
		}
	})
}

// bad counts and reports a message that is ignored.
func (c *Conn) bad(subject, detail string, cause error) {
	c.malformed.Add(1)
	c.problem(&Error{Kind: ErrMalformed, Detail: "from " + sender(subject) + ": " + detail, Cause: cause})
}

// ---- Waiting that a broken connection ends ----

// wait registers fn to be called, once or not at all, when the connection breaks or ends after this call.
func (c *Conn) wait(fn func()) *waiter {
	w := &waiter{fail: fn}
	c.mu.Lock()
	c.waiters[w] = struct{}{}
	c.mu.Unlock()
	return w
}

func (c *Conn) forget(w *waiter) {
	c.mu.Lock()
	delete(c.waiters, w)
	c.mu.Unlock()
}

func (c *Conn) failWaiters() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.waiters {
		w.fail()
		delete(c.waiters, w)
	}
}

// ---- Publishing and subscribing ----

// publish sends one message, or fails at once while disconnected.
func (c *Conn) publish(subject string, data []byte) error {
	if limit := c.nc.MaxPayload(); int64(len(data)) > limit {
		return tooLarge(len(data), limit)
	}
	return c.translate(c.nc.Publish(subject, data))
}

func tooLarge(size int, limit int64) error {
	return &Error{Kind: ErrTooLarge, Detail: fmt.Sprintf("%d bytes, the limit is %d", size, limit)}
}

// translate gives nats.go's errors their kinds.
func (c *Conn) translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return &Error{Kind: ErrClosed}
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionReconnecting), errors.Is(err, nats.ErrDisconnected):
		return &Error{Kind: ErrDisconnected}
	case errors.Is(err, nats.ErrMaxPayload):
		return &Error{Kind: ErrTooLarge}
	}
	return &Error{Kind: ErrDisconnected, Cause: err}
}

// subscription is what a link listens to.
type subscription struct {
	subject string
	handle  func(*nats.Msg)
}

// subscribe sets up subscriptions and returns when the server has them all, or with none left.
func (c *Conn) subscribe(list []subscription) ([]*nats.Subscription, error) {
	before := c.nc.LastError()
	var subs []*nats.Subscription
	fail := func(err error) ([]*nats.Subscription, error) {
		return nil, errors.Join(err, c.unsubscribe(subs))
	}
	for _, s := range list {
		sub, err := c.nc.Subscribe(s.subject, s.handle)
		if err != nil {
			return fail(c.translate(err))
		}
		subs = append(subs, sub)
		if err := sub.SetPendingLimits(c.pending, pendingBytes); err != nil {
			return fail(c.translate(err))
		}
	}
	// The server answers a refused subscription before the flush that follows it.
	if err := c.nc.FlushTimeout(defaultDialTimeout); err != nil {
		return fail(&Error{Kind: ErrDisconnected, Detail: "subscribing", Cause: err})
	}
	if err := c.nc.LastError(); err != before && errors.Is(err, nats.ErrPermissionViolation) {
		return fail(&Error{Kind: ErrForbidden, Detail: "subscribing", Cause: err})
	}
	c.mu.Lock()
	c.subs = append(c.subs, subs...)
	c.mu.Unlock()
	return subs, nil
}

// unsubscribe ends subscriptions. Handlers that run may still be running when it returns.
func (c *Conn) unsubscribe(subs []*nats.Subscription) error {
	var errs []error
	for _, sub := range subs {
		if n, err := sub.Dropped(); err == nil && n > 0 {
			c.dropped.Add(uint64(n))
		}
		err := sub.Unsubscribe()
		if err != nil && !errors.Is(err, nats.ErrBadSubscription) && !errors.Is(err, nats.ErrConnectionClosed) {
			errs = append(errs, c.translate(err))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.subs[:0]
	for _, have := range c.subs {
		gone := false
		for _, sub := range subs {
			gone = gone || have == sub
		}
		if !gone {
			kept = append(kept, have)
		}
	}
	clear(c.subs[len(kept):])
	c.subs = kept
	return errors.Join(errs...)
}

// unusable says why a connection that is not up is not.
func (c *Conn) unusable() error {
	if c.nc.IsClosed() || c.nc.IsDraining() {
		return &Error{Kind: ErrClosed}
	}
	return &Error{Kind: ErrDisconnected}
}
