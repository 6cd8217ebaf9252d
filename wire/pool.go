package wire

import (
	"math/bits"
	"sync"
)

// pool keeps buffers for reuse, in size classes of eight per power of two, so that at most an eighth of a buffer is waste.
//
// A buffer that a unit was received in is not zeroed while handoffs are under way: the next unit overwrites it before
// anybody sees it, and a pass over memory for each unit is an eighth of what receiving it costs. When the last handoff has
// ended, everything that lies here is zeroed.
type pool struct {
	mu     sync.Mutex
	free   map[int][][]byte // by class size; every byte is zero
	used   map[int][][]byte // by class size; may hold state, and is empty soon after idle
	idle   bool             // no handoff is under way: what comes back is zeroed at once
	bytes  int64            // sum of the class sizes of free and used
	retain int64            // bound of bytes
}

const smallestClass = 4 << 10

// classOf returns the size of the class that holds n bytes.
func classOf(n int) int {
	if n <= smallestClass {
		return smallestClass
	}
	step := 1 << (bits.Len(uint(n-1)) - 4) // an eighth of the largest power of two below n
	return (n + step - 1) / step * step
}

// get returns n zero bytes.
func (p *pool) get(n int) []byte {
	c := classOf(n)
	p.mu.Lock()
	b := p.pop(p.free, c)
	if b == nil {
		b = p.pop(p.used, c)
		defer clear(b)
	}
	p.mu.Unlock()
	if b == nil {
		b = make([]byte, c)
	}
	return b[:n]
}

// getUsed returns n bytes of any content, for a caller that overwrites all of them before anybody sees one.
func (p *pool) getUsed(n int) []byte {
	c := classOf(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range []map[int][][]byte{p.used, p.free} {
		if b := p.pop(list, c); b != nil {
			return b[:n]
		}
	}
	return make([]byte, n, c)
}

// pop (mu) takes a buffer of class c, or returns nil.
func (p *pool) pop(list map[int][][]byte, c int) []byte {
	l := list[c]
	if len(l) == 0 {
		return nil
	}
	b := l[len(l)-1]
	l[len(l)-1] = nil
	list[c] = l[:len(l)-1]
	p.bytes -= int64(c)
	return b
}

// put zeroes b, which came from get and may have been resliced at its end, and keeps it if there is room. The first clean
// bytes are zero already.
func (p *pool) put(b []byte, clean int) {
	b = b[:cap(b)]
	clear(b[clean:])
	p.mu.Lock()
	defer p.mu.Unlock()
	p.push(&p.free, b)
}

// putUsed is put for a buffer from getUsed.
func (p *pool) putUsed(b []byte) {
	b = b[:cap(b)]
	p.mu.Lock()
	kept := !p.idle && p.push(&p.used, b)
	p.mu.Unlock()
	if !kept {
		p.put(b, 0)
	}
}

// push (mu) keeps a buffer if there is room.
func (p *pool) push(list *map[int][][]byte, b []byte) bool {
	c := len(b)
	if p.bytes+int64(c) > p.retain {
		return false
	}
	if *list == nil {
		*list = make(map[int][][]byte)
	}
	(*list)[c] = append((*list)[c], b)
	p.bytes += int64(c)
	return true
}

// rest says whether any handoff is under way. The caller calls scrub soon after the last one.
func (p *pool) rest(idle bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = idle
}

// scrub zeroes what units were received in.
func (p *pool) scrub() {
	for {
		p.mu.Lock()
		var b []byte
		for c := range p.used {
			if b = p.pop(p.used, c); b != nil {
				break
			}
		}
		p.mu.Unlock()
		if b == nil {
			return
		}
		p.put(b, 0)
	}
}

// kept returns the bytes held for reuse.
func (p *pool) kept() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}
