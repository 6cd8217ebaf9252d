package wire

import "sync/atomic"

// Buffer is one unit's payload buffer on its way from the engine to the wire. It has one owner at a time: the host from
// Sender.Buffer until Send or Discard.
type Buffer struct {
	// Bytes has the requested length and is zero at first; on a same-host lane it may hold what was sent to the same
	// process before. The host writes all of it. A shorter payload is sent by reslicing it.
	Bytes []byte

	raw    []byte // as it came from the pool or the arena
	zero   int    // leading bytes of raw that were zeroed again, after they were written
	shared *arena // where raw lies, at off, or nil
	off    int64
	s      *Sender
	gone   atomic.Bool  // given to Send or Discard
	users  atomic.Int32 // the wire or the host, until one lets go of it; and who keeps it
}

// Keep lets the caller read Bytes, as they are now, also after Send and until it calls release, once, from any goroutine.
// It must come before Send. The buffer counts against the window for that long. It is not for same-host lanes, where the
// memory has its next use when the peer is done with it.
func (b *Buffer) Keep() (release func()) {
	b.users.Add(1)
	s := b.s
	return func() { s.recycle(b) }
}

// Discard zeroes and returns a buffer that will not be sent. It may be called after the handoff ended; a second call, or
// one after Send, does nothing.
func (b *Buffer) Discard() {
	if b.gone.CompareAndSwap(false, true) {
		b.s.recycle(b)
	}
}

// Buffer returns a buffer of n bytes for one unit's payload, or false when the outstanding bound is reached, the
// destination has not granted credit yet, or the handoff ended; Room tells when to ask again. The caller fills it and
// passes it to Send or to Buffer.Discard. A size over what either side allows ends the handoff with ErrLimit.
func (s *Sender) Buffer(n int) (*Buffer, bool) {
	s.mu.Lock()
	if s.ended || !s.granted || s.pump == nil {
		s.mu.Unlock()
		return nil, false
	}
	if n <= 0 || int64(n) > s.credit.largest {
		s.mu.Unlock()
		err := s.errorf(ErrLimit, sizeDetail(n, s.credit.largest), nil)
		s.end(ending{err: err, tell: &refusal{err.Code, err.Detail}})
		return nil, false
	}
	size := cost(n)
	if s.stats.Held > 0 && s.stats.Held+size > s.n.cfg.window() || !s.n.quota.take(size, s) {
		s.hungry = true
		s.mu.Unlock()
		return nil, false
	}
	s.stats.Held += size
	s.stats.Peak = max(s.stats.Peak, s.stats.Held)
	shared := s.pump.own
	s.mu.Unlock()
	b := &Buffer{s: s}
	b.users.Store(1)
	if shared != nil {
		if b.raw, b.off = shared.get(n); b.raw != nil {
			b.shared = shared
		}
	}
	if b.raw == nil {
		b.raw = s.n.pool.get(n)
	}
	b.Bytes = b.raw
	return b, true
}

// recycle ends one use of a buffer. The last one zeroes it, frees its share of both bounds and tells whoever waits for
// room.
func (s *Sender) recycle(b *Buffer) {
	if b.users.Add(-1) > 0 {
		return
	}
	if b.shared != nil {
		b.shared.put(b.off)
	} else {
		s.n.pool.put(b.raw, b.zero)
	}
	s.unhold(b)
}

// handOver leaves a buffer in shared memory to the peer, whose credit bounds it from now on.
func (s *Sender) handOver(b *Buffer) {
	b.shared.sent(b.off)
	s.unhold(b)
}

// unhold frees a buffer's share of both bounds.
func (s *Sender) unhold(b *Buffer) {
	size := cost(len(b.raw))
	b.Bytes, b.raw, b.shared = nil, nil, nil
	s.mu.Lock()
	s.stats.Held -= size
	s.room()
	s.mu.Unlock()
	for _, w := range s.n.quota.give(size) {
		w.mu.Lock()
		w.room()
		w.mu.Unlock()
	}
}

// room (mu) tells a host that was refused a buffer to try again.
func (s *Sender) room() {
	if s.hungry && !s.ended {
		s.hungry = false
		s.events.push(s.onRoom)
	}
}
