package lane

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/wire"
)

const (
	alpn = "tandem-bench/1"
	// ring is how many pages either end of a bare connection goes round, about what a handoff's window makes of
	// memory: one page that never leaves the cache would be a copy of other bytes.
	ring = 4
	// coalesce is the size of the buffer under TLS, the same as the lane's: crypto/tls writes each record of 16 KiB
	// by itself otherwise.
	coalesce  = 256 << 10
	handshake = 10 * time.Second
)

// quicConfig has windows that do not limit the rate on one machine; all else is quic-go's default.
func quicConfig() *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout: handshake, MaxIdleTimeout: time.Minute, KeepAlivePeriod: 5 * time.Second,
		InitialStreamReceiveWindow: 1 << 20, MaxStreamReceiveWindow: 16 << 20,
		InitialConnectionReceiveWindow: 2 << 20, MaxConnectionReceiveWindow: 32 << 20,
	}
}

// bareListener is the destination's end.
type bareListener struct {
	addr  string
	quit  func()
	ready chan struct{} // closed when in and err are set
	in    io.Reader
	err   error
}

func listenBare(kind wire.LaneMode, id *mesh.Identity) (*bareListener, error) {
	l := &bareListener{ready: make(chan struct{})}
	conf := id.ServerTLS([]string{alpn}, mesh.Allow(mesh.RoleWorker))
	if kind == wire.LaneQUIC {
		ln, err := quic.ListenAddr("127.0.0.1:0", conf, quicConfig())
		if err != nil {
			return nil, err
		}
		l.addr, l.quit = ln.Addr().String(), func() { ln.Close() }
		go func() {
			defer close(l.ready)
			ctx, cancel := context.WithTimeout(context.Background(), handshake)
			defer cancel()
			var q *quic.Conn
			if q, l.err = ln.Accept(ctx); l.err == nil {
				l.in, l.err = q.AcceptUniStream(ctx)
			}
		}()
		return l, nil
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l.addr, l.quit = ln.Addr().String(), func() { ln.Close() }
	go func() {
		defer close(l.ready)
		c, err := ln.Accept()
		if err != nil {
			l.err = err
			return
		}
		t := tls.Server(c, conf)
		if l.err = t.SetDeadline(time.Now().Add(handshake)); l.err == nil {
			l.err = t.Handshake()
		}
		if l.err == nil {
			l.err = t.SetDeadline(time.Time{})
		}
		l.in = t
	}()
	return l, nil
}

// receive reads n bytes into a ring of pages.
func (l *bareListener) receive(n int64, buf []byte) error {
	<-l.ready
	if l.err != nil {
		return fmt.Errorf("bare connection: %w", l.err)
	}
	for got := int64(0); got < n; {
		at := int(got % int64(len(buf)))
		k, err := l.in.Read(buf[at:min(int64(len(buf)), int64(at)+n-got)])
		if err != nil {
			return fmt.Errorf("bare connection: %w", err)
		}
		got += int64(k)
	}
	return nil
}

// bareConn is the source's end: it writes pages, each flushed.
type bareConn struct {
	w     io.Writer
	flush func() error
	quit  func()
}

func dialBare(ctx context.Context, kind wire.LaneMode, id *mesh.Identity, addr string) (*bareConn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshake)
	defer cancel()
	conf := id.ClientTLS([]string{alpn}, mesh.Peer{Role: mesh.RoleWorker, Name: destination})
	if kind == wire.LaneQUIC {
		q, err := quic.DialAddr(ctx, addr, conf, quicConfig())
		if err != nil {
			return nil, err
		}
		quit := func() { q.CloseWithError(0, "") }
		s, err := q.OpenUniStreamSync(ctx)
		if err != nil {
			quit()
			return nil, err
		}
		// A stream exists for the peer when something was written to it.
		return &bareConn{w: s, flush: func() error { return nil }, quit: quit}, nil
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	u := &underTLS{Conn: c, direct: true}
	t := tls.Client(u, conf)
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	u.w, u.direct = bufio.NewWriterSize(c, coalesce), false
	return &bareConn{w: t, flush: u.w.Flush, quit: func() { c.Close() }}, nil
}

// underTLS gathers what TLS writes. One goroutine writes, and TLS 1.3 has nothing to write from its reader here.
type underTLS struct {
	net.Conn
	w      *bufio.Writer
	direct bool
}

func (u *underTLS) Write(p []byte) (int, error) {
	if u.direct {
		return u.Conn.Write(p)
	}
	return u.w.Write(p)
}

func (c *bareConn) send(pages int, buf []byte) error {
	page := len(buf) / ring
	for i := range pages {
		at := i % ring * page
		if _, err := c.w.Write(buf[at : at+page]); err != nil {
			return err
		}
		if err := c.flush(); err != nil {
			return err
		}
	}
	return nil
}

var errGone = errors.New("the other process is gone")
