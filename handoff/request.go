package handoff

import "time"

const (
	// defaultLease is the length of one lease renewal when the host gives none.
	defaultLease = 10 * time.Second
	// defaultBackoff is the first pause before a worker that failed is asked again: some
	// steps of a busy worker, and little against what a client waits for anyway.
	defaultBackoff = 250 * time.Millisecond
	// mostDoublings bounds the pauses: each is twice the one before it, up to 16 times
	// the first.
	mostDoublings = 4
)

// Request is the gateway's machine for one client request; it owns one handoff
// attempt at a time. The zero value is ready; it is not safe for concurrent
// use, and a plain copy is a snapshot.
type Request struct {
	state  RequestState
	status Status
	policy Policy // of the current attempt

	handoff ID // current attempt; zero while waiting for a placement, kept after Done
	last    ID // latest attempt that was placed: ids are never reused
	reuse   ID // handoff of a given-up attempt whose pinned source is kept for a rebind

	askedSource      bool // Prefill or RunColocated was emitted for the attempt
	askedDestination bool // Reserve was emitted for the attempt
	goneSource       bool // the attempt's source has ended or is lost: nothing to cancel or reuse
	goneDestination  bool // the attempt's destination has ended or is lost
	pinned           bool // the attempt's source reported its pin
	rebinding        bool // the attempt takes over reuse
	avoidSourceFirst bool // a lease expired: no other source-first prefill (rule: lease)
	retry            Retry
	retries          uint8  // attempts that are left
	retried          uint8  // attempts that were given up
	reuseOrder       Policy // of the attempt whose source is kept
	booked           uint8  // set of Booking with Book and no Unbook yet
	confirmed        uint8  // those of them that the router confirmed
	finishedBy       Role   // side whose completion ended the request

	base      int // tokens the client had when the attempt was placed
	next      int // index of the next token to forward: grows by one (invariant 9)
	maxTokens int

	deadline time.Duration // end of the request
	patience time.Duration // longest attempt before its commit
	until    time.Duration // end of the attempt, or of the request if sooner
	lease    time.Duration
	backoff  time.Duration
	renewAt  time.Duration // next lease renewal, while renewing
	seq      uint64
}

// State returns the current state.
func (m *Request) State() RequestState { return m.state }

// Status returns the terminal status, or 0 before RequestDone.
func (m *Request) Status() Status { return m.status }

// Next returns the index of the next token to forward: the number of tokens the
// client has.
func (m *Request) Next() int { return m.next }

// Handoff returns the id of the current attempt, zero when there is none.
func (m *Request) Handoff() ID { return m.handoff }

// AvoidsSourceFirst reports whether a source-first lease of the request expired: another
// source-first placement is refused.
func (m *Request) AvoidsSourceFirst() bool { return m.avoidSourceFirst }

// Owner returns the side whose tokens are forwarded now, 0 when there is none.
func (m *Request) Owner() Role {
	switch {
	case m.state == RequestDecoding:
		return RoleDestination
	case m.state != RequestDone && m.askedSource:
		return RoleSource
	}
	return 0
}

// Deadline returns the time for which the host's timer should be armed, and
// false when none is needed.
func (m *Request) Deadline() (time.Duration, bool) {
	if m.state == RequestNew || m.state == RequestDone {
		return 0, false
	}
	if m.renewing() {
		return min(m.until, m.renewAt), true
	}
	return m.until, true
}

// Apply tells the machine one fact at host time now and appends the resulting
// actions to dst, to be executed in order. It allocates only if dst has no room.
// On error the machine is unchanged, dst is returned as given and the error is
// a *FactError. A message of an attempt that was given up is a NoOp that
// appends Cancel: the fence that keeps two decoders from feeding one client.
func (m *Request) Apply(now time.Duration, f RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	old, wasArmed := m.Deadline()
	dst, result, err := m.apply(now, &f, dst)
	if err != nil {
		return dst, result, err
	}
	// Timers are one-shot: one that fired is set again, also when it was early.
	if at, armed := m.Deadline(); armed && (!wasArmed || at != old || f.Kind == FactDeadlineReached) {
		dst = append(dst, RequestAction{Kind: ActionWakeAt, At: at})
	}
	return dst, result, nil
}

func (m *Request) apply(now time.Duration, f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	if !requestTakes(f.Kind) {
		return m.refuse(dst, f, ErrInvalid, "a fact that a request takes")
	}
	if m.state == RequestNew {
		if f.Kind != FactAdmitted {
			return m.refuse(dst, f, ErrImpossible, "Admitted first")
		}
		return m.admit(now, f, dst)
	}
	switch f.Kind {
	case FactAdmitted:
		return m.refuse(dst, f, ErrLive, "a request id that is not live: reject the second request")
	case FactClientGone:
		if m.state == RequestDone {
			return dst, NoOp, nil
		}
		return m.finish(StatusCancelled, f, dst), Applied, nil
	case FactDeadlineReached:
		return m.deadlineReached(now, f, dst)
	case FactPlaced:
		return m.place(now, f, dst)
	case FactBooked:
		return m.bookingsMade(f, dst)
	case FactFailed:
		if f.Phase == PhasePlace {
			if m.state != RequestAdmitted {
				return dst, NoOp, nil
			}
			return m.finish(failureStatus(f), f, dst), Applied, nil
		}
	}

	side := f.side()
	if f.Handoff.IsZero() || side != RoleSource && side != RoleDestination {
		return m.refuse(dst, f, ErrInvalid, "the handoff and the side that the message belongs to")
	}
	if f.Handoff != m.handoff || m.state == RequestDone {
		return m.fenced(f, side, dst)
	}
	switch f.Kind {
	case FactReserved:
		return m.reserved(f, dst)
	case FactReserveRefused:
		return m.reserveRefused(now, f, dst)
	case FactPrefillPinned:
		return m.prefillPinned(now, f, dst)
	case FactCommitted:
		return m.committed(f, dst)
	case FactTokenOut:
		return m.tokenOut(f, dst)
	case FactFinished:
		return m.finished(f, dst)
	case FactFailed:
		return m.failed(now, f, dst)
	case FactWorkerLost:
		return m.workerLost(now, f, dst)
	case FactSourceReleased:
		return m.sourceReleased(now, f, dst)
	}
	return m.refuse(dst, f, ErrInvalid, "a fact that a request takes")
}

// requestTakes reports whether a request has a use for the kind.
func requestTakes(k FactKind) bool {
	switch k {
	case FactReserved, FactReserveRefused, FactPrefillPinned:
		return true
	}
	return k >= FactAdmitted && k < factKinds
}

// side returns the side of the worker that a fact speaks of.
func (f *RequestFact) side() Role {
	switch f.Kind {
	case FactReserved, FactReserveRefused, FactCommitted:
		return RoleDestination
	case FactPrefillPinned, FactSourceReleased:
		return RoleSource
	}
	return f.Side
}

func (m *Request) admit(now time.Duration, f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	if f.Deadline <= now || f.Patience < 0 || f.Lease < 0 || f.Backoff < 0 || f.MaxTokens < 0 || f.Retry > RetryNone {
		return m.refuse(dst, f, ErrInvalid, "a deadline in the future, no negative limits and a retry policy")
	}
	m.state = RequestAdmitted
	m.deadline, m.until, m.patience, m.lease = f.Deadline, f.Deadline, f.Patience, f.Lease
	if m.lease == 0 {
		m.lease = defaultLease
	}
	m.backoff = f.Backoff
	if m.backoff == 0 {
		m.backoff = defaultBackoff
	}
	m.maxTokens, m.retries, m.retry = f.MaxTokens, f.Retries, f.Retry
	if m.retry == RetryNone {
		m.retries = 0
	}
	return dst, Applied, nil
}

func (m *Request) place(now time.Duration, f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	switch {
	case m.state == RequestDone || m.state != RequestAdmitted && f.Handoff == m.handoff:
		return dst, NoOp, nil
	case m.state != RequestAdmitted:
		return m.refuse(dst, f, ErrLive, "one attempt at a time")
	case f.Policy != Disabled && f.Policy != DestinationFirst && f.Policy != SourceFirst || f.Handoff.IsZero():
		return m.refuse(dst, f, ErrInvalid, "a policy and a handoff id")
	case f.Handoff == m.last:
		return m.refuse(dst, f, ErrInvalid, "a new handoff id for every attempt")
	case !f.Rebind && m.retry == RetryRebind && !m.reuse.IsZero():
		return m.refuse(dst, f, ErrImpossible, "a placement on the worker that holds the state: this request is not computed twice")
	case f.Policy == SourceFirst && m.avoidSourceFirst:
		return m.refuse(dst, f, ErrImpossible, "another policy: a source-first lease of this request expired")
	}
	m.state, m.policy, m.handoff, m.last, m.base = RequestPlaced, f.Policy, f.Handoff, f.Handoff, m.next
	m.askedSource, m.askedDestination, m.goneSource, m.goneDestination, m.pinned = false, false, false, false, false
	m.rebinding = f.Rebind && !m.reuse.IsZero()
	if !m.rebinding {
		dst = m.dropReuse(ReasonAbandoned, dst)
	}
	if f.Policy == Disabled {
		dst = m.book(BookRun, dst)
	} else {
		if !m.rebinding {
			dst = m.book(BookPrefill, dst)
		}
		dst = m.book(BookSource, dst)
		if f.Policy == DestinationFirst {
			dst = m.book(BookDecode, dst)
		}
		if m.patience > 0 {
			m.until = min(m.deadline, later(now, m.patience))
		}
	}
	return dst, Applied, nil
}

func (m *Request) bookingsMade(f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	switch {
	case f.Booking < BookPrefill || f.Booking > BookRun:
		return m.refuse(dst, f, ErrInvalid, "the booking that was made")
	case f.Handoff != m.handoff || m.state == RequestDone || m.confirmed&(1<<f.Booking) != 0:
		return dst, NoOp, nil
	case m.booked&(1<<f.Booking) == 0:
		// It ended before it was confirmed (a lost worker, a first token): the
		// Unbook that follows it in the router removed it.
		return dst, NoOp, nil
	}
	m.confirmed |= 1 << f.Booking
	if m.booked&^m.confirmed != 0 {
		return dst, Applied, nil
	}
	switch {
	case m.state == RequestReserving && m.policy == SourceFirst:
		m.askedDestination = true
		return append(dst, RequestAction{Kind: ActionReserve, Handoff: m.handoff}), Applied, nil
	case m.state != RequestPlaced:
		return dst, Applied, nil
	}
	switch m.policy {
	case DestinationFirst:
		m.state, m.askedDestination = RequestReserving, true
		return append(dst, RequestAction{Kind: ActionReserve, Handoff: m.handoff}), Applied, nil
	case SourceFirst:
		return m.prefill(dst), Applied, nil
	}
	m.state, m.askedSource = RequestRunning, true
	return append(dst, RequestAction{Kind: ActionRunColocated, Handoff: m.handoff, Reuse: m.rebound(), Index: m.next}), Applied, nil
}

func (m *Request) prefill(dst []RequestAction) []RequestAction {
	m.state, m.askedSource = RequestPrefilling, true
	return append(dst, RequestAction{Kind: ActionPrefill, Handoff: m.handoff, Reuse: m.rebound(), Index: m.next})
}

// rebound returns the handoff that the attempt takes over, or zero.
func (m *Request) rebound() ID {
	if m.rebinding {
		return m.reuse
	}
	return ID{}
}

func (m *Request) reserved(f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	if !m.askedDestination {
		return m.refuse(dst, f, ErrImpossible, "Reserve first")
	}
	if m.state != RequestReserving {
		return dst, NoOp, nil
	}
	if m.policy == DestinationFirst {
		return m.prefill(dst), Applied, nil // never before the reservation (case 2)
	}
	m.state = RequestHandingOff
	return dst, Applied, nil // the destination pulls; its stream keeps the lease alive
}

func (m *Request) reserveRefused(now time.Duration, f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	if !m.askedDestination {
		return m.refuse(dst, f, ErrImpossible, "Reserve first")
	}
	if m.state != RequestReserving {
		return dst, NoOp, nil
	}
	m.goneDestination = true
	f.Phase, f.Outcome, f.Side, f.Refused = PhaseReserve, OutcomeFailed, RoleDestination, true
	return m.giveUp(now, f, dst), Applied, nil
}

func (m *Request) prefillPinned(now time.Duration, f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	switch {
	case !m.askedSource || m.policy == Disabled:
		return m.refuse(dst, f, ErrImpossible, "Prefill first")
	case m.state != RequestPrefilling:
		return dst, NoOp, nil
	}
	m.pinned = true
	dst = m.unbook(BookPrefill, dst) // prefill load ends here (invariant 5)
	dst = m.dropReuse(ReasonRebound, dst)
	m.rebinding = false
	if m.policy == DestinationFirst {
		m.state = RequestHandingOff
		return dst, Applied, nil
	}
	m.state = RequestReserving
	m.renewAt = later(now, m.renewEvery())
	dst = m.book(BookDecode, dst)
	return dst, Applied, nil
}

func (m *Request) refuse(dst []RequestAction, f *RequestFact, err error, want string) ([]RequestAction, Result, error) {
	return dst, 0, &FactError{Role: RoleRequest, State: m.state.String(), Fact: f.Kind.String(), Want: want, Err: err}
}
