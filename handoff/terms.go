package handoff

// Role says which machine, or which side of a handoff, is meant.
type Role uint8

// The three machines. As a side of a handoff only Source and Destination occur;
// a colocated request runs on its Source.
const (
	RoleSource      Role = 1 + iota // prefill worker; also the worker of a colocated request
	RoleDestination                 // decode worker
	RoleRequest                     // gateway
)

var roleNames = []string{"", "source", "destination", "request"}

// String returns the stable name.
func (r Role) String() string { return nameOf("role", roleNames, r) }

// MarshalText writes the stable name.
func (r Role) MarshalText() ([]byte, error) { return textOf("role", roleNames, r) }

// UnmarshalText reads the stable name.
func (r *Role) UnmarshalText(text []byte) (err error) {
	*r, err = fromText[Role]("role", roleNames, text)
	return err
}

// Policy says in which order the two sides of a handoff take their memory.
type Policy uint8

// Policies. The zero value is none and is refused.
const (
	// Disabled: colocated serving. A Source computes, samples and decodes to the
	// end; there is no destination, stream, ticket or lease.
	Disabled Policy = 1 + iota
	// DestinationFirst: the destination reserves everything before prefill is
	// dispatched; the source pushes pages while it computes.
	DestinationFirst
	// SourceFirst: prefill runs and is pinned under a lease; a destination
	// reserves later and pulls.
	SourceFirst
)

var policyNames = []string{"", "disabled", "destination-first", "source-first"}

// String returns the stable name.
func (p Policy) String() string { return nameOf("policy", policyNames, p) }

// MarshalText writes the stable name.
func (p Policy) MarshalText() ([]byte, error) { return textOf("policy", policyNames, p) }

// UnmarshalText reads the stable name.
func (p *Policy) UnmarshalText(text []byte) (err error) {
	*p, err = fromText[Policy]("policy", policyNames, text)
	return err
}

// Result says what a machine did with a fact that it did not refuse.
type Result uint8

// Results of Apply.
const (
	// Applied: the fact changed the machine; execute the appended actions in order.
	Applied Result = 1 + iota
	// NoOp: duplicate, late or without effect; the machine is unchanged. Two kinds
	// of NoOp append an action all the same: a timer fact that came early is
	// answered with WakeAt, and a message of an attempt that a Request gave up
	// with Cancel.
	NoOp
)

var resultNames = []string{"", "applied", "no-op"}

// String returns the stable name.
func (r Result) String() string { return nameOf("result", resultNames, r) }

// MarshalText writes the stable name.
func (r Result) MarshalText() ([]byte, error) { return textOf("result", resultNames, r) }

// UnmarshalText reads the stable name.
func (r *Result) UnmarshalText(text []byte) (err error) {
	*r, err = fromText[Result]("result", resultNames, text)
	return err
}

// Retry says what a request does when an attempt fails.
type Retry uint8

// Retry policies. The zero value means RetryRecompute.
const (
	// RetryRecompute: another attempt. Before the commit it takes over the pinned state
	// while that lives; otherwise the prompt and the tokens that the client has
	// are computed again.
	RetryRecompute Retry = 1 + iota
	// RetryRebind: another attempt only where nothing has to be computed twice: before
	// anything was, or from the pinned state.
	RetryRebind
	// RetryNone: the first failure ends the request.
	RetryNone
)

var retryNames = []string{"", "recompute", "rebind", "none"}

// String returns the stable name.
func (r Retry) String() string { return nameOf("retry", retryNames, r) }

// MarshalText writes the stable name.
func (r Retry) MarshalText() ([]byte, error) { return textOf("retry", retryNames, r) }

// UnmarshalText reads the stable name.
func (r *Retry) UnmarshalText(text []byte) (err error) {
	*r, err = fromText[Retry]("retry", retryNames, text)
	return err
}

// Outcome says how a handoff ended on one side. It is set once.
type Outcome uint8

// Outcomes. The zero value means "not ended".
const (
	OutcomeHandedOff        Outcome = 1 + iota // source: every part was read and committed by a destination
	OutcomeFinishedAtSource                    // source: the completion ended on the source
	OutcomeCompleted                           // destination: the completion ended there
	OutcomeCancelled                           // either: cancelled by the gateway or because it was lost
	OutcomeFailed                              // either: refused, rejected or broken
	OutcomeExpired                             // either: lease or reservation ran out
	OutcomePeerLost                            // either: the other worker is gone
)

var outcomeNames = []string{"", "handed-off", "finished-at-source", "completed", "cancelled", "failed", "expired", "peer-lost"}

// String returns the stable name.
func (o Outcome) String() string { return nameOf("outcome", outcomeNames, o) }

// MarshalText writes the stable name.
func (o Outcome) MarshalText() ([]byte, error) { return textOf("outcome", outcomeNames, o) }

// UnmarshalText reads the stable name.
func (o *Outcome) UnmarshalText(text []byte) (err error) {
	*o, err = fromText[Outcome]("outcome", outcomeNames, text)
	return err
}

// Reason says why something was cancelled. Machines pass it through.
type Reason uint8

// Reasons of a cancel.
const (
	ReasonClient    Reason = 1 + iota // the client went away
	ReasonDeadline                    // the request's deadline came
	ReasonAbandoned                   // the gateway gave this attempt up and fenced it
	ReasonRefused                     // the other side refused
	ReasonFinished                    // the completion ended on the other side
	ReasonRebound                     // another handoff took over the pinned source
	ReasonShutdown                    // the worker is going down
)

var reasonNames = []string{"", "client", "deadline", "abandoned", "refused", "finished", "rebound", "shutdown"}

// String returns the stable name.
func (r Reason) String() string { return nameOf("reason", reasonNames, r) }

// MarshalText writes the stable name.
func (r Reason) MarshalText() ([]byte, error) { return textOf("reason", reasonNames, r) }

// UnmarshalText reads the stable name.
func (r *Reason) UnmarshalText(text []byte) (err error) {
	*r, err = fromText[Reason]("reason", reasonNames, text)
	return err
}

// Finish is the reason why a completion ended.
type Finish uint8

// Finish reasons of a completion. The zero value means "goes on".
const (
	FinishStop   Finish = 1 + iota // end-of-generation token or stop string
	FinishLength                   // token limit
)

var finishNames = []string{"", "stop", "length"}

// String returns the stable name.
func (f Finish) String() string { return nameOf("finish", finishNames, f) }

// MarshalText writes the stable name.
func (f Finish) MarshalText() ([]byte, error) { return textOf("finish", finishNames, f) }

// UnmarshalText reads the stable name.
func (f *Finish) UnmarshalText(text []byte) (err error) {
	*f, err = fromText[Finish]("finish", finishNames, text)
	return err
}

// Report names what a ReportStatus action tells the gateway.
type Report uint8

// Reports of a worker's machines.
const (
	// ReportPinned (source): prefill is complete and pinned. Source-first, the
	// message also carries the endpoint and the tickets of the offered streams.
	ReportPinned Report = 1 + iota
	// ReportStreamFailed (source): a stream to Reader broke; the state stays
	// pinned under its lease for a retry that rebinds it, or for a late commit.
	ReportStreamFailed
	// ReportReserved (destination): reserved. Destination-first, the message
	// carries endpoint, tickets and skipped prefix tokens.
	ReportReserved
	// ReportRefused (destination): not reserved; Never says whether to try again.
	ReportRefused
	// ReportCommitted (destination): the state is active here; repeat until the
	// gateway answers.
	ReportCommitted
	// ReportEnded (either): the handoff (source: of Reader) has its Outcome.
	// Reported once, at once, even when memory is still in quarantine.
	ReportEnded
	// ReportReleased (either): all memory of the handoff is back.
	ReportReleased
)

var reportNames = []string{"", "pinned", "stream-failed", "reserved", "refused", "committed", "ended", "released"}

// String returns the stable name.
func (r Report) String() string { return nameOf("report", reportNames, r) }

// MarshalText writes the stable name.
func (r Report) MarshalText() ([]byte, error) { return textOf("report", reportNames, r) }

// UnmarshalText reads the stable name.
func (r *Report) UnmarshalText(text []byte) (err error) {
	*r, err = fromText[Report]("report", reportNames, text)
	return err
}

// Limits on the shape of one handoff. They bound the size of a machine, not a
// deployment: eight pipeline stages and eight samples fit.
const (
	MaxParts   = 16 // source parts (stages or ranks) of one handoff
	MaxReaders = 16 // readers (samples or ranks) of one source
	MaxStreams = 64 // parts times readers
)

// All as a Reader index means every reader of a source.
const All = 255
