package sched

import (
	"fmt"

	"github.com/tandem-llm/tandem/kv"
)

// check counts everything again.
func (s *Scheduler) check() error {
	where := map[Ref]State{}
	put := func(ref Ref, want ...State) error {
		r := &s.requests[ref]
		if _, twice := where[ref]; twice {
			return fmt.Errorf("request %d is in two queues", ref)
		}
		where[ref] = r.state
		for _, w := range want {
			if r.state == w {
				return nil
			}
		}
		return fmt.Errorf("request %d is %v in the queue of %v", ref, r.state, want)
	}
	walk := func(l *list, want ...State) error {
		n, before := 0, none
		for ref := l.head; ref != none; ref = s.requests[ref].next {
			if s.requests[ref].prev != before {
				return fmt.Errorf("request %d is linked wrongly", ref)
			}
			before = ref
			n++
			if err := put(ref, want...); err != nil {
				return err
			}
		}
		if n != l.n || l.tail != before {
			return fmt.Errorf("a queue of %d, counted %d", l.n, n)
		}
		return nil
	}
	for _, err := range []error{
		walk(&s.queue[source], StateWaiting), walk(&s.queue[destination], StateWaiting, StateReserving),
		walk(&s.ready, StateReady), walk(&s.prefilling, StatePrefilling),
	} {
		if err != nil {
			return err
		}
	}
	context := int64(0)
	for i := range s.running {
		d := &s.running[i]
		if err := put(d.Ref, StateDecoding); err != nil {
			return err
		}
		if r := &s.requests[d.Ref]; int(r.at) != i || d.Pos > r.limit() || d.Pos > d.room || d.last != r.limit() && d.last != 0 {
			return fmt.Errorf("running entry %d: %+v of %+v", i, *d, *r)
		}
		context += int64(d.Pos)
	}
	if context != s.context {
		return fmt.Errorf("context %d, counted %d", s.context, context)
	}
	var used [2]Share
	owned := map[kv.Seq]Ref{}
	ids := 0
	for i := range s.requests {
		r := &s.requests[i]
		if r.state == StateGone {
			continue
		}
		ids++
		if ref, ok := s.ids[r.id]; !ok || ref != Ref(i) {
			return fmt.Errorf("the id of request %d leads to %d", i, ref)
		}
		_, queued := where[Ref(i)]
		switch r.state {
		case StateWaiting, StatePrefilling, StateDecoding, StateReserving, StateReady:
			if !queued {
				return fmt.Errorf("request %d is %v in no queue", i, r.state)
			}
		}
		has := r.seq != 0 && !r.lent
		switch r.state {
		case StateWaiting, StateReserving:
			if has {
				return fmt.Errorf("request %d waits and has memory", i)
			}
		case StatePrefilling, StateDecoding, StatePinned, StateReserved, StateReady, StateFinished:
			if !has {
				return fmt.Errorf("request %d is %v without memory", i, r.state)
			}
		}
		if !s.stepping && (r.chunk || r.stop || r.release || r.finished || r.failed) {
			return fmt.Errorf("request %d has flags of a step: %+v", i, *r)
		}
		if has {
			if at, twice := owned[r.seq]; twice {
				return fmt.Errorf("requests %d and %d have one sequence", i, at)
			}
			owned[r.seq] = Ref(i)
			used[r.side].Blocks += int(r.charge)
			used[r.side].Slots++
		} else if r.charge != 0 {
			return fmt.Errorf("request %d is charged without memory", i)
		}
		if !r.lent && (len(s.kv.Blocks(r.seq, nil)) > 0) != has {
			return fmt.Errorf("request %d has memory: %v, the manager says otherwise", i, has)
		}
	}
	if used != s.used {
		return fmt.Errorf("sides use %+v, counted %+v", s.used, used)
	}
	if ids != len(s.ids) || ids+len(s.spare) != len(s.requests) {
		return fmt.Errorf("%d ids, %d requests", len(s.ids), ids)
	}
	if running := len(s.running) + s.prefilling.n; running > s.cfg.Running {
		return fmt.Errorf("%d running slots of %d", running, s.cfg.Running)
	}
	for i := range used {
		if share := s.share(side(i)); used[i].Blocks > share.Blocks || used[i].Slots > share.Slots {
			return fmt.Errorf("side %d uses %+v of %+v", i, used[i], share)
		}
	}
	snap := s.kv.Snapshot()
	if snap.Slots != len(owned) {
		return fmt.Errorf("the manager has %d sequences, requests %d", snap.Slots, len(owned))
	}
	if snap.Used()+snap.Cached+snap.Free != snap.Blocks || snap.Headroom > snap.Cached+snap.Free {
		return fmt.Errorf("parts do not add up: %+v", snap)
	}
	return nil
}
