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

// Stage is a timed part of a handoff.
type Stage string

const (
	StageExport Stage = "export" // one page or snapshot out of the engine
	StageWire   Stage = "wire"   // first byte to last acknowledgement of one handoff
	StageImport Stage = "import" // one page or snapshot into the engine
	StageCommit Stage = "commit" // last byte received to decodable
	StageTail   Stage = "tail"   // last prompt chunk computed to committed
)

var stages = []Stage{StageExport, StageWire, StageImport, StageCommit, StageTail}
