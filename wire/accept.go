package wire

import (
	"time"

	"github.com/tandem-llm/tandem/state"
)

// wait starts an exchange as the side that has the ticket and waits.
func (n *Node) wait(x *exchange, self state.Peer) error {
	x.ticket = newTicket()
	// The timer first: once enlisted the exchange may be opened.
	if x.b.Deadline > 0 {
		x.mu.Lock()
		x.expiry = time.AfterFunc(x.b.Deadline, func() {
			x.end(ending{err: x.errorf(ErrTicketExpired, "", nil), unopened: true})
		})
		x.mu.Unlock()
	}
	if err := n.enlist(x, self); err != nil {
		x.mu.Lock()
		x.ended = true
		x.cancel()
		if x.expiry != nil {
			x.expiry.Stop()
		}
		x.mu.Unlock()
		return err
	}
	return nil
}

// serveStream serves a stream that the peer opened: a handoff's, or a commit's.
func (n *Node) serveStream(s *session, st stream) {
	t := &n.cfg.Timeouts
	st.SetReadDeadline(time.Now().Add(t.FirstByte))
	st.SetWriteDeadline(time.Now().Add(t.FirstByte))
	kind, p, err := readMsg(st, 0)
	if err != nil {
		st.stop()
		return
	}
	st.SetReadDeadline(time.Time{})
	switch kind {
	case msgOpen:
		o, err := decodeOpen(p)
		if err != nil {
			n.refuse(st, err)
			return
		}
		n.serveOpen(s, st, o)
	case msgCommit:
		c, err := decodeCommit(p, kind)
		if err != nil {
			n.refuse(st, err)
			return
		}
		n.answerCommit(s, st, c)
	default:
		n.refuse(st, &Error{Code: ErrProtocol, Detail: "a stream begins with an open or a commit"})
	}
}

// refuse says no and closes the stream in order, so that the answer arrives.
func (n *Node) refuse(st stream, err error) {
	r := refusal{code: codeOf(err)}
	if e, ok := err.(*Error); ok {
		r.detail = e.Detail
	}
	st.Write(r.encode(msgRefused))
	st.closeWrite()
}

// serveOpen lets the peer open a handoff that waits here, once, and then serves its control stream.
func (n *Node) serveOpen(s *session, st stream, o open) {
	x, err := n.redeem(s, o)
	if err != nil {
		n.refuse(st, err)
		return
	}
	// The host's machine decides. Until it does the ticket is taken, and free again if it says no.
	if f := x.on.open; f != nil {
		if err := f(o.skip); err != nil {
			x.mu.Lock()
			x.opening = false
			x.mu.Unlock()
			n.refuse(st, &Error{Code: ErrRefused, Detail: err.Error()})
			return
		}
	}
	st.SetWriteDeadline(time.Now().Add(n.cfg.Timeouts.FirstByte))
	ctl, err := x.attach(s, st)
	if err != nil {
		x.mu.Lock()
		x.opening = false
		ended := x.ended
		x.mu.Unlock()
		if ended {
			err = &Error{Code: ErrTicketRevoked}
		}
		n.refuse(st, err)
		return
	}
	x.read(ctl)
}

// redeem finds the exchange that an open is for and takes its ticket.
func (n *Node) redeem(s *session, o open) (*exchange, error) {
	k := flowKey{o.handoff, s.peer.Worker, !o.send}
	n.mu.Lock()
	x := n.flows[k]
	old, known := n.past.get(k)
	n.mu.Unlock()
	switch {
	case o.yours != n.cfg.Incarnation:
		return nil, &Error{Code: ErrStale, Detail: "the open is for an earlier process of this worker"}
	case o.mine != s.peer.Incarnation:
		return nil, &Error{Code: ErrStale, Detail: "the open is from another process than the connection"}
	case x == nil && known && old.opened:
		return nil, &Error{Code: ErrTicketUsed}
	case x == nil && known && old.code == ErrTicketExpired:
		return nil, &Error{Code: ErrTicketExpired}
	case x == nil && known:
		return nil, &Error{Code: ErrTicketRevoked}
	case x == nil || x.ticket == nil:
		return nil, &Error{Code: ErrTicket}
	case x.peer != s.peer:
		return nil, &Error{Code: ErrStale, Detail: "the handoff is bound to another process of the peer"}
	case !sameProof(o.proof, proofOf(x.ticket, x.b, o.send)):
		return nil, &Error{Code: ErrTicket}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.ended:
		return nil, &Error{Code: ErrTicketRevoked}
	case x.opened || x.opening:
		return nil, &Error{Code: ErrTicketUsed}
	}
	x.opening = true
	return x, nil
}
