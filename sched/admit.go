package sched

import (
	"time"

	"github.com/tandem-llm/tandem/kv"
)

// settle lets in whoever can come in now. Every command and Done end with it, so
// that whatever still waits cannot run.
func (s *Scheduler) settle(now time.Duration) {
	if s.dirty {
		s.admit(now)
	}
}

// blocked says what a request waits for.
type blocked uint8

const (
	free   blocked = iota
	slot           // a running slot
	memory         // blocks, slots of the manager, or its side's share
)

// admit promotes ready requests, then goes through both queues in the order of
// arrival.
func (s *Scheduler) admit(now time.Duration) {
	s.dirty = false
	for s.ready.n > 0 && s.slots() > 0 {
		s.promote(s.ready.head)
	}
	var closed [2]bool
	for {
		side, ref := s.first(closed)
		if ref == none {
			return
		}
		switch s.enter(now, ref) {
		case slot:
			closed[side] = true
		case memory:
			closed[side] = true
			if !s.split {
				return // it would take from the one that waits
			}
		}
	}
}

// slots is the number of free running slots.
func (s *Scheduler) slots() int { return s.cfg.Running - len(s.running) - s.prefilling.n }

// first returns the request that came first of the queues that are open.
func (s *Scheduler) first(closed [2]bool) (side, Ref) {
	a, b := s.queue[source].head, s.queue[destination].head
	if closed[source] {
		a = none
	}
	if closed[destination] {
		b = none
	}
	if b == none || a != none && s.requests[a].order < s.requests[b].order {
		return source, a
	}
	return destination, b
}

// promote gives a ready request a running slot: it goes on with what it has.
func (s *Scheduler) promote(ref Ref) {
	r := &s.requests[ref]
	s.remove(&s.ready, ref)
	if r.computed < r.target {
		r.state = StatePrefilling
		s.pushBack(&s.prefilling, ref)
	} else {
		s.startDecoding(ref)
	}
	s.note(NotePromoted, ref, s.requests[ref].computed)
}

// need is what a request asks of the manager.
func (s *Scheduler) need(r *request) kv.Need {
	tokens := r.target
	return kv.Need{Tokens: int(tokens), Limit: int(r.limit()), Headroom: s.cfg.Headroom, Keys: r.keys}
}

// need of blocks, with headroom.
func (s *Scheduler) toCharge(r *request) int32 {
	return s.blocks(min(r.target+int32(min(s.cfg.Headroom, int(kv.MaxTokens-r.target))), r.limit()))
}

// share returns what a side may have. Without shares that is everything.
func (s *Scheduler) share(of side) Share {
	if !s.split {
		return Share{Blocks: kv.MaxBlocks, Slots: kv.MaxSequences}
	}
	share := s.cfg.Source
	if of == destination {
		share = s.cfg.Destination
	}
	if share.Slots == 0 {
		share.Slots = kv.MaxSequences
	}
	return share
}

// affords reports whether a side's share has room for so many blocks and slots
// more.
func (s *Scheduler) affords(of side, blocks, slots int) bool {
	share, used := s.share(of), &s.used[of]
	return used.Blocks+blocks <= share.Blocks && used.Slots+slots <= share.Slots
}

// never reports whether a request does not fit into an empty worker.
func (s *Scheduler) never(r *request) bool {
	most := min(s.kv.Snapshot().Blocks, s.share(r.side).Blocks)
	return int(s.blocks(r.limit())) > most
}

// enter admits the first request of a queue, or says what it waits for.
func (s *Scheduler) enter(now time.Duration, ref Ref) blocked {
	r := &s.requests[ref]
	reservation := r.state == StateReserving
	if reservation && r.deadline != 0 && now >= r.deadline {
		s.remove(&s.queue[r.side], ref)
		r.state = StateStopped
		s.note(NoteRefused, ref, 0)
		return free
	}
	if !reservation && s.slots() <= 0 {
		return slot
	}
	charge := s.toCharge(r)
	if !s.affords(r.side, int(charge), 1) {
		return memory
	}
	var seq kv.Seq
	var cached int
	var o kv.Outcome
	if reservation {
		seq, cached, o = s.kv.Reserve(r.id, s.need(r))
	} else {
		seq, cached, o = s.kv.Start(s.need(r))
	}
	if o.Lacks() {
		return memory
	}
	s.remove(&s.queue[r.side], ref)
	if o != kv.OK { // not possible for what was checked when it came; never spin on it
		r.state = StateStopped
		s.note(NoteFailed, ref, 0)
		return free
	}
	r.seq = seq
	s.pay(r, charge)
	s.used[r.side].Slots++
	if r.touched {
		s.kv.Touch(seq)
	}
	if reservation {
		r.state = StateReserved
		s.note(NoteGranted, ref, int32(cached))
		return free
	}
	r.state, r.computed = StatePrefilling, int32(cached)
	s.pushBack(&s.prefilling, ref)
	s.note(NoteAdmitted, ref, int32(cached))
	return free
}

// pay changes what a request is charged for.
func (s *Scheduler) pay(r *request, charge int32) {
	s.used[r.side].Blocks += int(charge - r.charge)
	r.charge = charge
}

// returned forgets what a request was charged for: its memory is back, or another
// request's.
func (s *Scheduler) returned(r *request) {
	s.pay(r, 0)
	s.used[r.side].Slots--
	r.seq = 0
	s.dirty = true
}
