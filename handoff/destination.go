package handoff

import "time"

// Destination is the decode worker's machine for one handoff. The zero value is
// ready; it is not safe for concurrent use, and a plain copy is a snapshot.
//
// As in Source, flags are sticky.
type Destination struct {
	state   DestinationState
	policy  Policy
	outcome Outcome // set once; the first cause wins
	cause   FactKind
	reason  Reason
	finish  Finish
	never   bool
	forced  bool // AbortStream{Force} was emitted

	parts   uint8
	asked   uint16 // parts whose stream exists: accepted, or dialed by StartReceive
	opened  uint16 // parts whose stream was accepted; at most once per part
	done    uint16 // parts received whole and valid; implies that no byte is written any more
	quiet   uint16 // quiesced: stable, nothing writes the memory again
	aborted uint16 // AbortStream emitted
	tickets uint16 // issued, neither redeemed nor revoked

	promptTokens int
	skipTokens   int
	bytes        uint64
	until        time.Duration // deadline of the current state
	quarantine   time.Duration
	peer         uint64 // bound incarnation of the source, 0 = not known
}

// State returns the current state.
func (m *Destination) State() DestinationState { return m.state }

// Outcome returns how the handoff ended, or 0 while it has not.
func (m *Destination) Outcome() Outcome { return m.outcome }

// Policy returns the policy it was routed with.
func (m *Destination) Policy() Policy { return m.policy }

// MayStep reports whether a decode step may read the sequence: only then
// (invariant 1). Hosts ask it when they form a batch.
func (m *Destination) MayStep() bool { return m.state == DestinationActive && m.outcome == 0 }

// Deadline returns the time for which the host's timer should be armed, and
// false when none is needed.
func (m *Destination) Deadline() (time.Duration, bool) {
	switch m.state {
	case DestinationReserving, DestinationReserved, DestinationReceiving:
		return m.until, true
	case DestinationDraining:
		return m.until, !m.forced && m.touching() != 0
	}
	return 0, false
}

// Apply tells the machine one fact at host time now and appends the resulting
// actions to dst, to be executed in order. It allocates only if dst has no room.
// On error the machine is unchanged, dst is returned as given and the error is
// a *FactError.
func (m *Destination) Apply(now time.Duration, f DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	old, wasArmed := m.Deadline()
	dst, result, err := m.apply(now, &f, dst)
	if err != nil {
		return dst, result, err
	}
	// Timers are one-shot: one that fired is set again, also when it was early.
	if at, armed := m.Deadline(); armed && (!wasArmed || at != old || f.Kind == FactReservationExpired) {
		dst = append(dst, DestinationAction{Kind: ActionWakeAt, At: at})
	}
	return dst, result, nil
}

func (m *Destination) apply(now time.Duration, f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	if !destinationTakes(f.Kind) {
		return m.refuse(dst, f, ErrInvalid, "a fact that a destination takes")
	}
	if m.state == DestinationReleased {
		return dst, NoOp, nil // rule: a late fact never resurrects
	}
	if m.state == DestinationNotRouted {
		switch f.Kind {
		case FactRouted:
			return m.route(now, f, dst)
		case FactCancelled: // a cancel may overtake the command it cancels
			m.state, m.outcome, m.cause, m.reason = DestinationReleased, OutcomeCancelled, f.Kind, f.Reason
			return m.reportReleased(m.reportEnded(dst)), Applied, nil
		}
		return m.refuse(dst, f, ErrImpossible, "Routed or Cancelled first")
	}
	if f.Part >= m.parts && (f.Part != All || f.Kind != FactPeerLost) {
		return m.refuse(dst, f, ErrInvalid, "a part below Parts")
	}
	switch f.Kind {
	case FactRouted:
		if f.Policy != m.policy || f.Parts != m.parts {
			return m.refuse(dst, f, ErrLive, "the same command again, or a new handoff id")
		}
		return dst, NoOp, nil
	case FactReserved:
		return m.reserved(f, dst)
	case FactReserveRefused:
		return m.reserveRefused(now, f, dst)
	case FactStreamOpened:
		return m.streamOpened(f, dst)
	case FactReceiveCompleted:
		return m.receiveCompleted(f, dst)
	case FactReceiveFailed:
		return m.receiveFailed(now, f, dst)
	case FactTransferQuiesced:
		return m.transferQuiesced(f, dst)
	case FactActivationApplied:
		return m.activationApplied(now, f, dst)
	case FactActivationFailed:
		return m.activationFailed(now, f, dst)
	case FactDecodeFinished:
		return m.decodeFinished(now, f, dst)
	case FactDecodeFailed:
		return m.decodeFailed(now, f, dst)
	case FactStepRetired:
		return m.stepRetired(f, dst)
	case FactReservationExpired:
		return m.reservationExpired(now, f, dst)
	case FactPeerLost:
		return m.peerLost(now, f, dst)
	case FactCoordinatorLost, FactCancelled:
		return m.end(now, OutcomeCancelled, f, dst)
	}
	return m.refuse(dst, f, ErrInvalid, "a fact that a destination takes")
}

// destinationTakes reports whether a destination has a use for the kind.
func destinationTakes(k FactKind) bool {
	switch k {
	case FactStreamOpened, FactStepRetired, FactTransferQuiesced, FactPeerLost, FactCoordinatorLost, FactCancelled:
		return true
	}
	return k >= FactRouted && k <= FactReservationExpired
}

func (m *Destination) route(now time.Duration, f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	switch {
	case f.Policy != DestinationFirst && f.Policy != SourceFirst:
		return m.refuse(dst, f, ErrInvalid, "a policy that has a destination")
	case f.Parts < 1 || f.Parts > MaxParts:
		return m.refuse(dst, f, ErrInvalid, "1..16 parts")
	case f.PromptTokens < 1 || f.Headroom < 0:
		return m.refuse(dst, f, ErrInvalid, "at least one prompt token and no negative headroom")
	case f.Deadline <= now || f.Quarantine < 0:
		return m.refuse(dst, f, ErrInvalid, "a deadline in the future and no negative quarantine")
	}
	m.state = DestinationReserving
	m.policy, m.parts, m.peer, m.promptTokens = f.Policy, f.Parts, f.Incarnation, f.PromptTokens
	m.until, m.quarantine = f.Deadline, f.Quarantine
	if m.quarantine == 0 {
		m.quarantine = defaultQuarantine
	}
	return append(dst, DestinationAction{Kind: ActionReserveDestination, PromptTokens: f.PromptTokens,
		Headroom: f.Headroom, Deadline: f.Deadline}), Applied, nil
}

func (m *Destination) reserved(f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	if m.state != DestinationReserving {
		return dst, NoOp, nil // repeated, or withdrawn by the release
	}
	if f.SkipTokens < 0 || f.SkipTokens > m.promptTokens {
		return m.refuse(dst, f, ErrInvalid, "0..PromptTokens skipped tokens")
	}
	m.state = DestinationReserved
	m.skipTokens, m.bytes = f.SkipTokens, f.Bytes
	all := lowBits16(m.parts)
	if m.policy == DestinationFirst {
		m.tickets = all
	} else {
		m.asked = all
		for p := range m.parts {
			dst = append(dst, m.startReceive(p))
		}
	}
	return append(dst, DestinationAction{Kind: ActionReportStatus, Report: ReportReserved, SkipTokens: m.skipTokens}), Applied, nil
}

func (m *Destination) startReceive(part uint8) DestinationAction {
	return DestinationAction{Kind: ActionStartReceive, Part: part, SkipTokens: m.skipTokens, Bytes: m.bytes}
}

func (m *Destination) reserveRefused(now time.Duration, f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	switch m.state {
	case DestinationReserving:
		m.never = f.Never
		dst = append(dst, DestinationAction{Kind: ActionReportStatus, Report: ReportRefused, Never: f.Never})
		return m.end(now, OutcomeFailed, f, dst)
	case DestinationDraining:
		return dst, NoOp, nil
	}
	return m.refuse(dst, f, ErrImpossible, "an unanswered ReserveDestination")
}

func (m *Destination) streamOpened(f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	bit := uint16(1) << f.Part
	if m.state == DestinationReserving {
		return m.refuse(dst, f, ErrImpossible, "a reservation first: no ticket was issued")
	}
	if m.peer != 0 && f.Incarnation != 0 && m.peer != f.Incarnation {
		return m.refuse(dst, f, ErrIncarnation, "the incarnation that the reservation is bound to")
	}
	if m.state == DestinationActive || m.state == DestinationDraining || (m.opened|m.quiet|m.aborted)&bit != 0 {
		return dst, NoOp, nil // a second or late open is refused, the first unharmed
	}
	m.opened |= bit
	m.asked |= bit
	m.tickets &^= bit // redeemed
	m.state = DestinationReceiving
	if m.policy == DestinationFirst {
		dst = append(dst, m.startReceive(f.Part)) // credit, never before
	}
	return dst, Applied, nil
}

func (m *Destination) receiveCompleted(f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	bit := uint16(1) << f.Part
	switch {
	case m.opened&bit == 0 && (m.state != DestinationDraining || m.asked&bit == 0):
		return m.refuse(dst, f, ErrImpossible, "StreamOpened first")
	case m.done&bit != 0:
		return dst, NoOp, nil
	}
	m.done |= bit
	if m.state == DestinationDraining {
		return m.tryRelease(dst), Applied, nil
	}
	if m.whole() {
		dst = append(dst, DestinationAction{Kind: ActionActivateDestination})
	}
	return dst, Applied, nil
}

func (m *Destination) receiveFailed(now time.Duration, f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	switch {
	case m.state == DestinationReserving:
		return m.refuse(dst, f, ErrImpossible, "a reservation first: nothing can be received")
	case m.done&(1<<f.Part) != 0 || m.state == DestinationActive:
		return dst, NoOp, nil // this part is whole; only the stream's end was lost
	}
	return m.end(now, OutcomeFailed, f, dst)
}

func (m *Destination) transferQuiesced(f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	bit := uint16(1) << f.Part
	switch {
	case m.asked&bit == 0 && m.tickets&bit == 0 && m.state != DestinationDraining:
		return m.refuse(dst, f, ErrImpossible, "a stream first")
	case m.quiet&bit != 0:
		return dst, NoOp, nil
	}
	m.quiet |= bit
	return m.tryRelease(dst), Applied, nil
}

func (m *Destination) activationApplied(now time.Duration, f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	if m.state == DestinationActive {
		return dst, NoOp, nil
	}
	if !m.whole() || m.state != DestinationReceiving {
		return m.refuse(dst, f, ErrImpossible, "ActivateDestination first")
	}
	m.state = DestinationActive
	for p := range m.parts {
		dst = append(dst, DestinationAction{Kind: ActionAckCommit, Part: p, At: later(now, m.quarantine)})
	}
	return append(dst, DestinationAction{Kind: ActionReportStatus, Report: ReportCommitted}), Applied, nil
}

func (m *Destination) activationFailed(now time.Duration, f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	if !m.whole() || m.state != DestinationReceiving {
		return m.refuse(dst, f, ErrImpossible, "an unanswered ActivateDestination")
	}
	return m.end(now, OutcomeFailed, f, dst)
}

func (m *Destination) decodeFinished(now time.Duration, f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	if m.state != DestinationActive {
		return m.refuse(dst, f, ErrImpossible, "ActivationApplied first")
	}
	if m.outcome == 0 {
		m.finish = f.Finish
	}
	return m.end(now, OutcomeCompleted, f, dst)
}

func (m *Destination) decodeFailed(now time.Duration, f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	if m.state != DestinationActive {
		return m.refuse(dst, f, ErrImpossible, "ActivationApplied first")
	}
	return m.end(now, OutcomeFailed, f, dst)
}

func (m *Destination) stepRetired(f *DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	switch {
	case m.state != DestinationActive:
		return m.refuse(dst, f, ErrImpossible, "ActivationApplied first: nothing may have been stepped")
	case m.outcome == 0:
		return dst, NoOp, nil // nothing waits for it
	}
	return m.release(dst), Applied, nil
}
