package handoff

// ActionKind names an action: something the host must do, in the order given.
// The comment of each kind says which machine emits it (S source, D
// destination, R request), which fields of SourceAction, DestinationAction or
// RequestAction it sets, what to do, and which facts answer it. Per handoff (and
// part and reader, where it has those) every action comes at most once, except
// that AbortStream may come again with Force, that a cancel is repeated whenever
// a fenced message shows that it did not arrive, and that WakeAt, RenewLease,
// ReportStatus and Forward repeat by nature. Executing one must not fail: what
// cannot be done is reported as the failing fact.
type ActionKind uint8

// Actions.
const (
	// ActionDispatchPrefill (S): queue the prompt with the scheduler; with Reuse
	// set, take over that handoff's pinned memory instead, atomically, then
	// report Cancelled{ReasonRebound} to the old source (policy Disabled: and go
	// on decoding from it). Fields: Reuse. Answered by PrefillPinned (each part),
	// FinishedAtSource or PrefillRejected.
	ActionDispatchPrefill ActionKind = 1 + iota
	// ActionStopPrefill (S): let no further step include the sequence. Answered by
	// StepRetired for each part that still had DispatchPrefill unanswered; a
	// crossing PrefillPinned, FinishedAtSource or PrefillRejected is fine too.
	ActionStopPrefill
	// ActionOpenStream (S): destination-first, dial the destination of Reader with
	// its ticket and push: queue the pages of computed chunks as they come.
	// Source-first, offer the stream: make a ticket and let the destination
	// dial. Export nothing before StreamOpened was Applied when offering.
	// Fields: Part, Reader, SkipTokens. Answered by StreamOpened or StreamFailed.
	ActionOpenStream
	// ActionSendFinal (S): queue the pages not yet queued, the final snapshot and
	// the manifest of Part for Reader. Fields: Part, Reader. Answered by
	// SendCompleted or StreamFailed.
	ActionSendFinal
	// ActionAbortStream (S, D): abort the stream, its writes and exports, and stop
	// granting credit. With Force (the quarantine deadline passed): close the
	// lane itself and join its users. Fields: Part, Reader (S), Force. Answered
	// by TransferQuiesced, always, without waiting for the peer.
	ActionAbortStream
	// ActionRevokeTicket (S, D): forget the ticket of the stream; whoever presents
	// it is refused. Fields: Part, Reader (S).
	ActionRevokeTicket
	// ActionReportStatus (S, D): tell the gateway, and repeat until it answers.
	// Fields: Report; ReportEnded and ReportReleased also Outcome, Cause, Reason,
	// Reader (S); ReportStreamFailed Reader; ReportRefused and ReportEnded Never.
	ActionReportStatus
	// ActionReleaseSource (S): free everything the handoff holds here: sequence,
	// pin and lease, queued scheduler commands; close what is left of its
	// streams (nothing more will be sent); keep its tombstone. Emitted exactly
	// once after Dispatched. Fields: Outcome.
	ActionReleaseSource
	// ActionWakeAt (all): replace the machine's timer: at time At report LeaseExpired
	// (S), ReservationExpired (D) or DeadlineReached (R). Fields: At. Stop the
	// timer when the machine is Released or Done.
	ActionWakeAt
	// ActionReserveDestination (D): queue FIFO for slot, missing blocks and headroom,
	// locking the cached prefix. Fields: PromptTokens, Headroom, Deadline.
	// Answered by Reserved or ReserveRefused.
	ActionReserveDestination
	// ActionStartReceive (D): destination-first, grant credit to the stream that was
	// just accepted; source-first, dial the source of Part with its ticket and
	// grant credit. Nothing of the sequence may be written before. Fields: Part,
	// SkipTokens, Bytes (of the whole handoff, after prefix reuse and page
	// rounding). Answered by ReceiveCompleted or ReceiveFailed (source-first:
	// StreamOpened first).
	ActionStartReceive
	// ActionActivateDestination (D): restore the snapshot, validate, turn the
	// reservation into an active sequence, all or nothing. Answered by
	// ActivationApplied or ActivationFailed.
	ActionActivateDestination
	// ActionAckCommit (D): acknowledge the commit to the source of Part; repeat until
	// it answers or until time At, then close the stream. Fields: Part, At.
	ActionAckCommit
	// ActionReleaseDestination (D): free everything the handoff holds here: slot,
	// reservation or active sequence, headroom, prefix locks, queued scheduler
	// commands; close what is left of its streams, except that pending commit
	// acknowledgements go on as AckCommit says; keep its tombstone. Emitted
	// exactly once after Routed. Fields: Outcome.
	ActionReleaseDestination
	// ActionBook (R): choose a worker and enter the booking with the router. Fields:
	// Booking, Handoff. Answered by Booked, or Failed{PhaseBook, Side}.
	ActionBook
	// ActionUnbook (R): remove the booking; one that could not be made is none. Fields:
	// Booking, Handoff.
	ActionUnbook
	// ActionReserve (R): send the reserve command to the destination. Fields: Handoff.
	// Answered by Reserved, ReserveRefused, or Failed{PhaseReserve} when it
	// cannot be delivered.
	ActionReserve
	// ActionPrefill (R): send the prefill command to the source; with Reuse, ask it to
	// take over that handoff's pinned state instead. All tokens below Index were
	// sent to the client already: they are forced input, never resampled.
	// Fields: Handoff, Reuse, Index. Answered by PrefillPinned, TokenOut, or
	// Failed{PhasePrefill}.
	ActionPrefill
	// ActionMoveAffinity (R): the destination owns the request now: point prefix and
	// session affinity at it, and relay the commit to the source, whose host
	// reports ReaderCompleted. Fields: Handoff.
	ActionMoveAffinity
	// ActionRetry (R): place the request again, under a new handoff id. ReuseSource: a
	// pinned state under Reuse is still held by the same source. AvoidSourceFirst:
	// do not choose source-first again (a lease expired; see Request.AvoidsSourceFirst).
	// Pause: workers that failed the request are not asked again before that time
	// has passed, others at once; the host may shorten it, so that requests
	// that failed together do not come back together. Fields: ReuseSource, Reuse,
	// AvoidSourceFirst, Pause, Index. Answered by Placed or Failed{PhasePlace}.
	ActionRetry
	// ActionRunColocated (R): send the run command to a worker that computes and
	// decodes (Reuse and forced input as in Prefill). Fields: Handoff, Reuse, Index.
	// Answered by TokenOut, Finished or Failed.
	ActionRunColocated
	// ActionCancel (R): send a cancel for the handoff to its worker on Side, repeated
	// until answered. Fields: Handoff, Side, Reason.
	ActionCancel
	// ActionForward (R): give token Index to the client. Fields: Index.
	ActionForward
	// ActionFinish (R): end the client's request. Emitted exactly once. Fields: Status,
	// Finish, Outcome (of a failure).
	ActionFinish
	// ActionRenewLease (R): send the source a lease renewal. Fields: Handoff, Seq, For.
	ActionRenewLease
	actionKinds // number of kinds plus one
)

var actionNames = []string{
	"", "DispatchPrefill", "StopPrefill", "OpenStream", "SendFinal", "AbortStream", "RevokeTicket",
	"ReportStatus", "ReleaseSource", "WakeAt", "ReserveDestination", "StartReceive",
	"ActivateDestination", "AckCommit", "ReleaseDestination", "Book", "Unbook", "Reserve",
	"Prefill", "MoveAffinity", "Retry", "RunColocated", "Cancel", "Forward", "Finish", "RenewLease",
}

// String returns the stable name.
func (k ActionKind) String() string { return nameOf("action", actionNames, k) }

// MarshalText writes the stable name.
func (k ActionKind) MarshalText() ([]byte, error) { return textOf("action", actionNames, k) }

// UnmarshalText reads the stable name.
func (k *ActionKind) UnmarshalText(text []byte) (err error) {
	*k, err = fromText[ActionKind]("action", actionNames, text)
	return err
}
