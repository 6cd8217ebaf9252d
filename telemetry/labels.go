package telemetry

// Mode says how a request was served.
type Mode string

const (
	Disaggregated Mode = "disaggregated" // prefill and decode on different workers
	Colocated     Mode = "colocated"     // whole on one worker
	Unplaced      Mode = "unplaced"      // ended before any worker was chosen
)

// Outcome is the one terminal status of a request.
type Outcome string

const (
	Stopped   Outcome = "stop"      // end of generation or a stop string
	Length    Outcome = "length"    // max tokens or the end of the context
	Cancelled Outcome = "cancelled" // the client went away
	Expired   Outcome = "expired"   // its deadline passed
	Failed    Outcome = "failed"    // an error that the client was told
)

// Rejection is why a request was refused before it was admitted.
type Rejection string

const (
	RejectedInvalid   Rejection = "invalid"   // malformed or unsupported
	RejectedAuth      Rejection = "auth"      // no valid API key
	RejectedDuplicate Rejection = "duplicate" // its id is live
	RejectedQueue     Rejection = "queue"     // the queue is full, or it waited too long there
	RejectedTenant    Rejection = "tenant"    // its tenant has too many requests
	RejectedWorkers   Rejection = "workers"   // no worker can serve it
	RejectedShutdown  Rejection = "shutdown"  // the gateway is stopping
)

// Retry is why a request got another attempt.
type Retry string

const (
	RetryNone       Retry = "first"       // it is the first one
	RetryRefused    Retry = "refused"     // a reservation was refused
	RetryFailed     Retry = "failed"      // an attempt failed before commit
	RetryWorkerLost Retry = "worker_lost" // a worker went away before commit
	RetryRecompute  Retry = "recompute"   // the decoder was lost after commit
)

// Side is a worker's role in one handoff.
type Side string

const (
	Source      Side = "source"
	Destination Side = "destination"
	Local       Side = "local" // colocated: no state moves
)

// Phase is what tokens were computed for.
type Phase string

const (
	Prefill Phase = "prefill"
	Decode  Phase = "decode"
)

// Stage is a timed part of a handoff. A worker observes those that it takes part in for each unit or
// handoff; a gateway observes all of them once for each attempt, sums over its units.
type Stage string

const (
	StageAdmission Stage = "admission"         // arrival to admission (gateway only)
	StageReserve   Stage = "reserve"           // reserve command to ticket (gateway only)
	StageSlot      Stage = "slot"              // wait for a slot and cells, on either side
	StagePrefill   Stage = "prefill"           // slot to first token sampled
	StageExport    Stage = "export"            // pages and snapshot out of the engine
	StageSeal      Stage = "seal"              // checksum, and what of the digest is made on the engine's thread
	StageStall     Stage = "stall"             // computed pages waiting for credit or a buffer
	StageWire      Stage = "wire"              // units under way
	StageVerify    Stage = "verify"            // units looked through at the destination, on the stream's goroutine
	StageWait      Stage = "wait"              // checked units waiting for the engine's thread
	StageImport    Stage = "import"            // pages and snapshot into the engine
	StageCommit    Stage = "commit"            // everything imported and valid to decodable
	StageTail      Stage = "tail"              // first token sampled to commit known at the source
	StageFirst     Stage = "first_token"       // first token sampled to first token at the gateway (gateway only)
	StageSwitch    Stage = "second_token"      // first to second token at the gateway (gateway only)
	StageDecode    Stage = "first_decode_step" // the first step of the destination's sequence
)

// workerStages are those that a worker observes, gatewayStages those of a gateway.
var (
	workerStages  = []Stage{StageSlot, StageExport, StageSeal, StageStall, StageWire, StageVerify, StageWait, StageImport, StageCommit, StageTail}
	gatewayStages = []Stage{
		StageAdmission, StageReserve, StageSlot, StagePrefill, StageExport, StageSeal, StageStall, StageWire, StageVerify,
		StageWait, StageImport, StageCommit, StageTail, StageFirst, StageSwitch, StageDecode,
	}
)

// Choice is why an attempt was served in its mode.
type Choice string

const (
	ChosenPair     Choice = "pair"     // a pair that can hand over was there
	ChosenAsked    Choice = "asked"    // the request or the gateway's --mode asked for colocated
	ChosenFallback Choice = "fallback" // mode auto, and no pair could take it
)

// Ending is how an attempt ended.
type Ending string

const (
	EndedHandedOff Ending = "handed-off"         // the destination took over, and served to the end
	EndedAtSource  Ending = "finished-at-source" // its first token was its last: nothing to hand over
	EndedColocated Ending = "served-whole"       // on one worker, as intended
	EndedFailed    Ending = "failed"             // another attempt followed, or the request failed
	EndedCancelled Ending = "cancelled"          // the request's client went away or its deadline came
)

// Target is how far a destination came.
type Target string

const (
	TargetNone      Target = "none"      // there is no destination
	TargetAsked     Target = "asked"     // it did not reserve
	TargetReserved  Target = "reserved"  // it held memory and did not get everything
	TargetCommitted Target = "committed" // its sequence was ready to decode
)

// MTPState is what became of multi-token-prediction state in a handoff.
type MTPState string

const (
	MTPNotBuilt MTPState = "not-built" // this build does not move it; a reason says more
	MTPActive   MTPState = "active"    // it moved, and the target drafts
	MTPUnknown  MTPState = "unknown"   // no worker said
)

// Failure is what ended an attempt before its time.
type Failure struct {
	Side  Side   `json:"side"`  // who failed; empty: the gateway gave up
	Phase string `json:"phase"` // by package handoff's names
	Code  string `json:"code"`  // what the worker said, by the bus's names, or why the gateway gave up, by the API's; empty: nobody said
}

// Verdict is how a request did against one objective.
type Verdict string

const (
	VerdictOff     Verdict = "off"     // there is no such objective
	VerdictWithin  Verdict = "within"  // it was met
	VerdictOutside Verdict = "outside" // it was missed, also by failing
	VerdictNone    Verdict = "none"    // the client went away: it counts neither way
)
