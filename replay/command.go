package replay

import "github.com/tandem-llm/tandem/handoff"

// command executes one command of the gateway on a worker, whose task for the
// handoff is t, or nil.
func (h *host) command(w *worker, a *attempt, t *task, e *event) {
	now := h.now.Duration()
	switch e.what {
	case cmdReserve, cmdPrefill, cmdRun:
		if t != nil || w.tombs.Admit(now, a.id) != nil || now >= h.requests.at(a.request).deadline {
			return // cancelled before it came, or too late
		}
		if l := w.sched.Load(); l.Waiting+l.Reserving >= w.pool.cfg.Schedule.Waiting {
			phase := handoff.PhasePrefill
			if e.what == cmdReserve {
				phase = handoff.PhaseReserve
			}
			h.send(h.now+h.oneWay, event{kind: evRefused, side: e.side, subject: e.subject, phase: phase, outcome: handoff.OutcomeFailed})
			return
		}
		if e.what == cmdReserve {
			h.reserve(w, a, e.subject)
		} else {
			h.prefill(w, a, e)
		}
	case cmdCancel:
		a.cancelling[e.side] = false
		if t == nil {
			if w.tombs.Admit(now, a.id) != nil {
				return
			}
			t = h.newTask(w, e.subject, e.side)
		}
		h.cancelTask(w, t, e.reason)
	case cmdRenew:
		if t != nil {
			h.source(t, handoff.SourceFact{Kind: handoff.FactLeaseRenewed, Seq: uint64(e.n), For: h.cfg.Gateway.Lease})
		}
	case cmdReaderCompleted:
		if t != nil {
			h.readerCompleted(t, a)
		}
	case cmdPeerLost:
		if t != nil {
			h.peerLost(t, a)
		}
	}
}

func (h *host) cancelTask(w *worker, t *task, reason handoff.Reason) {
	if t.side == handoff.RoleSource {
		h.source(t, handoff.SourceFact{Kind: handoff.FactCancelled, Reader: handoff.All, Reason: reason})
		return
	}
	stepping := false
	if t.ref >= 0 && t.dst.MayStep() {
		stepping = h.stop(w, t)
	}
	h.destination(t, handoff.DestinationFact{Kind: handoff.FactCancelled, Reason: reason, Stepping: stepping})
}

func (h *host) readerCompleted(t *task, a *attempt) {
	if a.m.acknowledged == never {
		a.m.acknowledged = h.now
	}
	h.source(t, handoff.SourceFact{Kind: handoff.FactReaderCompleted, Incarnation: a.incarnation[handoff.RoleDestination]})
}

func (h *host) peerLost(t *task, a *attempt) {
	if t.side == handoff.RoleSource {
		h.source(t, handoff.SourceFact{Kind: handoff.FactPeerLost, Reader: handoff.All, Incarnation: a.incarnation[handoff.RoleDestination]})
	} else {
		h.destination(t, handoff.DestinationFact{Kind: handoff.FactPeerLost, Part: handoff.All, Incarnation: a.incarnation[handoff.RoleSource]})
	}
}

// reserve starts the destination side of a handoff.
func (h *host) reserve(w *worker, a *attempt, attempt int32) {
	q := h.requests.at(a.request)
	forced := a.forced
	if a.policy == handoff.DestinationFirst {
		forced = q.machine.Next()
	}
	t := h.newTask(w, attempt, handoff.RoleDestination)
	t.prompt, t.most = q.input+forced, max(1, q.output-forced)
	h.destination(t, handoff.DestinationFact{
		Kind: handoff.FactRouted, Policy: a.policy, Parts: 1, PromptTokens: t.prompt, Headroom: t.most - 1,
		Deadline: q.deadline, Quarantine: h.cfg.Worker.Quarantine, Incarnation: a.incarnation[handoff.RoleSource],
	})
}

// prefill starts the source side of a handoff, or a colocated request.
func (h *host) prefill(w *worker, a *attempt, e *event) {
	q := h.requests.at(a.request)
	t := h.newTask(w, e.subject, handoff.RoleSource)
	t.prompt, t.most = q.input+a.forced, max(1, q.output-a.forced)
	var reuse handoff.ID
	if e.n >= 0 {
		reuse = h.attempts.at(int32(e.n)).id
	}
	h.source(t, handoff.SourceFact{
		Kind: handoff.FactDispatched, Policy: a.policy, Parts: 1, Readers: 1, PromptTokens: t.prompt, MaxTokens: t.most,
		Deadline: q.deadline, Quarantine: h.cfg.Worker.Quarantine, Reuse: reuse,
	})
	if a.task[handoff.RoleSource] == t.number && a.policy == handoff.DestinationFirst {
		h.source(t, handoff.SourceFact{Kind: handoff.FactDestinationReady, SkipTokens: min(a.skip, t.prompt), Incarnation: a.incarnation[handoff.RoleDestination]})
	}
}
