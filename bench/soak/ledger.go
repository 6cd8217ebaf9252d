package soak

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/handoff"
)

// ledger is what the gateway's records say about requests, held against what clients
// saw. It is safe for concurrent use.
type ledger struct {
	mu       sync.Mutex
	stories  map[string]*story // of requests that are not settled; guarded by mu
	now      time.Duration     // of the newest record; guarded by mu
	attempts int               // guarded by mu
	again    map[string]bool   // answers that took more than one attempt; guarded by mu
	faults   []string          // guarded by mu

	retriedGreedy int // handed-off answers in again that are greedy; guarded by mu
}

// story is what the gateway did for one request.
type story struct {
	began    time.Duration
	state    string
	attempts []handoff.ID
	tokens   int
	statuses []handoff.Status
	bookings map[bookingKey]bool // made and not ended
}

type bookingKey struct {
	id   handoff.ID
	what handoff.Booking
}

func (s *story) done() bool { return s.state == handoff.RequestDone.String() }

func newLedger() *ledger { return &ledger{stories: map[string]*story{}, again: map[string]bool{}} }

func (l *ledger) fault(format string, args ...any) {
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

// record takes a record of a request's machine.
func (l *ledger) record(r *handoff.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = max(l.now, r.Now)
	s := l.stories[r.Request]
	if s == nil {
		if r.RequestFact == nil || r.RequestFact.Kind != handoff.FactAdmitted {
			l.late(r)
			return
		}
		s = &story{began: r.Now, bookings: map[bookingKey]bool{}}
		l.stories[r.Request] = s
	}
	s.state = r.State
	if f := r.RequestFact; f != nil {
		switch f.Kind {
		case handoff.FactPlaced:
			s.attempts = append(s.attempts, f.Handoff)
			l.attempts++
		case handoff.FactBooked:
			if r.Err == "" {
				s.bookings[bookingKey{f.Handoff, f.Booking}] = true
			}
		}
	}
	for _, a := range r.RequestActions {
		switch a.Kind {
		case handoff.ActionForward:
			if a.Index != s.tokens {
				l.fault("request %s: token %d was forwarded where %d is next", r.Request, a.Index, s.tokens)
			}
			s.tokens = a.Index + 1
		case handoff.ActionFinish:
			if s.statuses = append(s.statuses, a.Status); len(s.statuses) > 1 {
				l.fault("request %s has the terminal statuses %v", r.Request, s.statuses)
			}
		case handoff.ActionUnbook:
			delete(s.bookings, bookingKey{a.Handoff, a.Booking})
		}
	}
}

// late takes a record of a request that is settled: a message that was under way.
func (l *ledger) late(r *handoff.Record) {
	for _, a := range r.RequestActions {
		if a.Kind == handoff.ActionForward || a.Kind == handoff.ActionFinish {
			l.fault("request %s is over, and its machine says %s", r.Request, a.Kind)
		}
	}
}

// settle compares what clients saw with the gateway's records and forgets what is
// over. It is called when the fleet is at rest and no client waits; it reports the
// number of requests that are still open.
func (l *ledger) settle(seen []*Answer) (open int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range seen {
		if a.ID == "" {
			continue // it ended before anything that names it
		}
		s := l.stories[a.ID+".0"]
		if s == nil {
			l.fault("request %d (%s) is in no record of the gateway", a.Request.Index, a.ID)
			continue
		}
		if !s.done() || len(s.statuses) != 1 {
			continue // told below
		}
		completed := s.statuses[0] == handoff.StatusCompleted
		switch a.End {
		case Finished:
			if len(s.attempts) > 1 {
				l.again[a.ID] = true
				if a.Request.greedy() && a.Mode == modeHandedOff {
					l.retriedGreedy++
				}
			}
			if !completed || s.tokens != len(a.Tokens) {
				l.fault("request %d (%s): the client has a whole answer of %d tokens, the gateway forwarded %d and ended it as %s",
					a.Request.Index, a.ID, len(a.Tokens), s.tokens, s.statuses[0])
			}
		case Refused:
			if completed || s.statuses[0] == handoff.StatusCancelled {
				l.fault("request %d (%s): the client has the error %s, the gateway ended it as %s", a.Request.Index, a.ID, a.Code, s.statuses[0])
			}
		case Left:
			if !completed && s.statuses[0] == handoff.StatusTimeout {
				l.fault("request %d (%s): the client left, the gateway ended it as %s", a.Request.Index, a.ID, s.statuses[0])
			}
		}
	}
	for id, s := range l.stories {
		if !s.done() {
			open++
			continue
		}
		if len(s.statuses) != 1 {
			l.fault("request %s is done with the terminal statuses %v", id, s.statuses)
		}
		for b := range s.bookings {
			l.fault("request %s is done and keeps the booking %s of handoff %s", id, b.what, b.id)
		}
		delete(l.stories, id)
	}
	return open
}

// open describes the requests that have no end and are at least so old, oldest first.
func (l *ledger) open(age time.Duration) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	type old struct {
		began time.Duration
		text  string
	}
	var list []old
	for id, s := range l.stories {
		if !s.done() && l.now-s.began >= age {
			list = append(list, old{s.began, fmt.Sprintf("request %s is %s after %d tokens, handoffs %v", id, s.state, s.tokens, s.attempts)})
		}
	}
	slices.SortFunc(list, func(a, b old) int { return int(a.began - b.began) })
	var out []string
	for _, o := range list {
		out = append(out, o.text)
	}
	return out
}

// retried reports whether a whole answer took more than one attempt. It is known when
// the request is settled.
func (l *ledger) retried(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.again[id]
}

// summary returns the number of attempts and what was wrong.
func (l *ledger) summary() (attempts int, faults []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.attempts, slices.Clone(l.faults)
}
