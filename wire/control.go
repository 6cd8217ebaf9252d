package wire

import (
	"bufio"
	"sync"
	"time"
)

// control is one handoff's stream: a goroutine that reads, one that writes what is queued. Queueing never blocks; the
// queue is bounded by the protocol, because every message is sent once, except those of which only the latest matters.
type control struct {
	st    stream
	stall time.Duration // bounds one write

	mu      sync.Mutex
	queue   [][]byte
	latest  []byte // credit, or pong, not written yet
	alive   []byte
	closing bool // after the queue: end the own direction
	broken  bool
	wake    chan struct{} // capacity 1
}

func newControl(st stream, stall time.Duration) *control {
	return &control{st: st, stall: stall, wake: make(chan struct{}, 1)}
}

// send queues a message.
func (c *control) send(m []byte) { c.put(func() { c.queue = append(c.queue, m) }) }

// replace queues a message in place of an earlier one that is not written yet: credit, which is cumulative, and on a
// connection's first stream pongs, so that a peer that pings and does not read costs one message.
func (c *control) replace(m []byte) { c.put(func() { c.latest = m }) }

// sendAlive queues a sign of life if nothing else is queued.
func (c *control) sendAlive() {
	c.put(func() {
		if len(c.queue) == 0 && c.latest == nil {
			c.alive = frameMsg(msgAlive, flagOptional, nil)
		}
	})
}

// finish ends the own direction after everything queued.
func (c *control) finish() { c.put(func() { c.closing = true }) }

func (c *control) put(f func()) {
	c.mu.Lock()
	if !c.closing && !c.broken {
		f()
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// take returns what to write now, in one piece, and whether it is the last.
func (c *control) take() (out []byte, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.queue {
		out = append(out, m...)
	}
	out = append(out, c.latest...)
	out = append(out, c.alive...)
	c.queue, c.latest, c.alive = nil, nil, nil // written messages may hold content: keep no reference
	return out, c.closing || c.broken
}

// writeLoop runs until finish or a failed write; the stream's reader learns of the latter too.
func (c *control) writeLoop() {
	for {
		out, last := c.take()
		if len(out) > 0 {
			c.st.SetWriteDeadline(time.Now().Add(c.stall))
			if _, err := c.st.Write(out); err != nil {
				c.mu.Lock()
				c.broken = true
				c.mu.Unlock()
				c.st.stop()
				return
			}
		}
		if last {
			c.st.closeWrite()
			return
		}
		<-c.wake
	}
}

// readLoop calls handle for each message until the stream ends or handle fails, and returns why.
func (c *control) readLoop(limit int, handle func(msgKind, []byte) error) error {
	r := bufio.NewReaderSize(c.st, 4<<10)
	for {
		kind, p, err := readMsg(r, limit)
		if err != nil {
			return err
		}
		if err := handle(kind, p); err != nil {
			return err
		}
	}
}
