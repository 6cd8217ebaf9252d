package wire

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

func TestClasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 1<<32).Draw(t, "n")
		c := classOf(n)
		if c < n || classOf(c) != c {
			t.Fatalf("%d is in class %d, whose class is %d", n, c, classOf(c))
		}
		if n > smallestClass && float64(c) > 1.126*float64(n) {
			t.Fatalf("%d wastes %d", n, c-n)
		}
	})
}

// What lies in the pool is no more than retained. Buffers for sources are zero, whatever was written; buffers that units
// were received in are when no handoff is under way.
func TestPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &pool{retain: 1 << 20}
		var out, received [][]byte
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				b := p.getUsed(rapid.IntRange(1, 300<<10).Draw(t, "received"))
				for i := range b[:cap(b)] {
					b[:cap(b)][i] = 0xbb
				}
				received = append(received, b)
				continue
			case 1:
				if n := len(received); n > 0 {
					p.putUsed(received[n-1])
					received = received[:n-1]
				}
				continue
			case 2:
				p.rest(true)
				p.scrub()
				if p.dirty() > 0 {
					t.Fatalf("%d buffers are not zeroed", p.dirty())
				}
				if rapid.Bool().Draw(t, "goes on") {
					p.rest(false)
				}
				continue
			}
			if len(out) > 0 && rapid.Bool().Draw(t, "put") {
				b := out[len(out)-1]
				out = out[:len(out)-1]
				for i := range b {
					b[i] = 0xaa
				}
				clean := rapid.IntRange(0, len(b)).Draw(t, "clean")
				clear(b[:clean])
				p.put(b[:rapid.IntRange(0, len(b)).Draw(t, "cut")], clean)
			} else {
				n := rapid.IntRange(1, 300<<10).Draw(t, "n")
				b := p.get(n)
				if len(b) != n || !bytes.Equal(b[:cap(b)], make([]byte, cap(b))) {
					t.Fatalf("buffer of %d has %d bytes or is not zero", n, len(b))
				}
				out = append(out, b)
			}
			var sum int64
			for c, l := range p.free {
				for _, b := range l {
					if cap(b) != c || !bytes.Equal(b[:c], make([]byte, c)) {
						t.Fatalf("free buffer of class %d has %d bytes or is not zero", c, cap(b))
					}
					sum += int64(c)
				}
			}
			for c, l := range p.used {
				if p.idle && len(l) > 0 {
					t.Fatalf("%d buffers that hold state while nothing is under way", len(l))
				}
				sum += int64(c) * int64(len(l))
			}
			if sum != p.kept() || sum > p.retain {
				t.Fatalf("%d bytes free, counted %d, retain %d", sum, p.kept(), p.retain)
			}
		}
	})
}

// The budget never grants over its total, except to one claim alone; it grants in order; all that is asked is granted in
// the end, and all that is granted returned.
func TestBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(1, 100).Draw(t, "total")
		b := &budget{total: total}
		var live []*claim
		var order []int
		n := 0
		settle := func() {
			var sum int64
			for _, c := range live {
				if c.granted && !c.gone {
					sum += c.need
				}
			}
			granted := 0
			for _, c := range live {
				if c.granted {
					granted++
				}
			}
			if sum != b.inUse() || sum > total && granted > 1 {
				t.Fatalf("%d granted to %d, counted %d, total %d", sum, granted, b.inUse(), total)
			}
			if len(live) > 0 && granted == 0 {
				t.Fatal("claims wait and nothing is granted")
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(t, "release") {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				c := live[i]
				live = append(live[:i], live[i+1:]...)
				b.release(c)
				b.release(c)
			} else {
				at := n
				n++
				c := &claim{need: rapid.Int64Range(1, 2*total).Draw(t, "need")}
				c.grant = func() { order = append(order, at) }
				live = append(live, c)
				b.request(c)
			}
			settle()
		}
		for len(live) > 0 {
			b.release(live[0])
			live = live[1:]
			settle()
		}
		if b.inUse() != 0 {
			t.Fatalf("%d bytes stay taken", b.inUse())
		}
		for i := 1; i < len(order); i++ {
			if order[i] < order[i-1] {
				t.Fatalf("granted in the order %v", order)
			}
		}
	})
}
