package wire

import (
	"slices"
	"sync"
	"sync/atomic"
)

// A same-host lane moves no bytes: the source's buffers lie in memory that both processes map, and a frame says where.
// The source owns the memory (arena), the destination may only read it (mapping). Memory is unmapped when the last who
// may touch it has let go, which may be long after the lane broke.

// mapping is memory shared with another process. It is unmapped when its last reference is dropped.
type mapping struct {
	mem  []byte
	refs atomic.Int64
}

func newMapping(mem []byte) *mapping {
	m := &mapping{mem: mem}
	m.refs.Store(1)
	return m
}

// hold adds a reference, unless the last one is gone already.
func (m *mapping) hold() bool {
	for {
		n := m.refs.Load()
		if n == 0 {
			return false
		}
		if m.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (m *mapping) drop() {
	if m.refs.Add(-1) == 0 {
		unmap(m.mem)
		m.mem = nil
	}
}

// slice returns the n bytes at off, or nil where the memory does not reach. The caller holds a reference.
func (m *mapping) slice(off, n int64) []byte {
	if off < 0 || n <= 0 || off > int64(len(m.mem))-n {
		return nil
	}
	return m.mem[off : off+n : off+n]
}

// arena hands out parts of a source's shared memory. A part is free, the host's (from get to put or sent), or the
// peer's (from sent until it gives the part back).
//
// A part is not zeroed each time it comes back: that is a pass over memory as long as the export's own, and the peer,
// the only other reader, has had those bytes. All of it is zeroed when nothing is in use any more.
type arena struct {
	*mapping
	retain int64 // touched bytes kept when nothing is in use

	mu    sync.Mutex
	free  []extent // ascending, not touching each other
	used  map[int64]part
	high  int64 // end of what may be other than zero
	warm  int64 // end of what the system has given memory for; at least high
	inUse int64
}

type extent struct{ off, size int64 }

type part struct {
	size int64
	sent bool
}

// arenaUnit is the granularity of parts: a page of memory.
const arenaUnit = 4 << 10

func newArena(mem []byte, retain int64) *arena {
	return &arena{
		mapping: newMapping(mem), retain: retain,
		free: []extent{{0, int64(len(mem))}}, used: make(map[int64]part),
	}
}

// get returns n bytes and their offset, or nil where no free part is large enough. The lowest place is taken, so that
// the memory in use stays small. The part holds a reference. The bytes are zero or those of earlier units.
func (a *arena) get(n int) ([]byte, int64) {
	size := (int64(n) + arenaUnit - 1) / arenaUnit * arenaUnit
	if !a.hold() {
		return nil, 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.free {
		e := &a.free[i]
		if e.size < size {
			continue
		}
		off := e.off
		e.off += size
		e.size -= size
		if e.size == 0 {
			a.free = slices.Delete(a.free, i, i+1)
		}
		a.used[off] = part{size: size}
		a.inUse += size
		a.high = max(a.high, off+size)
		a.warm = max(a.warm, a.high)
		return a.slice(off, int64(n)), off
	}
	a.drop()
	return nil, 0
}

// put frees a part of the host's.
func (a *arena) put(off int64) {
	if a.release(off, false) {
		a.scrub()
		a.drop()
	}
}

// sent makes a part the peer's.
func (a *arena) sent(off int64) {
	a.mu.Lock()
	if p, ok := a.used[off]; ok {
		p.sent = true
		a.used[off] = p
	}
	a.mu.Unlock()
	a.drop()
}

// returned frees a part that the peer gives back, and reports whether it was the peer's. The caller holds a reference.
func (a *arena) returned(off int64) bool {
	if !a.release(off, true) {
		return false
	}
	a.scrub()
	return true
}

func (a *arena) release(off int64, sent bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.used[off]
	if !ok || p.sent != sent {
		return false
	}
	delete(a.used, off)
	i, _ := slices.BinarySearchFunc(a.free, off, func(e extent, off int64) int { return int(e.off - off) })
	a.free = slices.Insert(a.free, i, extent{off, p.size})
	if i+1 < len(a.free) && a.free[i].off+a.free[i].size == a.free[i+1].off {
		a.free[i].size += a.free[i+1].size
		a.free = slices.Delete(a.free, i+1, i+2)
	}
	if i > 0 && a.free[i-1].off+a.free[i-1].size == a.free[i].off {
		a.free[i-1].size += a.free[i].size
		a.free = slices.Delete(a.free, i, i+1)
	}
	a.inUse -= p.size
	return true
}

// scrubStep is what is zeroed under the lock at once: a get waits for a tenth of a millisecond at most.
const scrubStep = 1 << 20

// scrub zeroes the memory, or gives it back to the system where it is more than is worth keeping, unless something is
// in use again. The caller holds a reference.
func (a *arena) scrub() {
	for at := int64(0); ; at += scrubStep {
		a.mu.Lock()
		switch {
		case a.inUse > 0 || a.high == 0:
			a.mu.Unlock()
			return
		case a.warm > a.retain:
			discard(a.mem[:a.warm])
			a.high, a.warm = 0, 0
		case at >= a.high:
			a.high = 0
		default:
			clear(a.mem[at:min(at+scrubStep, a.high)])
		}
		a.mu.Unlock()
	}
}

// kept is the memory that is free and not given back to the system.
func (a *arena) kept() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.warm - a.inUse
}
