package replay

import (
	"slices"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/replay/link"
	"github.com/tandem-llm/tandem/route"
)

// trunkRate is a link that was made, in the order of making.
type trunkRate struct {
	trunk
	resource link.Resource
}

// fails makes entry n of the fleet's failures happen.
func (h *host) fails(n int32) {
	f := &h.cfg.Failures[n]
	switch {
	case f.Worker != "":
		p, i := h.cfg.Find(f.Worker)
		w := &h.workers[int(h.pools[p].first)+i]
		if !w.alive {
			return
		}
		h.rec.Count("failures", "a worker died", 1)
		h.dies(w)
	case f.Stream != nil:
		h.rec.Count("failures", "a stream broke", 1)
		h.breakStream(*f.Stream)
		return
	default:
		h.rec.Count("failures", "a link changed", 1)
		h.degraded = append(h.degraded, degraded{n, f.From, f.To, f.Gbps})
		h.setLinks(f.From, f.To)
	}
	if f.For > 0 {
		h.events.Push(h.now+timed.Of(f.For), event{kind: evRepair, subject: n})
	}
}

// degraded is a link that does not carry what the configuration says.
type degraded struct {
	entry    int32
	from, to string
	gbps     float64
}

// linkRate is what a link carries now, in bytes per second.
func (h *host) linkRate(from, to string, gbps float64) float64 {
	for _, d := range h.degraded {
		if d.from == from && d.to == to {
			gbps = d.gbps
		}
	}
	return bytesPerSecond(gbps)
}

// setLinks gives the links between two pools the rates that hold now.
func (h *host) setLinks(from, to string) {
	rate := h.linkRate(from, to, h.cfg.Link(from, to).Gbps)
	for _, t := range h.trunkList {
		if h.workers[t.from].pool.cfg.Name == from && h.workers[t.to].pool.cfg.Name == to {
			h.net.SetRate(h.now, t.resource, rate)
		}
	}
}

// repaired ends a failure.
func (h *host) repaired(n int32) {
	f := &h.cfg.Failures[n]
	if f.Worker == "" {
		h.degraded = slices.DeleteFunc(h.degraded, func(d degraded) bool { return d.entry == n })
		h.setLinks(f.From, f.To)
		return
	}
	p, i := h.cfg.Find(f.Worker)
	w := &h.workers[int(h.pools[p].first)+i]
	if w.alive {
		return
	}
	old := w.incarnation
	w.pool.rep.Down(w.index, w.downSince, h.now)
	if err := h.boot(w); err != nil {
		h.fail(err)
		return
	}
	w.changed = true
	h.sample(w)
	// A registration with a new incarnation: the old one is gone for good.
	h.events.Push(h.now+h.oneWay, event{kind: evLost, subject: w.number, n: int64(old)})
}

// dies ends a worker's life: everything on it is gone, and nobody is told.
func (h *host) dies(w *worker) {
	h.catchUp(w)
	for _, n := range w.byRef { // what the clients had by now
		if n >= 0 {
			t := h.tasks.at(n)
			request := h.attempts.at(t.attempt).request
			h.learn(request, h.requests.at(request))
		}
	}
	h.steps.Clear(w.number)
	if w.stepping {
		w.busy(w.begun, h.now, workOf(&w.step))
	}
	w.flushBusy()
	w.stepping, w.stretch, w.alive, w.downSince = false, 0, false, h.now
	for _, chunk := range h.tasks.chunks {
		for i := range chunk {
			t := &chunk[i]
			if t.gen == 0 || t.worker != w.number {
				continue
			}
			a := h.attempts.at(t.attempt)
			if a.incarnation[t.side] != w.incarnation {
				continue
			}
			h.unjoin(w, t)
			h.closeStream(t, a)
			h.dropTask(t, a)
		}
	}
	w.byRef, w.joined = w.byRef[:0], w.joined[:0]
	s := w.kv.Snapshot()
	s.Active, s.Pinned, s.Reserved, s.Cached, s.Headroom, s.Slots, s.Free = 0, 0, 0, 0, 0, 0, s.Blocks
	w.grown(h.now)
	w.pool.rep.Memory(w.index, h.now, s)
	h.events.Push(h.now+timed.Of(h.cfg.Gateway.Detect), event{kind: evLost, subject: w.number, n: int64(w.incarnation)})
}

// workerLost is when the gateway notices that a life of a worker is over.
func (h *host) workerLost(n int32, incarnation uint64) {
	w := &h.workers[n]
	t := route.Target{Worker: w.name, Incarnation: incarnation}
	if w.incarnation == incarnation && !w.alive {
		h.router.Remove(t)
	}
	for c, chunk := range h.requests.chunks {
		for i := range chunk {
			if s := chunk[i].machine.State(); s != handoff.RequestNew && s != handoff.RequestDone {
				h.lostFor(int32(c<<slabBits+i), &chunk[i], n, incarnation)
			}
		}
	}
	h.workersChanged()
}

// lostFor tells a request that a worker is lost, if it is one of the current attempt,
// or the one whose pinned source is kept.
func (h *host) lostFor(n int32, q *request, worker int32, incarnation uint64) {
	on := func(a *attempt, side handoff.Role) bool {
		return a.worker[side] == worker && a.incarnation[side] == incarnation
	}
	if q.holder >= 0 && on(h.attempts.at(q.holder), handoff.RoleSource) {
		id := h.attempts.at(q.holder).id
		q.holder = -1
		h.apply(n, handoff.RequestFact{Kind: handoff.FactWorkerLost, Handoff: id, Side: handoff.RoleSource})
	}
	if q.current < 0 {
		return
	}
	a := h.attempts.at(q.current)
	for side := handoff.RoleSource; side <= handoff.RoleDestination; side++ {
		if on(a, side) && q.machine.Handoff() == a.id {
			if q.cause == "" {
				q.cause = causes[handoff.OutcomePeerLost]
			}
			h.apply(n, handoff.RequestFact{Kind: handoff.FactWorkerLost, Handoff: a.id, Side: side})
		}
	}
}

// suspect notes that a worker could not be reached: it is not chosen until it comes
// back.
func (h *host) suspect(n int32) {
	if w := &h.workers[n]; !w.alive && h.router.Live(route.Target{Worker: w.name, Incarnation: w.incarnation}) {
		h.announce(w, true)
	}
}

// breakStream ends the stream of a request in flight, for both sides.
func (h *host) breakStream(index int64) {
	for _, chunk := range h.requests.chunks {
		for i := range chunk {
			q := &chunk[i]
			if s := q.machine.State(); s == handoff.RequestNew || s == handoff.RequestDone || q.index != index || q.current < 0 {
				continue
			}
			a := h.attempts.at(q.current)
			for side := handoff.RoleSource; side <= handoff.RoleDestination; side++ {
				if n := a.task[side]; n >= 0 {
					h.closeStream(h.tasks.at(n), a)
					h.send(h.now+h.wire(a), event{kind: evStreamLost, side: side, subject: q.current})
				}
			}
			return
		}
	}
}

// drawCancel decides whether and when a request's client goes away.
func (h *host) drawCancel(n int32, q *request) {
	c := &h.cfg.Cancels
	if c.Rate > 0 && float64(h.random()>>11)*0x1p-53 < c.Rate {
		within := float64(h.random()>>11) * 0x1p-53
		at := h.now + timed.Time(float64(within*float64(timed.Of(c.Within))))
		h.events.Push(at, event{kind: evClientGone, subject: n, gen: q.gen})
	}
	for _, r := range c.Requests {
		if r.Request == q.index {
			h.events.Push(max(h.now, timed.Of(r.At)), event{kind: evClientGone, subject: n, gen: q.gen})
		}
	}
}
