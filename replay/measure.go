package replay

import (
	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/replay/report"
)

// measure is when what happened in a handoff; never: it did not. Time 0 is a time as
// any other.
type measure struct {
	asked, reserved      timed.Time // the destination, and when it had room
	began, prompted      timed.Time // the prompt's first and last step
	ready                timed.Time // the first page that could travel was computed
	exportFirst, finalAt timed.Time // the first page, and when the last one could go
	wireFirst, wireEnd   timed.Time
	whole, activated     timed.Time // at the destination
	acknowledged         timed.Time // at the source
	export, imports      timed.Time // sums
	overlapped           timed.Time // bytes moved for so long before the prompt was computed
	bytes                int64
}

// never is the time of what did not happen.
const never timed.Time = -1

// unmeasured is what is known of a handoff before it begins.
var unmeasured = measure{
	asked: never, reserved: never, began: never, prompted: never, ready: never, exportFirst: never, finalAt: never,
	wireFirst: never, wireEnd: never, whole: never, activated: never, acknowledged: never,
}

// record reports a request that has ended.
func (h *host) record(q *request, status handoff.Status) {
	tokens := q.machine.Next()
	r := report.Request{
		Index: q.index, Session: q.session, Turn: q.turn, Tenant: q.tenant, Arrival: q.arrival,
		First: q.firstAt, Second: q.secondAt, End: h.now, Input: q.input, Output: tokens, Status: status, Reason: q.cause,
		Retries: max(0, q.attempts-1), Preempted: q.preempted, Prefill: -1, Decode: -1,
		CachedSource: int(q.cached[handoff.RoleSource]), CachedDestination: int(q.cached[handoff.RoleDestination]),
	}
	if tokens < 2 {
		r.Second = 0
	}
	if tokens < 1 {
		r.First = 0
	}
	switch status {
	case handoff.StatusCompleted:
		r.Reason = ""
	default:
		if r.Reason == "" {
			r.Reason = "it failed"
		}
		h.rec.Count(status.String(), r.Reason, 1)
	}
	if q.current >= 0 {
		a := h.attempts.at(q.current)
		r.Policy = a.policy
		r.Prefill, r.Decode = a.worker[handoff.RoleSource], a.worker[handoff.RoleDestination]
		if a.policy == handoff.Disabled {
			r.Decode = r.Prefill
		}
		if a.m.activated != never {
			r.HandedOff = true
			r.Handoff = a.m.handoff()
			r.Handoff.SkippedTokens = a.skip
		}
	}
	h.rec.Request(&r)
}

// handoff is the breakdown of a handoff that was activated.
func (m *measure) handoff() report.Handoff {
	between := func(from, to timed.Time) timed.Time {
		if from == never || to <= from {
			return 0
		}
		return to - from
	}
	b := report.Handoff{
		Reserve: between(m.asked, m.reserved), Prefill: between(m.began, m.prompted), Export: m.export, Import: m.imports,
		Wire: between(m.wireFirst, m.wireEnd), Commit: between(m.whole, m.acknowledged), Bytes: m.bytes,
		Overlapped: m.overlapped, Tail: between(m.prompted, m.activated),
	}
	b.Queue = between(m.ready, m.exportFirst)
	return b
}
