package soak

import (
	"context"
	"errors"
	"os"
	"sync"
)

// Role is the role of a worker.
type Role string

// The roles.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
	Both    Role = "both"
)

// Worker is one of a fleet's.
type Worker struct {
	Name string
	Role Role
}

// Gateway is the name of the fleet's gateway.
const Gateway = "gateway"

// Fleet is what a soak has to know of the processes it runs on. Its host restarts those
// that end.
type Fleet struct {
	URL   string // of the gateway, without a path
	Model string // as clients name it
	// Ready returns when the gateway serves and knows all workers in their present
	// lives, or when ctx ends.
	Ready func(ctx context.Context) error
	// Plain has workers that start from now on keep no prefixes.
	Plain func()
	// Stop ends all processes and returns when they are gone.
	Stop func() error
}

// EventKind says what happened to a process.
type EventKind int

// The kinds.
const (
	Started EventKind = iota
	Announced
	Exited
)

// Event is one thing that happened to a process. Those of one process come in order.
type Event struct {
	Process string
	Kind    EventKind
	PID     int    // Started
	Metrics string // Announced: host and port of its metrics, those of the API for a gateway
	Err     error  // Exited: nil for exit status 0
}

// Start starts a fleet of the workers of the Config. Each process writes its lifecycle
// events to NAME.jsonl in the directory traces, which is a pipe. event is called
// for every process and must not be called after Fleet.Stop has returned.
type Start func(ctx context.Context, traces string, event func(Event)) (*Fleet, error)

// table is what is known of the fleet's processes. It is safe for concurrent use.
type table struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change; guarded by mu
	rows    map[string]*row
	asked   map[int]os.Signal // processes that this soak ended, by pid; guarded by mu
	ending  bool              // all processes are being stopped; guarded by mu
	odd     []string          // ends that nobody asked for; guarded by mu
}

type row struct {
	pid     int // 0: not running
	lives   int
	metrics string // empty: not up
}

func newTable() *table {
	return &table{changed: make(chan struct{}), rows: map[string]*row{}, asked: map[int]os.Signal{}}
}

func (t *table) row(name string) *row {
	r := t.rows[name]
	if r == nil {
		r = &row{}
		t.rows[name] = r
	}
	return r
}

func (t *table) event(e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.row(e.Process)
	switch e.Kind {
	case Started:
		r.pid, r.metrics = e.PID, ""
		r.lives++
	case Announced:
		r.metrics = e.Metrics
	case Exited:
		sig, asked := t.asked[r.pid]
		delete(t.asked, r.pid)
		if t.ending {
			asked = true
		}
		if !asked || sig != os.Kill && e.Err != nil {
			t.odd = append(t.odd, oddEnd(e, asked))
		}
		r.pid, r.metrics = 0, ""
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

func oddEnd(e Event, asked bool) string {
	how := "ended without being asked to"
	if asked {
		how = "did not drain"
	}
	if e.Err != nil {
		how += ": " + e.Err.Error()
	}
	return e.Process + " " + how
}

// look returns what is known of a process, and what closes when that changes.
func (t *table) look(name string) (row, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return *t.row(name), t.changed
}

// awaitUp waits until a process is up and returns what is known of it.
func (t *table) awaitUp(ctx context.Context, name string) (row, error) {
	for {
		r, changed := t.look(name)
		if r.metrics != "" {
			return r, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return row{}, ctx.Err()
		}
	}
}

// awaitNext waits until a process is up in a later life.
func (t *table) awaitNext(ctx context.Context, name string, life int) {
	for {
		r, changed := t.look(name)
		if r.metrics != "" && r.lives > life {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

var (
	errDown  = errors.New("it is not running")
	errAsked = errors.New("it is ending already")
)

// signal ends a process. It is an error if it is not the one with pid any more, or if it
// was asked to drain before and is again: a second signal ends it at once.
func (t *table) signal(name string, pid int, sig os.Signal) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if pid == 0 || t.row(name).pid != pid {
		return errDown
	}
	if t.asked[pid] != nil && sig != os.Kill {
		return errAsked
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	if err := p.Signal(sig); err != nil {
		return err
	}
	t.asked[pid] = sig
	return nil
}

// expectEnd says that all processes are about to be stopped.
func (t *table) expectEnd() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ending = true
}

// oddEnds returns the ends of processes that nobody asked for.
func (t *table) oddEnds() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.odd...)
}
