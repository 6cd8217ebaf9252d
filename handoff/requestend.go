package handoff

import "time"

func (m *Request) failed(now time.Duration, f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	if f.Side == RoleSource && m.state == RequestDecoding {
		return m.sourceGone(f, dst) // it owns nothing of the request any more
	}
	if f.Outcome != 0 {
		m.markGone(f)
	}
	return m.giveUp(now, f, dst), Applied, nil
}

func (m *Request) workerLost(now time.Duration, f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	f.Outcome = OutcomePeerLost
	switch {
	case f.Side == RoleSource && m.state == RequestDecoding:
		return m.sourceGone(f, dst)
	case f.Side == RoleDestination && m.booked&(1<<BookDecode) == 0:
		return dst, NoOp, nil // none is chosen yet
	case m.state == RequestDecoding || m.state == RequestRunning:
		f.Phase = PhaseDecode
	case f.Side == RoleSource:
		f.Phase = PhasePrefill
	default:
		f.Phase = PhaseTransfer
	}
	m.markGone(f)
	return m.giveUp(now, f, dst), Applied, nil
}

// markGone notes that a side of the attempt has ended by itself.
func (m *Request) markGone(f *RequestFact) {
	if f.Side == RoleDestination {
		m.goneDestination = true
		return
	}
	m.goneSource = true
	if f.Outcome == OutcomeExpired && m.policy == SourceFirst {
		m.avoidSourceFirst = true
	}
}

// FailedIn says in which phase the current attempt was when its side ended: what
// Failed carries. reserved and pinned: the sides said so; stream: a stream broke.
func (m *Request) FailedIn(side Role, reserved, pinned, stream bool) Phase {
	switch {
	case m.state == RequestDecoding, m.state == RequestRunning && m.next > 0:
		return PhaseDecode
	case stream:
		return PhaseTransfer
	case side == RoleDestination && !reserved:
		return PhaseReserve
	case side == RoleDestination:
		return PhaseActivate
	case pinned:
		return PhaseTransfer
	}
	return PhasePrefill
}

// sourceGone ends the request's ownership on the source after the commit.
func (m *Request) sourceGone(f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	if f.Outcome == 0 || m.goneSource {
		return dst, NoOp, nil
	}
	m.goneSource = true
	return m.unbook(BookSource, dst), Applied, nil
}

func (m *Request) sourceReleased(now time.Duration, f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	if !m.askedSource {
		return m.refuse(dst, f, ErrImpossible, "Prefill first")
	}
	if m.state == RequestDecoding {
		if f.Outcome == 0 {
			f.Outcome = OutcomeHandedOff
		}
		return m.sourceGone(f, dst)
	}
	if m.goneSource {
		return dst, NoOp, nil
	}
	f.Side, f.Phase = RoleSource, PhasePrefill
	m.markGone(f)
	switch f.Outcome {
	case OutcomeCancelled, OutcomeFailed, OutcomeExpired, OutcomePeerLost:
		return m.giveUp(now, f, dst), Applied, nil // its ReportEnded was lost
	}
	// Handed off or finished: the commit or the last token is still on its way.
	return m.unbook(BookSource, m.unbook(BookPrefill, dst)), Applied, nil
}

func (m *Request) deadlineReached(now time.Duration, f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	at, armed := m.Deadline()
	switch {
	case !armed || now < at:
		return dst, NoOp, nil
	case now >= m.deadline:
		return m.finish(StatusTimeout, f, dst), Applied, nil
	case now >= m.until:
		f.Phase, f.Outcome = PhaseTransfer, OutcomeExpired
		return m.giveUp(now, f, dst), Applied, nil
	}
	m.seq++
	m.renewAt = later(now, m.renewEvery())
	target := m.handoff
	if !m.reuse.IsZero() {
		target = m.reuse
	}
	return append(dst, RequestAction{Kind: ActionRenewLease, Handoff: target, Seq: m.seq, For: m.lease}), Applied, nil
}

// renewEvery is the interval of lease renewals: two may get lost.
func (m *Request) renewEvery() time.Duration { return max(1, m.lease/3) }

// renewing reports whether a pinned source waits for a destination, so that its
// lease has to be kept alive from here.
func (m *Request) renewing() bool {
	return !m.reuse.IsZero() || m.state == RequestReserving && m.pinned
}

// giveUp abandons and fences the current attempt and tries again if that is
// allowed, else ends the request with one error.
func (m *Request) giveUp(now time.Duration, f *RequestFact, dst []RequestAction) []RequestAction {
	// The source keeps what a later attempt can take over: what it pinned, or what it
	// pinned before and this attempt has not taken over.
	pinned := m.pinned && !m.goneSource && m.state != RequestDecoding
	kept := m.rebinding && (!m.askedSource || f.Refused && f.Side == RoleSource)
	begun := m.askedSource && !(f.Refused && f.Side == RoleSource)
	if f.Never || m.retries == 0 || m.retry == RetryRebind && begun && !pinned {
		return m.finish(failureStatus(f), f, dst)
	}
	if m.askedDestination && !m.goneDestination {
		dst = m.cancel(m.handoff, RoleDestination, ReasonAbandoned, dst)
	}
	if m.askedSource && !m.goneSource && !pinned && m.state != RequestDecoding {
		dst = m.cancel(m.handoff, RoleSource, ReasonAbandoned, dst)
	}
	if !kept {
		dst = m.dropReuse(ReasonAbandoned, dst)
	}
	if pinned {
		m.reuse, m.reuseOrder = m.handoff, m.policy
		m.renewAt = now // the lease may not have been renewed for a while
	}
	dst = m.unbookAll(dst)
	m.state, m.until = RequestAdmitted, m.deadline
	m.handoff = ID{}
	m.pinned, m.rebinding, m.askedSource, m.askedDestination = false, false, false, false
	n := min(m.retried, mostDoublings)
	pause := min(m.backoff, (1<<62)>>n) << n
	m.retries--
	m.retried++
	return append(dst, RequestAction{Kind: ActionRetry, ReuseSource: !m.reuse.IsZero(), Reuse: m.reuse,
		AvoidSourceFirst: m.avoidSourceFirst, Pause: pause, Phase: f.Phase, Outcome: f.Outcome, Index: m.next})
}

// finish ends the request: everything is cancelled and unbooked, once.
func (m *Request) finish(status Status, f *RequestFact, dst []RequestAction) []RequestAction {
	reason := ReasonAbandoned
	switch status {
	case StatusCompleted:
		reason = ReasonFinished
	case StatusCancelled:
		reason = ReasonClient
	case StatusTimeout:
		reason = ReasonDeadline
	case StatusRefused:
		reason = ReasonRefused
	}
	// After the commit the source is released by the destination's word or its
	// relayed copy, whatever happens to the destination (case 6).
	if m.askedSource && !m.goneSource && m.finishedBy != RoleSource && m.state != RequestDecoding {
		dst = m.cancel(m.handoff, RoleSource, reason, dst)
	}
	if m.askedDestination && !m.goneDestination && m.finishedBy != RoleDestination {
		dst = m.cancel(m.handoff, RoleDestination, reason, dst)
	}
	dst = m.dropReuse(reason, dst)
	dst = m.unbookAll(dst)
	m.state, m.status = RequestDone, status
	return append(dst, RequestAction{Kind: ActionFinish, Status: status, Finish: f.Finish, Outcome: f.Outcome, Phase: f.Phase, Index: m.next})
}

// failureStatus maps a failure to the client's terminal status.
func failureStatus(f *RequestFact) Status {
	if f.Never {
		return StatusRefused
	}
	return StatusFailed
}

// fenced answers a message that does not belong to the current attempt, or that
// comes after the end: whoever still works on it is cancelled.
func (m *Request) fenced(f *RequestFact, side Role, dst []RequestAction) ([]RequestAction, Result, error) {
	if f.Handoff == m.reuse && side == RoleSource {
		switch f.Kind {
		case FactFailed, FactWorkerLost, FactSourceReleased:
			expired := f.Outcome == OutcomeExpired && m.reuseOrder == SourceFirst && !m.avoidSourceFirst
			if m.rebinding && !expired {
				break // the attempt that takes it over learns it
			}
			m.avoidSourceFirst = m.avoidSourceFirst || expired
			if !m.rebinding { // the kept state is gone: nothing to take over
				m.reuse = ID{}
				if m.retry == RetryRebind {
					return m.finish(StatusFailed, f, dst), Applied, nil
				}
			}
			return dst, Applied, nil
		}
		return dst, NoOp, nil // kept on purpose
	}
	if f.Handoff == m.handoff && side == m.finishedBy {
		return dst, NoOp, nil
	}
	switch f.Kind {
	case FactReserved, FactPrefillPinned, FactCommitted, FactTokenOut, FactFinished:
		dst = m.cancel(f.Handoff, side, ReasonAbandoned, dst)
	}
	return dst, NoOp, nil
}

// dropReuse lets go of a source that was kept for a rebind.
func (m *Request) dropReuse(reason Reason, dst []RequestAction) []RequestAction {
	if m.reuse.IsZero() {
		return dst
	}
	dst = m.cancel(m.reuse, RoleSource, reason, dst)
	m.reuse = ID{}
	return dst
}

func (m *Request) cancel(id ID, side Role, reason Reason, dst []RequestAction) []RequestAction {
	return append(dst, RequestAction{Kind: ActionCancel, Handoff: id, Side: side, Reason: reason})
}

func (m *Request) book(b Booking, dst []RequestAction) []RequestAction {
	m.booked |= 1 << b
	m.confirmed &^= 1 << b
	return append(dst, RequestAction{Kind: ActionBook, Booking: b, Handoff: m.handoff})
}

func (m *Request) unbook(b Booking, dst []RequestAction) []RequestAction {
	if m.booked&(1<<b) == 0 {
		return dst
	}
	m.booked &^= 1 << b
	return append(dst, RequestAction{Kind: ActionUnbook, Booking: b, Handoff: m.handoff})
}

func (m *Request) unbookAll(dst []RequestAction) []RequestAction {
	for b := BookPrefill; b <= BookRun; b++ {
		dst = m.unbook(b, dst)
	}
	return dst
}
