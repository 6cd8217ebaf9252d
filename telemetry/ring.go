package telemetry

import (
	"sync"

	"github.com/tandem-llm/tandem/handoff"
)

// DefaultHandoffs is the number of newest records that a gateway keeps.
const DefaultHandoffs = 1_024

// Handoffs keeps the newest records of a gateway. It is safe for concurrent use.
type Handoffs struct {
	mu   sync.Mutex
	seq  uint64     // of the newest record
	ring []*Handoff // record n is at (n-1) % len; never changed once it is there
}

// NewHandoffs keeps the newest size records, DefaultHandoffs of them when size is not positive.
func NewHandoffs(size int) *Handoffs {
	if size <= 0 {
		size = DefaultHandoffs
	}
	return &Handoffs{ring: make([]*Handoff, 0, size)}
}

// Add numbers a record and keeps it. The record must not be changed afterwards.
func (l *Handoffs) Add(h *Handoff) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	h.Seq = l.seq
	if len(l.ring) < cap(l.ring) {
		l.ring = append(l.ring, h)
		return
	}
	l.ring[int((h.Seq-1)%uint64(cap(l.ring)))] = h
}

// Newest is the number of the newest record, 0 before the first.
func (l *Handoffs) Newest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

// HandoffList is what GET /tandem/handoffs of a gateway answers.
type HandoffList struct {
	Newest   uint64     `json:"newest"`   // number of the newest record there is; a smaller one than before means a restart
	Handoffs []*Handoff `json:"handoffs"` // newest first
}

// Query says which records are wanted. Zero fields want all.
type Query struct {
	After uint64 // only records with a larger number
	ID    string // of a handoff or a request
	Limit int    // the newest so many
}

// Find returns records, newest first. They must not be changed.
func (l *Handoffs) Find(q Query) []*Handoff {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []*Handoff{}
	var id handoff.ID
	if q.ID != "" {
		id, _ = handoff.ParseID(q.ID) // a request's name is none
	}
	for n := l.seq; n > q.After && l.seq-n < uint64(len(l.ring)); n-- {
		h := l.ring[int((n-1)%uint64(cap(l.ring)))]
		if q.ID != "" && h.Request.Key != q.ID && (id.IsZero() || h.ID != id) {
			continue
		}
		if out = append(out, h); q.Limit > 0 && len(out) == q.Limit {
			break
		}
	}
	return out
}
