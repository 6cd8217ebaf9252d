package sched

import (
	"time"

	"github.com/tandem-llm/tandem/kv"
)

// Done says what came of the step that Plan gave. Outcomes: Accepted, Conflict (no
// step is running).
func (s *Scheduler) Done(now time.Duration, results Results) Outcome {
	if !s.stepping {
		return Conflict
	}
	s.markResults(results)
	s.stepping = false
	for i := range s.chunks {
		s.chunkDone(&s.chunks[i])
	}
	s.decodesDone()
	s.settle(now)
	return Accepted
}

// markResults notes at the requests what the host said about their rows.
func (s *Scheduler) markResults(results Results) {
	for _, ref := range results.Finished {
		if r := s.inThisStep(ref); r != nil {
			r.finished = true
		}
	}
	for _, ref := range results.Failed {
		if r := s.inThisStep(ref); r != nil {
			r.failed = true
		}
	}
}

// inThisStep returns a request that has a row in the running step, and makes
// decodesDone look at it.
func (s *Scheduler) inThisStep(ref Ref) *request {
	if ref < 0 || int(ref) >= len(s.requests) || !s.steps(&s.requests[ref]) {
		return nil
	}
	r := &s.requests[ref]
	if r.state == StateDecoding {
		s.running[r.at].last = 0
	}
	return r
}

// chunkDone moves a prompt on.
func (s *Scheduler) chunkDone(c *Chunk) {
	ref := c.Ref
	r := &s.requests[ref]
	r.chunk = false
	if !r.failed {
		r.computed = c.End
		s.publish(r, r.computed)
	}
	if r.stop || r.failed {
		s.leave(ref)
		s.stopped(ref)
		return
	}
	if !c.Last {
		return
	}
	s.remove(&s.prefilling, ref)
	switch {
	case r.finished || r.generated(r.computed) >= r.most:
		s.finish(ref)
	case r.held:
		s.pin(ref)
	default:
		s.startDecoding(ref)
	}
}

// publish makes what is computed a prefix hit. That may free memory (a block that
// was stored already), or make somebody fit who waits with the same prefix.
func (s *Scheduler) publish(r *request, computed int32) {
	if len(r.keys) == 0 {
		return
	}
	s.kv.Publish(r.seq, int(computed), r.keys)
	if s.queue[source].n+s.queue[destination].n > 0 {
		s.dirty = true
	}
}

// pin holds the memory of a prompt that was just completed: there is no moment at
// which it is not owned.
func (s *Scheduler) pin(ref Ref) {
	r := &s.requests[ref]
	if s.kv.Hold(r.id, r.seq) != kv.OK { // not possible: the id is not in use, the sequence active
		r.state = StateStopped
		s.note(NoteFailed, ref, r.computed)
		return
	}
	r.state = StatePinned
	s.pay(r, s.blocks(r.computed))
	s.dirty = true // its running slot is free
	s.pinned(ref)
}

// pinned reports it.
func (s *Scheduler) pinned(ref Ref) {
	r := &s.requests[ref]
	s.note(NotePinned, ref, r.computed)
	s.notices[len(s.notices)-1].Blocks = s.blocks(r.computed)
}

// finish ends an answer. The request is in no queue any more.
func (s *Scheduler) finish(ref Ref) {
	r := &s.requests[ref]
	r.state, r.finished = StateFinished, false
	s.dirty = true
	s.note(NoteFinished, ref, r.generated(r.computed))
}

// stopped ends a request that is in no queue any more: it failed, or was cancelled
// or released during the step.
func (s *Scheduler) stopped(ref Ref) {
	r := &s.requests[ref]
	release, stop := r.release, r.stop
	r.state = StateStopped
	r.release, r.stop, r.finished, r.failed = false, false, false, false
	switch {
	case release:
		id, seq := r.id, r.seq
		if s.free(ref) == Accepted {
			s.notices = append(s.notices, Notice{Kind: NoteFreed, Ref: ref, ID: id, Seq: seq})
		}
	case stop:
		s.note(NoteRetired, ref, r.computed)
	}
}

// decodesDone moves all decodes of the step on by a token.
func (s *Scheduler) decodesDone() {
	n := s.inStep
	s.inStep = 0
	s.context += int64(n)
	run := s.running
	keep := 0
	for i := range n {
		d := &run[i]
		d.Pos++
		if d.Pos >= d.last {
			s.decodeEnds(*d)
			continue
		}
		if keep != i {
			run[keep] = *d
			s.requests[d.Ref].at = int32(keep)
		}
		keep++
	}
	if keep == n {
		return
	}
	for i := n; i < len(run); i++ { // promoted during the step
		run[keep] = run[i]
		s.requests[run[keep].Ref].at = int32(keep)
		keep++
	}
	s.running = run[:keep]
}

// decodeEnds ends a request that decodesDone takes out.
func (s *Scheduler) decodeEnds(d Decode) {
	r := &s.requests[d.Ref]
	s.context -= int64(d.Pos)
	s.dirty = true
	r.computed = d.Pos
	if r.failed {
		r.computed-- // it was not computed
	}
	if r.stop || r.failed {
		s.stopped(d.Ref)
		return
	}
	s.finish(d.Ref)
}
