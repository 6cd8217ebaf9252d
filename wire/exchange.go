package wire

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/state"
)

// exchange is what both ends of one handoff share: who, the ticket, the control stream, deadlines, and the end.
//
// Lock order in this package: exchange.mu, then node.mu, then session.mu; the locks of control, dispatcher, pump, pool,
// budget and quota are leaves. Nothing that may block is called under any of them.
type exchange struct {
	n       *Node
	b       state.Binding
	peer    state.Peer
	sends   bool   // this end is the source
	ticket  []byte // of the waiting end; nil for the one that dials
	skip    uint32 // what a destination that dials asks the source to leave out
	half    half
	on      callbacks
	events  dispatcher
	through bool            // guarded by session.mu: the last frame came
	ctx     context.Context // ends with the exchange
	cancel  context.CancelFunc

	mu        sync.Mutex
	opening   bool // an open is being decided
	opened    bool
	ended     bool
	quiesced  bool
	committed bool     // the source knows of the commit
	sess      *session // set while opened and the connection lives
	ctl       *control // same
	users     int      // goroutines inside a buffer of this handoff: quiescence waits for zero
	asked     time.Time
	signed    bool      // the peer said something since opened
	sign      time.Time // when it last did
	watch     *time.Timer
	expiry    *time.Timer
	stats     Stats
}

// callbacks are the events that both sides have.
type callbacks struct {
	open     func(skip uint32) error
	opened   func()
	failed   func(error)
	quiesced func()
}

// half is the part of an exchange that a Sender and a Receiver do differently. Methods marked (mu) are called with
// exchange.mu held.
type half interface {
	// handle processes a message of an exchange that is open.
	handle(kind msgKind, p []byte) error
	// begin (mu) starts what waits for opened.
	begin()
	// survives (mu) says that everything arrived: the end of the control stream is then no failure, because the commit can
	// still travel over another.
	survives() bool
	// stalled (mu) says what the peer owes for too long, or "".
	stalled(now time.Time) string
	// drop (mu) gives up queued work when the exchange ends and returns what is left to do without the lock.
	drop() func()
	// interrupt makes the goroutines counted in users return, soon or, with force, at any price.
	interrupt(force bool)
}

// ending says how an exchange ends.
type ending struct {
	err   error    // for Failed; nil when the host ended it itself or it is complete
	tell  *refusal // for the peer; nil when it knows
	force bool     // do not wait for goroutines in buffers
	// unopened ends only an exchange that nobody opened yet.
	unopened bool
}

func (x *exchange) init(n *Node, b state.Binding, sends bool, h half, on callbacks) {
	x.n, x.b, x.sends, x.half, x.on = n, b, sends, h, on
	x.peer = b.Destination
	if !sends {
		x.peer = b.Source
	}
	x.events.spawn = n.spawn
	x.ctx, x.cancel = context.WithCancel(context.Background())
	x.stats.Peer = x.peer.Worker
}

func (x *exchange) key() flowKey { return flowKey{x.b.Handoff, x.peer.Worker, x.sends} }

func (x *exchange) errorf(code Code, detail string, cause error) *Error {
	return &Error{Code: code, Handoff: x.b.Handoff, Peer: x.peer.Worker, Detail: detail, Cause: cause}
}

// connect is the dialling side: it opens a stream, presents the ticket and then reads the stream until its end.
func (x *exchange) connect(to Endpoint, ticket []byte) {
	x.mu.Lock()
	x.asked = time.Now()
	x.mu.Unlock()
	for try := 1; ; try++ {
		ctl, err := x.open(to, ticket)
		if errors.Is(err, ErrIdle) && try < maxOpens && x.ctx.Err() == nil {
			continue // the peer closed a connection that nobody used while the open was under way to it
		}
		if err != nil {
			x.end(ending{err: x.wrap(err)})
			return
		}
		x.read(ctl)
		return
	}
}

// maxOpens bounds the attempts on connections that end as unused; an honest peer closes one of them.
const maxOpens = 3

// open is one attempt of connect.
func (x *exchange) open(to Endpoint, ticket []byte) (*control, error) {
	sess, st, err := x.n.openStream(x.ctx, x.peer, to)
	if err != nil {
		return nil, err
	}
	defer sess.release() // attached, it is a flow
	stop := context.AfterFunc(x.ctx, st.stop)
	err = x.present(st, ticket)
	if !stop() && err == nil {
		err = x.ctx.Err()
	}
	if err != nil {
		st.stop()
		var own *Error
		if cause := sess.link.cause(); cause != nil && !errors.As(err, &own) {
			err = cause // why the connection ended is why the stream did
		}
		return nil, err
	}
	ctl, err := x.attach(sess, st)
	if err != nil {
		st.stop()
	}
	return ctl, err
}

// present sends the open and reads its answer.
func (x *exchange) present(st stream, ticket []byte) error {
	t := &x.n.cfg.Timeouts
	o := open{handoff: x.b.Handoff, send: x.sends, mine: x.n.cfg.Incarnation, yours: x.peer.Incarnation, proof: proofOf(ticket, x.b, x.sends), skip: x.skip}
	st.SetWriteDeadline(time.Now().Add(t.FirstByte))
	if _, err := st.Write(o.encode()); err != nil {
		return err
	}
	st.SetReadDeadline(time.Now().Add(t.FirstByte))
	kind, p, err := readMsg(st, 0)
	if err != nil {
		if isTimeout(err) {
			return x.errorf(ErrFirstByte, "no answer to the open", nil)
		}
		return err
	}
	st.SetReadDeadline(time.Time{})
	switch kind {
	case msgOpened:
		return nil
	case msgRefused:
		r, err := decodeRefusal(p, kind)
		if err != nil {
			return err
		}
		return x.errorf(r.known(), r.detail, nil)
	}
	return x.errorf(ErrProtocol, "the answer to an open is neither yes nor no", nil)
}

// attach makes the exchange open on a stream.
func (x *exchange) attach(sess *session, st stream) (*control, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return nil, x.errorf(ErrState, "ended while it was opened", nil)
	}
	if err := sess.add(x); err != nil {
		return nil, err
	}
	x.opened, x.opening = true, false
	x.sess = sess
	x.ctl = newControl(st, x.n.cfg.Timeouts.Progress)
	x.sign = time.Now()
	if !x.asked.IsZero() {
		x.stats.Open = x.sign.Sub(x.asked)
	}
	if x.expiry != nil {
		x.expiry.Stop()
	}
	x.watch = time.AfterFunc(x.beat(), x.tick)
	if x.ticket != nil {
		x.ctl.send(frameMsg(msgOpened, 0, nil))
	}
	x.n.spawn(x.ctl.writeLoop)
	x.events.push(x.on.opened)
	x.half.begin()
	return x.ctl, nil
}

// read serves the control stream until both directions ended.
func (x *exchange) read(ctl *control) {
	err := ctl.readLoop(x.n.cfg.ManifestBytes, x.receive)
	var own *Error
	var end linkEnd
	if errors.As(err, &own) && !errors.As(err, &end) {
		x.end(ending{err: x.wrap(own), tell: &refusal{own.Code, own.Detail}})
		// The peer is told why before the stream goes away: read on until it hung up, for a while.
		ctl.st.SetReadDeadline(time.Now().Add(x.n.cfg.Timeouts.FirstByte))
		_, err = io.Copy(io.Discard, ctl.st)
	} else {
		x.lost(err)
		if err == io.EOF {
			return // the own direction ends when its writer is done
		}
	}
	if err != nil {
		ctl.st.stop()
	}
}

// receive handles one message.
func (x *exchange) receive(kind msgKind, p []byte) error {
	x.mu.Lock()
	x.signed, x.sign = true, time.Now()
	ended := x.ended
	x.mu.Unlock()
	switch kind {
	case msgAlive, msgQuiesced:
		return nil
	case msgCancel:
		r, err := decodeRefusal(p, kind)
		if err != nil {
			return err
		}
		err = x.errorf(r.known(), r.detail, nil)
		if !x.sends {
			// A destination that has everything does not need the source any more: whether that let go is for the commit
			// to find out.
			x.lost(err)
		} else {
			x.end(ending{err: err})
		}
		return nil
	}
	if ended && kind != msgCommit {
		return nil
	}
	return x.half.handle(kind, p)
}

// lost is called when the control stream or its connection is gone, or the source gave up.
func (x *exchange) lost(err error) {
	x.mu.Lock()
	if x.ended || x.ctl == nil {
		x.mu.Unlock()
		return
	}
	if x.half.survives() {
		x.ctl.finish()
		x.ctl = nil
		x.sign = time.Now()
		x.mu.Unlock()
		return
	}
	x.mu.Unlock()
	x.end(ending{err: x.wrap(err), tell: &refusal{ErrPeerLost, "control stream ended"}})
}

// wrap turns any error into an *Error with this exchange's names.
func (x *exchange) wrap(err error) error {
	var e *Error
	if errors.As(err, &e) {
		c := *e
		c.Handoff, c.Peer = x.b.Handoff, x.peer.Worker
		return &c
	}
	return x.errorf(ErrPeerLost, "", err)
}

// end ends the exchange; the first call wins.
func (x *exchange) end(e ending) {
	x.mu.Lock()
	if e.unopened && (x.ticket == nil || x.opened) {
		x.mu.Unlock()
		return
	}
	if x.ended {
		x.mu.Unlock()
		if e.force {
			x.half.interrupt(true)
		}
		return
	}
	x.ended = true
	x.cancel()
	for _, t := range []*time.Timer{x.watch, x.expiry} {
		if t != nil {
			t.Stop()
		}
	}
	if e.err != nil && x.on.failed != nil {
		f, err := x.on.failed, e.err
		x.events.push(func() { f(err) })
	}
	if x.ctl != nil && e.tell != nil {
		x.ctl.send(e.tell.encode(msgCancel))
	}
	after := x.half.drop()
	sess := x.sess
	x.mu.Unlock()
	after()
	x.n.forget(x, e)
	if sess != nil {
		sess.drop(x)
	}
	x.half.interrupt(e.force)
	x.mu.Lock()
	x.settle()
	x.mu.Unlock()
}

// settle (mu) reports quiescence once the exchange ended and nobody is inside its buffers.
func (x *exchange) settle() {
	if !x.ended || x.users > 0 || x.quiesced {
		return
	}
	x.quiesced = true
	if x.ctl != nil {
		x.ctl.send(frameMsg(msgQuiesced, 0, nil))
		x.ctl.finish()
		x.ctl.st.SetReadDeadline(time.Now().Add(x.n.cfg.Timeouts.FirstByte))
	}
	f := x.on.quiesced
	if f == nil {
		f = func() {}
	}
	x.events.last(f)
}

// beat is the pause between signs of life and between looks at the deadlines.
func (x *exchange) beat() time.Duration {
	return min(x.n.cfg.Timeouts.FirstByte, x.n.cfg.Timeouts.Progress) / 3
}

// tick shows life and looks whether the peer does.
func (x *exchange) tick() {
	x.mu.Lock()
	if x.ended {
		x.mu.Unlock()
		return
	}
	now := time.Now()
	if x.ctl != nil {
		x.ctl.sendAlive()
	}
	code, detail := x.overdue(now)
	if code == 0 {
		x.watch.Reset(x.beat())
		x.mu.Unlock()
		return
	}
	x.mu.Unlock()
	// Who makes no progress is not waited for either: force.
	x.end(ending{err: x.errorf(code, detail, nil), tell: &refusal{code, detail}, force: true})
}

// overdue (mu) finds a missed deadline.
func (x *exchange) overdue(now time.Time) (Code, string) {
	t := &x.n.cfg.Timeouts
	quiet := now.Sub(x.sign)
	switch {
	case x.ctl == nil:
		// Only the commit is missing, and it has to come over another stream.
		if x.sends && quiet >= t.Commit {
			return ErrPeerLost, "no commit after the control stream ended"
		}
		return 0, ""
	case !x.signed && quiet >= t.FirstByte:
		return ErrFirstByte, "nothing since the handoff was opened"
	case quiet >= t.Progress:
		return ErrProgress, "no sign of life"
	}
	if what := x.half.stalled(now); what != "" {
		return ErrProgress, what
	}
	return 0, ""
}

// known maps a peer's code to one that this build knows.
func (r refusal) known() Code {
	if _, ok := codeText[r.code]; ok {
		return r.code
	}
	return ErrInternal
}

// Ticket returns the 32-byte ticket of the waiting side (Expect, Offer) for the control plane, or nil on the side that
// dials. It is a secret: whoever has it can open this handoff once, as the peer that the binding names.
func (x *exchange) Ticket() []byte { return append([]byte(nil), x.ticket...) }

// Abort ends the handoff and tells the peer why: a short reason without content. Quiesced follows, Failed does not. A
// second call does nothing.
func (x *exchange) Abort(reason string) {
	x.end(ending{tell: &refusal{ErrCancelled, reason}})
}

// Revoke kills the ticket if nobody opened the handoff yet, and so ends it. Otherwise, and on the side that dials, it
// does nothing.
func (x *exchange) Revoke() {
	x.end(ending{unopened: true})
}

// ForceClose ends the handoff like Abort, but waits for nothing: where a write does not come back it closes the lane
// under it, which fails other handoffs on that lane too. It may follow Abort. Quiesced follows.
func (x *exchange) ForceClose() {
	x.end(ending{tell: &refusal{ErrForced, ""}, force: true})
}

// Stats returns what was measured so far.
func (x *exchange) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.stats
	if x.sess != nil {
		s.RTT = x.sess.link.rtt()
	}
	return s
}

// Local reports whether the payload travels in memory that both processes share, so that no byte leaves the host. A
// sender knows from the first Room on, a receiver from the first Unit on.
func (x *exchange) Local() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.stats.Lane == string(LaneLocal)
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
