package sched

import (
	"time"

	"github.com/tandem-llm/tandem/kv"
)

// Plan decides the next step and takes the memory it needs, preempting where
// there is none. While a step is running it returns an empty one.
func (s *Scheduler) Plan(now time.Duration) Step {
	if s.stepping {
		return Step{}
	}
	for {
		s.settle(now)
		step := s.plan()
		if !step.Empty() {
			s.stepping = true
			return step
		}
		if !s.dirty {
			return Step{}
		}
		// Everything that ran was preempted, and something else may come in.
	}
}

func (s *Scheduler) plan() Step {
	var step Step
	if s.cfg.Priority == DecodesFirst || s.prefilling.n == 0 {
		s.growAll()
		step.Decodes, step.Context = s.running, s.context
	}
	s.inStep = len(step.Decodes)
	s.planChunks(s.cfg.Budget - len(step.Decodes))
	step.Chunks = s.chunks
	return step
}

// planChunks fills the budget with chunks of prompts, in the order of admission.
// The first that does not get its page ends it: nobody is overtaken.
func (s *Scheduler) planChunks(budget int) {
	s.chunks = s.chunks[:0]
	for ref := s.prefilling.head; ref != none && budget > 0; {
		r := &s.requests[ref]
		end := r.target
		if most := r.computed + int32(min(budget, s.cfg.Chunk)); most < end {
			end = most - most%int32(s.cfg.Page)
			if end <= r.computed {
				return
			}
		}
		r.chunk = true
		s.chunks = append(s.chunks, Chunk{Ref: ref, First: r.computed, End: end, Last: end == r.target})
		budget -= int(end - r.computed)
		ref = r.next
	}
}

// growAll sees that every running request has a block for its next token.
func (s *Scheduler) growAll() {
	for i := 0; i < len(s.running); {
		if d := &s.running[i]; d.Pos < d.room || s.grow(d) {
			i++
		} else if s.makeRoom(d.Ref) < i {
			i-- // the entry moved up; it is tried again
		}
		// Else the entry at i is tried again, or it is the next one, because the one
		// that needed room was itself the loser.
	}
}

// grow gives a running request room for one token more, if there is any.
func (s *Scheduler) grow(d *Decode) bool {
	r := &s.requests[d.Ref]
	charge := max(r.charge, s.blocks(d.Pos+1))
	if !s.affords(r.side, int(charge-r.charge), 0) {
		return false
	}
	room, o := s.kv.Grow(r.seq, int(d.Pos)+1)
	if o != kv.OK {
		return false
	}
	s.pay(r, charge)
	d.room = int32(room)
	return true
}

// makeRoom takes the memory of the youngest request that may lose it, for one that
// needs a block. If there is none, that request itself is stopped. It returns the
// place that the loser had among the running ones, or beyond the last of them.
func (s *Scheduler) makeRoom(needy Ref) int {
	victim := s.youngest(s.requests[needy].side)
	if victim == none {
		// Transfers can touch all there is, its own memory too: it ends, and its memory
		// returns when its transfer is quiet.
		at := int(s.requests[needy].at)
		s.leave(needy)
		r := &s.requests[needy]
		r.state = StateStopped
		s.note(NoteFailed, needy, r.computed)
		return at
	}
	r := &s.requests[victim]
	at := len(s.running)
	if r.state == StateDecoding {
		at = int(r.at)
	}
	s.preempt(victim)
	return at
}

// youngest returns the request that came last of those that may be preempted.
func (s *Scheduler) youngest(needs side) Ref {
	victim := none
	consider := func(ref Ref) {
		r := &s.requests[ref]
		if r.touched || r.borrowed || s.split && r.side != needs {
			return
		}
		if victim == none || r.order > s.requests[victim].order {
			victim = ref
		}
	}
	for i := range s.running {
		consider(s.running[i].Ref)
	}
	for ref := s.prefilling.head; ref != none; ref = s.requests[ref].next {
		consider(ref)
	}
	return victim
}

// preempt takes a request's memory. It starts again, with what it generated as
// part of its prompt; or it fails.
func (s *Scheduler) preempt(ref Ref) {
	decoding := s.requests[ref].state == StateDecoding
	s.leave(ref)
	r := &s.requests[ref]
	had := r.computed
	if s.cfg.NoRecompute {
		s.note(NoteFailed, ref, had)
	} else {
		s.note(NotePreempted, ref, had)
	}
	s.kv.Free(r.seq) // not touched, so it is back at once
	s.returned(r)
	if s.cfg.NoRecompute {
		r.state = StateStopped
		return
	}
	if decoding {
		r.target = had + 1 // the token that was sampled last is computed too
	}
	r.computed = 0
	r.state = StateWaiting
	s.pushOrdered(&s.queue[r.side], ref)
}
