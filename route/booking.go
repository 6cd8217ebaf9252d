package route

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/tandem-llm/tandem/handoff"
)

// Errors of bookings.
var (
	// ErrBooked: the handoff has this booking already; nothing changed.
	ErrBooked = errors.New("already booked")
	// ErrNotBooked: the handoff has no such booking, or it has ended; nothing changed.
	ErrNotBooked = errors.New("not booked")
)

type key struct {
	id   handoff.ID
	what handoff.Booking
}

type booking struct {
	target Target
	tokens int
}

// load is the sum of the bookings on one incarnation of a worker. Each field is never negative.
type load struct {
	prompts  int // tokens of BookPrefill
	requests int // number of BookSource, BookDecode and BookRun: each takes a slot
	tokens   int // tokens of BookDecode and BookRun
}

func (l *load) add(what handoff.Booking, tokens, sign int) {
	switch what {
	case handoff.BookPrefill:
		l.prompts += sign * tokens
	case handoff.BookSource:
		l.requests += sign
	case handoff.BookDecode, handoff.BookRun:
		l.requests += sign
		l.tokens += sign * tokens
	}
}

// compare orders workers for a role, least loaded first. Counts are compared relative to slots, so
// that a worker of twice the size gets twice the work.
func (e *entry) compare(role Role, o *entry) int {
	requests := cmp.Compare(e.requests*o.slots(), o.requests*e.slots())
	if role == Decode {
		return cmp.Or(requests, cmp.Compare(e.tokens, o.tokens))
	}
	return cmp.Or(cmp.Compare(e.prompts, o.prompts), requests, cmp.Compare(e.tokens, o.tokens))
}

func (e *entry) slots() int { return max(e.Slots, 1) }

// Book enters a booking on a worker. tokens is the size of the work: prompt tokens for BookPrefill,
// prompt plus the most generated tokens for BookDecode and BookRun, unused for BookSource. A booking
// on a worker that is no longer live is only remembered. The error wraps ErrBooked.
func (r *Router) Book(id handoff.ID, what handoff.Booking, t Target, tokens int) error {
	k := key{id, what}
	if _, ok := r.books[k]; ok {
		return fmt.Errorf("route: %s booking of handoff %s: %w", what, id, ErrBooked)
	}
	r.books[k] = booking{t, tokens}
	if e := r.live(t); e != nil {
		e.add(what, tokens, 1)
	}
	return nil
}

// Unbook ends a booking. The error wraps ErrNotBooked.
func (r *Router) Unbook(id handoff.ID, what handoff.Booking) error {
	k := key{id, what}
	b, ok := r.books[k]
	if !ok {
		return fmt.Errorf("route: %s booking of handoff %s: %w", what, id, ErrNotBooked)
	}
	delete(r.books, k)
	if e := r.live(b.target); e != nil {
		e.add(what, b.tokens, -1)
	}
	return nil
}

// Booked reports whether the booking lives and where.
func (r *Router) Booked(id handoff.ID, what handoff.Booking) (Target, bool) {
	b, ok := r.books[key{id, what}]
	return b.target, ok
}

// Bookings is the number of bookings made and not ended.
func (r *Router) Bookings() int { return len(r.books) }

// sum is the load of the bookings on one incarnation. Addition commutes, so the map's order does
// not matter.
func (r *Router) sum(t Target) load {
	var l load
	for k, b := range r.books {
		if b.target == t {
			l.add(k.what, b.tokens, 1)
		}
	}
	return l
}
