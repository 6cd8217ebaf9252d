package sched

// Steady returns how many steps, up to most, consist of exactly the decodes that
// run now: nobody finishes in them, nobody can join, and there is memory for
// their growth that is promised to nobody. It is 0 while anything else is
// possible, in particular while a prompt is computed. The host's own events
// (commands, answers that end early) bound it further.
//
// O(running), and as much again for each halving when memory is short.
func (s *Scheduler) Steady(most int) int {
	if s.stepping || s.dirty || s.prefilling.n > 0 || len(s.running) == 0 || most < 1 {
		return 0
	}
	steps := int32(min(most, 1<<30))
	for i := range s.running {
		d := &s.running[i]
		steps = min(steps, d.last-1-d.Pos)
	}
	// Growth that dips into promises, or has to preempt, is decided step by step.
	for steps > 0 && !s.growthFits(steps) {
		steps /= 2
	}
	return int(max(steps, 0))
}

// growthFits reports whether so many steps need only blocks that are promised to
// nobody, and no more than the shares.
func (s *Scheduler) growthFits(steps int32) bool {
	blocks := 0
	var charge [2]int
	for i := range s.running {
		d := &s.running[i]
		if d.Pos+steps <= d.room {
			continue
		}
		blocks += int(s.blocks(d.Pos+steps) - s.blocks(d.room))
		if s.split {
			r := &s.requests[d.Ref]
			charge[r.side] += int(max(0, s.blocks(d.Pos+steps)-r.charge))
		}
	}
	return blocks <= s.kv.Snapshot().Available() &&
		(!s.split || s.affords(source, charge[source], 0) && s.affords(destination, charge[destination], 0))
}

// Skip takes so many steps at once, of those that Steady allowed: it equals as many
// calls of Plan and Done, except for which physical blocks grow which sequence. It
// returns how many it took: 0 if Steady does not allow all of them now.
func (s *Scheduler) Skip(steps int) int {
	if steps < 1 || s.Steady(steps) < steps {
		return 0
	}
	n := int32(steps)
	for i := range s.running {
		d := &s.running[i]
		d.Pos += n
		if d.Pos > d.room {
			r := &s.requests[d.Ref]
			room, _ := s.kv.Grow(r.seq, int(d.Pos))
			d.room = int32(room)
			s.pay(r, max(r.charge, s.blocks(d.Pos)))
		}
	}
	s.context += int64(steps) * int64(len(s.running))
	return steps
}
