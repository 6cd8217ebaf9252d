package bus

import (
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
)

// ChangeKind says what happened to a worker.
type ChangeKind uint8

const (
	// Joined: a worker, or a new incarnation of one, is there.
	Joined ChangeKind = 1 + iota
	// Updated: a known worker announced itself again.
	Updated
	// Left: an incarnation is gone; its handles are void. See Change.Why.
	Left
)

// Why says why a worker left.
type Why uint8

const (
	// Expired: it missed too many announcements. The same incarnation may come back, as Joined.
	Expired Why = 1 + iota
	// Restarted: a newer incarnation of the same name announced itself; its Joined follows.
	Restarted
	// Goodbye: it took leave.
	Goodbye
)

// Defaults of NewRegistry.
const (
	DefaultExpiry = 7 * Beat / 2
	DefaultLimit  = 4096
)

// Change is one event of a Registry.
type Change struct {
	Kind        ChangeKind
	Why         Why // of Left
	Worker      string
	Incarnation uint64
	// Registration is the newest, or, of one that left, the last. It is shared: do not change it.
	Registration *buspb.Registration
}

// Registry knows which workers live. It is pure: time comes in as now, and it is not safe for concurrent use.
type Registry struct {
	expiry  time.Duration
	limit   int
	entries map[string]*entry // living and dead
	alive   int               // of entries, at most limit; the dead are at most as many again
}

// entry is one name. A dead one is kept so that late messages do not bring it back.
type entry struct {
	reg   *buspb.Registration // the newest; its incarnation and seq never go back
	seen  time.Duration
	alive bool
	bye   bool // this incarnation took leave and never comes back
}

// NewRegistry returns an empty registry that takes workers for gone after expiry without an announcement (0: 3.5 Beats)
// and knows at most limit of them (0: 4096).
func NewRegistry(expiry time.Duration, limit int) *Registry {
	if expiry <= 0 {
		expiry = DefaultExpiry
	}
	if limit <= 0 {
		limit = DefaultLimit
	}
	return &Registry{expiry: expiry, limit: limit, entries: map[string]*entry{}}
}

// Announce takes one registration and appends what changed to dst. Late ones, of an older incarnation, an older seq or an
// incarnation that took leave, change nothing. The registry keeps reg. Errors: ErrMalformed, ErrTooMany.
func (r *Registry) Announce(now time.Duration, reg *buspb.Registration, dst []Change) ([]Change, error) {
	if err := CheckRegistration(reg); err != nil {
		return dst, err
	}
	e := r.entries[reg.Worker]
	switch {
	case e != nil && late(e, reg):
		return dst, nil
	case reg.Leaving:
		if e == nil {
			return dst, nil // never heard of
		}
		return r.leave(now, e, reg, dst), nil
	case (e == nil || !e.alive) && r.alive >= r.limit:
		return dst, &Error{Kind: ErrTooMany, Detail: reg.Worker + " was not taken in"}
	}
	if e == nil {
		r.forgetDead()
		e = &entry{}
		r.entries[reg.Worker] = e
	}
	kind := Updated
	if !e.alive || e.reg.Incarnation != reg.Incarnation {
		kind = Joined
		if e.alive {
			dst = append(dst, left(e, Restarted))
		} else {
			r.alive++
		}
	}
	e.reg, e.seen, e.alive, e.bye = reg, max(now, e.seen), true, false
	return append(dst, Change{Kind: kind, Worker: reg.Worker, Incarnation: reg.Incarnation, Registration: reg}), nil
}

// late reports whether something newer is known than reg.
func late(e *entry, reg *buspb.Registration) bool {
	switch {
	case reg.Incarnation != e.reg.Incarnation:
		return reg.Incarnation < e.reg.Incarnation
	default:
		return e.bye || reg.Seq <= e.reg.Seq
	}
}

// leave handles a goodbye, also of an incarnation that never announced itself: then the older one is gone all the same.
func (r *Registry) leave(now time.Duration, e *entry, reg *buspb.Registration, dst []Change) []Change {
	if e.alive {
		why := Goodbye
		if reg.Incarnation != e.reg.Incarnation {
			why = Restarted
		}
		dst = append(dst, left(e, why))
		r.alive--
	}
	e.reg, e.seen, e.alive, e.bye = reg, max(now, e.seen), false, true
	return dst
}

func left(e *entry, why Why) Change {
	return Change{Kind: Left, Why: why, Worker: e.reg.Worker, Incarnation: e.reg.Incarnation, Registration: e.reg}
}

// forgetDead makes room among the dead: the one longest gone is forgotten, and could come back as if new.
func (r *Registry) forgetDead() {
	if len(r.entries)-r.alive < r.limit {
		return
	}
	var oldest *entry
	for _, e := range r.entries {
		older := oldest == nil || e.seen < oldest.seen || e.seen == oldest.seen && e.reg.Worker < oldest.reg.Worker
		if !e.alive && older {
			oldest = e
		}
	}
	delete(r.entries, oldest.reg.Worker)
}

// Expire appends a Left for each worker whose time is up at now, in the order of their names.
func (r *Registry) Expire(now time.Duration, dst []Change) []Change {
	mark := len(dst)
	for _, e := range r.entries {
		if e.alive && now >= e.seen+r.expiry {
			e.alive = false
			r.alive--
			dst = append(dst, left(e, Expired))
		}
	}
	slices.SortFunc(dst[mark:], func(a, b Change) int { return strings.Compare(a.Worker, b.Worker) })
	return dst
}

// Next returns when Expire must be called next, and false where no worker lives.
func (r *Registry) Next() (time.Duration, bool) {
	var at time.Duration
	found := false
	for _, e := range r.entries {
		if t := e.seen + r.expiry; e.alive && (!found || t < at) {
			at, found = t, true
		}
	}
	return at, found
}

// Worker returns the newest registration of a living worker, or nil. It is shared: do not change it.
func (r *Registry) Worker(name string) *buspb.Registration {
	if e := r.entries[name]; e != nil && e.alive {
		return e.reg
	}
	return nil
}

// Workers returns the newest registrations of all living workers, ordered by name. They are shared: do not change them.
func (r *Registry) Workers() []*buspb.Registration {
	out := make([]*buspb.Registration, 0, r.alive)
	for _, e := range r.entries {
		if e.alive {
			out = append(out, e.reg)
		}
	}
	slices.SortFunc(out, func(a, b *buspb.Registration) int { return strings.Compare(a.Worker, b.Worker) })
	return out
}
