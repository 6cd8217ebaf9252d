package wire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem/state"
)

// dial is one attempt to connect to a peer, shared by all who want it.
type dial struct {
	done chan struct{}
	s    *session
	err  error
}

// openStream opens a stream to a peer process, on the connection that there is or a new one. The caller releases the
// session, which is held, when the stream belongs to a flow or is done.
func (n *Node) openStream(ctx context.Context, to state.Peer, at Endpoint) (*session, stream, error) {
	for {
		s, fresh, err := n.session(ctx, to, at)
		if err != nil {
			return nil, nil, err
		}
		if !s.hold() {
			n.dropSession(s)
			if fresh {
				return nil, nil, &Error{Code: ErrPeerLost, Peer: to.Worker, Detail: "the connection closed"}
			}
			continue
		}
		st, err := s.link.open(ctx)
		if err == nil {
			return s, st, nil
		}
		s.release()
		// A kept connection may have ended just now; a new one that fails is a failure.
		if fresh || ctx.Err() != nil {
			return nil, nil, err
		}
		n.dropSession(s)
	}
}

// session returns a live connection to the peer process, dialled now if need be.
func (n *Node) session(ctx context.Context, to state.Peer, at Endpoint) (s *session, fresh bool, err error) {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, false, &Error{Code: ErrClosed}
	}
	if at.QUIC != "" {
		n.noteEndpoint(to, at)
	}
	if s := n.find(to); s != nil {
		n.mu.Unlock()
		return s, false, nil
	}
	if at.QUIC == "" {
		n.mu.Unlock()
		return nil, false, &Error{Code: ErrUnreachable, Peer: to.Worker, Detail: "the peer's endpoint is not known"}
	}
	d := n.dials[to]
	if d == nil {
		d = &dial{done: make(chan struct{})}
		n.dials[to] = d
		n.spawn(func() {
			d.s, d.err = n.connect(to, at)
			n.mu.Lock()
			delete(n.dials, to)
			n.mu.Unlock()
			close(d.done)
		})
	}
	n.mu.Unlock()
	select {
	case <-d.done:
		return d.s, true, d.err
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

// find (mu) returns the best live session to a peer process. When both sides dialled at once there are two; all use the
// one dialled by the smaller name, and the other idles out.
func (n *Node) find(to state.Peer) *session {
	var best *session
	for s := range n.sessions {
		if s.peer != to {
			continue
		}
		select {
		case <-s.link.done():
			continue
		default:
		}
		s.mu.Lock()
		closed := s.closed
		s.mu.Unlock()
		if !closed && (best == nil || s.dialed == (n.name < to.Worker)) {
			best = s
		}
	}
	return best
}

// maxEndpoints bounds the memory of where peers listen.
const maxEndpoints = 4096

// noteEndpoint (mu) remembers where a peer listens, for commits after a connection was lost.
func (n *Node) noteEndpoint(p state.Peer, at Endpoint) {
	if len(n.ends) >= maxEndpoints {
		clear(n.ends)
	}
	n.ends[p] = at
}

func (n *Node) lastEndpoint(p state.Peer) Endpoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ends[p]
}

// hello describes this node to a peer; want is the incarnation expected of it, or 0.
func (n *Node) hello(want uint64) hello {
	return hello{versionMin, versionMax, n.name, n.cfg.Incarnation, want, n.cfg.Lane, n.t.endpoint(), n.t.local()}
}

// connect dials a peer and exchanges hellos.
func (n *Node) connect(to state.Peer, at Endpoint) (*session, error) {
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Timeouts.Handshake)
	defer cancel()
	l, err := n.t.dial(ctx, at, to.Worker)
	if err != nil {
		return nil, err
	}
	s, err := n.introduce(ctx, l, to, at)
	if err != nil {
		l.close(codeOf(err), "")
		return nil, err
	}
	return s, nil
}

func (n *Node) introduce(ctx context.Context, l link, to state.Peer, at Endpoint) (*session, error) {
	lost := func(err error) error {
		var known *Error
		if errors.As(err, &known) {
			return err
		}
		return &Error{Code: ErrUnreachable, Peer: to.Worker, Detail: "no answer to the hello", Cause: err}
	}
	st, err := l.open(ctx)
	if err != nil {
		return nil, lost(err)
	}
	defer context.AfterFunc(n.ctx, st.stop)()
	end, _ := ctx.Deadline()
	st.SetReadDeadline(end)
	st.SetWriteDeadline(end)
	if _, err := st.Write(n.hello(to.Incarnation).encode()); err != nil {
		return nil, lost(err)
	}
	kind, p, err := readMsg(st, 0)
	if err != nil {
		return nil, lost(err)
	}
	switch kind {
	case msgHello:
	case msgRefused:
		r, err := decodeRefusal(p, kind)
		if err != nil {
			return nil, err
		}
		return nil, &Error{Code: r.known(), Peer: to.Worker, Detail: r.detail}
	default:
		return nil, &Error{Code: ErrProtocol, Peer: to.Worker, Detail: "a hello was not answered with one"}
	}
	h, err := decodeHello(p)
	if err == nil {
		err = n.checkHello(h, l.peer())
	}
	if err != nil {
		return nil, err
	}
	if h.incarnation != to.Incarnation {
		return nil, &Error{Code: ErrStale, Peer: to.Worker, Detail: "the peer is another process than the handoff is bound to"}
	}
	st.SetReadDeadline(time.Time{})
	s, err := n.newSession(l, st, h, true, at)
	if err != nil {
		return nil, err
	}
	if err := n.admit(s); err != nil {
		return nil, err
	}
	n.spawn(s.run)
	return s, nil
}

// checkHello refuses a peer that speaks another version or claims another name than it proved.
func (n *Node) checkHello(h hello, proven string) error {
	switch {
	case h.min > versionMax || h.max < versionMin || h.min > h.max:
		return &Error{Code: ErrVersion, Peer: proven, Detail: fmt.Sprintf("peer speaks %d to %d, this build %d to %d", h.min, h.max, versionMin, versionMax)}
	case h.worker != proven || h.incarnation == 0:
		return &Error{Code: ErrIdentity, Peer: proven, Detail: "the hello names another worker than the certificate"}
	}
	return nil
}

// acceptLink serves an incoming connection.
func (n *Node) acceptLink(l link) {
	s, err := n.welcome(l)
	if err != nil {
		l.close(codeOf(err), "hello refused")
		return
	}
	s.run()
}

func (n *Node) welcome(l link) (*session, error) {
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Timeouts.Handshake)
	defer cancel()
	st, err := l.accept(ctx)
	if err != nil {
		return nil, err
	}
	end, _ := ctx.Deadline()
	st.SetReadDeadline(end)
	st.SetWriteDeadline(end)
	kind, p, err := readMsg(st, 0)
	if err != nil {
		return nil, err
	}
	if kind != msgHello {
		return nil, &Error{Code: ErrProtocol, Detail: "a connection begins with a hello"}
	}
	h, err := decodeHello(p)
	if err == nil {
		err = n.checkHello(h, l.peer())
	}
	if err == nil && h.want != 0 && h.want != n.cfg.Incarnation {
		err = &Error{Code: ErrStale, Detail: "this worker was restarted since"}
	}
	var s *session
	if err == nil {
		s, err = n.newSession(l, st, h, false, h.endpoint)
	}
	if err == nil {
		err = n.admit(s)
	}
	if err != nil {
		n.refuse(st, err)
		// Let the refusal arrive: the dialler closes when it has read it.
		select {
		case <-l.done():
		case <-ctx.Done():
		}
		return nil, err
	}
	if _, err := st.Write(n.hello(0).encode()); err != nil {
		n.dropSession(s)
		return nil, err
	}
	st.SetReadDeadline(time.Time{})
	return s, nil
}

// admit makes a session known, and ends those of earlier processes of the same worker.
func (n *Node) admit(s *session) error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return &Error{Code: ErrClosed}
	}
	n.sessions[s] = struct{}{}
	n.byID[s.id] = s
	if s.to.QUIC != "" {
		n.noteEndpoint(s.peer, s.to)
	}
	var old []*session
	for o := range n.sessions {
		if o.peer.Worker == s.peer.Worker && o.peer.Incarnation < s.peer.Incarnation {
			old = append(old, o)
		}
	}
	n.mu.Unlock()
	for _, o := range old {
		o.link.close(ErrStale, "a later process of this worker connected")
	}
	return nil
}

func (n *Node) dropSession(s *session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.sessions, s)
	if n.byID[s.id] == s {
		delete(n.byID, s.id)
	}
}
