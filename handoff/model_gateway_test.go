package handoff

import "time"

// toRequest tells the request machine one fact and executes what comes back.
func (r *runner) toRequest(now time.Duration, f RequestFact) Result {
	w := r.w
	before := w.req
	acts, res, err := w.req.Apply(now, f, r.reqActs[:0])
	r.reqActs = acts
	if r.record != nil {
		rec := RequestRecord("request", now, f, acts, res, err, &w.req)
		r.record(rec)
		r.remember(rec)
	}
	if r.trace != nil {
		r.trace("  request %s: %s%s", f.Kind, stateChange(before.state, w.req.state, res, err), actionText(acts))
	}
	if err != nil {
		r.refused(err, before == w.req, len(acts))
		return res
	}
	r.facts[RoleRequest][f.Kind] = true
	if res == NoOp && w.req != before {
		r.fail(7, "a no-op changed the request")
	}
	if before.state == RequestDone && res != NoOp {
		r.fail(7, "request was resurrected by %s", f.Kind)
	}
	r.checkOwnership(before, f, acts)
	r.checkTimer(RoleRequest, f.Kind, w.req.Deadline, requestWake(acts), before.Deadline)
	for _, act := range acts {
		if res == NoOp && act.Kind != ActionCancel && act.Kind != ActionWakeAt {
			r.fail(7, "a no-op asked for %s", act.Kind)
		}
		r.actions[RoleRequest][act.Kind] = true
		r.doRequest(f, act)
	}
	if w.req.state == RequestDone {
		w.placing, w.unmade = false, 0
		if w.booked != 0 {
			r.fail(5, "request done with bookings left")
		}
	}
	return res
}

// checkOwnership verifies that every word of the current destination makes it the
// owner, and that every word of an abandoned attempt is answered with a cancel.
func (r *runner) checkOwnership(before Request, f RequestFact, acts []RequestAction) {
	side := f.side()
	switch f.Kind {
	case FactReserved, FactPrefillPinned, FactCommitted, FactTokenOut, FactFinished:
	default:
		return
	}
	if f.Handoff != before.handoff && (f.Handoff != before.reuse || side == RoleDestination) {
		for _, act := range acts {
			if act.Kind == ActionCancel && act.Handoff == f.Handoff && act.Side == side {
				return
			}
		}
		r.fail(9, "%s of an abandoned attempt was not answered with a cancel", f.Kind)
	}
	if f.Handoff == before.handoff && side == RoleDestination && f.Kind != FactReserved && r.w.req.state < RequestDecoding {
		r.fail(9, "%s of the destination did not make it the owner", f.Kind)
	}
}

func requestWake(acts []RequestAction) (at time.Duration) {
	for _, a := range acts {
		if a.Kind == ActionWakeAt {
			at = a.At
		}
	}
	return at
}

func (r *runner) doRequest(cause RequestFact, act RequestAction) {
	w := r.w
	var t *attempt
	if !act.Handoff.IsZero() {
		t = &w.att[attemptOf(act.Handoff)]
	}
	switch act.Kind {
	case ActionBook:
		if w.booked&(1<<act.Booking) != 0 {
			r.fail(5, "%s booked twice", act.Booking)
		}
		w.booked |= 1 << act.Booking
		w.unmade |= 1 << act.Booking
	case ActionUnbook:
		if w.booked&(1<<act.Booking) == 0 {
			r.fail(5, "%s unbooked twice", act.Booking)
		}
		w.booked &^= 1 << act.Booking
		w.unmade &^= 1 << act.Booking
	case ActionReserve:
		if w.unmade != 0 {
			r.fail(5, "reserved before the booking was made")
		}
		t.send(mReserve)
	case ActionPrefill:
		if t.policy == DestinationFirst && !t.has(mReserved) {
			r.fail(1, "prefill sent before the destination reserved")
		}
		r.mayCompute(act)
		t.srcFrom, t.srcCount = uint8(act.Index), uint8(act.Index)
		t.reuse = !act.Reuse.IsZero()
		t.send(mPrefill)
	case ActionRunColocated:
		r.mayCompute(act)
		t.srcFrom, t.srcCount = uint8(act.Index), uint8(act.Index)
		t.reuse = !act.Reuse.IsZero()
		t.send(mRun)
	case ActionMoveAffinity:
		if t.moved {
			r.fail(9, "the request changed its owner twice")
		}
		t.moved = true
		t.send(mRelay)
	case ActionRetry:
		if act.ReuseSource && w.att[attemptOf(act.Reuse)].moved {
			r.fail(7, "a source that handed off is asked again")
		}
		if w.n >= modelAttempts {
			r.fail(6, "more attempts than allowed")
		}
		w.placing, w.reusable = true, act.ReuseSource
		if act.Pause <= 0 || act.Pause > defaultBackoff || act.AvoidSourceFirst != w.req.AvoidsSourceFirst() {
			r.fail(0, "a retry after %v that avoids source-first: %v", act.Pause, act.AvoidSourceFirst)
		}
	case ActionCancel:
		if act.Side == RoleSource {
			t.send(mCancelS)
		} else {
			t.send(mCancelD)
		}
	case ActionForward:
		if int(w.forwarded) != act.Index {
			r.fail(9, "token %d forwarded after %d tokens", act.Index, w.forwarded)
		}
		if cause.Kind != FactTokenOut || cause.Index != act.Index {
			r.fail(9, "token %d forwarded by %s of index %d", act.Index, cause.Kind, cause.Index)
		}
		if w.finished > 0 {
			r.fail(9, "token forwarded after the end")
		}
		if cause.Handoff != w.req.handoff {
			r.fail(9, "token of an abandoned attempt forwarded")
		}
		if moved := w.att[attemptOf(cause.Handoff)].moved; moved != (cause.Side == RoleDestination) {
			r.fail(9, "token %d forwarded from the %s, which does not own the request", act.Index, cause.Side)
		}
		w.forwarded++
	case ActionFinish:
		w.finished++
		w.status = act.Status
		if w.finished > 1 {
			r.fail(9, "request finished twice")
		}
	case ActionRenewLease:
		t.send(mRenew)
	}
}

// deliverToGateway hands a status of attempt a to the request machine.
func (r *runner) deliverToGateway(a uint8, m message) {
	t := &r.w.att[a]
	id := attemptID(a)
	switch m {
	case mPinned:
		r.toRequest(0, RequestFact{Kind: FactPrefillPinned, Handoff: id})
	case mStreamFailed:
		r.toRequest(0, RequestFact{Kind: FactFailed, Handoff: id, Side: RoleSource, Phase: PhaseTransfer})
	case mEndedS:
		r.ended(id, RoleSource, PhasePrefill, t.endedS, t.neverS)
	case mReleasedS:
		r.toRequest(0, RequestFact{Kind: FactSourceReleased, Handoff: id, Outcome: t.src.outcome})
	case mReserved:
		r.toRequest(0, RequestFact{Kind: FactReserved, Handoff: id})
	case mRefused:
		r.toRequest(0, RequestFact{Kind: FactReserveRefused, Handoff: id, Never: t.neverD})
	case mCommitted:
		r.toRequest(0, RequestFact{Kind: FactCommitted, Handoff: id})
	case mEndedD:
		r.ended(id, RoleDestination, PhaseTransfer, t.endedD, t.neverD)
	case mTokensS:
		r.tokens(id, RoleSource, t.srcFrom, t.srcCount, t.srcFin)
	case mTokensD:
		r.tokens(id, RoleDestination, 0, t.dstCount, t.dstCount == r.w.cfg.tokens)
	}
}

func (r *runner) ended(id ID, side Role, phase Phase, o Outcome, never bool) {
	t := &r.w.att[attemptOf(id)]
	switch o {
	case OutcomeHandedOff:
		return
	case OutcomeFinishedAtSource:
		r.toRequest(0, RequestFact{Kind: FactFinished, Handoff: id, Side: side, Index: int(t.srcCount), Finish: FinishStop})
		return
	case OutcomeCompleted:
		r.toRequest(0, RequestFact{Kind: FactFinished, Handoff: id, Side: side, Index: int(t.dstCount), Finish: FinishStop})
		return
	}
	before := r.w.req
	r.toRequest(0, RequestFact{Kind: FactFailed, Handoff: id, Side: side, Phase: phase, Outcome: o, Never: never})
	// A lease that the request still counts on, its attempt's or that of a kept source,
	// must not be followed by another source-first prefill.
	counts := id == before.reuse || id == before.handoff && before.state != RequestDecoding
	if side == RoleSource && o == OutcomeExpired && t.policy == SourceFirst && counts && before.state != RequestDone && !r.w.req.AvoidsSourceFirst() {
		r.fail(6, "the request heard of a lease that expired and may prefill source-first again")
	}
}

// mayCompute checks that a request which may only rebind has no prompt computed twice.
func (r *runner) mayCompute(act RequestAction) {
	if r.w.cfg.onfail != RetryRebind || !act.Reuse.IsZero() {
		return
	}
	for a := range attemptOf(act.Handoff) {
		if t := &r.w.att[a]; t.has(mPrefill) || t.has(mRun) {
			r.fail(0, "a request that may only rebind computes again")
		}
	}
}

// tokens delivers a cumulative status: every token from the first one the worker
// speaks of.
func (r *runner) tokens(id ID, side Role, from, count uint8, fin bool) {
	for i := from; i < count; i++ {
		f := RequestFact{Kind: FactTokenOut, Handoff: id, Side: side, Index: int(i)}
		if fin && i == count-1 {
			f.Finish = FinishStop
		}
		r.toRequest(0, f)
	}
}
