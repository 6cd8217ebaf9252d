package handoff

import "time"

// toSource tells the source machine of attempt a one fact and executes what
// comes back.
func (r *runner) toSource(a uint8, now time.Duration, f SourceFact) Result {
	t := &r.w.att[a]
	before := t.src
	acts, res, err := t.src.Apply(now, f, r.srcActs[:0])
	r.srcActs = acts
	if r.record != nil {
		rec := SourceRecord(attemptID(a), now, f, acts, res, err, &t.src)
		r.record(rec)
		r.remember(rec)
	}
	if r.trace != nil {
		r.trace("  source.%d %s: %s%s", a, f.Kind, stateChange(before.state, t.src.state, res, err), actionText(acts))
	}
	if err != nil {
		r.refused(err, before == t.src, len(acts))
		return res
	}
	r.facts[RoleSource][f.Kind] = true
	if res == NoOp && (len(acts) != 0 && f.Kind != FactLeaseExpired || t.src != before) {
		r.fail(7, "a no-op changed the source")
	}
	if before.state == SourceReleased && res != NoOp {
		r.fail(7, "source was resurrected by %s", f.Kind)
	}
	r.checkTimer(RoleSource, f.Kind, t.src.Deadline, sourceWake(acts), before.Deadline)
	for _, act := range acts {
		r.actions[RoleSource][act.Kind] = true
		r.doSource(a, act)
	}
	return res
}

// checkTimer verifies that the host's one-shot timer is always set for the
// machine's deadline.
func (r *runner) checkTimer(role Role, by FactKind, after func() (time.Duration, bool), woke time.Duration, before func() (time.Duration, bool)) {
	at, armed := after()
	old, running := before()
	if by == FactLeaseExpired || by == FactReservationExpired || by == FactDeadlineReached {
		running = false // it fired
	}
	if armed && woke != at && (woke != 0 || !running || old != at) {
		r.fail(6, "%s waits for %v without a WakeAt", role, at)
	}
}

func sourceWake(acts []SourceAction) (at time.Duration) {
	for _, a := range acts {
		if a.Kind == ActionWakeAt {
			at = a.At
		}
	}
	return at
}

func (r *runner) doSource(a uint8, act SourceAction) {
	t := &r.w.att[a]
	l := &t.link[act.Part%modelParts]
	switch act.Kind {
	case ActionDispatchPrefill:
		if t.srcHeld || t.srcFreed > 0 {
			r.fail(3, "prefill dispatched twice")
		}
		if t.overtaken&1 != 0 {
			r.fail(7, "a prefill started that its cancel had overtaken")
		}
		t.srcHeld = true
		if !act.Reuse.IsZero() {
			r.takeOver(a, attemptOf(act.Reuse))
			return
		}
		for p := range t.src.parts {
			t.jobs[p] = jobRunning
		}
	case ActionStopPrefill:
		if t.stop {
			r.fail(6, "prefill stopped twice")
		}
		t.stop = true
	case ActionOpenStream:
		if l.src != endNone {
			r.fail(6, "stream opened twice")
		}
		l.src = endDialing
		if r.w.att[a].policy == SourceFirst {
			l.src, l.ticket = endOffered, ticketLive
		}
	case ActionSendFinal:
		if l.final || l.src != endOpen && l.src != endClosed || t.jobs[act.Part] != jobDone {
			r.fail(2, "final state sent twice, unpinned or without a stream")
		}
		l.final = true
	case ActionAbortStream:
		if l.src == endNone || l.srcAborted && !act.Force || l.srcForced {
			r.fail(6, "source stream aborted twice or without being open")
		}
		l.srcAborted, l.srcForced = true, l.srcForced || act.Force
	case ActionRevokeTicket:
		if l.ticket != ticketLive || r.w.att[a].policy != SourceFirst {
			r.fail(6, "source ticket revoked that is not live")
		}
		l.ticket = ticketRevoked
	case ActionReportStatus:
		switch act.Report {
		case ReportPinned:
			if !t.lease {
				r.fail(2, "pinned reported without a lease")
			}
			t.send(mPinned)
		case ReportStreamFailed:
			t.send(mStreamFailed)
		case ReportEnded:
			if t.endedS != 0 {
				r.fail(6, "source ended twice")
			}
			t.endedS, t.neverS = act.Outcome, act.Never
			t.send(mEndedS)
		case ReportReleased:
			t.send(mReleasedS)
		}
	case ActionReleaseSource:
		r.releaseSource(a)
	}
}

// takeOver moves the pinned memory of an older handoff to a new one, atomically.
func (r *runner) takeOver(a, old uint8) {
	t, o := &r.w.att[a], &r.w.att[old]
	ok := !o.srcDead && o.srcFreed == 0 && o.lease
	for p := range t.src.parts {
		t.jobs[p] = jobRetired
		switch {
		case ok && t.policy == Disabled:
			t.jobs[p] = jobRunning // goes on decoding from the pinned state
		case ok:
			t.jobs[p] = jobDone
			t.srcQ.push(FactPrefillPinned, p)
		}
	}
	if !ok {
		t.srcQ.push(FactPrefillRejected, 0)
		return
	}
	t.lease = t.policy != Disabled
	t.srcFrom, t.srcCount, t.srcFin = o.srcFrom, o.srcCount, o.srcFin
	t.send(mTokensS)
	o.srcQ.push(FactCancelled, 0)
}

func (r *runner) releaseSource(a uint8) {
	t := &r.w.att[a]
	t.srcFreed++
	if t.srcFreed > 1 {
		r.fail(6, "source released twice")
	}
	for p := range r.w.cfg.parts {
		l := &t.link[p]
		if t.jobs[p] == jobRunning {
			r.fail(2, "source memory released while a step runs")
		}
		if l.srcUses() && l.src != endOffered {
			r.fail(2, "source memory released while the transport reads it")
		}
		if l.ticket == ticketLive && r.w.att[a].policy == SourceFirst {
			r.fail(6, "source released with a live ticket")
		}
		if l.src != endNone && l.src != endClosed {
			l.src = endClosed
		}
	}
	if t.endedS == 0 {
		r.fail(6, "source released before it ended")
	}
	t.srcHeld, t.lease = false, false
}

// sourceFact builds a fact that a queue holds.
func (r *runner) sourceFact(k FactKind, part uint8) SourceFact {
	f := SourceFact{Kind: k, Part: part}
	switch k {
	case FactPrefillPinned:
		f.Blocks, f.For = 1, pinLease
	case FactCancelled:
		f.Part, f.Reason = 0, ReasonRebound
	case FactFinishedAtSource:
		f.Finish = FinishStop
	}
	return f
}
