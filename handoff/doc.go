// Package handoff decides the life of a handoff: how one sequence's state leaves
// the prefill worker that computed it (the source) and becomes active on the
// decode worker that continues it (the destination), under the gateway's
// request.
//
// It is three pure machines. A host tells a machine facts, in whatever order it
// learns them, and executes the actions that come back:
//
//	actions, result, err := machine.Apply(now, fact, actions[:0])
//
// [Source] and [Destination] are one value per [ID] on a worker, [Request] one
// value per client request on the gateway. They hold no clock, goroutine, lock
// or content: no token ids, text, tickets or endpoints. The machines decide;
// reserving, pinning, activating, releasing, retrying and cancelling happen only
// because an action said so.
//
// # Host's guide
//
// Keep one map from id to machine and one [Tombstones] per role. For a creating
// message (FactDispatched, FactRouted, FactAdmitted) look into the map; else ask
// Tombstones.Admit, and refuse the message with its error; else make a zero
// machine. A cancel for an unknown id makes a machine too: it goes to Released
// at once, so that the command it overtook cannot start. Any other message for
// an unknown id is answered with Tombstones.Lookup's outcome, or "unknown".
//
// Messages name the incarnation of the worker that they are meant for; one meant
// for an earlier incarnation is refused before it reaches a machine. Facts that
// come from the other end of a handoff carry that end's incarnation.
//
// After each Apply: on an error, refuse or drop the message (the machine is
// unchanged); else execute the actions in order, and on [NoOp] answer a repeated
// command with the machine's present state. When the state is Released
// or Done, stop its timer, drop the machine and bury its id with its outcome. One
// goroutine (or lock) per machine: facts and actions of one machine must not
// overtake each other. [ActionKind] says what each action asks for and which
// fact answers it, [FactKind] who reports each fact; an action that cannot be
// executed is reported as the failing fact, never dropped.
//
// The gateway answers a message of a handoff that it does not know, or no longer
// knows, with a cancel: that is what a Request does for attempts it gave up.
//
// Times are durations since the host's own start. A machine's timer is set by
// ActionWakeAt (one-shot, its last value holds) and answered with FactLeaseExpired,
// FactReservationExpired or FactDeadlineReached; reporting one too early or too
// often is harmless.
//
// # Destination-first (streams while prefill computes)
//
//	gateway      Admitted; Placed -> Book...; Booked... -> Reserve
//	destination  Routed -> ReserveDestination; Reserved -> ReportStatus{reserved}
//	gateway      Reserved -> Prefill
//	source       Dispatched -> WakeAt; DestinationReady -> OpenStream, DispatchPrefill
//	both         StreamOpened (destination: -> StartReceive, which grants credit)
//	source       pages go out as chunks complete; PrefillPinned -> SendFinal, ReportStatus{pinned}
//	gateway      TokenOut{0, source} -> Forward; PrefillPinned -> Unbook{prefill}
//	source       SendCompleted (AwaitingReader)
//	destination  ReceiveCompleted -> ActivateDestination; ActivationApplied -> AckCommit, ReportStatus{committed}
//	gateway      Committed (or a destination's TokenOut) -> MoveAffinity
//	source       ReaderCompleted -> ReleaseSource
//	gateway      TokenOut{1.., destination} -> Forward...; with Finish -> Unbook{decode}, Finish
//	destination  DecodeFinished -> ReleaseDestination
//
// A completion that ends on its first token is FactFinishedAtSource instead of
// FactPrefillPinned: the source releases, TokenOut{0, Finish} ends the request,
// and the request cancels the destination.
//
// # Source-first (the destination pulls from a pinned source)
//
//	gateway      Placed -> Book{prefill, source}; Booked... -> Prefill
//	source       Dispatched -> DispatchPrefill; PrefillPinned -> OpenStream (offer), ReportStatus{pinned} with the tickets
//	gateway      PrefillPinned -> Book{decode}; Booked -> Reserve; RenewLease from the timer until Reserved
//	destination  Routed -> ReserveDestination; Reserved -> StartReceive (dial), ReportStatus{reserved}
//	both         StreamOpened (source: ticket redeemed -> SendFinal), then as above
//
// A lease that runs out ends the source with OutcomeExpired, and the request never
// tries source-first again.
//
// # Disabled (colocated)
//
//	gateway      Placed{Disabled} -> Book{run}; Booked -> RunColocated
//	source       Dispatched -> DispatchPrefill; FinishedAtSource at the completion's end -> ReleaseSource
//	gateway      TokenOut{0.., source} -> Forward...; with Finish -> Finish
//
// The source computes, samples the first token and goes on decoding by itself;
// PrefillPinned and facts about streams or peers are refused.
//
// # Several parts and readers
//
// A source may have several parts (pipeline stages or ranks) and several readers
// (samples, each with its own handoff id, or ranks of one destination); facts
// and actions about one of them carry its index, zero in the plain case. Reader
// r ends once, with ReportEnded; the source's memory is released when all have
// ended. A Destination needs every part; the first that fails ends it, and its
// memory waits until all are quiet. Cancels of the source name a reader or [All].
//
// # What ends when
//
// Ended and released are different moments. ReportEnded gives the outcome at
// once; ReleaseSource and ReleaseDestination come when no step and no transport
// can touch the memory, possibly later (Draining: quarantine). At the quarantine
// deadline the machine asks for AbortStream{Force}; the host closes the lane,
// joins its users and reports FactTransferQuiesced: a deadline never frees memory.
// No end needs a message from the other side.
//
// A broken stream does not end a pinned source: it stays under its lease, so that
// a retry can rebind it (ActionRetry with ReuseSource; the next
// FactDispatched names it in Reuse) or a commit that was on its way can count.
//
// # Records
//
// A live host may write a [Record] per Apply; [Replay] feeds them to fresh
// machines and finds the first difference.
package handoff
