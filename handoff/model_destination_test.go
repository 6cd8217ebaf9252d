package handoff

import "time"

// toDestination tells the destination machine of attempt a one fact and executes
// what comes back.
func (r *runner) toDestination(a uint8, now time.Duration, f DestinationFact) Result {
	t := &r.w.att[a]
	switch f.Kind {
	case FactCancelled, FactCoordinatorLost, FactDecodeFinished, FactDecodeFailed:
		f.Stepping = t.stepping
	}
	before := t.dst
	acts, res, err := t.dst.Apply(now, f, r.dstActs[:0])
	r.dstActs = acts
	if r.record != nil {
		rec := DestinationRecord(attemptID(a), now, f, acts, res, err, &t.dst)
		r.record(rec)
		r.remember(rec)
	}
	if r.trace != nil {
		r.trace("  destination.%d %s: %s%s", a, f.Kind, stateChange(before.state, t.dst.state, res, err), actionText(acts))
	}
	if err != nil {
		r.refused(err, before == t.dst, len(acts))
		return res
	}
	r.facts[RoleDestination][f.Kind] = true
	if res == NoOp && (len(acts) != 0 && f.Kind != FactReservationExpired || t.dst != before) {
		r.fail(7, "a no-op changed the destination")
	}
	if before.state == DestinationReleased && res != NoOp {
		r.fail(7, "destination was resurrected by %s", f.Kind)
	}
	if before.state == DestinationActive && before.outcome == 0 && t.dst.outcome != 0 {
		switch f.Kind {
		case FactDecodeFinished, FactDecodeFailed, FactCancelled, FactCoordinatorLost:
		default:
			r.fail(8, "an active destination was ended by %s", f.Kind)
		}
	}
	r.checkTimer(RoleDestination, f.Kind, t.dst.Deadline, destinationWake(acts), before.Deadline)
	if t.stepping && t.dst.outcome != 0 && t.dst.state == DestinationActive {
		t.retires = true
	}
	for _, act := range acts {
		r.actions[RoleDestination][act.Kind] = true
		r.doDestination(a, act)
	}
	return res
}

func destinationWake(acts []DestinationAction) (at time.Duration) {
	for _, a := range acts {
		if a.Kind == ActionWakeAt {
			at = a.At
		}
	}
	return at
}

func (r *runner) doDestination(a uint8, act DestinationAction) {
	t := &r.w.att[a]
	l := &t.link[act.Part%modelParts]
	switch act.Kind {
	case ActionReserveDestination:
		if t.queued || t.reserved || t.active {
			r.fail(3, "reserved twice")
		}
		if t.overtaken&2 != 0 {
			r.fail(7, "a reservation started that its cancel had overtaken")
		}
		t.queued = true
	case ActionStartReceive:
		if !t.reserved {
			r.fail(1, "credit without a reservation")
		}
		if l.credit {
			r.fail(1, "credit granted twice")
		}
		l.credit = true
		if r.w.att[a].policy == DestinationFirst {
			l.dst = endOpen
		} else {
			l.dst = endDialing
		}
	case ActionActivateDestination:
		if t.activating || t.active || !t.reserved {
			r.fail(8, "activated twice or without a reservation")
		}
		for p := range r.w.cfg.parts {
			if !t.link[p].delivered {
				r.fail(8, "activated with a part missing")
			}
		}
		t.activating = true
	case ActionAckCommit:
		if !t.active || l.ackOut {
			r.fail(9, "commit acknowledged twice or before activation")
		}
		l.ackOut = true
	case ActionAbortStream:
		if l.dst == endNone || l.dstAborted && !act.Force || l.dstForced {
			r.fail(6, "destination stream aborted twice or without being open")
		}
		if l.ackOut {
			r.fail(6, "the commit's acknowledgement was aborted")
		}
		l.dstAborted, l.dstForced = true, l.dstForced || act.Force
	case ActionRevokeTicket:
		if l.ticket != ticketLive || r.w.att[a].policy != DestinationFirst {
			r.fail(6, "destination ticket revoked that is not live")
		}
		l.ticket = ticketRevoked
	case ActionReportStatus:
		switch act.Report {
		case ReportReserved:
			if r.w.att[a].policy == DestinationFirst {
				for p := range r.w.cfg.parts {
					t.link[p].ticket = ticketLive
				}
			}
			t.send(mReserved)
		case ReportRefused:
			t.neverD = act.Never
			t.send(mRefused)
		case ReportCommitted:
			t.send(mCommitted)
		case ReportEnded:
			if t.endedD != 0 {
				r.fail(6, "destination ended twice")
			}
			t.endedD, t.neverD = act.Outcome, act.Never
			t.send(mEndedD)
		case ReportReleased:
			t.send(mReleasedD)
		}
	case ActionReleaseDestination:
		r.releaseDestination(a)
	}
}

func (r *runner) releaseDestination(a uint8) {
	t := &r.w.att[a]
	t.dstFreed++
	if t.dstFreed > 1 {
		r.fail(6, "destination released twice")
	}
	if t.stepping {
		r.fail(1, "destination memory released while a step reads it")
	}
	for p := range r.w.cfg.parts {
		l := &t.link[p]
		if l.dstUses() {
			r.fail(2, "destination memory released while the transport writes it")
		}
		if l.ticket == ticketLive && r.w.att[a].policy == DestinationFirst {
			r.fail(6, "destination released with a live ticket")
		}
		if l.dst != endNone && !(l.ackOut && !l.ackDone && !l.ackGone) {
			l.dst = endClosed
		}
	}
	if t.endedD == 0 {
		r.fail(6, "destination released before it ended")
	}
	t.queued, t.reserved, t.active, t.activating = false, false, false, false
}
