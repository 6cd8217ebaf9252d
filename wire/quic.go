package wire

import (
	"context"
	"errors"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/tandem-llm/tandem/mesh"
)

// quicConfig has the settings that measurements found to matter: large windows; segmentation offload and path MTU
// discovery are quic-go's defaults, and the initial packet size is left alone so that discovery starts low and succeeds.
func quicConfig(cfg *Config) *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout:           cfg.Timeouts.Handshake,
		MaxIdleTimeout:                 cfg.Timeouts.Dead,
		KeepAlivePeriod:                cfg.Timeouts.Dead / 3,
		InitialStreamReceiveWindow:     1 << 20,
		MaxStreamReceiveWindow:         16 << 20,
		InitialConnectionReceiveWindow: 2 << 20,
		MaxConnectionReceiveWindow:     32 << 20,
		MaxIncomingStreams:             4096,
		MaxIncomingUniStreams:          4096,
	}
}

// quicLink is the control connection of sockets.
type quicLink struct {
	c    *quic.Conn
	name string
}

func newQUICLink(c *quic.Conn) (*quicLink, error) {
	p, err := mesh.PeerOf(c.ConnectionState().TLS)
	if err != nil {
		return nil, err
	}
	return &quicLink{c, p.Name}, nil
}

func (l *quicLink) peer() string { return l.name }

func (l *quicLink) open(ctx context.Context) (stream, error) {
	s, err := l.c.OpenStreamSync(ctx)
	if err != nil {
		return nil, l.why(err)
	}
	// Control goes before bulk on the same connection.
	s.SetPriority(0, true)
	return quicStream{s, l}, nil
}

func (l *quicLink) accept(ctx context.Context) (stream, error) {
	s, err := l.c.AcceptStream(ctx)
	if err != nil {
		return nil, l.why(err)
	}
	s.SetPriority(0, true)
	return quicStream{s, l}, nil
}

func (l *quicLink) openBulk(ctx context.Context) (bulk, error) {
	s, err := l.c.OpenUniStreamSync(ctx)
	if err != nil {
		return nil, l.why(err)
	}
	s.SetPriority(bulkUrgency, true)
	return &quicBulk{w: s}, nil
}

func (l *quicLink) acceptBulk(ctx context.Context) (bulk, error) {
	s, err := l.c.AcceptUniStream(ctx)
	if err != nil {
		return nil, l.why(err)
	}
	return &quicBulk{r: s}, nil
}

// bulkUrgency is the RFC 9218 urgency of bulk streams; control has 0, the most urgent.
const bulkUrgency = 5

func (l *quicLink) export(label string, n int) ([]byte, error) {
	cs := l.c.ConnectionState().TLS
	return cs.ExportKeyingMaterial(label, nil, n)
}

func (l *quicLink) rtt() time.Duration { return l.c.ConnectionStats().SmoothedRTT }

func (l *quicLink) close(code Code, detail string) {
	l.c.CloseWithError(quic.ApplicationErrorCode(code), printable(detail))
}

func (l *quicLink) done() <-chan struct{} { return l.c.Context().Done() }

func (l *quicLink) cause() error {
	select {
	case <-l.c.Context().Done():
		return l.why(context.Cause(l.c.Context()))
	default:
		return nil
	}
}

// why turns quic-go's error for a connection's end into ours.
func (l *quicLink) why(err error) error {
	var app *quic.ApplicationError
	var tr *quic.TransportError
	var idle *quic.IdleTimeoutError
	switch {
	case errors.As(err, &app):
		code := (refusal{code: Code(app.ErrorCode)}).known()
		if !app.Remote {
			return &Error{Code: code, Peer: l.name, Detail: app.ErrorMessage}
		}
		if code == ErrClosed || code == ErrInternal {
			code = ErrPeerLost
		}
		return &Error{Code: code, Peer: l.name, Detail: "peer closed the connection: " + printable(app.ErrorMessage)}
	case errors.As(err, &tr) && tr.ErrorCode.IsCryptoError():
		return &Error{Code: ErrIdentity, Peer: l.name, Cause: err}
	case errors.As(err, &idle):
		return &Error{Code: ErrPeerLost, Peer: l.name, Detail: "silent for longer than the Dead timeout"}
	}
	return &Error{Code: ErrPeerLost, Peer: l.name, Cause: err}
}

type quicStream struct {
	*quic.Stream
	l *quicLink
}

// Read says why the connection ended where that is why the stream did.
func (s quicStream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if err != nil && s.l.c.Context().Err() != nil && !isTimeout(err) {
		err = linkEnd{s.l.cause()}
	} else if c := new(quic.TransportError); errors.As(err, &c) {
		err = s.l.why(err) // the stream may know before the connection's context does
	}
	return n, err
}

// Write says the same.
func (s quicStream) Write(p []byte) (int, error) {
	n, err := s.Stream.Write(p)
	if err != nil && s.l.c.Context().Err() != nil && !isTimeout(err) {
		err = s.l.cause()
	}
	return n, err
}

func (s quicStream) closeWrite() { s.Stream.Close() }

func (s quicStream) stop() {
	s.CancelRead(quic.StreamErrorCode(ErrCancelled))
	s.CancelWrite(quic.StreamErrorCode(ErrCancelled))
}

// quicBulk is the lane that always works: one direction of one stream, for one handoff.
type quicBulk struct {
	r *quic.ReceiveStream
	w *quic.SendStream
}

func (b *quicBulk) kind() string { return "quic" }

func (b *quicBulk) Read(p []byte) (int, error) {
	if b.r == nil {
		return 0, ErrState
	}
	return b.r.Read(p)
}

func (b *quicBulk) Write(p []byte) (int, error) {
	if b.w == nil {
		return 0, ErrState
	}
	return b.w.Write(p)
}

func (b *quicBulk) SetReadDeadline(t time.Time) error {
	if b.r == nil {
		return ErrState
	}
	return b.r.SetReadDeadline(t)
}

func (b *quicBulk) flush() error { return nil }

func (b *quicBulk) finish() {
	if b.w != nil {
		b.w.Close()
	}
}

func (b *quicBulk) stop() {
	if b.w != nil {
		b.w.CancelWrite(quic.StreamErrorCode(ErrCancelled))
	}
	if b.r != nil {
		b.r.CancelRead(quic.StreamErrorCode(ErrCancelled))
	}
}

// stopped reports whether a stream's error says that the peer ended this stream alone, on purpose.
func stopped(err error) bool {
	var e *quic.StreamError
	return errors.As(err, &e) && e.Remote && e.ErrorCode == quic.StreamErrorCode(ErrCancelled)
}
