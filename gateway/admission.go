package gateway

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// Why a request was not admitted.
var (
	errQueueFull  = errors.New("the queue is full")
	errTenantFull = errors.New("the tenant has too many requests")
	errClosed     = errors.New("the gateway is shutting down")
)

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
}

type waiter struct {
	need    int
	granted chan error // receives once: nil when admitted, errClosed at shutdown
}

func newAdmission(places, queue, tenant int) *admission {
	return &admission{free: places, places: places, limit: queue, tenants: make(map[string]int), tenant: tenant}
}

// enter waits for need places. On success the caller calls the returned function once, when the
// places are free again. need must not exceed the total.
func (a *admission) enter(ctx context.Context, tenant string, need int) (leave func(), err error) {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil, errClosed
	}
	if a.tenant > 0 && a.tenants[tenant]+need > a.tenant {
		a.mu.Unlock()
		return nil, errTenantFull
	}
	if a.queue.Len() == 0 && a.free >= need {
		a.free -= need
		a.tenants[tenant] += need
		a.mu.Unlock()
		return a.leaver(tenant, need), nil
	}
	if a.queue.Len() >= a.limit {
		a.mu.Unlock()
		return nil, errQueueFull
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
		a.forget(tenant, need)
		a.mu.Unlock()
		return nil, err
	}
	return a.leaver(tenant, need), nil
}

func (a *admission) leaver(tenant string, need int) func() {
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
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
