package bus

import (
	"crypto/rand"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/mesh"
)

// A client in the server's own process is connected by memory: what a worker sends is encrypted and
// written to a socket once, not twice. NATS's in-process connection is a pipe without a buffer, in which
// a sender that holds the client's lock and a server that answers it could wait for each other; memoryConn
// never lets a sender wait.

// maxBacklog bounds what a client in this process may have sent and the server not taken. It is several of the
// largest messages; a server that far behind is stuck, and the connection ends as one to a dead server would.
const maxBacklog = 8 * MaxPayload

// lastWrite bounds the delivery of what was sent before Close.
const lastWrite = time.Second

var errBacklog = errors.New("the server in this process takes nothing any more")

// admit lets the peer connect from this process and returns the token that proves it.
func (s *Server) admit(p mesh.Peer) string {
	token := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admitted == nil {
		s.admitted = make(map[string]mesh.Peer)
	}
	s.admitted[token] = p
	return token
}

// admittedPeer returns who a token was given to.
func (s *Server) admittedPeer(token string) (mesh.Peer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.admitted[token]
	return p, ok
}

// dial connects a client of this process.
func (s *Server) dial() (net.Conn, error) {
	conn, err := s.ns.InProcessConn()
	if err != nil {
		return nil, err
	}
	return newMemoryConn(conn, maxBacklog), nil
}

func newMemoryConn(pipe net.Conn, limit int) *memoryConn {
	m := &memoryConn{Conn: pipe, limit: limit, wake: make(chan struct{}, 1)}
	go m.deliver()
	return m
}

// memoryConn is a pipe whose writes go to a bounded buffer, and from there to the pipe on a goroutine of
// its own. All methods are safe for concurrent use.
type memoryConn struct {
	net.Conn // the pipe

	limit int           // bytes of buf
	wake  chan struct{} // has capacity 1; a token in it means: look again

	mu     sync.Mutex
	buf    []byte // accepted and not taken yet
	err    error  // of the pipe; ends everything
	closed bool
}

// Write takes all of p, or fails at once.
func (m *memoryConn) Write(p []byte) (int, error) {
	m.mu.Lock()
	switch {
	case m.closed:
		m.mu.Unlock()
		return 0, net.ErrClosed
	case m.err != nil:
		defer m.mu.Unlock()
		return 0, m.err
	case len(m.buf)+len(p) > m.limit:
		m.err = errBacklog
		m.mu.Unlock()
		m.Conn.Close() // ends deliver, which may be stuck in it
		return 0, errBacklog
	}
	m.buf = append(m.buf, p...)
	m.mu.Unlock()
	m.signal()
	return len(p), nil
}

func (m *memoryConn) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// deliver moves what was written into the pipe until the connection ends.
func (m *memoryConn) deliver() {
	defer m.Conn.Close()
	var spare []byte
	for range m.wake {
		m.mu.Lock()
		out := m.buf
		m.buf = spare[:0]
		closed := m.closed
		m.mu.Unlock()
		var err error
		if len(out) > 0 {
			_, err = m.Conn.Write(out)
		}
		clear(out) // messages hold text
		if spare = out; cap(spare) > 1<<16 {
			spare = nil
		}
		if err != nil {
			m.mu.Lock()
			m.err, m.buf = err, nil
			m.mu.Unlock()
		}
		if closed || err != nil {
			return
		}
	}
}

// Close ends reading at once, and the connection when what was written has been delivered.
func (m *memoryConn) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.closed = true
		m.Conn.SetReadDeadline(time.Unix(1, 0))
		m.Conn.SetWriteDeadline(time.Now().Add(lastWrite))
		m.signal()
	}
	return nil
}

// SetDeadline bounds reading; writing never waits.
func (m *memoryConn) SetDeadline(t time.Time) error { return m.SetReadDeadline(t) }

// SetReadDeadline implements net.Conn.
func (m *memoryConn) SetReadDeadline(t time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return net.ErrClosed
	}
	return m.Conn.SetReadDeadline(t)
}

// SetWriteDeadline does nothing: writing never waits.
func (m *memoryConn) SetWriteDeadline(time.Time) error { return nil }
