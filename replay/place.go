package replay

import (
	"errors"
	"slices"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/place"
	"github.com/tandem-llm/tandem/replay/fleet"
	"github.com/tandem-llm/tandem/route"
)

// model is the name that all workers serve.
const model = "model"

// place chooses workers and a new handoff id, or waits for workers that may come
// back.
func (h *host) place(n int32, q *request) {
	if q.machine.State() != handoff.RequestAdmitted {
		return
	}
	ask := place.Ask{Mode: h.cfg.Mode, Request: q.placing(), Only: h.cfg.Gateway.Retry == handoff.RetryRebind}
	if h.cfg.Order == fleet.SourceFirst && !q.machine.AvoidsSourceFirst() {
		ask.Order = handoff.SourceFirst
	}
	if q.holder >= 0 {
		ask.Holder = h.target(h.attempts.at(q.holder), handoff.RoleSource)
	}
	d, err := place.Decide(h.router, ask)
	switch {
	case err != nil:
		h.placeFailed(n, q, err)
		return
	case h.now < q.resume && d.GoesBack(q.avoid, q.refuser):
		h.placeLater(n, q, q.resume)
		return
	}
	h.stopWaiting(n, q)
	number, a := h.attempts.add()
	*a = attempt{id: h.mint(), request: n, next: -1, policy: d.Policy,
		worker: [3]int32{-1, -1, -1}, task: [3]int32{-1, -1, -1}, m: unmeasured}
	h.assign(a, handoff.RoleSource, d.Source)
	h.router.Learn(d.Source, q.prompt())
	if d.Policy != handoff.Disabled {
		h.assign(a, handoff.RoleDestination, d.Destination)
		a.link = h.linkOf(a)
		h.router.Learn(d.Destination, q.prompt())
	}
	if q.current >= 0 {
		h.attempts.at(q.current).next = number
	} else {
		q.first = number
	}
	q.current = number
	q.attempts++
	h.rec.Count("placed", d.Policy.String(), 1)
	h.apply(n, handoff.RequestFact{Kind: handoff.FactPlaced, Policy: d.Policy, Handoff: a.id, Rebind: d.Rebind})
}

func (h *host) assign(a *attempt, side handoff.Role, t route.Target) {
	a.worker[side], a.incarnation[side] = h.byName[t.Worker], t.Incarnation
}

// placing is what the router needs to know.
func (q *request) placing() route.Request {
	return route.Request{Model: model, Tokens: q.input + q.output, Avoid: q.avoid, Exclude: q.exclude, Keys: q.prompt()}
}

// prompt names the prompt's blocks for the router: in the first size that the fleet
// has.
func (q *request) prompt() []kv.Key {
	if len(q.keys) == 0 {
		return nil
	}
	return q.keys[0].all[:q.keys[0].prompt]
}

// routeTokens is what the gateway counts prefixes in. Looking at every block of 16
// would cost more than the rest of a replay.
const routeTokens = 128

// useRoutes tells the router how to choose.
func (h *host) useRoutes() {
	c := &h.cfg.Route
	o := route.Options{Prefill: c.Policy, Decode: c.Policy, Seed: h.cfg.Seed, Affinity: c.Affinity}
	if c.Prefill != nil {
		o.Prefill = *c.Prefill
	}
	if c.Decode != nil {
		o.Decode = *c.Decode
	}
	if len(h.blockSizes) > 0 {
		o.KeyTokens = h.blockSizes[0]
		o.Every = max(routeTokens/o.KeyTokens, 1)
	}
	for i := range h.pools {
		o.Remember = max(o.Remember, h.pools[i].blocks)
	}
	h.router.Use(o)
}

// placeFailed ends the request, or lets it wait when a worker that is down may come
// back.
func (h *host) placeFailed(n int32, q *request, err error) {
	hopeless := place.Hopeless(err, q.attempts == 0)
	if q.giveUp == 0 && (q.attempts > 0 || h.anyDown()) {
		q.giveUp = h.now + timed.Of(h.cfg.Gateway.PlaceWait)
	}
	if !hopeless && h.now < q.giveUp {
		h.placeLater(n, q, q.giveUp)
		return
	}
	h.stopWaiting(n, q)
	if q.cause == "" {
		q.cause = "no worker can take it"
		if refused := (*route.RefusedError)(nil); errors.As(err, &refused) && refused.Has(route.TooLong) {
			q.cause = "no worker can hold so many tokens"
		}
	}
	h.apply(n, handoff.RequestFact{Kind: handoff.FactFailed, Phase: handoff.PhasePlace, Never: q.attempts == 0})
}

// placeLater looks for a place again at the given time, or when a worker joins before.
func (h *host) placeLater(n int32, q *request, at timed.Time) {
	if !q.waiting {
		q.waiting = true
		h.waiting = append(h.waiting, n)
	}
	h.events.Push(at, event{kind: evPlace, subject: n, gen: q.gen})
}

func (h *host) stopWaiting(n int32, q *request) {
	q.giveUp, q.refuser = 0, route.Target{}
	if !q.waiting {
		return
	}
	q.waiting = false
	h.waiting = slices.DeleteFunc(h.waiting, func(m int32) bool { return m == n })
}

// anyDown reports whether a worker may come back.
func (h *host) anyDown() bool {
	for i := range h.workers {
		if !h.workers[i].alive {
			return true
		}
	}
	return false
}

// workersChanged looks again for a place for those who wait, in order.
func (h *host) workersChanged() {
	for _, n := range append([]int32(nil), h.waiting...) {
		if q := h.requests.at(n); q.waiting && !q.done() {
			h.place(n, q)
		}
	}
}

// nobodyElse excludes a worker that can never serve the request and reports whether
// the request cannot be served without it.
func (h *host) nobodyElse(q *request, t route.Target) bool {
	q.exclude = append(q.exclude, t)
	return place.Check(h.router, h.cfg.Mode, q.placing()) != nil
}
