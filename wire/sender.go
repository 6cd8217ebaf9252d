package wire

import (
	"fmt"
	"time"

	"github.com/tandem-llm/tandem/state"
)

// Sender is a source's end of one handoff. All methods are safe for concurrent use and never block.
type Sender struct {
	exchange

	onRoom, onSent func()
	onCommitted    func(Outcome)

	// The fields below are guarded by exchange.mu.

	granted bool
	credit  credit
	hungry  bool // Buffer said no and Room was not called since
	queue   []outgoing
	cur     *Buffer // the unit being written, its header is done
	hdr     [sharedSize]byte
	off     int       // bytes of cur that are written
	flight  int       // bytes of cur that are in the write under way
	writing time.Time // start of the write under way in one of this handoff's buffers, or zero
	starved time.Time // since when credit is missing for the queue's head, or zero
	begunAt time.Time // start of cur
	begun   int64     // cost of all units begun; less credit.released it is what is outstanding
	units   uint32    // units queued so far
	unit    uint32    // number of the unit cur
	bytes   int64     // payload bytes queued so far
	man     *manifest
	manSent bool
	endSent bool
	sentAt  time.Time // when manifest and end were both written
	// confirmed: the destination has everything. It may say so before the last write returns here; Sent waits for that.
	confirmed bool
	sent      bool
	outcome   *Outcome // a commit that is not reported yet
	pump      *pump

	hashes dispatcher
}

// outgoing is a queued unit.
type outgoing struct {
	h   state.UnitHeader
	buf *Buffer
}

func newSender(n *Node, b state.Binding, ev SenderEvents) *Sender {
	s := &Sender{onRoom: ev.Room, onSent: ev.Sent, onCommitted: ev.Committed}
	s.init(n, b, true, s, callbacks{ev.Open, ev.Opened, ev.Failed, ev.Quiesced})
	s.hashes.spawn = n.spawn
	return s
}

// Send takes buf over and queues it as the next unit. The header must be complete: handoff, length equal to that of
// buf.Bytes, checksum. On an error buf was discarded: ErrState after Finish or the end, ErrConfig for a header that does
// not fit, or for other memory in buf.Bytes.
func (s *Sender) Send(h state.UnitHeader, buf *Buffer) error {
	if buf == nil || buf.s != s || !buf.gone.CompareAndSwap(false, true) {
		return s.errorf(ErrConfig, "the buffer is not one of this sender's, or was sent or discarded before", nil)
	}
	if h.Handoff != s.b.Handoff || h.Length != uint64(len(buf.Bytes)) || len(buf.Bytes) == 0 || &buf.Bytes[0] != &buf.raw[0] {
		s.recycle(buf)
		return s.errorf(ErrConfig, "the unit header does not fit the handoff or the buffer's length", nil)
	}
	s.mu.Lock()
	if s.ended || s.man != nil {
		s.mu.Unlock()
		s.recycle(buf)
		return s.errorf(ErrState, "no unit may follow Finish or the handoff's end", nil)
	}
	s.queue = append(s.queue, outgoing{h, buf})
	s.units++
	s.bytes += int64(len(buf.Bytes))
	p := s.pump
	s.mu.Unlock()
	if p != nil {
		p.kick()
	}
	return nil
}

// SendHashed is Send, and computes the unit's digest with d meanwhile; done gets it, on a goroutine that hashes this
// handoff's units one after the other and that d belongs to. The buffer counts against the window until then. done is
// called for every unit that was queued, also after the handoff's end.
func (s *Sender) SendHashed(h state.UnitHeader, buf *Buffer, d *state.Digester, done func(state.Digest)) error {
	payload, release := buf.Bytes, buf.Keep()
	if err := s.Send(h, buf); err != nil {
		release()
		return err
	}
	s.hashes.push(func() {
		d.Piece(&h, 0, payload)
		release()
		done(d.Sum())
	})
	return nil
}

// Finish queues the manifest behind every unit sent so far; no Send may follow. The sender keeps the slice.
func (s *Sender) Finish(body []byte) error {
	if len(body) > s.n.cfg.ManifestBytes {
		return s.errorf(ErrLimit, "the manifest is larger than ManifestBytes", nil)
	}
	s.mu.Lock()
	if s.ended || s.man != nil {
		s.mu.Unlock()
		return s.errorf(ErrState, "finished or ended before", nil)
	}
	s.man = &manifest{s.units, s.bytes, body}
	s.sendManifest()
	p := s.pump
	s.mu.Unlock()
	if p != nil {
		p.kick()
	}
	return nil
}

// sendManifest (mu) sends the manifest once there is one and the destination granted: it holds content, so it waits for
// the grant as payload does.
func (s *Sender) sendManifest() {
	if s.man == nil || s.manSent || !s.granted || s.ctl == nil {
		return
	}
	s.ctl.send(s.man.encode())
	s.man.body = nil
	s.manSent = true
	s.written()
}

// written (mu) notes when there is nothing left to write.
func (s *Sender) written() {
	if s.manSent && s.endSent {
		s.sentAt = time.Now()
	}
}

func (s *Sender) begin() {}

func (s *Sender) handle(kind msgKind, p []byte) error {
	switch kind {
	case msgCredit:
		c, err := decodeCredit(p)
		if err != nil {
			return err
		}
		return s.onCredit(c)
	case msgReceived:
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.through() {
			return s.errorf(ErrProtocol, "received before everything was sent", nil)
		}
		s.confirmed = true
		s.report()
		return nil
	case msgCommit:
		c, err := decodeCommit(p, kind)
		if err != nil {
			return err
		}
		if c.handoff != s.b.Handoff {
			return s.errorf(ErrProtocol, "commit for another handoff on this stream", nil)
		}
		answer, err := s.commit(c.outcome)
		if err != nil {
			return err
		}
		s.mu.Lock()
		ctl := s.ctl
		s.mu.Unlock()
		if ctl != nil {
			ctl.send(commit{s.b.Handoff, answer}.encode(msgCommitAck))
		}
		s.end(ending{})
		return nil
	}
	return s.errorf(ErrProtocol, fmt.Sprintf("message %d does not go to a source", kind), nil)
}

// through (mu) says that every byte left, even if the last write did not return yet.
func (s *Sender) through() bool {
	return s.manSent && len(s.queue) == 0 && (s.cur == nil || s.off+s.flight == len(s.cur.Bytes))
}

// report (mu) calls Sent, and then Committed, once they are due and no write is under way.
func (s *Sender) report() {
	if s.cur != nil || !s.confirmed {
		return
	}
	if !s.sent {
		s.sent = true
		s.events.push(s.onSent)
	}
	if s.outcome != nil {
		if f, o := s.onCommitted, *s.outcome; f != nil {
			s.events.push(func() { f(o) })
		}
		s.outcome = nil
	}
}

func (s *Sender) onCredit(c credit) error {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil
	}
	if c.released > s.begun || c.released < s.credit.released {
		s.mu.Unlock()
		return s.errorf(ErrProtocol, "credit for bytes that were not sent", nil)
	}
	first := !s.granted
	s.credit, s.granted, s.starved = c, true, time.Time{}
	s.sendManifest()
	p, sess := s.pump, s.sess
	if first && sess != nil {
		s.n.spawn(func() { s.board(sess) })
	}
	s.mu.Unlock()
	if p != nil {
		p.kick()
	}
	return nil
}

// board takes a place on a lane. Where buffers lie depends on the lane, so there is room only from then on.
func (s *Sender) board(sess *session) {
	p, err := sess.pick(s.ctx)
	if err != nil {
		e := s.wrap(err)
		var r refusal
		if w, ok := e.(*Error); ok {
			r = refusal{w.Code, w.Detail}
		}
		s.end(ending{err: e, tell: &r})
		return
	}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		p.unused()
		return
	}
	s.pump = p
	s.stats.Lane = p.conn.kind()
	s.events.push(s.onRoom)
	s.mu.Unlock()
	p.add(s)
}

// commit takes a commit, on whichever stream it came, reports it once and returns the answer.
func (s *Sender) commit(o Outcome) (Outcome, error) {
	s.mu.Lock()
	switch {
	case s.committed:
		s.mu.Unlock()
		return OutcomeActive, nil
	case s.ended:
		s.mu.Unlock()
		return OutcomeReleased, nil
	case !s.through():
		s.mu.Unlock()
		return 0, s.errorf(ErrProtocol, "commit before everything was sent", nil)
	}
	s.committed, s.confirmed, s.outcome = true, true, &o
	s.report()
	s.mu.Unlock()
	return OutcomeActive, nil
}

func (s *Sender) survives() bool { return s.confirmed }

func (s *Sender) stalled(now time.Time) string {
	limit := s.n.cfg.Timeouts.Progress
	over := func(t time.Time) bool { return !t.IsZero() && now.Sub(t) >= limit }
	switch {
	case over(s.writing):
		return "the lane takes no bytes"
	case over(s.starved):
		return "the destination gives no credit"
	case !s.confirmed && over(s.sentAt):
		return "the destination does not confirm what was sent"
	}
	return ""
}

func (s *Sender) drop() func() {
	q := s.queue
	s.queue = nil
	if s.man != nil {
		s.man.body = nil
	}
	if s.cur != nil && s.writing.IsZero() {
		q = append(q, outgoing{buf: s.cur})
		s.cur = nil
	}
	return func() {
		for _, u := range q {
			s.recycle(u.buf)
		}
	}
}

func (s *Sender) interrupt(force bool) {
	s.mu.Lock()
	p, inside := s.pump, s.users > 0
	s.mu.Unlock()
	if p == nil {
		return
	}
	if force && inside {
		p.fail(s.errorf(ErrForced, "a handoff on this lane was closed by force", nil))
	}
	p.kick()
}

func sizeDetail(n int, limit int64) string {
	return fmt.Sprintf("a unit of %d bytes, at most %d are accepted", n, limit)
}
