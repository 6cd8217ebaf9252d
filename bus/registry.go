package bus

import (
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
	// Expired: it missed too many announcements. The same incarnation may come back.
	Expired Why = 1 + iota
	// Restarted: a newer incarnation of the same name announced itself.
	Restarted
	// Goodbye: it took leave.
	Goodbye
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
type Registry struct{}

// NewRegistry returns an empty registry that takes workers for gone after expiry without an announcement (0: 3.5 Beats)
// and knows at most limit of them (0: 4096).
func NewRegistry(expiry time.Duration, limit int) *Registry { return &Registry{} }

// Announce takes one registration and appends what changed to dst. Late ones, of an older incarnation, an older seq or an
// incarnation that took leave, change nothing. Errors: ErrMalformed, ErrTooMany.
func (r *Registry) Announce(now time.Duration, reg *buspb.Registration, dst []Change) ([]Change, error) {
	return dst, nil
}

// Expire appends a Left for each worker whose time is up at now.
func (r *Registry) Expire(now time.Duration, dst []Change) []Change { return dst }

// Next returns when Expire must be called next, and false where no worker is known.
func (r *Registry) Next() (time.Duration, bool) { return 0, false }

// Worker returns the newest registration of a living worker, or nil. It is shared: do not change it.
func (r *Registry) Worker(name string) *buspb.Registration { return nil }

// Workers returns the newest registrations of all living workers, ordered by name. They are shared: do not change them.
func (r *Registry) Workers() []*buspb.Registration { return nil }
