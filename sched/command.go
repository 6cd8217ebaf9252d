package sched

import (
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

// Submit queues a prompt. Outcomes: Accepted (a notice follows when it is
// admitted), Duplicate (the id is in use; its Ref is returned), Invalid, Never.
func (s *Scheduler) Submit(now time.Duration, id handoff.ID, q Request) (Ref, Outcome) {
	r := request{state: StateWaiting, side: source, held: q.Held, keys: q.Keys}
	return s.come(now, id, r, q.Prompt, q.MaxTokens)
}

// Reserve queues a reservation. Outcomes: Accepted (NoteGranted or NoteRefused
// follows), Duplicate, Invalid, Never, Expired.
func (s *Scheduler) Reserve(now time.Duration, id handoff.ID, q Reservation) (Ref, Outcome) {
	if ref, ok := s.ids[id]; ok {
		return ref, Duplicate
	}
	if q.Deadline < 0 || q.Deadline > 0 && now >= q.Deadline {
		return none, Expired
	}
	r := request{state: StateReserving, side: destination, keys: q.Keys, deadline: q.Deadline}
	return s.come(now, id, r, q.Prompt, q.MaxTokens)
}

// come enters a request at the end of its queue.
func (s *Scheduler) come(now time.Duration, id handoff.ID, r request, prompt, most int) (Ref, Outcome) {
	if ref, ok := s.ids[id]; ok {
		return ref, Duplicate
	}
	if o := r.size(id, prompt, most); o != Accepted {
		return none, o
	}
	if s.never(&r) {
		return none, Never
	}
	s.order++
	r.order = s.order
	ref := s.add(id, r)
	s.pushBack(&s.queue[r.side], ref)
	if s.queue[r.side].n == 1 {
		s.dirty = true // behind others it cannot be let in
	}
	s.settle(now)
	return ref, Accepted
}

// size sets the token counts of a new request.
func (r *request) size(id handoff.ID, prompt, most int) Outcome {
	switch {
	case id.IsZero() || prompt < 1 || most < 1:
		return Invalid
	case prompt > kv.MaxTokens || most > kv.MaxTokens || prompt+most > kv.MaxTokens:
		return Never
	}
	r.prompt, r.target, r.most = int32(prompt), int32(prompt), int32(most)
	return Accepted
}

// Keys replaces the keys of a request by more of them: the blocks of the answer,
// or of a prompt that only became known when its state came. What is computed is
// published under them. The slice is kept as Request.Keys is.
func (s *Scheduler) Keys(now time.Duration, id handoff.ID, keys []kv.Key) Outcome {
	ref, ok := s.ids[id]
	if !ok {
		return Unknown
	}
	r := &s.requests[ref]
	if len(keys) < len(r.keys) {
		return Invalid
	}
	r.keys = keys
	computed := r.computed
	switch r.state {
	case StateDecoding:
		computed = s.running[r.at].Pos
	case StatePrefilling, StateReady, StateFinished:
	default:
		return Accepted
	}
	s.publish(r, computed)
	s.settle(now)
	return Accepted
}

// Activate makes a reservation whose state has arrived a running sequence: Ready,
// and promoted as soon as a running slot is free. Outcomes: Accepted, Duplicate,
// Unknown, Conflict (not granted, or ended), Touched (the transport is not quiet),
// Expired.
func (s *Scheduler) Activate(now time.Duration, id handoff.ID) Outcome {
	ref, ok := s.ids[id]
	if !ok {
		return Unknown
	}
	r := &s.requests[ref]
	switch {
	case r.activated && r.state != StateStopped && r.state != StateQuarantine:
		return Duplicate
	case r.state != StateReserved:
		return Conflict
	case r.touched:
		return Touched
	case r.deadline != 0 && now >= r.deadline:
		return Expired
	}
	if _, o := s.kv.Activate(id, r.keys); o != kv.OK {
		return Conflict
	}
	r.activated = true
	r.computed = r.target
	if r.most == 1 { // the source's token was all
		s.finish(ref)
	} else {
		r.state = StateReady
		s.pushBack(&s.ready, ref)
	}
	s.dirty = true // adopting a prefix may have freed memory, too
	s.settle(now)
	return Accepted
}

// Cancel stops a request and leaves its memory as it is. Outcomes: Accepted (no
// step uses it), Stepping (NoteRetired follows), Duplicate (it had ended),
// Unknown.
func (s *Scheduler) Cancel(now time.Duration, id handoff.ID) Outcome {
	ref, ok := s.ids[id]
	if !ok {
		return Unknown
	}
	r := &s.requests[ref]
	switch {
	case r.stop:
		return Stepping
	case r.state == StateStopped || r.state == StateFinished || r.state == StateQuarantine:
		return Duplicate
	case s.steps(r):
		s.stopInStep(r)
		return Stepping
	}
	s.leave(ref)
	r.state = StateStopped
	s.settle(now)
	return Accepted
}

// steps reports whether the running step has a row of the request.
func (s *Scheduler) steps(r *request) bool {
	return s.stepping && (r.chunk || r.state == StateDecoding && int(r.at) < s.inStep)
}

// stopInStep makes Done take the request out.
func (s *Scheduler) stopInStep(r *request) {
	r.stop = true
	if r.state == StateDecoding {
		s.running[r.at].last = 0
	}
}

// Release ends a request, whatever it was doing, and frees its memory. Outcomes:
// Accepted (it is gone), Stepping or Quarantined (NoteFreed follows), Unknown.
func (s *Scheduler) Release(now time.Duration, id handoff.ID) Outcome {
	ref, ok := s.ids[id]
	if !ok {
		return Unknown
	}
	r := &s.requests[ref]
	switch {
	case r.state == StateQuarantine:
		return Quarantined
	case s.steps(r):
		s.stopInStep(r)
		r.release = true
		return Stepping
	}
	s.leave(ref)
	o := s.free(ref)
	s.settle(now)
	return o
}

// free returns the memory of a request that is in no queue, and forgets the
// request; or leaves it in quarantine.
func (s *Scheduler) free(ref Ref) Outcome {
	r := &s.requests[ref]
	if r.seq != 0 && (r.lent || s.kv.Free(r.seq) == kv.Quarantined) {
		r.state = StateQuarantine
		return Quarantined
	}
	if r.seq != 0 {
		s.returned(r)
	}
	s.forget(ref)
	return Accepted
}

// Touch says that a transfer can read or write the request's memory from now on,
// or will be able to once it has some. Outcomes: Accepted, Duplicate, Unknown,
// Conflict (it has ended: nothing may start).
func (s *Scheduler) Touch(id handoff.ID) Outcome {
	ref, ok := s.ids[id]
	if !ok {
		return Unknown
	}
	r := &s.requests[ref]
	switch {
	case r.touched:
		return Duplicate
	case r.stop || r.state == StateStopped || r.state == StateFinished || r.state == StateQuarantine:
		return Conflict
	}
	r.touched = true
	if r.seq != 0 {
		s.kv.Touch(r.seq)
	}
	return Accepted
}

// Quiet says that no transfer can touch the request's memory any more. What was
// released meanwhile is freed. Outcomes: Accepted, Duplicate, Unknown.
func (s *Scheduler) Quiet(now time.Duration, id handoff.ID) Outcome {
	ref, ok := s.ids[id]
	if !ok {
		return Unknown
	}
	r := &s.requests[ref]
	if !r.touched {
		return Duplicate
	}
	r.touched = false
	seq := r.seq
	if seq != 0 {
		s.kv.Quiet(seq)
	}
	switch {
	case r.lent:
		s.giveBack(ref)
	case r.state == StateQuarantine:
		s.freed(ref)
	case r.state == StatePrefilling:
		s.publish(r, r.computed) // what had to wait meanwhile
	}
	s.settle(now)
	return Accepted
}

// giveBack ends the interest of a request in memory that another one took over.
// That one may have been released meanwhile, and waited only for this.
func (s *Scheduler) giveBack(ref Ref) {
	r := &s.requests[ref]
	seq := r.seq
	r.seq, r.lent = 0, false // before the notice: the memory is not its own
	if r.state == StateQuarantine {
		s.note(NoteFreed, ref, 0)
		s.forget(ref)
	}
	owner, lenders := none, 0
	for i := range s.requests {
		switch r := &s.requests[i]; {
		case r.seq != seq || seq == 0:
		case r.lent:
			lenders++
		default:
			owner = Ref(i)
		}
	}
	if owner == none {
		return
	}
	s.requests[owner].borrowed = lenders > 0
	if s.requests[owner].state == StateQuarantine {
		s.freed(owner)
	}
}

// freed forgets a request in quarantine, if its memory is back.
func (s *Scheduler) freed(ref Ref) {
	r := &s.requests[ref]
	if _, o := s.kv.Grow(r.seq, 0); o != kv.Unknown {
		return // a transfer of the request that had it before still touches it
	}
	s.note(NoteFreed, ref, 0)
	s.returned(r)
	s.forget(ref)
}
