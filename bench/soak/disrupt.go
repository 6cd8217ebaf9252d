package soak

import (
	"context"
	"os"
	"time"
)

// stateWait is how long a worker that is to die in a state is given to come to it.
const stateWait = 5 * time.Second

// disruptions are those that are due with the requests from first on, in order.
func (r *run) disruptions(first, n int) []Disruption {
	every := r.cfg.Every
	if every < 0 {
		return nil
	}
	var all []Disruption
	for k := first / every; k*every < first+n; k++ {
		if d := r.gen.Disruption(k, every, r.cfg.Workers); d.At >= first && d.At < first+n {
			all = append(all, d)
		}
	}
	return all
}

// disrupt ends a worker's life when that is due, or when the load is over, and returns
// when the worker is up again.
func (r *run) disrupt(ctx context.Context, d Disruption, over <-chan struct{}) {
	name := r.cfg.Workers[d.Worker].Name
	limited, cancel := context.WithTimeout(ctx, r.cfg.Rest)
	defer cancel()
	at, err := r.table.awaitUp(limited, name)
	if err != nil {
		return // the next rest tells
	}
	wait := d.After
	var fired <-chan struct{}
	if d.State != "" {
		wait = stateWait
		var disarm func()
		fired, disarm = r.tracer.arm(name, d.State, d.Nth)
		defer disarm()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-fired:
	case <-timer.C:
	case <-over:
	case <-ctx.Done():
		return
	}
	sig := os.Signal(drainSignal)
	if !d.Drain {
		sig = os.Kill
		r.tracer.kills(name)
	}
	if err := r.table.signal(name, at.pid, sig); err != nil {
		return // it died of something else
	}
	r.with(func(rep *Report) {
		if d.Drain {
			rep.Drains++
		} else {
			rep.Kills++
		}
	})
	r.table.awaitNext(limited, name, at.lives)
}

// drain asks a worker to end and returns when it is up again.
func (r *run) drain(ctx context.Context, name string) {
	limited, cancel := context.WithTimeout(ctx, r.cfg.Rest)
	defer cancel()
	at, err := r.table.awaitUp(limited, name)
	if err != nil || r.table.signal(name, at.pid, drainSignal) != nil {
		return // the next rest tells
	}
	r.with(func(rep *Report) { rep.Drains++ })
	r.table.awaitNext(limited, name, at.lives)
}
