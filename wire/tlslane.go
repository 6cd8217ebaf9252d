package wire

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/mesh"
)

// tlsConn is the bulk lane of TLS 1.3 over TCP.
type tlsConn struct {
	*tls.Conn
	under *coalescer
	name  string
}

// shakeLane runs one handshake; it closes c if that fails.
func shakeLane(ctx context.Context, c net.Conn, cfg *Config, side func(net.Conn) *tls.Conn) (*tlsConn, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeouts.Handshake)
	defer cancel()
	u := &coalescer{Conn: c, w: bufio.NewWriterSize(c, coalesce), direct: true}
	t := side(u)
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	p, err := mesh.PeerOf(t.ConnectionState())
	if err != nil {
		c.Close()
		return nil, err
	}
	u.hold()
	return &tlsConn{t, u, p.Name}, nil
}

func (c *tlsConn) kind() string { return "tls" }
func (c *tlsConn) peer() string { return c.name }
func (c *tlsConn) flush() error { return c.under.flush() }

// finish and stop close the socket without TLS's farewell, which could block: every handoff's end is confirmed on its
// control stream, so a truncated lane cannot pass for a complete one.
func (c *tlsConn) finish() { c.under.flush(); c.under.Close() }
func (c *tlsConn) stop()   { c.under.Close() }

func (c *tlsConn) shared() (*arena, *mapping) { return nil, nil }
func (c *tlsConn) unmap()                     {}

func (c *tlsConn) export(label string, n int) ([]byte, error) {
	cs := c.ConnectionState()
	return cs.ExportKeyingMaterial(label, nil, n)
}

// coalesce is the size of the write buffer under TLS. crypto/tls writes each 16 KiB record by itself; gathering records
// to 256 KiB saves so many system calls that throughput rises by half.
const coalesce = 256 << 10

// coalescer is a net.Conn that gathers writes until flush. TLS may write from its reader too (alerts, key updates), so
// it locks.
type coalescer struct {
	net.Conn
	mu     sync.Mutex
	w      *bufio.Writer
	direct bool // during the handshake: write through
}

func (c *coalescer) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.direct {
		return c.Conn.Write(p)
	}
	return c.w.Write(p)
}

func (c *coalescer) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.direct = false
}

func (c *coalescer) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.w.Flush()
}

// laneListenConfig and laneDialer set the socket options of bulk lanes.
func laneListenConfig(cfg *Config) net.ListenConfig {
	return net.ListenConfig{Control: laneSocket(cfg), KeepAliveConfig: laneKeepAlive(cfg)}
}

func laneDialer(cfg *Config) net.Dialer {
	return net.Dialer{Control: laneSocket(cfg), KeepAliveConfig: laneKeepAlive(cfg)}
}

func laneKeepAlive(cfg *Config) net.KeepAliveConfig {
	step := max(cfg.Timeouts.Dead/3, time.Second)
	return net.KeepAliveConfig{Enable: true, Idle: step, Interval: step, Count: 3}
}
