package handoff

import "time"

// defaultQuarantine is how long an aborted stream may take to quiesce before the
// machine asks the host to force-close its lane.
const defaultQuarantine = 5 * time.Second

// Source is the prefill worker's machine for one handoff, or for the several
// handoffs (samples) that read one prefill. The zero value is ready; it is not
// safe for concurrent use, and a plain copy is a snapshot.
//
// Flags are sticky: once set, a bit of the sets below stays set, except busy and
// tickets, which only lose bits. That is what makes late, repeated and reordered
// facts harmless.
type Source struct {
	state      SourceState
	policy     Policy
	outcome    Outcome  // of the whole; reported when the last reader ended
	cause      FactKind // fact that decided outcome
	reason     Reason
	finish     Finish
	never      bool
	dispatched bool // DispatchPrefill was emitted: the scheduler may run steps
	stopped    bool // StopPrefill was emitted
	forced     bool // AbortStream{Force} was emitted

	parts, readers uint8
	busy           uint16 // parts for which a step may run; memory stays while non-zero
	pinned         uint16 // parts whose memory is pinned under the lease
	ready          uint16 // readers whose destination holds a reservation
	ended          uint16 // readers with an outcome; never reopened (invariant 7)

	// Streams, one bit per part and reader.
	asked   uint64 // OpenStream emitted: a stream exists
	opened  uint64 // accepted; at most once per stream, never after its end
	final   uint64 // SendFinal emitted; only for opened streams of pinned parts
	sent    uint64 // the transport holds no more references to the memory
	failed  uint64 // broken
	quiet   uint64 // quiesced: stable, nothing touches the memory again
	aborted uint64 // AbortStream emitted
	tickets uint64 // issued, neither redeemed nor revoked

	maxTokens    int
	promptTokens int
	seq          uint64        // last lease renewal that counted
	until        time.Duration // deadline of the current state
	deadline     time.Duration // end of the handoff; no lease goes beyond
	quarantine   time.Duration
	reuse        ID
	peer         [MaxReaders]uint64 // bound incarnation of each destination, 0 = none yet
}

// State returns the current state.
func (m *Source) State() SourceState { return m.state }

// Outcome returns how the handoff ended, or 0 while it has not.
func (m *Source) Outcome() Outcome {
	if m.state < SourceDraining {
		return 0
	}
	return m.outcome
}

// Policy returns the policy it was dispatched with.
func (m *Source) Policy() Policy { return m.policy }

// Deadline returns the time for which the host's timer should be armed, and
// false when none is needed.
func (m *Source) Deadline() (time.Duration, bool) {
	switch m.state {
	case SourceNotStarted, SourceReleased:
		return 0, false
	case SourceDraining:
		return m.until, !m.forced && m.touching() != 0
	}
	return m.until, true
}

// Apply tells the machine one fact at host time now and appends the resulting
// actions to dst, to be executed in order. It allocates only if dst has no room.
// On error the machine is unchanged, dst is returned as given and the error is
// a *FactError.
func (m *Source) Apply(now time.Duration, f SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	old, wasArmed := m.Deadline()
	dst, result, err := m.apply(now, &f, dst)
	if err != nil {
		return dst, result, err
	}
	// Timers are one-shot: one that fired is set again, also when it was early.
	if at, armed := m.Deadline(); armed && (!wasArmed || at != old || f.Kind == FactLeaseExpired) {
		dst = append(dst, SourceAction{Kind: ActionWakeAt, At: at})
	}
	return dst, result, nil
}

func (m *Source) apply(now time.Duration, f *SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	if !sourceTakes(f.Kind) {
		return m.refuse(dst, f, ErrInvalid, "a fact that a source takes")
	}
	if m.state == SourceReleased {
		return dst, NoOp, nil // rule: a late fact never resurrects
	}
	if m.state == SourceNotStarted {
		switch f.Kind {
		case FactDispatched:
			return m.dispatch(now, f, dst)
		case FactCancelled: // a cancel may overtake the command it cancels
			m.state, m.outcome, m.cause, m.reason = SourceReleased, OutcomeCancelled, f.Kind, f.Reason
			dst = append(dst, SourceAction{Kind: ActionReportStatus, Report: ReportEnded,
				Outcome: m.outcome, Cause: m.cause, Reason: m.reason})
			return m.reportReleased(dst), Applied, nil
		}
		return m.refuse(dst, f, ErrImpossible, "Dispatched or Cancelled first")
	}
	if f.Part >= m.parts {
		return m.refuse(dst, f, ErrInvalid, "a part below Parts")
	}
	if f.Reader >= m.readers && (f.Reader != All || f.Kind != FactCancelled && f.Kind != FactPeerLost) {
		return m.refuse(dst, f, ErrInvalid, "a reader below Readers")
	}
	switch f.Kind {
	case FactDispatched:
		if f.Policy != m.policy || f.Parts != m.parts || f.Readers != m.readers {
			return m.refuse(dst, f, ErrLive, "the same command again, or a new handoff id")
		}
		return dst, NoOp, nil
	case FactDestinationReady:
		return m.destinationReady(now, f, dst)
	case FactPrefillPinned:
		return m.prefillPinned(now, f, dst)
	case FactPrefillRejected:
		return m.prefillRejected(now, f, dst)
	case FactFinishedAtSource:
		return m.finishedAtSource(now, f, dst)
	case FactStepRetired:
		return m.stepRetired(f, dst)
	case FactLeaseRenewed:
		return m.leaseRenewed(now, f, dst)
	case FactLeaseExpired:
		return m.leaseExpired(now, f, dst)
	case FactCoordinatorLost:
		return m.end(now, m.live(), OutcomeCancelled, f, dst)
	case FactCancelled:
		return m.end(now, m.live()&readerSet(f.Reader), OutcomeCancelled, f, dst)
	}
	if m.policy == Disabled {
		return m.refuse(dst, f, ErrImpossible, "no fact about a peer: the policy is disabled")
	}
	switch f.Kind {
	case FactPeerLost:
		return m.peerLost(now, f, dst)
	case FactReaderCompleted:
		return m.readerCompleted(now, f, dst)
	}
	return m.streamFact(now, f, dst)
}

// sourceTakes reports whether a source has a use for the kind.
func sourceTakes(k FactKind) bool {
	return k >= FactDispatched && k <= FactCancelled
}

func (m *Source) dispatch(now time.Duration, f *SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	switch {
	case f.Policy != Disabled && f.Policy != DestinationFirst && f.Policy != SourceFirst:
		return m.refuse(dst, f, ErrInvalid, "a policy")
	case f.Parts < 1 || f.Parts > MaxParts || f.Readers < 1 || f.Readers > MaxReaders || int(f.Parts)*int(f.Readers) > MaxStreams:
		return m.refuse(dst, f, ErrInvalid, "1..16 parts and readers, at most 64 streams")
	case f.Policy == Disabled && f.Readers != 1:
		return m.refuse(dst, f, ErrInvalid, "one reader: each colocated sample is its own handoff")
	case f.PromptTokens < 1 || f.MaxTokens < 0:
		return m.refuse(dst, f, ErrInvalid, "at least one prompt token and no negative limit")
	case f.Deadline <= now || f.Quarantine < 0:
		return m.refuse(dst, f, ErrInvalid, "a deadline in the future and no negative quarantine")
	}
	m.state = SourceComputing
	m.policy, m.parts, m.readers = f.Policy, f.Parts, f.Readers
	m.promptTokens, m.maxTokens, m.reuse = f.PromptTokens, f.MaxTokens, f.Reuse
	m.deadline, m.until, m.quarantine = f.Deadline, f.Deadline, f.Quarantine
	if m.quarantine == 0 {
		m.quarantine = defaultQuarantine
	}
	return m.startPrefill(dst), Applied, nil
}

// startPrefill dispatches the prefill once: destination-first, only when every
// live reader's destination holds its reservation (case 2).
func (m *Source) startPrefill(dst []SourceAction) []SourceAction {
	if m.dispatched || m.live() == 0 || m.policy == DestinationFirst && m.live()&^m.ready != 0 {
		return dst
	}
	m.dispatched = true
	m.busy = lowBits16(m.parts)
	return append(dst, SourceAction{Kind: ActionDispatchPrefill, Reuse: m.reuse})
}

func (m *Source) destinationReady(now time.Duration, f *SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	bit := uint16(1) << f.Reader
	switch {
	case m.policy != DestinationFirst:
		return m.refuse(dst, f, ErrImpossible, "destination-first: other policies have no destination to push to")
	case f.SkipTokens < 0 || f.SkipTokens > m.promptTokens:
		return m.refuse(dst, f, ErrInvalid, "0..PromptTokens skipped tokens")
	case (m.ended|m.ready)&bit != 0:
		return dst, NoOp, nil
	}
	m.ready |= bit
	m.peer[f.Reader] = f.Incarnation
	for p := range m.parts {
		m.asked |= m.stream(p, f.Reader)
		dst = append(dst, SourceAction{Kind: ActionOpenStream, Part: p, Reader: f.Reader, SkipTokens: f.SkipTokens})
	}
	return m.startPrefill(dst), Applied, nil
}

func (m *Source) prefillPinned(now time.Duration, f *SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	bit := uint16(1) << f.Part
	switch {
	case m.policy == Disabled:
		return m.refuse(dst, f, ErrImpossible, "FinishedAtSource: nothing is pinned for a reader when the policy is disabled")
	case !m.dispatched:
		return m.refuse(dst, f, ErrImpossible, "DispatchPrefill first")
	case f.Blocks < 1 || f.For <= 0:
		return m.refuse(dst, f, ErrInvalid, "pinned blocks and a lease: recompute a preempted prefill before pinning it")
	case m.maxTokens == 1 && m.reuse.IsZero(): // a state taken over was sampled from before
		return m.refuse(dst, f, ErrImpossible, "FinishedAtSource: the first token is the last one")
	case m.pinned&bit != 0:
		return dst, NoOp, nil
	}
	m.pinned |= bit
	m.busy &^= bit
	if m.state == SourceDraining {
		return m.tryRelease(dst), Applied, nil
	}
	if m.pinned != lowBits16(m.parts) {
		return dst, Applied, nil
	}
	m.state = SourcePinned
	m.until = m.leaseUntil(now, f.For)
	for r := range m.readers {
		if m.ended&(1<<r) != 0 {
			continue
		}
		for p := range m.parts {
			s := m.stream(p, r)
			if m.policy == SourceFirst {
				m.asked |= s
				m.tickets |= s
				dst = append(dst, SourceAction{Kind: ActionOpenStream, Part: p, Reader: r})
			} else if m.opened&^(m.failed|m.quiet)&s != 0 {
				m.final |= s
				dst = append(dst, SourceAction{Kind: ActionSendFinal, Part: p, Reader: r})
			}
		}
	}
	return append(dst, SourceAction{Kind: ActionReportStatus, Report: ReportPinned}), Applied, nil
}

func (m *Source) prefillRejected(now time.Duration, f *SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	switch {
	case !m.dispatched || m.pinned == lowBits16(m.parts) && m.state != SourceDraining:
		return m.refuse(dst, f, ErrImpossible, "an unanswered DispatchPrefill")
	case m.state == SourceDraining && m.busy == 0:
		return dst, NoOp, nil
	}
	m.busy = 0
	if m.state == SourceDraining {
		return m.tryRelease(dst), Applied, nil
	}
	m.never = f.Never
	return m.end(now, m.live(), OutcomeFailed, f, dst)
}

func (m *Source) finishedAtSource(now time.Duration, f *SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	bit := uint16(1) << f.Reader
	switch {
	case !m.dispatched:
		return m.refuse(dst, f, ErrImpossible, "DispatchPrefill first")
	case m.state == SourceDraining:
		if m.busy == 0 {
			return dst, NoOp, nil
		}
		m.busy = 0
		return m.tryRelease(dst), Applied, nil
	case m.ended&bit != 0:
		return dst, NoOp, nil
	case m.state != SourceComputing:
		return m.refuse(dst, f, ErrImpossible, "before PrefillPinned: the first token is sampled before pinning")
	}
	if m.live() == bit {
		m.busy = 0
	}
	m.finish = f.Finish
	return m.end(now, bit, OutcomeFinishedAtSource, f, dst)
}

func (m *Source) stepRetired(f *SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	bit := uint16(1) << f.Part
	switch {
	case m.state == SourceComputing && m.busy&bit != 0 && !m.stopped:
		return m.refuse(dst, f, ErrImpossible, "StopPrefill first, or the prefill's result")
	case !m.stopped || m.busy&bit == 0:
		return dst, NoOp, nil
	}
	m.busy &^= bit
	return m.tryRelease(dst), Applied, nil
}
