package wire

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/state"
)

// pump writes the frames of the senders on one bulk connection, one frame of each in turn: they share it fairly, and a
// cancel waits for at most one frame. One goroutine.
type pump struct {
	conn   bulk
	single bool   // the connection is one handoff's: it ends with it
	own    *arena // memory shared with the peer, or nil

	mu      sync.Mutex
	back    []uint64 // parts of the peer's memory to give back
	senders []*Sender
	err     error
	wake    chan struct{} // capacity 1
	onFail  func(error)   // called once, without the lock
	sent    func(bytes int, took time.Duration)
}

func newPump(conn bulk, single bool) *pump {
	return &pump{conn: conn, single: single, wake: make(chan struct{}, 1)}
}

// add makes s a passenger until it is through. If the lane is broken already, s fails.
func (p *pump) add(s *Sender) {
	p.mu.Lock()
	err := p.err
	if err == nil {
		p.senders = append(p.senders, s)
	}
	p.mu.Unlock()
	if err != nil {
		s.laneFailed(err)
	}
	p.kick()
}

// giveBack tells the peer that a part of its memory is free again.
func (p *pump) giveBack(off uint64) {
	p.mu.Lock()
	if p.err == nil {
		p.back = append(p.back, off)
	}
	p.mu.Unlock()
	p.kick()
}

// owes is the number of parts that giveBack queued and the peer was not told of.
func (p *pump) owes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.back)
}

// writeBack writes what giveBack queued and reports whether that was anything.
func (p *pump) writeBack(head *[frameSize]byte) (bool, error) {
	p.mu.Lock()
	list := p.back
	p.back = nil
	p.mu.Unlock()
	for _, off := range list {
		f := frame{kind: frameBack, offset: off}
		f.encode(head)
		if _, err := p.conn.Write(head[:]); err != nil {
			return true, err
		}
	}
	return len(list) > 0, nil
}

// load is the number of senders on the lane.
func (p *pump) load() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.senders)
}

func (p *pump) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// unused gives back a pump that pick returned and add will not follow.
func (p *pump) unused() {
	if p.single {
		p.fail(ErrState)
	}
}

// fail breaks the lane: a write under way returns, all senders fail.
func (p *pump) fail(err error) {
	p.mu.Lock()
	if p.err != nil {
		p.mu.Unlock()
		return
	}
	p.err = err
	list := p.senders
	p.senders = nil
	f := p.onFail
	p.mu.Unlock()
	p.conn.stop()
	p.kick()
	for _, s := range list {
		s.laneFailed(err)
	}
	if f != nil {
		f(err)
	}
}

// at returns sender i, or nil past the end.
func (p *pump) at(i int) (*Sender, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i >= len(p.senders) || p.err != nil {
		return nil, p.err
	}
	return p.senders[i], nil
}

func (p *pump) remove(s *Sender) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, v := range p.senders {
		if v == s {
			p.senders = append(p.senders[:i], p.senders[i+1:]...)
			return
		}
	}
}

// run writes until the connection breaks, or until the single sender is through.
func (p *pump) run() {
	var f frame
	var head [frameSize]byte
	dirty := false
	for {
		busy := false
		back, err := p.writeBack(&head)
		if err != nil {
			p.fail(err)
			return
		}
		dirty = dirty || back
		for i := 0; ; {
			s, err := p.at(i)
			if err != nil {
				return
			}
			if s == nil {
				break
			}
			payload, step := s.next(&f)
			if step == stepWait {
				i++
				continue
			}
			if step == stepGone {
				p.remove(s)
				if p.single {
					p.fail(ErrState) // nothing left to tell: the stream's reset says it
					return
				}
				continue
			}
			busy = true
			f.encode(&head)
			n, err := p.write(head[:], payload, f.wipe)
			dirty = true
			flush := f.kind == frameEnd || f.kind == frameReset
			if s.wrote(&f, n, err, p.sent) {
				flush = true
			}
			if err == nil && flush {
				err = p.conn.flush()
				dirty = false
			}
			if err != nil {
				p.fail(err)
				return
			}
			if f.kind == frameEnd || f.kind == frameReset {
				p.remove(s)
				if p.single {
					p.conn.finish()
					return
				}
				continue
			}
			i++
		}
		if busy {
			continue
		}
		if dirty {
			if err := p.conn.flush(); err != nil {
				p.fail(err)
				return
			}
			dirty = false
		}
		<-p.wake
	}
}

// write writes a frame, piece by piece. With wipe it zeroes each piece once it is written, while it is in cache, and
// returns how many bytes are zero now.
func (p *pump) write(head, payload []byte, wipe bool) (int, error) {
	if _, err := p.conn.Write(head); err != nil {
		return 0, err
	}
	zero := 0
	for len(payload) > 0 {
		b := payload[:min(len(payload), piece)]
		if _, err := p.conn.Write(b); err != nil {
			return zero, err
		}
		if wipe {
			clear(b)
			zero += len(b)
		}
		payload = payload[len(b):]
	}
	return zero, nil
}

// step is what a sender has for its pump.
type step int

const (
	stepWait  step = iota // nothing now
	stepFrame             // a frame; wrote must follow
	stepGone              // nothing any more, and nothing to say
)

// next returns the sender's next frame. A data frame's payload is part of a host buffer: from here to wrote the pump
// counts as a user of it.
func (s *Sender) next(f *frame) ([]byte, step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*f = frame{handoff: s.b.Handoff, unit: s.unit}
	if s.ended {
		if s.begun == 0 || s.endSent {
			return nil, stepGone
		}
		s.endSent = true
		f.kind = frameReset
		return nil, stepFrame
	}
	if s.cur == nil {
		switch {
		case len(s.queue) > 0:
			return s.start(f)
		case s.man != nil && !s.endSent:
			f.kind = frameEnd
			s.endSent = true
			s.written()
			return nil, stepFrame
		}
		return nil, stepWait
	}
	n := min(maxFrame, len(s.cur.Bytes)-s.off)
	f.kind, f.offset, f.length = frameData, uint64(s.off), uint32(n)
	f.wipe = s.cur.users.Load() == 1 // nobody keeps it, and nobody can begin to
	s.users++
	s.flight = n
	s.writing = time.Now()
	return s.cur.Bytes[s.off : s.off+n], stepFrame
}

// start (mu) begins the unit at the queue's head if credit covers it. A unit larger than the window travels alone.
func (s *Sender) start(f *frame) ([]byte, step) {
	u := s.queue[0]
	size := cost(len(u.buf.Bytes))
	out := s.begun - s.credit.released
	if out > 0 && out+size > s.credit.window {
		if s.starved.IsZero() {
			s.starved = time.Now()
		}
		return nil, stepWait
	}
	s.starved = time.Time{}
	s.queue[0] = outgoing{}
	s.queue = s.queue[1:]
	s.cur, s.off = u.buf, 0
	s.begun += size
	s.begunAt = time.Now()
	if s.stats.Bytes == 0 {
		s.stats.FirstByte = s.begunAt.Sub(s.sign)
	}
	u.h.Encode(s.hdr[:state.HeaderSize])
	if u.buf.shared == nil {
		f.kind, f.length = frameHeader, state.HeaderSize
		return s.hdr[:state.HeaderSize], stepFrame
	}
	binary.LittleEndian.PutUint64(s.hdr[state.HeaderSize:], uint64(u.buf.off))
	f.kind, f.length = frameShared, sharedSize
	s.users++
	s.flight = len(u.buf.Bytes)
	s.writing = s.begunAt
	return s.hdr[:], stepFrame
}

// wrote ends what next began and reports whether a unit is complete. measured, which may be nil, gets whole units.
// wiped is the number of the frame's bytes that are zero again.
func (s *Sender) wrote(f *frame, wiped int, err error, measured func(int, time.Duration)) bool {
	if f.kind != frameData && f.kind != frameShared {
		return false
	}
	s.mu.Lock()
	s.users--
	s.writing = time.Time{}
	now := time.Now()
	b := s.cur
	if b.zero == s.off { // else a part before is not zero
		b.zero += wiped
	}
	s.off += s.flight
	if err == nil {
		s.stats.Bytes += int64(s.flight)
	}
	s.flight = 0
	size, took := len(b.Bytes), now.Sub(s.begunAt)
	whole := err == nil && s.off == size
	if whole {
		s.unit++
		s.stats.Units++
		s.stats.Wire += took
	}
	over := whole || s.ended || err != nil
	if over {
		s.cur = nil
	}
	s.mu.Unlock()
	switch {
	case over && b.shared != nil && err == nil:
		s.handOver(b)
		took = 0 // no bytes moved: it says nothing about the link
	case over:
		s.recycle(b)
	}
	if whole && measured != nil {
		measured(size, took)
	}
	s.mu.Lock()
	s.report()
	s.settle()
	s.mu.Unlock()
	return whole
}

// laneFailed ends a handoff whose lane broke, unless everything had arrived.
func (s *Sender) laneFailed(err error) {
	s.mu.Lock()
	arrived := s.confirmed
	s.mu.Unlock()
	if arrived {
		return
	}
	e := s.errorf(ErrPeerLost, "the bulk lane broke", err)
	if stopped(err) {
		// The reason is on its way over the control stream, which may be slower.
		e = s.errorf(ErrCancelled, "the destination takes no more bytes", err)
	}
	s.end(ending{err: e, tell: &refusal{e.Code, e.Detail}})
}
