package replay

import (
	"github.com/tandem-llm/tandem/handoff"
)

// status takes what a worker reports about an attempt.
func (h *host) status(a *attempt, e *event) {
	n := a.request
	q := h.requests.at(n)
	f := handoff.RequestFact{Handoff: a.id, Side: e.side}
	switch handoff.Report(e.what) {
	case handoff.ReportReserved:
		a.reserved = true
		f.Kind = handoff.FactReserved
	case handoff.ReportRefused:
		f.Kind = handoff.FactReserveRefused
		h.failedBy(q, a, e.side, "a reservation was refused")
		f.Never = e.never && !q.done() && h.nobodyElse(q, h.target(a, e.side))
	case handoff.ReportPinned:
		a.pinned = true
		f.Kind = handoff.FactPrefillPinned
	case handoff.ReportStreamFailed:
		if a.id != q.machine.Handoff() {
			return // given up already; its source stays pinned, and may be taken over
		}
		f.Kind, f.Phase = handoff.FactFailed, handoff.PhaseTransfer
		h.failedBy(q, a, e.side, "a stream failed")
	case handoff.ReportCommitted:
		f.Kind = handoff.FactCommitted
	case handoff.ReportEnded:
		switch e.outcome {
		case handoff.OutcomeHandedOff, handoff.OutcomeFinishedAtSource, handoff.OutcomeCompleted:
			return // the last token says so
		}
		h.learn(n, q)
		f.Kind, f.Outcome, f.Phase = handoff.FactFailed, e.outcome, q.machine.FailedIn(e.side, a.reserved, a.pinned, a.broken)
		if !q.done() && a.id == q.machine.Handoff() {
			h.rec.Count("attempts ended", e.side.String()+": "+e.outcome.String(), 1)
		}
		h.failedBy(q, a, e.side, causes[e.outcome])
		f.Never = e.never && !q.done() && h.nobodyElse(q, h.target(a, e.side))
	case handoff.ReportReleased:
		if e.side != handoff.RoleSource {
			return // nothing is booked on a destination after it ended
		}
		f.Kind, f.Outcome = handoff.FactSourceReleased, e.outcome
	default:
		return
	}
	h.apply(n, f)
}

// causes say why a request did not complete.
var causes = [...]string{
	handoff.OutcomeCancelled: "a worker gave it up",
	handoff.OutcomeFailed:    "a worker failed",
	handoff.OutcomeExpired:   "a lease or reservation ran out",
	handoff.OutcomePeerLost:  "a worker was lost",
}

// failedBy notes which worker failed the current attempt.
func (h *host) failedBy(q *request, a *attempt, side handoff.Role, cause string) {
	if q.done() || a.id != q.machine.Handoff() {
		return
	}
	if q.cause == "" {
		q.cause = cause
	}
	q.avoid = append(q.avoid, h.target(a, side))
}

// refusedCommand takes the answer of a worker that did not start what it was told.
func (h *host) refusedCommand(n int32, a *attempt, e *event) {
	q := h.requests.at(n)
	if q.done() || a.over {
		return
	}
	t := h.target(a, e.side)
	refused := e.outcome != handoff.OutcomePeerLost
	if !refused {
		h.suspect(a.worker[e.side])
		h.failedBy(q, a, e.side, "a worker could not be reached")
		e.outcome = 0
	} else {
		h.rec.Count(refusedBy, "too many requests wait at a worker", 1)
		h.failedBy(q, a, e.side, "too many requests wait at a worker")
		q.refuser = t
	}
	never := e.never && h.nobodyElse(q, t)
	h.apply(n, handoff.RequestFact{Kind: handoff.FactFailed, Handoff: a.id, Side: e.side, Phase: e.phase, Outcome: e.outcome, Never: never, Refused: refused})
}

// tokens forwards what is next of an answer's first tokens and drops what the client
// has. At least one fact reaches the machine: a destination's first message commits,
// and one of an abandoned attempt is answered with cancel.
func (h *host) tokens(n, attempt int32, a *attempt, side handoff.Role, count int, finish handoff.Finish) {
	q := h.requests.at(n)
	f := handoff.RequestFact{Kind: handoff.FactTokenOut, Handoff: a.id, Side: side}
	if q.current != attempt || q.done() || q.machine.Next() >= count {
		f.Index, f.Finish = count-1, finish
		h.apply(n, f)
		return
	}
	for i := q.machine.Next(); i < count; i++ {
		f.Index = i
		if i == count-1 {
			f.Finish = finish
		}
		h.apply(n, f)
	}
}

// learn brings the machine of a request up to date with the tokens that its owner
// has sampled: they are reported together, at its end, where nothing else depends
// on them.
func (h *host) learn(n int32, q *request) {
	if q.done() || q.current < 0 {
		return
	}
	a := h.attempts.at(q.current)
	side := q.machine.Owner()
	if side == 0 || a.task[side] < 0 || a.id != q.machine.Handoff() {
		return
	}
	t := h.tasks.at(a.task[side])
	w := &h.workers[t.worker]
	if t.ref < 0 || !t.sampled || side == handoff.RoleDestination && !t.dst.MayStep() {
		return
	}
	h.catchUp(w)
	have := a.forced + w.sched.Info(t.ref).Tokens
	if side == handoff.RoleSource && a.policy != handoff.Disabled {
		have = min(have, a.forced+1)
	}
	switch { // what is on its way has not come
	case q.firstAt > h.now:
		have = 0
	case q.secondAt > h.now:
		have = min(have, 1)
	}
	if have > q.machine.Next() {
		h.tokens(n, q.current, a, side, have, 0)
	}
}
