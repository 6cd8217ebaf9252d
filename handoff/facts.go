package handoff

// FactKind names a fact: something that happened, told to a machine by its
// host. One vocabulary serves all three machines; the comment of each kind says
// which machines take it (S source, D destination, R request), who learns it,
// which fields of SourceFact, DestinationFact or RequestFact it uses, and which
// action it answers.
type FactKind uint8

// Facts. The zero value is none and is refused.
const (
	// FactDispatched (S) creates a source. Reported when the gateway's prefill or
	// run command is accepted. Fields: Policy, Parts, Readers, PromptTokens,
	// MaxTokens, Deadline, Quarantine, Reuse.
	FactDispatched FactKind = 1 + iota
	// FactDestinationReady (S, destination-first): the destination of Reader holds
	// a reservation. Reported from the gateway's command, usually directly after
	// Dispatched. Endpoint and ticket stay with the host. Fields: Reader,
	// SkipTokens, Incarnation (the destination's).
	FactDestinationReady
	// FactPrefillPinned (S): the scheduler completed the prompt of Part and in the
	// same transition pinned its memory under a lease; the first token is
	// sampled. Answers DispatchPrefill. Fields: Part, Blocks (> 0), For (> 0).
	// (R): the source reported ReportPinned. Fields: Handoff.
	FactPrefillPinned
	// FactPrefillRejected (S): the scheduler ended the prefill without a result:
	// too long, bad input, engine failure, or a state to rebind that is gone. No
	// step uses the sequence any more. Answers DispatchPrefill. Fields: Never.
	FactPrefillRejected
	// FactFinishedAtSource (S): the completion of Reader ended here: on its first
	// token (reported instead of PrefillPinned, or before it when other readers
	// go on), or, with policy Disabled, at its end. Answers DispatchPrefill; with
	// the last reader, no step uses the sequence any more. Fields: Reader, Finish.
	FactFinishedAtSource
	// FactStreamOpened (S, D): the stream between Part and Reader is
	// authenticated, and at the side that issued a ticket the ticket is
	// presented. Reported by the transport, which may use the stream only if the
	// result is Applied and must refuse it otherwise. Answers OpenStream or
	// StartReceive where this side initiates. Fields: Part, Reader (S),
	// Incarnation (the peer's).
	FactStreamOpened
	// FactStreamFailed (S): the stream broke or the peer aborted it. Reported by
	// the transport before TransferQuiesced. Fields: Part, Reader.
	FactStreamFailed
	// FactSendCompleted (S): every byte and the manifest left this worker's memory
	// and the peer acknowledged them at control level. Reported by the transport.
	// Answers SendFinal. Fields: Part, Reader.
	FactSendCompleted
	// FactReaderCompleted (S): the destination committed. Reported by the transport
	// (the destination's acknowledgement) and from the gateway's copy (see
	// ActionMoveAffinity); either counts. Fields: Reader, Incarnation.
	FactReaderCompleted
	// FactLeaseRenewed (S) extends the lease to now + For, at most to Deadline.
	// Reported from the gateway's command with Seq ≥ 1 (only a larger Seq
	// counts), or with Seq 0 by the host itself when an open stream made
	// progress. Fields: Seq, For (> 0).
	FactLeaseRenewed
	// FactLeaseExpired (S): the clock reached the time of the last WakeAt. Reported
	// by the host's timer in whatever state; it counts only if it is due.
	FactLeaseExpired
	// FactStepRetired (S): no step that uses the sequence of Part runs or will run.
	// Reported by the scheduler. Answers StopPrefill. Fields: Part.
	// (D): the step that ran when an Active sequence was cancelled has retired.
	// Reported by the scheduler after a fact with Stepping set.
	FactStepRetired
	// FactTransferQuiesced (S, D): no export, send, receive or import of the stream
	// can touch the sequence's memory any more, ever. Reported once per stream
	// after the host joined the stream's users. Answers AbortStream, and comes
	// unasked when a stream ends by itself. Fields: Part, Reader (S).
	FactTransferQuiesced
	// FactPeerLost (S, D): the worker at the other end is gone for good (restarted
	// or deregistered); a broken connection alone is StreamFailed or
	// ReceiveFailed. Fields: Reader or All (S), Part or All (D), Incarnation (the
	// one that is gone; 0 means whichever is bound).
	FactPeerLost
	// FactCoordinatorLost (S, D): the gateway was silent beyond the grace period.
	// Fields: Stepping (D).
	FactCoordinatorLost
	// FactCancelled (S, D): the gateway cancelled. May come before the creating
	// fact. When several handoff ids share a source, a cancel of one id is a
	// cancel of its Reader. Fields: Reader or All (S), Reason, Stepping (D).
	FactCancelled
	// FactRouted (D) creates a destination. Reported when the gateway's reserve
	// command is accepted. Fields: Policy, Parts, PromptTokens, Headroom,
	// Deadline, Quarantine, Incarnation (the source's).
	FactRouted
	// FactReserved (D): the scheduler holds a slot, the missing blocks, the locked
	// prefix and headroom for this handoff. Answers ReserveDestination. Fields:
	// SkipTokens, Bytes. (R): the destination reported ReportReserved. Fields:
	// Handoff.
	FactReserved
	// FactReserveRefused (D): the scheduler will not reserve. Answers
	// ReserveDestination. Fields: Never. (R): the destination reported
	// ReportRefused. Fields: Handoff, Never.
	FactReserveRefused
	// FactReceiveCompleted (D): everything of Part arrived and is valid, including
	// its manifest, and no byte of it can be written any more. Reported by the
	// host after validation. Answers StartReceive. Fields: Part.
	FactReceiveCompleted
	// FactReceiveFailed (D): the stream of Part broke, or what arrived is invalid.
	// Answers StartReceive. Fields: Part.
	FactReceiveFailed
	// FactActivationApplied (D): the state is restored whole and the sequence may
	// be stepped from now on. Answers ActivateDestination.
	FactActivationApplied
	// FactActivationFailed (D): restoring failed; the session is discarded. Answers
	// ActivateDestination.
	FactActivationFailed
	// FactDecodeFinished (D): the completion ended. Fields: Finish, Stepping.
	FactDecodeFinished
	// FactDecodeFailed (D): the engine cannot go on with the sequence: a step or
	// what follows it failed. The source's copy is gone, so the request can only be
	// computed again. Fields: Stepping.
	FactDecodeFailed
	// FactReservationExpired (D): the clock reached the time of the last WakeAt.
	// Reported by the host's timer in whatever state; counts only if it is due.
	FactReservationExpired
	// FactAdmitted (R) creates a request. Fields: Deadline, Patience, Lease, Retries,
	// Retry, Backoff, MaxTokens.
	FactAdmitted
	// FactPlaced (R): placement decided and the host minted an id for the attempt.
	// Answers the creation, and Retry. Fields: Policy, Handoff, Rebind.
	FactPlaced
	// FactBooked (R): a worker is chosen and the booking made. Answers Book, each one.
	// Fields: Handoff, Booking.
	FactBooked
	// FactCommitted (R): the destination reported ReportCommitted. Fields: Handoff.
	FactCommitted
	// FactTokenOut (R): a worker reported the completion's token Index. Fields:
	// Handoff, Side (the reporting worker's), Index (absolute), Finish (set on
	// the last token: a finish reason travels with its token).
	FactTokenOut
	// FactFinished (R): a worker reported the end of the completion after Index
	// tokens; counts only when all of them were forwarded. Fields: Handoff, Side,
	// Index, Finish.
	FactFinished
	// FactFailed (R): the attempt failed. Reported from a worker's ReportEnded with
	// an outcome other than HandedOff, FinishedAtSource and Completed, from
	// ReportStreamFailed (Outcome unset: the source still holds its state), or by
	// the gateway itself when it cannot place, book or reach a worker. Fields:
	// Handoff (not with PhasePlace), Side, Phase, Outcome, Never, Refused.
	FactFailed
	// FactWorkerLost (R): a worker of the current attempt is gone. Reported from the
	// registry. Fields: Handoff, Side.
	FactWorkerLost
	// FactSourceReleased (R): the source reported ReportReleased. Fields: Handoff,
	// Outcome.
	FactSourceReleased
	// FactDeadlineReached (R): the clock reached the time of the last WakeAt.
	// Reported by the host's timer in whatever state; counts only for what is due.
	FactDeadlineReached
	// FactClientGone (R): the client disconnected or cancelled.
	FactClientGone
	factKinds // number of kinds plus one
)

var factNames = []string{
	"", "Dispatched", "DestinationReady", "PrefillPinned", "PrefillRejected", "FinishedAtSource",
	"StreamOpened", "StreamFailed", "SendCompleted", "ReaderCompleted", "LeaseRenewed",
	"LeaseExpired", "StepRetired", "TransferQuiesced", "PeerLost", "CoordinatorLost", "Cancelled",
	"Routed", "Reserved", "ReserveRefused", "ReceiveCompleted", "ReceiveFailed",
	"ActivationApplied", "ActivationFailed", "DecodeFinished", "DecodeFailed", "ReservationExpired",
	"Admitted", "Placed", "Booked", "Committed", "TokenOut", "Finished", "Failed", "WorkerLost",
	"SourceReleased", "DeadlineReached", "ClientGone",
}

// String returns the stable name.
func (k FactKind) String() string { return nameOf("fact", factNames, k) }

// MarshalText writes the stable name.
func (k FactKind) MarshalText() ([]byte, error) { return textOf("fact", factNames, k) }

// UnmarshalText reads the stable name.
func (k *FactKind) UnmarshalText(text []byte) (err error) {
	*k, err = fromText[FactKind]("fact", factNames, text)
	return err
}
