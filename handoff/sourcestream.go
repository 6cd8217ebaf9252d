package handoff

import "time"

// streamFact handles the facts about one stream of a source.
func (m *Source) streamFact(now time.Duration, f *SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	s := m.stream(f.Part, f.Reader)
	if m.asked&s == 0 {
		return m.refuse(dst, f, ErrImpossible, "OpenStream first")
	}
	ended := m.ended&(1<<f.Reader) != 0
	switch f.Kind {
	case FactStreamOpened:
		if !m.boundTo(f.Reader, f.Incarnation) {
			return m.refuse(dst, f, ErrIncarnation, "the incarnation that the handoff is bound to")
		}
		if ended || (m.opened|m.failed|m.quiet|m.aborted)&s != 0 {
			return dst, NoOp, nil // a second or late open is refused, the first unharmed
		}
		m.opened |= s
		m.tickets &^= s // redeemed
		if m.peer[f.Reader] == 0 {
			m.peer[f.Reader] = f.Incarnation
		}
		if m.pinned == lowBits16(m.parts) {
			m.final |= s
			dst = append(dst, SourceAction{Kind: ActionSendFinal, Part: f.Part, Reader: f.Reader})
		}
		return dst, Applied, nil

	case FactSendCompleted:
		if m.final&s == 0 {
			return m.refuse(dst, f, ErrImpossible, "SendFinal first")
		}
		if m.sent&s != 0 {
			return dst, NoOp, nil
		}
		m.sent |= s
		m.awaitReader()
		return m.tryRelease(dst), Applied, nil

	case FactStreamFailed:
		if m.failed&s != 0 {
			return dst, NoOp, nil
		}
		m.failed |= s
		if ended || m.sent&s != 0 {
			// Everything was handed over: the destination may have committed, so
			// its word, the gateway or the lease decides.
			return dst, Applied, nil
		}
		if m.state == SourceComputing {
			return m.end(now, 1<<f.Reader, OutcomeFailed, f, dst)
		}
		return m.holdAfterFailure(f.Reader, dst), Applied, nil

	case FactTransferQuiesced:
		if m.quiet&s != 0 {
			return dst, NoOp, nil
		}
		m.quiet |= s
		return m.tryRelease(dst), Applied, nil
	}
	return m.refuse(dst, f, ErrInvalid, "a fact that a source takes")
}

// holdAfterFailure closes what is left of a reader's transfer but keeps the
// pinned state under its lease: a retry rebinds it before anything is
// recomputed. The gateway's cancel, a commit that was on its way, or the lease
// ends it.
func (m *Source) holdAfterFailure(reader uint8, dst []SourceAction) []SourceAction {
	dst = m.closeStreams(reader, dst)
	return append(dst, SourceAction{Kind: ActionReportStatus, Report: ReportStreamFailed, Reader: reader})
}

// closeStreams revokes unredeemed tickets and aborts the streams of a reader,
// each once.
func (m *Source) closeStreams(reader uint8, dst []SourceAction) []SourceAction {
	for p := range m.parts {
		s := m.stream(p, reader)
		if m.tickets&s != 0 {
			m.tickets &^= s
			dst = append(dst, SourceAction{Kind: ActionRevokeTicket, Part: p, Reader: reader})
		}
		if m.asked&^(m.quiet|m.aborted)&s != 0 {
			m.aborted |= s
			dst = append(dst, SourceAction{Kind: ActionAbortStream, Part: p, Reader: reader})
		}
	}
	return dst
}

func (m *Source) readerCompleted(now time.Duration, f *SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	bit := uint16(1) << f.Reader
	switch {
	case !m.boundTo(f.Reader, f.Incarnation):
		return m.refuse(dst, f, ErrIncarnation, "the incarnation that the handoff is bound to")
	case m.ended&bit != 0:
		return dst, NoOp, nil
	}
	for p := range m.parts {
		if m.final&m.stream(p, f.Reader) == 0 {
			return m.refuse(dst, f, ErrImpossible, "SendFinal for every part first: nobody can commit before")
		}
	}
	return m.end(now, bit, OutcomeHandedOff, f, dst)
}

func (m *Source) peerLost(now time.Duration, f *SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	set := m.live() & readerSet(f.Reader)
	for r := range m.readers {
		if f.Incarnation != 0 && m.peer[r] != 0 && m.peer[r] != f.Incarnation {
			set &^= 1 << r // news of another incarnation than the one bound
		}
	}
	return m.end(now, set, OutcomePeerLost, f, dst)
}

func (m *Source) leaseRenewed(now time.Duration, f *SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	if f.For <= 0 {
		return m.refuse(dst, f, ErrInvalid, "a positive length")
	}
	if m.state != SourcePinned && m.state != SourceAwaitingReader {
		return dst, NoOp, nil
	}
	until := max(m.until, m.leaseUntil(now, f.For))
	if f.Seq == 0 {
		if m.opened&^(m.sent|m.failed|m.quiet) == 0 || until == m.until {
			return dst, NoOp, nil
		}
	} else if f.Seq <= m.seq {
		return dst, NoOp, nil
	}
	m.seq = max(m.seq, f.Seq)
	m.until = until
	return dst, Applied, nil
}

func (m *Source) leaseExpired(now time.Duration, f *SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	if now < m.until {
		return dst, NoOp, nil // renewed meanwhile
	}
	if m.state != SourceDraining {
		return m.end(now, m.live(), OutcomeExpired, f, dst)
	}
	// The quarantine is over: a deadline never frees, it only makes the host
	// close the lane, so that quiescence comes.
	touching := m.touching()
	if m.forced || touching == 0 {
		return dst, NoOp, nil
	}
	m.forced = true
	for p := range m.parts {
		for r := range m.readers {
			if touching&m.stream(p, r) != 0 {
				m.aborted |= m.stream(p, r)
				dst = append(dst, SourceAction{Kind: ActionAbortStream, Part: p, Reader: r, Force: true})
			}
		}
	}
	return dst, Applied, nil
}
