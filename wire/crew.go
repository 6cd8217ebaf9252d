package wire

import "sync"

// crew counts a node's goroutines. Unlike a sync.WaitGroup it may grow from nothing while somebody waits: hosts release
// units and discard buffers while their node closes, and after.
type crew struct {
	mu   sync.Mutex
	n    int
	idle *sync.Cond // or nil, while nobody waits
}

// run runs f on a goroutine.
func (c *crew) run(f func()) {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	go func() {
		defer c.left()
		f()
	}()
}

func (c *crew) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 && c.idle != nil {
		c.idle.Broadcast()
	}
}

// wait returns once no goroutine runs.
func (c *crew) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle == nil {
		c.idle = sync.NewCond(&c.mu)
	}
	for c.n > 0 {
		c.idle.Wait()
	}
}
