package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem/mesh"
)

const (
	defaultDialTimeout  = 5 * time.Second
	defaultReconnectMin = 50 * time.Millisecond
	defaultReconnectMax = 5 * time.Second
	clientPing          = 3 * time.Second // two missed pings end the connection
	writeTimeout        = 5 * time.Second // longest that a send may wait for the kernel
)

// check fills in defaults and refuses what cannot work.
func (o *Options) check() error {
	if o.Identity == nil || o.Identity.Role() != mesh.RoleWorker && o.Identity.Role() != mesh.RoleGateway {
		return &Error{Kind: ErrConfig, Detail: "a connection needs an identity of role worker or gateway"}
	}
	if o.Server != nil {
		o.URL = memoryURL
	}
	if o.URL == "" {
		return &Error{Kind: ErrConfig, Detail: "no bus address"}
	}
	for _, s := range strings.Split(o.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(s))
		if err != nil || u.Scheme != "tls" && u.Scheme != "nats" || u.Hostname() == "" {
			return &Error{Kind: ErrConfig, Detail: fmt.Sprintf("bus address %q is not tls://host:port", s)}
		}
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.DialTimeout, defaultDialTimeout)
	def(&o.ReconnectMin, defaultReconnectMin)
	def(&o.ReconnectMax, defaultReconnectMax)
	if o.pending <= 0 {
		o.pending = pendingMessages
	}
	return nil
}

// memoryURL stands for the server in this process; the dialler does not look at it.
const memoryURL = "nats://in-process:4222"

// backoff returns the wait before the given attempt, from 1: the doubled minimum up to the maximum, of which a random half
// is kept, so that a fleet does not come back in step.
func backoff(attempt int, lo, hi time.Duration) time.Duration {
	d := hi
	if attempt < 30 && lo<<(attempt-1) < hi {
		d = lo << (attempt - 1)
	}
	return d/2 + rand.N(d/2+1)
}

// Connect connects, trying again with backoff until ctx ends where the server cannot be reached, and failing at once where
// trying again cannot help (another CA, a wrong role, bad options).
func Connect(ctx context.Context, opts Options) (*Conn, error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	if opts.Server != nil {
		if err := opts.Identity.Trust(opts.Server.identity); err != nil {
			return nil, permanent(err)
		}
	}
	c := &Conn{
		peer: opts.Identity.Peer(), events: opts.Events, pending: opts.pending,
		closed: make(chan struct{}), waiters: map[*waiter]struct{}{},
	}
	d := &dialer{ctx: ctx, timeout: opts.DialTimeout, server: opts.Server}
	options := c.options(opts, d)
	for attempt := 1; ; attempt++ {
		// The dialler gives up with ctx; what nats.go waits for after dialling ends with the socket.
		stop := context.AfterFunc(ctx, d.abort)
		nc, err := nats.Connect(opts.URL, options...)
		stop()
		if err == nil {
			d.established()
			c.mu.Lock()
			c.nc = nc
			c.mu.Unlock()
			return c, nil
		}
		if err := permanent(err); err != nil {
			return nil, err
		}
		if attempt > 2 && ctx.Err() == nil { // a server that starts at the same time is no problem
			c.problem(reconnectProblem(err))
		}
		select {
		case <-ctx.Done():
			return nil, &Error{Kind: ErrDisconnected, Detail: "the bus could not be reached", Cause: errors.Join(err, context.Cause(ctx))}
		case <-time.After(backoff(attempt, opts.ReconnectMin, opts.ReconnectMax)):
		}
	}
}

// options translates to nats.go.
func (c *Conn) options(opts Options, d *dialer) []nats.Option {
	o := []nats.Option{
		nats.Name(c.peer.String()),
		nats.Timeout(opts.DialTimeout),
		nats.PingInterval(clientPing),
		nats.MaxPingsOutstanding(2),
		nats.FlusherTimeout(writeTimeout),
		nats.MaxReconnects(-1),
		// A certificate that is refused today may be accepted by the same server after its restart.
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectBufSize(-1), // nothing is buffered while disconnected
		nats.CustomReconnectDelay(func(attempt int) time.Duration {
			return backoff(attempt, opts.ReconnectMin, opts.ReconnectMax)
		}),
		nats.DisconnectErrHandler(c.onDisconnect),
		nats.ReconnectHandler(c.onReconnect),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { c.problem(reconnectProblem(err)) }),
		nats.ClosedHandler(c.onClosed),
		nats.ErrorHandler(c.onError),
	}
	if c.peer.Role == mesh.RoleGateway {
		o = append(o, nats.CustomInboxPrefix(prefixInbox+c.peer.Name))
	}
	if opts.Server != nil {
		return append(o, nats.Token(opts.Server.admit(c.peer)), nats.SetCustomDialer(d), nats.SkipHostLookup())
	}
	return append(o,
		nats.Secure(c.reporting(opts.Identity.ClientTLS(nil, mesh.Peer{Role: mesh.RoleBus}))),
		nats.SetCustomDialer(d),
		nats.SkipHostLookup(), // the dialler looks up, with its own fallbacks
	)
}

// reporting makes a configuration that reports refused servers after the first connection: of handshakes that fail while
// reconnecting nats.go says nothing.
func (c *Conn) reporting(cfg *tls.Config) *tls.Config {
	verify := cfg.VerifyConnection
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		err := verify(cs)
		c.mu.Lock()
		connected := c.nc != nil
		c.mu.Unlock()
		if err != nil && connected {
			go c.problem(reconnectProblem(err)) // nats.go holds its lock here, and hosts may send from callbacks
		}
		return err
	}
	return cfg
}

// permanent returns the error to give up with, or nil if trying again may help.
func permanent(err error) error {
	var m *mesh.Error
	var op *net.OpError
	switch {
	case errors.As(err, &m):
		return &Error{Kind: ErrRefused, Detail: "the server's certificate", Cause: err}
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
		return &Error{Kind: ErrRefused, Detail: "the server knows no such user", Cause: err}
	case errors.Is(err, nats.ErrSecureConnWanted):
		return &Error{Kind: ErrRefused, Detail: "the server does not speak TLS", Cause: err}
	case errors.As(err, &op) && op.Op == "remote error":
		// A TLS alert. It may be lost on the way; then the attempts go on until the context ends.
		return &Error{Kind: ErrRefused, Detail: "the server refused this process's certificate", Cause: err}
	}
	return nil
}

// reconnectProblem explains a failed reconnect, or what the server says before it ends the connection.
func reconnectProblem(err error) error {
	if p := permanent(err); p != nil {
		return p
	}
	return &Error{Kind: ErrDisconnected, Cause: err}
}

// dialer makes the TCP connections of one Conn. While the first is being made it obeys Connect's context, also after the
// dial, when nats.go waits for the server.
type dialer struct {
	timeout time.Duration
	server  *Server // in this process, or nil

	mu   sync.Mutex
	ctx  context.Context // of Connect; Background once connected
	last net.Conn
}

// Dial implements nats.CustomDialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	d.mu.Lock()
	parent := d.ctx
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(parent, d.timeout)
	defer cancel()
	var conn net.Conn
	var err error
	if d.server != nil {
		conn, err = d.server.dial()
	} else {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
	}
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.ctx.Err(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	d.last = conn
	return conn, nil
}

// abort ends a connection attempt that is under way.
func (d *dialer) abort() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last != nil {
		_ = d.last.Close() // nats.go sees the error
	}
}

// established detaches the dialler from Connect's context.
func (d *dialer) established() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ctx, d.last = context.Background(), nil
}
