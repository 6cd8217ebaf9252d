package replay

import (
	"errors"
	"slices"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
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
	policy, pair, rebind, err := h.choose(q)
	switch {
	case err != nil:
		h.placeFailed(n, q, err)
		return
	case h.now < q.resume && q.failedBefore(pair, rebind):
		h.placeLater(n, q, q.resume)
		return
	}
	h.stopWaiting(n, q)
	if policy == handoff.DestinationFirst && h.cfg.Order == fleet.SourceFirst && !q.machine.AvoidsSourceFirst() {
		policy = handoff.SourceFirst
	}
	number, a := h.attempts.add()
	*a = attempt{id: h.mint(), request: n, next: -1, policy: policy,
		worker: [3]int32{-1, -1, -1}, task: [3]int32{-1, -1, -1}}
	h.assign(a, handoff.RoleSource, pair.Prefill)
	h.router.Learn(pair.Prefill, q.prompt())
	if policy != handoff.Disabled {
		h.assign(a, handoff.RoleDestination, pair.Decode)
		a.link = h.linkOf(a)
		h.router.Learn(pair.Decode, q.prompt())
	}
	if q.current >= 0 {
		h.attempts.at(q.current).next = number
	} else {
		q.first = number
	}
	q.current = number
	q.attempts++
	h.rec.Count("placed", policy.String(), 1)
	h.apply(n, handoff.RequestFact{Kind: handoff.FactPlaced, Policy: policy, Handoff: a.id, Rebind: rebind})
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

// choose asks the router as the mode says. With a holder it is asked first for a
// destination that the holder can hand its state to.
func (h *host) choose(q *request) (policy handoff.Policy, pair route.Pair, rebind bool, err error) {
	r := q.placing()
	if h.cfg.Mode == fleet.Colocated {
		pair.Prefill, err = h.router.ChooseWhole(r)
		return handoff.Disabled, pair, false, err
	}
	only := h.cfg.Gateway.Retry == handoff.RetryRebind
	if q.holder >= 0 {
		if holder := h.target(h.attempts.at(q.holder), handoff.RoleSource); only || h.router.Live(holder) {
			r.Source = holder
			if pair, err = h.router.ChoosePair(r); err == nil || only {
				return handoff.DestinationFirst, pair, true, err
			}
			r.Source = route.Target{}
		}
	}
	if pair, err = h.router.ChoosePair(r); err == nil {
		return handoff.DestinationFirst, pair, false, nil
	}
	if h.cfg.Mode == fleet.Auto {
		if t, whole := h.router.ChooseWhole(r); whole == nil {
			return handoff.Disabled, route.Pair{Prefill: t}, false, nil
		}
	}
	return 0, pair, false, err
}

// placeFailed ends the request, or lets it wait when a worker that is down may come
// back.
func (h *host) placeFailed(n int32, q *request, err error) {
	var refused *route.RefusedError
	hopeless := !errors.As(err, &refused) ||
		q.attempts == 0 && (refused.Has(route.Incompatible) || refused.Has(route.TooLong))
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
		if refused != nil && refused.Has(route.TooLong) {
			q.cause = "no worker can hold so many tokens"
		}
	}
	h.apply(n, handoff.RequestFact{Kind: handoff.FactFailed, Phase: handoff.PhasePlace, Never: q.attempts == 0})
}

// failedBefore reports whether a placement goes back to a worker that failed this
// request. What a source holds is a reason to go back to it, unless it has just
// refused.
func (q *request) failedBefore(p route.Pair, rebind bool) bool {
	if !p.Decode.IsZero() && slices.Contains(q.avoid, p.Decode) {
		return true
	}
	return p.Prefill == q.refuser || !rebind && slices.Contains(q.avoid, p.Prefill)
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
	r := q.placing()
	if h.cfg.Mode == fleet.Colocated {
		return h.router.CheckWhole(r) != nil
	}
	return h.router.CheckPair(r) != nil && (h.cfg.Mode != fleet.Auto || h.router.CheckWhole(r) != nil)
}
