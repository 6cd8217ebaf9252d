package wire

import "sync"

// dispatcher calls one handoff's events in order, one at a time, outside all locks, on a goroutine that lives only while
// there is something to call.
type dispatcher struct {
	mu      sync.Mutex
	queue   []func()
	running bool
	closed  bool
	spawn   func(func())
}

// push queues an event; after last it does nothing.
func (d *dispatcher) push(f func()) { d.add(f, false) }

// last queues the final event.
func (d *dispatcher) last(f func()) { d.add(f, true) }

func (d *dispatcher) add(f func(), last bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.closed = last
	if f == nil {
		return
	}
	d.queue = append(d.queue, f)
	if !d.running {
		d.running = true
		d.spawn(d.run)
	}
}

func (d *dispatcher) run() {
	d.mu.Lock()
	for len(d.queue) > 0 {
		f := d.queue[0]
		d.queue[0] = nil
		d.queue = d.queue[1:]
		d.mu.Unlock()
		f()
		d.mu.Lock()
	}
	d.running = false
	d.mu.Unlock()
}
