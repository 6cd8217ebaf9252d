package worker

import "sync"

// mailbox brings events from other goroutines (bus, wire, timers) to the owner
// goroutine. Posting never blocks, so a callback of the wire or the bus cannot
// hold up its connection. Its length is bounded by what may be posted: a few
// events for every task, each page only within its handoff's credit, and
// commands only while the bus admits them.
type mailbox struct {
	mu     sync.Mutex
	events []func() // guarded by mu
	closed bool     // guarded by mu; no event is taken any more
	wake   chan struct{}
}

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

// post queues fn to run on the owner goroutine. It reports false, and drops fn,
// once the mailbox is closed.
func (m *mailbox) post(fn func()) bool {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false
	}
	m.events = append(m.events, fn)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return true
}

// take returns the queued events in order and hands the caller's spent slice
// back for reuse.
func (m *mailbox) take(spent []func()) []func() {
	clear(spent)
	m.mu.Lock()
	defer m.mu.Unlock()
	events := m.events
	m.events = spent[:0]
	return events
}

// close drops what is queued and makes later posts fail.
func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.events = nil
}
