package route

import (
	"slices"
	"strings"
)

// Router knows the live workers and the bookings of one host.
type Router struct {
	workers []*entry // ascending by name
	books   map[key]booking

	// compatible says why state cannot go from source to destination, nil if it can.
	compatible func(source, destination Target) error

	// The picker's memory: the name it chose last for each role, so that ties go
	// on from there. Indexed by Role.
	last [Both + 1]string

	options Options
	random  random

	// Memory of a choice, kept for the next one.
	sources, sinks, able, fresh []*entry
	scores                      []float64
}

// entry is a live worker with the sum of the bookings on its incarnation.
type entry struct {
	Worker
	load
	prefixes prefixes // what this incarnation is thought to have cached
}

// New returns an empty router. compatible says why state cannot go from one worker to another, nil
// when it can; it must be deterministic and is only asked about live workers.
// It chooses the least loaded worker for both roles; see Use.
func New(compatible func(source, destination Target) error) *Router {
	r := &Router{books: make(map[key]booking), compatible: compatible}
	r.Use(Options{})
	return r
}

// Update adds a worker or replaces what was known of it. A new incarnation starts without load:
// bookings on the old one no longer count, and are still ended by those who made them. An older
// incarnation than the known one is ignored and reported as false.
func (r *Router) Update(w Worker) bool {
	i, found := r.find(w.Name)
	if !found {
		r.workers = slices.Insert(r.workers, i, &entry{Worker: w, load: r.sum(w.Target())})
		return true
	}
	e := r.workers[i]
	switch {
	case w.Incarnation < e.Incarnation:
		return false
	case w.Incarnation > e.Incarnation:
		e.load, e.prefixes = r.sum(w.Target()), prefixes{}
	}
	e.Worker = w
	return true
}

// Target returns the worker's incarnation as a target.
func (w Worker) Target() Target { return Target{w.Name, w.Incarnation} }

// Remove forgets a worker that is gone. It does nothing when another incarnation is live.
func (r *Router) Remove(t Target) {
	if i, found := r.find(t.Worker); found && r.workers[i].Incarnation == t.Incarnation {
		r.workers = slices.Delete(r.workers, i, i+1)
	}
}

// Workers returns the live workers in the order of their names.
func (r *Router) Workers() []Worker {
	out := make([]Worker, 0, len(r.workers))
	for _, e := range r.workers {
		out = append(out, e.Worker)
	}
	return out
}

// Live reports whether this incarnation of the worker is known.
func (r *Router) Live(t Target) bool { return r.live(t) != nil }

func (r *Router) live(t Target) *entry {
	if i, found := r.find(t.Worker); found && r.workers[i].Incarnation == t.Incarnation {
		return r.workers[i]
	}
	return nil
}

func (r *Router) find(name string) (int, bool) {
	return slices.BinarySearchFunc(r.workers, name, func(e *entry, name string) int {
		return strings.Compare(e.Name, name)
	})
}
