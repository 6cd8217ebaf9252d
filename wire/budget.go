package wire

import "sync"

// cost is what a unit of n bytes counts for against windows and totals: its bytes, and for small ones the bookkeeping
// and the smallest buffer, so that a million units of one byte are not cheap.
func cost(n int) int64 { return max(int64(n), smallestClass) }

// budget is the receive side's share of Config.Total. A granted handoff holds a whole charge, enough to finish without
// anybody else's memory, so that granted handoffs never wait for each other in a circle; the others wait in order.
type budget struct {
	mu      sync.Mutex
	total   int64
	taken   int64
	waiting []*claim
}

// claim is one handoff's place in the budget.
type claim struct {
	need    int64
	granted bool
	gone    bool
	grant   func() // called once, without locks, when the charge is taken
}

// request queues a claim; its grant is called as soon as it fits, perhaps at once.
func (b *budget) request(c *claim) {
	b.mu.Lock()
	b.waiting = append(b.waiting, c)
	b.serve()
}

// release returns a claim's charge, or withdraws it from the queue. A second call does nothing.
func (b *budget) release(c *claim) {
	b.mu.Lock()
	if c.gone {
		b.mu.Unlock()
		return
	}
	c.gone = true
	if c.granted {
		b.taken -= c.need
	}
	b.serve()
}

// serve grants from the head of the queue while it fits, and unlocks. One claim alone always fits.
func (b *budget) serve() {
	var ready []*claim
	for len(b.waiting) > 0 {
		c := b.waiting[0]
		if !c.gone {
			if b.taken > 0 && b.taken+c.need > b.total {
				break
			}
			b.taken += c.need
			c.granted = true
			ready = append(ready, c)
		}
		b.waiting[0] = nil
		b.waiting = b.waiting[1:]
	}
	b.mu.Unlock()
	for _, c := range ready {
		c.grant()
	}
}

func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken
}

// quota is the send side's share of Config.Total: payload bytes in buffers between Buffer and the kernel. Only senders
// with credit take from it, so what is taken always drains.
type quota struct {
	mu      sync.Mutex
	total   int64
	taken   int64
	waiting []*Sender // asked and were told no, in order, each once
}

// take adds n if it fits; otherwise it remembers s and returns false.
func (q *quota) take(n int64, s *Sender) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.taken > 0 && q.taken+n > q.total {
		for _, w := range q.waiting {
			if w == s {
				return false
			}
		}
		q.waiting = append(q.waiting, s)
		return false
	}
	q.taken += n
	return true
}

// give returns n bytes and the senders to tell.
func (q *quota) give(n int64) []*Sender {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken -= n
	w := q.waiting
	q.waiting = nil
	return w
}

func (q *quota) inUse() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.taken
}
