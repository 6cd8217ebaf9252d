package gateway

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// Why a request was not admitted.
var (
	errQueueFull  = errors.New("the queue is full")
	errTenantFull = errors.New("the tenant has too many requests")
	errClosed     = errors.New("the gateway is shutting down")
)

// refusedError says why a request was not admitted, and when to try again.
type refusedError struct {
	why   error
	after time.Duration // as long as it would take at the pace of late; 0 while there was none
}

func (e *refusedError) Error() string { return e.why.Error() }
func (e *refusedError) Unwrap() error { return e.why }

// admission lets a bounded number of samples run at once and keeps the HTTP requests behind them in
// a bounded queue, first come first served. A request asks for as many places as it has samples and
// gets all of them at once, so two requests never hold half of what both need.
type admission struct {
	mu      sync.Mutex
	free    int // places; never negative
	places  int
	queue   list.List // of *waiter, oldest first; guarded by mu
	limit   int       // longest queue
	tenants map[string]int
	tenant  int // most places and queued samples of one tenant, 0 unlimited
	closed  bool

	now  func() time.Duration
	held time.Duration // how long places were taken of late: a moving average over calls; guarded by mu
}

// heldWeight is the weight of a call in the moving average: the last dozen count.
const heldWeight = 8

type waiter struct {
	need    int
	granted chan error // receives once: nil when admitted, errClosed at shutdown
}

func newAdmission(places, queue, tenant int, now func() time.Duration) *admission {
	return &admission{free: places, places: places, limit: queue, tenants: make(map[string]int), tenant: tenant, now: now}
}

// turn is about how long somebody would wait who came now: the places that those before it need, at the
// pace at which places become free. mu is held.
func (a *admission) turn() time.Duration {
	ahead := 1
	for e := a.queue.Front(); e != nil; e = e.Next() {
		ahead += e.Value.(*waiter).need
	}
	return a.held * time.Duration(ahead) / time.Duration(a.places)
}

// soon is about how long it takes until a call ends, by those that run.
func (a *admission) soon() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held / time.Duration(max(1, a.places-a.free))
}

// idle reports whether nobody holds a place.
func (a *admission) idle() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.free == a.places
}

// enter waits for need places. Its errors are *refusedError. On success the caller calls the returned function once, when the
// places are free again. need must not exceed the total.
func (a *admission) enter(ctx context.Context, tenant string, need int) (leave func(), err error) {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil, &refusedError{why: errClosed}
	}
	if a.tenant > 0 && a.tenants[tenant]+need > a.tenant {
		defer a.mu.Unlock()
		return nil, &refusedError{errTenantFull, a.held / time.Duration(max(1, a.tenants[tenant]))}
	}
	if a.queue.Len() == 0 && a.free >= need {
		a.free -= need
		a.tenants[tenant] += need
		a.mu.Unlock()
		return a.leaver(tenant, need), nil
	}
	if a.queue.Len() >= a.limit {
		defer a.mu.Unlock()
		return nil, &refusedError{errQueueFull, a.turn()}
	}
	w := &waiter{need: need, granted: make(chan error, 1)}
	at := a.queue.PushBack(w)
	a.tenants[tenant] += need
	a.mu.Unlock()

	select {
	case err = <-w.granted:
	case <-ctx.Done():
		a.mu.Lock()
		select {
		case err = <-w.granted: // the grant came first: take it, the caller sees ctx itself
		default:
			a.queue.Remove(at)
			a.grant() // a smaller request may stand behind this one
			err = ctx.Err()
		}
		a.mu.Unlock()
	}
	if err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.forget(tenant, need)
		return nil, &refusedError{err, a.turn()}
	}
	return a.leaver(tenant, need), nil
}

func (a *admission) leaver(tenant string, need int) func() {
	entered := a.now()
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if took := a.now() - entered; a.held == 0 {
			a.held = took
		} else {
			a.held += (took - a.held) / heldWeight
		}
		a.free += need
		a.forget(tenant, need)
		a.grant()
	})
}

// forget takes samples off a tenant's count. mu is held.
func (a *admission) forget(tenant string, need int) {
	if a.tenants[tenant] -= need; a.tenants[tenant] == 0 {
		delete(a.tenants, tenant)
	}
}

// grant admits from the head of the queue while places last. mu is held.
func (a *admission) grant() {
	for e := a.queue.Front(); e != nil; e = a.queue.Front() {
		w := e.Value.(*waiter)
		if w.need > a.free {
			return
		}
		a.free -= w.need
		a.queue.Remove(e)
		w.granted <- nil
	}
}

// close refuses everyone who waits and everyone who comes.
func (a *admission) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for e := a.queue.Front(); e != nil; e = a.queue.Front() {
		a.queue.Remove(e)
		e.Value.(*waiter).granted <- errClosed
	}
}
