package sched

import (
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

// Rebind gives the pinned memory of a request to a new one, in one transition: a
// retry after its destination failed. The new prompt starts with the old one;
// what it has beyond (tokens that the client got meanwhile) is computed on top.
// Held and nothing to compute: it is Pinned at once. Else it is Ready. The old
// request is Stopped and has no memory; it keeps its id until its Release, and a
// transfer of its own delays the end of the memory until its Quiet.
//
// The host has compared the tokens. Outcomes: Accepted, Duplicate (id is in use),
// Unknown, Conflict (old is not pinned), Invalid, Never, NoRoom.
func (s *Scheduler) Rebind(now time.Duration, old, id handoff.ID, q Request) (Ref, Outcome) {
	if ref, ok := s.ids[id]; ok {
		return ref, Duplicate
	}
	was, ok := s.ids[old]
	if !ok {
		return none, Unknown
	}
	o := &s.requests[was]
	if o.state != StatePinned {
		return none, Conflict
	}
	r := request{side: source, held: q.Held, keys: q.Keys, order: o.order}
	if outcome := r.size(id, q.Prompt, q.MaxTokens); outcome != Accepted {
		return none, outcome
	}
	if r.prompt < o.computed {
		return none, Invalid
	}
	if s.never(&r) {
		return none, Never
	}
	charge := s.toCharge(&r)
	if !s.affords(source, int(charge-o.charge), 0) {
		return none, NoRoom
	}
	r.computed, r.seq = o.computed, o.seq
	r.borrowed = o.touched || o.borrowed
	if r.held && r.computed == r.target {
		if s.kv.Rekey(old, id) != kv.OK {
			return none, Conflict
		}
		r.state = StatePinned
	} else {
		switch outcome := s.kv.Resume(o.seq, s.need(&r)); {
		case outcome.Lacks():
			return none, NoRoom
		case outcome != kv.OK:
			return none, Conflict
		}
		r.state = StateReady
	}
	s.pay(o, 0)
	o.state = StateStopped
	o.lent = o.touched
	if !o.lent {
		o.seq = 0
	}
	ref := s.add(id, r) // o is not valid any more
	s.pay(&s.requests[ref], charge)
	switch {
	case r.state == StatePinned:
		s.pinned(ref)
	case r.computed == r.target && r.most == 1: // the token that was sampled for old is all
		s.finish(ref)
	default:
		s.pushBack(&s.ready, ref)
		s.dirty = true
	}
	s.settle(now)
	return ref, Accepted
}
