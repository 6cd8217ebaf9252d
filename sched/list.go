package sched

const none Ref = -1

// list is a queue of requests, linked through their entries.
type list struct {
	head, tail Ref
	n          int
}

// pushBack puts a request at the end.
func (s *Scheduler) pushBack(l *list, ref Ref) {
	r := &s.requests[ref]
	r.prev, r.next = l.tail, none
	if l.tail == none {
		l.head = ref
	} else {
		s.requests[l.tail].next = ref
	}
	l.tail = ref
	l.n++
}

// pushOrdered puts a request where it belongs by arrival: one that was preempted
// came before all that still wait, except others that were preempted.
func (s *Scheduler) pushOrdered(l *list, ref Ref) {
	r := &s.requests[ref]
	before := none
	after := l.head
	for after != none && s.requests[after].order < r.order {
		before, after = after, s.requests[after].next
	}
	r.prev, r.next = before, after
	if before == none {
		l.head = ref
	} else {
		s.requests[before].next = ref
	}
	if after == none {
		l.tail = ref
	} else {
		s.requests[after].prev = ref
	}
	l.n++
}

// remove takes a request out.
func (s *Scheduler) remove(l *list, ref Ref) {
	r := &s.requests[ref]
	if r.prev == none {
		l.head = r.next
	} else {
		s.requests[r.prev].next = r.next
	}
	if r.next == none {
		l.tail = r.prev
	} else {
		s.requests[r.next].prev = r.prev
	}
	r.prev, r.next = none, none
	l.n--
}

// leave takes a request out of whatever queue it is in.
func (s *Scheduler) leave(ref Ref) {
	switch r := &s.requests[ref]; r.state {
	case StateWaiting, StateReserving:
		s.remove(&s.queue[r.side], ref)
	case StateReady:
		s.remove(&s.ready, ref)
	case StatePrefilling:
		s.remove(&s.prefilling, ref)
	case StateDecoding:
		s.stopDecoding(ref)
	}
	s.dirty = true
}

// startDecoding puts a request at the end of the running ones. It has computed
// all it knows, and has its memory.
func (s *Scheduler) startDecoding(ref Ref) {
	r := &s.requests[ref]
	room, _ := s.kv.Grow(r.seq, 0)
	r.state, r.at = StateDecoding, int32(len(s.running))
	s.running = append(s.running, Decode{Ref: ref, Pos: r.computed, room: int32(room), last: r.limit()})
	s.context += int64(r.computed)
}

// stopDecoding takes a request out of the running ones, whose order stays.
func (s *Scheduler) stopDecoding(ref Ref) {
	r := &s.requests[ref]
	at := int(r.at)
	r.computed = s.running[at].Pos
	s.context -= int64(r.computed)
	copy(s.running[at:], s.running[at+1:])
	s.running = s.running[:len(s.running)-1]
	for i := at; i < len(s.running); i++ {
		s.requests[s.running[i].Ref].at = int32(i)
	}
}
