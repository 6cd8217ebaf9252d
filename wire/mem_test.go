package wire

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// memNet is a network in memory: the transports on it reach each other by name. It stands in for sockets, so that
// everything above the transport seam runs under testing/synctest.
type memNet struct {
	mu    sync.Mutex
	nodes map[string]*memTransport
	noTLS bool // lanes are not reachable
	links []*memLink
	lanes []*memBulk
}

func newMemNet() *memNet { return &memNet{nodes: make(map[string]*memTransport)} }

type memTransport struct {
	net    *memNet
	name   string // the worker's proven name
	addr   string
	links  chan *memLink
	lanes  chan *memBulk
	closed chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
}

// listen joins the network. Several transports may have the same name, as a restarted worker does.
func (n *memNet) listen(name string) *memTransport {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := &memTransport{
		net: n, name: name, addr: fmt.Sprintf("%s:%d", name, len(n.nodes)),
		links: make(chan *memLink, 16), lanes: make(chan *memBulk, 16), closed: make(chan struct{}),
	}
	n.nodes[t.addr] = t
	return t
}

func (t *memTransport) endpoint() Endpoint { return Endpoint{QUIC: t.addr, TLS: t.addr, Lanes: 4} }

func (t *memTransport) close() error {
	t.once.Do(func() { close(t.closed) })
	return nil
}

func (t *memTransport) serve(onLink func(link), onLane func(lane)) {
	for {
		select {
		case l := <-t.links:
			t.wg.Go(func() { onLink(l) })
		case l := <-t.lanes:
			t.wg.Go(func() { onLane(l) })
		case <-t.closed:
			t.wg.Wait()
			return
		}
	}
}

func (t *memTransport) find(ctx context.Context, addr, want string) (*memTransport, error) {
	t.net.mu.Lock()
	o := t.net.nodes[addr]
	t.net.mu.Unlock()
	if o == nil {
		<-ctx.Done() // like a host that is not there
		return nil, &Error{Code: ErrUnreachable, Peer: want, Cause: ctx.Err()}
	}
	select {
	case <-o.closed:
		return nil, &Error{Code: ErrUnreachable, Peer: want}
	default:
	}
	if o.name != want {
		return nil, &Error{Code: ErrIdentity, Peer: want}
	}
	return o, nil
}

func (t *memTransport) dial(ctx context.Context, to Endpoint, want string) (link, error) {
	o, err := t.find(ctx, to.QUIC, want)
	if err != nil {
		return nil, err
	}
	a, b := newMemLinks(t.name, o.name)
	t.net.mu.Lock()
	t.net.links = append(t.net.links, a)
	t.net.mu.Unlock()
	o.links <- b
	return a, nil
}

func (t *memTransport) local() string { return "" }

func (t *memTransport) dialLocal(context.Context, string) (lane, error) {
	return nil, errors.New("memory has no hosts")
}

func (t *memTransport) dialLane(ctx context.Context, to Endpoint, want string) (lane, error) {
	t.net.mu.Lock()
	no := t.net.noTLS
	t.net.mu.Unlock()
	if no {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	o, err := t.find(ctx, to.TLS, want)
	if err != nil {
		return nil, err
	}
	a, b := newMemDuplex("tls", t.name, o.name)
	t.net.mu.Lock()
	t.net.lanes = append(t.net.lanes, a, b)
	t.net.mu.Unlock()
	o.lanes <- b
	return a, nil
}

// memLink is one end of a connection.
type memLink struct {
	from, to string
	secret   []byte
	other    *memLink
	streams  chan *memStream
	bulks    chan *memBulk
	end      *memEnd

	mu    sync.Mutex
	parts []interface{ stop() }
}

// memEnd is the shared end of a connection.
type memEnd struct {
	mu   sync.Mutex
	done chan struct{}
	err  error
	by   *memLink
}

func newMemLinks(a, b string) (*memLink, *memLink) {
	end := &memEnd{done: make(chan struct{})}
	secret := newTicket()
	mk := func(from, to string) *memLink {
		return &memLink{from: from, to: to, secret: secret, streams: make(chan *memStream, 1024), bulks: make(chan *memBulk, 1024), end: end}
	}
	x, y := mk(a, b), mk(b, a)
	x.other, y.other = y, x
	return x, y
}

func (l *memLink) peer() string { return l.to }

func (l *memLink) keep(p interface{ stop() }) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parts = append(l.parts, p)
}

func (l *memLink) open(context.Context) (stream, error) {
	if l.ended() {
		return nil, l.cause()
	}
	ab, ba := newMemPipe(64<<10), newMemPipe(64<<10)
	a, b := &memStream{r: ba, w: ab}, &memStream{r: ab, w: ba}
	l.keep(a)
	l.other.keep(b)
	l.other.streams <- b
	return a, nil
}

func (l *memLink) accept(ctx context.Context) (stream, error) {
	select {
	case s := <-l.streams:
		return s, nil
	case <-l.end.done:
		return nil, l.cause()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *memLink) openBulk(context.Context) (bulk, error) {
	if l.ended() {
		return nil, l.cause()
	}
	p := newMemPipe(256 << 10)
	a, b := &memBulk{w: p, what: "quic"}, &memBulk{r: p, what: "quic"}
	l.keep(a)
	l.other.keep(b)
	l.other.bulks <- b
	return a, nil
}

func (l *memLink) acceptBulk(ctx context.Context) (bulk, error) {
	select {
	case s := <-l.bulks:
		return s, nil
	case <-l.end.done:
		return nil, l.cause()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *memLink) export(label string, n int) ([]byte, error) {
	m := hmac.New(sha256.New, l.secret)
	m.Write([]byte(label))
	return m.Sum(nil)[:n], nil
}

func (l *memLink) rtt() time.Duration { return time.Millisecond }

func (l *memLink) close(code Code, detail string) {
	l.end.mu.Lock()
	if l.end.err != nil {
		l.end.mu.Unlock()
		return
	}
	l.end.err, l.end.by = &Error{Code: code, Detail: detail}, l
	close(l.end.done)
	l.end.mu.Unlock()
	for _, m := range []*memLink{l, l.other} {
		m.mu.Lock()
		parts := m.parts
		m.mu.Unlock()
		for _, p := range parts {
			p.stop()
		}
	}
}

func (l *memLink) done() <-chan struct{} { return l.end.done }

func (l *memLink) ended() bool {
	select {
	case <-l.end.done:
		return true
	default:
		return false
	}
}

func (l *memLink) cause() error {
	l.end.mu.Lock()
	defer l.end.mu.Unlock()
	if l.end.err == nil || l.end.by == l {
		return l.end.err
	}
	return &Error{Code: ErrPeerLost, Peer: l.to, Cause: l.end.err}
}

type memStream struct{ r, w *memPipe }

func (s *memStream) Read(p []byte) (int, error)         { return s.r.read(p) }
func (s *memStream) Write(p []byte) (int, error)        { return s.w.write(p) }
func (s *memStream) SetReadDeadline(t time.Time) error  { s.r.readUntil(t); return nil }
func (s *memStream) SetWriteDeadline(t time.Time) error { s.w.writeUntil(t); return nil }
func (s *memStream) closeWrite()                        { s.w.end(io.EOF, nil) }
func (s *memStream) stop()                              { s.r.end(errMemCut, errMemCut); s.w.end(errMemCut, errMemCut) }

var errMemCut = errors.New("memory pipe cut")

// memBulk is a duplex lane, or one direction of a stream.
type memBulk struct {
	r, w   *memPipe
	what   string
	to     string
	secret []byte
}

func newMemDuplex(what, a, b string) (*memBulk, *memBulk) {
	ab, ba := newMemPipe(256<<10), newMemPipe(256<<10)
	s := newTicket()
	return &memBulk{ba, ab, what, b, s}, &memBulk{ab, ba, what, a, s}
}

func (b *memBulk) Read(p []byte) (int, error)  { return b.r.read(p) }
func (b *memBulk) Write(p []byte) (int, error) { return b.w.write(p) }
func (b *memBulk) SetReadDeadline(t time.Time) error {
	b.r.readUntil(t)
	return nil
}
func (b *memBulk) SetWriteDeadline(t time.Time) error { b.w.writeUntil(t); return nil }
func (b *memBulk) flush() error                       { return nil }
func (b *memBulk) finish()                            { b.w.end(io.EOF, nil) }
func (b *memBulk) kind() string                       { return b.what }
func (b *memBulk) shared() (*arena, *mapping)         { return nil, nil }
func (b *memBulk) unmap()                             {}
func (b *memBulk) peer() string                       { return b.to }
func (b *memBulk) stop() {
	for _, p := range []*memPipe{b.r, b.w} {
		if p != nil {
			p.end(errMemCut, errMemCut)
		}
	}
}

func (b *memBulk) export(label string, n int) ([]byte, error) {
	m := hmac.New(sha256.New, b.secret)
	m.Write([]byte(label))
	return m.Sum(nil)[:n], nil
}

// memPipe is one direction of bytes with a bounded buffer, deadlines, and a way to hold the bytes back.
type memPipe struct {
	mu      sync.Mutex
	changed chan struct{}
	buf     []byte
	limit   int
	frozen  bool
	let     int // bytes that a frozen pipe still lets through
	damage  int // flips a bit of the byte that is read after so many, if positive
	rerr    error
	werr    error
	rdl     time.Time
	wdl     time.Time
}

func newMemPipe(limit int) *memPipe { return &memPipe{limit: limit, changed: make(chan struct{})} }

func (p *memPipe) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *memPipe) update(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.signal()
}

func (p *memPipe) readUntil(t time.Time)  { p.update(func() { p.rdl = t }) }
func (p *memPipe) writeUntil(t time.Time) { p.update(func() { p.wdl = t }) }
func (p *memPipe) freeze(on bool)         { p.update(func() { p.frozen = on }) }

// end makes reads fail with r once the buffer is empty (at once unless EOF) and writes with w.
func (p *memPipe) end(r, w error) {
	p.update(func() {
		if p.rerr == nil || r == errMemCut {
			p.rerr = r
		}
		if w == nil {
			w = io.ErrClosedPipe
		}
		p.werr = w
	})
}

// wait (mu) waits for a change or the deadline, and returns with the lock held.
func (p *memPipe) wait(deadline time.Time) error {
	ch := p.changed
	var c <-chan time.Time
	if !deadline.IsZero() {
		d := time.Until(deadline)
		if d <= 0 {
			return os.ErrDeadlineExceeded
		}
		t := time.NewTimer(d)
		defer t.Stop()
		c = t.C
	}
	p.mu.Unlock()
	select {
	case <-ch:
	case <-c:
	}
	p.mu.Lock()
	return nil
}

func (p *memPipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if !p.rdl.IsZero() && !time.Now().Before(p.rdl) {
			return 0, os.ErrDeadlineExceeded
		}
		if p.rerr == errMemCut {
			return 0, p.rerr
		}
		if len(p.buf) > 0 && (!p.frozen || p.let > 0) {
			if p.frozen {
				b = b[:min(len(b), p.let)]
			}
			n := copy(b, p.buf)
			p.let -= min(n, p.let)
			p.buf = p.buf[n:]
			if p.damage > 0 {
				if p.damage <= n {
					b[p.damage-1] ^= 0x10
				}
				p.damage -= n
			}
			p.signal()
			return n, nil
		}
		if p.rerr != nil && len(p.buf) == 0 {
			return 0, p.rerr
		}
		if err := p.wait(p.rdl); err != nil {
			return 0, err
		}
	}
}

func (p *memPipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for {
		if p.werr != nil {
			return n, p.werr
		}
		if !p.wdl.IsZero() && !time.Now().Before(p.wdl) {
			return n, os.ErrDeadlineExceeded
		}
		if k := min(len(b), p.limit-len(p.buf)); k > 0 {
			p.buf = append(p.buf, b[:k]...)
			b = b[k:]
			n += k
			p.signal()
		}
		if len(b) == 0 {
			return n, nil
		}
		if err := p.wait(p.wdl); err != nil {
			return n, err
		}
	}
}
