package handoff

import "time"

// end gives the readers in set, all of them live, their outcome. When no live
// reader is left the whole handoff leaves its normal path: stop, revoke, abort
// once, then release as soon as nothing touches the memory.
func (m *Source) end(now time.Duration, set uint16, outcome Outcome, f *SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	if set == 0 {
		return dst, NoOp, nil // ended before: the first cause wins
	}
	if rank(outcome) > rank(m.outcome) {
		m.outcome, m.cause, m.reason = outcome, f.Kind, f.Reason
	}
	m.ended |= set
	last := m.live() == 0
	if last && m.busy != 0 && !m.stopped {
		m.stopped = true
		dst = append(dst, SourceAction{Kind: ActionStopPrefill})
	}
	for r := range m.readers {
		if set&(1<<r) == 0 {
			continue
		}
		if outcome != OutcomeHandedOff {
			dst = m.closeStreams(r, dst)
		}
		dst = append(dst, SourceAction{Kind: ActionReportStatus, Report: ReportEnded, Reader: r,
			Outcome: outcome, Cause: f.Kind, Reason: f.Reason, Finish: f.Finish, Never: f.Never})
	}
	if !last {
		m.awaitReader()
		return m.startPrefill(dst), Applied, nil
	}
	m.state = SourceDraining
	dst = m.tryRelease(dst)
	if m.state == SourceDraining && m.touching() != 0 {
		m.until = later(now, m.quarantine)
	}
	return dst, Applied, nil
}

// rank orders the outcomes of several readers: one success makes the whole a
// success, otherwise the first cause wins.
func rank(o Outcome) int {
	switch o {
	case 0:
		return 0
	case OutcomeHandedOff:
		return 3
	case OutcomeFinishedAtSource:
		return 2
	}
	return 1
}

// tryRelease releases an ended handoff when no step runs and no transport can
// touch its memory (invariant 2).
func (m *Source) tryRelease(dst []SourceAction) []SourceAction {
	if m.state != SourceDraining || m.busy != 0 || m.touching() != 0 {
		return dst
	}
	m.state = SourceReleased
	dst = append(dst, SourceAction{Kind: ActionReleaseSource, Outcome: m.outcome})
	return m.reportReleased(dst)
}

func (m *Source) reportReleased(dst []SourceAction) []SourceAction {
	return append(dst, SourceAction{Kind: ActionReportStatus, Report: ReportReleased, Outcome: m.outcome,
		Cause: m.cause, Reason: m.reason, Finish: m.finish, Never: m.never})
}

// touching returns the streams that may still read the memory. A stream that was
// only offered reads nothing before its opening was accepted here; one that was
// pushed may have been granted credit that this machine has not heard of.
func (m *Source) touching() uint64 {
	t := m.asked &^ (m.quiet | m.sent)
	if m.policy == SourceFirst {
		t &= m.opened
	}
	return t
}

// live returns the readers without an outcome.
func (m *Source) live() uint16 { return lowBits16(m.readers) &^ m.ended }

// awaitReader moves to AwaitingReader when every live reader has been sent
// everything.
func (m *Source) awaitReader() {
	if m.state != SourcePinned {
		return
	}
	for r := range m.readers {
		if m.ended&(1<<r) != 0 {
			continue
		}
		for p := range m.parts {
			if m.sent&m.stream(p, r) == 0 {
				return
			}
		}
	}
	m.state = SourceAwaitingReader
}

// leaseUntil returns the end of a lease granted now; its total life is capped by
// the handoff's deadline.
func (m *Source) leaseUntil(now, length time.Duration) time.Duration {
	return min(m.deadline, later(now, length))
}

// stream returns the bit of the stream between part and reader.
func (m *Source) stream(part, reader uint8) uint64 {
	return 1 << (uint(part)*uint(m.readers) + uint(reader))
}

// boundTo reports whether a peer's word counts for the handoff of reader.
func (m *Source) boundTo(reader uint8, incarnation uint64) bool {
	bound := m.peer[reader]
	return bound == 0 || incarnation == 0 || bound == incarnation
}

func (m *Source) refuse(dst []SourceAction, f *SourceFact, err error, want string) ([]SourceAction, Result, error) {
	return dst, 0, &FactError{Role: RoleSource, State: m.state.String(), Fact: f.Kind.String(), Want: want, Err: err}
}

// readerSet returns the set that a Reader field means.
func readerSet(reader uint8) uint16 {
	if reader == All {
		return ^uint16(0)
	}
	return 1 << reader
}

// lowBits16 returns the set of the first n members.
func lowBits16(n uint8) uint16 { return uint16(1<<n - 1) }

// later adds without overflow.
func later(now, length time.Duration) time.Duration {
	if sum := now + length; sum >= now {
		return sum
	}
	return 1<<63 - 1
}
