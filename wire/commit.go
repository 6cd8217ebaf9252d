package wire

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem/state"
)

// Commit tells the source that the destination took the handoff over, and repeats it, over new streams if need be, until
// the source answers (event Committed) or Timeouts.Commit is over (event Failed with ErrCommit). It is an error before
// Manifest and after the end. A second call does nothing.
func (r *Receiver) Commit(o Outcome) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.commit != nil:
		return nil
	case r.ended || !r.complete:
		return r.errorf(ErrState, "commit before the manifest or after the end", nil)
	}
	r.commit = &commit{r.b.Handoff, o}
	r.commitBy = time.Now().Add(r.n.cfg.Timeouts.Commit)
	if r.ctl != nil {
		r.ctl.send(r.commit.encode(msgCommit))
		r.retry = time.AfterFunc(r.n.cfg.Timeouts.Retry, r.again)
	} else {
		r.retry = time.AfterFunc(0, r.again)
	}
	return nil
}

// again asks on a stream of its own, because the handoff's may be gone, and so may the connection.
func (r *Receiver) again() {
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		return
	}
	if !time.Now().Before(r.commitBy) {
		r.mu.Unlock()
		r.end(ending{err: r.errorf(ErrCommit, "", nil)})
		return
	}
	// Spawned under the lock: an exchange that has not ended keeps the node from being waited for.
	r.n.spawn(func() {
		ctx, cancel := context.WithTimeout(r.ctx, r.n.cfg.Timeouts.FirstByte)
		o, err := r.n.askCommit(ctx, r.peer, *r.commit)
		cancel()
		if err == nil {
			r.answered(o)
			return
		}
		r.mu.Lock()
		if !r.ended {
			r.retry = time.AfterFunc(r.n.cfg.Timeouts.Retry, r.again)
		}
		r.mu.Unlock()
	})
	r.mu.Unlock()
}

// answered takes the source's answer.
func (r *Receiver) answered(o Outcome) {
	r.mu.Lock()
	if r.ended || r.commit == nil {
		r.mu.Unlock()
		return
	}
	r.committed = true
	if f := r.onCommitted; f != nil {
		r.events.push(func() { f(o) })
	}
	r.mu.Unlock()
	r.end(ending{})
}

// askCommit sends a commit as the first message of a new stream and waits for the answer.
func (n *Node) askCommit(ctx context.Context, to state.Peer, c commit) (Outcome, error) {
	sess, st, err := n.openStream(ctx, to, n.lastEndpoint(to))
	if err != nil {
		return 0, err
	}
	defer sess.release()
	defer st.stop()
	defer context.AfterFunc(ctx, st.stop)()
	if _, err := st.Write(c.encode(msgCommit)); err != nil {
		return 0, err
	}
	kind, p, err := readMsg(st, 0)
	if err != nil {
		return 0, err
	}
	if kind != msgCommitAck {
		return 0, &Error{Code: ErrProtocol, Detail: "a commit was not answered with an acknowledgement"}
	}
	a, err := decodeCommit(p, kind)
	if err == nil && a.handoff != c.handoff {
		err = &Error{Code: ErrProtocol, Detail: "acknowledgement of another handoff"}
	}
	return a.outcome, err
}

// answerCommit is the source's side of askCommit: it also answers for handoffs that are over or were never here.
func (n *Node) answerCommit(sess *session, st stream, c commit) {
	k := flowKey{c.handoff, sess.peer.Worker, true}
	n.mu.Lock()
	x := n.flows[k]
	past, known := n.past.get(k)
	n.mu.Unlock()
	answer := OutcomeUnknown
	switch {
	case x != nil && x.peer == sess.peer:
		s := x.half.(*Sender)
		o, err := s.commit(c.outcome)
		if err != nil {
			r := refusal{codeOf(err), ""}
			st.Write(r.encode(msgRefused))
			st.closeWrite()
			return
		}
		answer = o
		defer s.end(ending{})
	case known && past.committed:
		answer = OutcomeActive
	case known:
		answer = OutcomeReleased
	}
	st.Write(commit{c.handoff, answer}.encode(msgCommitAck))
	st.closeWrite()
}
