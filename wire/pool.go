package wire

import (
	"math/bits"
	"sync"
)

// pool keeps zeroed buffers for reuse, in size classes of eight per power of two, so that at most an eighth of a buffer
// is waste. A buffer is zeroed when it comes back: what lies in the pool holds no state.
type pool struct {
	mu     sync.Mutex
	free   map[int][][]byte // by class size; every byte is zero
	bytes  int64            // sum of the free buffers' class sizes
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
	if l := p.free[c]; len(l) > 0 {
		b := l[len(l)-1]
		l[len(l)-1] = nil
		p.free[c] = l[:len(l)-1]
		p.bytes -= int64(c)
		p.mu.Unlock()
		return b[:n]
	}
	p.mu.Unlock()
	return make([]byte, n, c)
}

// put zeroes b, which came from get and may have been resliced at its end, and keeps it if there is room. The first clean
// bytes are zero already.
func (p *pool) put(b []byte, clean int) {
	b = b[:cap(b)]
	clear(b[clean:])
	c := len(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes+int64(c) > p.retain {
		return
	}
	if p.free == nil {
		p.free = make(map[int][][]byte)
	}
	p.free[c] = append(p.free[c], b)
	p.bytes += int64(c)
}

// kept returns the bytes held for reuse.
func (p *pool) kept() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}
