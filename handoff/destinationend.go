package handoff

import "time"

func (m *Destination) peerLost(now time.Duration, f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	missing := lowBits16(m.parts) &^ m.done
	if f.Part != All {
		missing &= 1 << f.Part
	}
	switch {
	case m.peer != 0 && f.Incarnation != 0 && f.Incarnation != m.peer:
		return dst, NoOp, nil // news of another incarnation than the one bound
	case missing == 0:
		return dst, NoOp, nil // nothing is needed from it any more
	}
	return m.end(now, OutcomePeerLost, f, dst)
}

func (m *Destination) reservationExpired(now time.Duration, f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	if m.state == DestinationActive || now < m.until {
		return dst, NoOp, nil
	}
	if m.state != DestinationDraining {
		return m.end(now, OutcomeExpired, f, dst)
	}
	// The quarantine is over: a deadline never frees, it only makes the host
	// close the lane, so that quiescence comes.
	touching := m.touching()
	if m.forced || touching == 0 {
		return dst, NoOp, nil
	}
	m.forced = true
	for p := range m.parts {
		if touching&(1<<p) != 0 {
			dst = append(dst, DestinationAction{Kind: ActionAbortStream, Part: p, Force: true})
		}
	}
	return dst, Applied, nil
}

// end gives the handoff its outcome: revoke and abort once, then release as soon
// as nothing touches the memory. An Active destination only waits for the step
// that reads the sequence, if one is running; its acknowledgements go on, so
// that the source's release is unaffected (case 6).
func (m *Destination) end(now time.Duration, outcome Outcome, f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	if m.outcome != 0 {
		return dst, NoOp, nil // ended before: the first cause wins
	}
	m.outcome, m.cause, m.reason = outcome, f.Kind, f.Reason
	active := m.state == DestinationActive
	if !active {
		dst = m.closeStreams(dst)
	}
	dst = m.reportEnded(dst)
	switch {
	case active && f.Stepping:
		return dst, Applied, nil
	case active:
		return m.release(dst), Applied, nil
	}
	m.state = DestinationDraining
	dst = m.tryRelease(dst)
	if m.state == DestinationDraining {
		m.until = later(now, m.quarantine)
	}
	return dst, Applied, nil
}

// closeStreams revokes unredeemed tickets and aborts streams, each once.
func (m *Destination) closeStreams(dst []DestinationAction) []DestinationAction {
	for p := range m.parts {
		bit := uint16(1) << p
		if m.tickets&bit != 0 {
			m.tickets &^= bit
			dst = append(dst, DestinationAction{Kind: ActionRevokeTicket, Part: p})
		}
		if m.asked&^(m.quiet|m.aborted)&bit != 0 {
			m.aborted |= bit
			dst = append(dst, DestinationAction{Kind: ActionAbortStream, Part: p})
		}
	}
	return dst
}

// tryRelease releases a draining handoff when no transport can touch its memory
// (invariant 2).
func (m *Destination) tryRelease(dst []DestinationAction) []DestinationAction {
	if m.state != DestinationDraining || m.touching() != 0 {
		return dst
	}
	return m.release(dst)
}

func (m *Destination) release(dst []DestinationAction) []DestinationAction {
	m.state = DestinationReleased
	dst = append(dst, DestinationAction{Kind: ActionReleaseDestination, Outcome: m.outcome})
	return m.reportReleased(dst)
}

func (m *Destination) reportEnded(dst []DestinationAction) []DestinationAction {
	return append(dst, DestinationAction{Kind: ActionReportStatus, Report: ReportEnded, Outcome: m.outcome,
		Cause: m.cause, Reason: m.reason, Finish: m.finish, Never: m.never})
}

func (m *Destination) reportReleased(dst []DestinationAction) []DestinationAction {
	return append(dst, DestinationAction{Kind: ActionReportStatus, Report: ReportReleased, Outcome: m.outcome,
		Cause: m.cause, Reason: m.reason, Finish: m.finish, Never: m.never})
}

// touching returns the parts whose stream may still write the memory.
func (m *Destination) touching() uint16 { return m.asked &^ (m.quiet | m.done) }

// whole reports whether every part arrived and is valid.
func (m *Destination) whole() bool { return m.parts > 0 && m.done == lowBits16(m.parts) }

func (m *Destination) refuse(dst []DestinationAction, f *DestinationFact, err error, want string) ([]DestinationAction, Result, error) {
	return dst, 0, &FactError{Role: RoleDestination, State: m.state.String(), Fact: f.Kind.String(), Want: want, Err: err}
}
