package handoff

import "time"

// RequestFact is one fact for a Request. Only the fields that the Kind's comment
// names are read. It never carries content.
type RequestFact struct {
	Kind      FactKind      `json:"kind"`
	Policy    Policy        `json:"policy,omitempty"`      // the placement decision
	Side      Role          `json:"side,omitempty"`        // worker that reported, or that is lost
	Phase     Phase         `json:"phase,omitempty"`       // where it failed
	Outcome   Outcome       `json:"outcome,omitempty"`     // how the worker's side ended, if it did
	Finish    Finish        `json:"finish,omitempty"`      // set on the completion's last token
	Booking   Booking       `json:"booking,omitempty"`     // the booking that was made
	Never     bool          `json:"never,omitempty"`       // no retry can succeed
	Rebind    bool          `json:"rebind,omitempty"`      // the placement takes over the pinned source
	Refused   bool          `json:"refused,omitempty"`     // the worker of Side took nothing: nothing was begun there
	Retry     Retry         `json:"retry,omitempty"`       // what failed attempts are answered with
	Retries   uint8         `json:"retries,omitempty"`     // attempts after the first
	Handoff   ID            `json:"handoff,omitzero"`      // the attempt the message belongs to
	Index     int           `json:"index,omitempty"`       // absolute token index, from 0
	MaxTokens int           `json:"max_tokens,omitempty"`  // completion token limit; 0 = no limit
	Deadline  time.Duration `json:"deadline_ns,omitempty"` // host time at which the request ends
	Patience  time.Duration `json:"patience_ns,omitempty"` // longest time from placement to commit; 0 = until Deadline
	Backoff   time.Duration `json:"backoff_ns,omitempty"`  // first pause before a worker that failed is asked again; 0 = 250 ms
	Lease     time.Duration `json:"lease_ns,omitempty"`    // length of one lease renewal, sent three times per length; 0 = 10 s
}

// RequestAction is one action of a Request; see ActionKind for what to do with it.
type RequestAction struct {
	Kind             ActionKind    `json:"kind"`
	Booking          Booking       `json:"booking,omitempty"`
	Side             Role          `json:"side,omitempty"`
	Reason           Reason        `json:"reason,omitempty"`
	Status           Status        `json:"status,omitempty"`
	Finish           Finish        `json:"finish,omitempty"`
	Outcome          Outcome       `json:"outcome,omitempty"`
	Phase            Phase         `json:"phase,omitempty"`
	ReuseSource      bool          `json:"reuse_source,omitempty"`
	AvoidSourceFirst bool          `json:"avoid_source_first,omitempty"`
	Handoff          ID            `json:"handoff,omitzero"`
	Reuse            ID            `json:"reuse,omitzero"`
	Index            int           `json:"index,omitempty"`
	Seq              uint64        `json:"seq,omitempty"`
	For              time.Duration `json:"for_ns,omitempty"`
	Pause            time.Duration `json:"pause_ns,omitempty"`
	At               time.Duration `json:"at_ns,omitempty"`
}

// RequestState is the state of a Request.
type RequestState uint8

// States of a Request.
const (
	RequestNew        RequestState = iota // zero value: nothing known
	RequestAdmitted                       // waiting for a placement decision (first or retry)
	RequestPlaced                         // decided; waiting for workers and bookings
	RequestReserving                      // destination asked (source-first: after the pin)
	RequestPrefilling                     // source asked
	RequestHandingOff                     // both sides have what they need; waiting for the commit
	RequestDecoding                       // the destination owns the request
	RequestRunning                        // colocated: one worker owns the request
	RequestDone                           // terminal
	requestStates
)

var requestStateNames = []string{
	"New", "Admitted", "Placed", "Reserving", "Prefilling", "HandingOff", "Decoding", "Running", "Done",
}

// String returns the stable name.
func (s RequestState) String() string { return nameOf("request state", requestStateNames, s) }

// Phase names where an attempt failed.
type Phase uint8

// Phases of an attempt.
const (
	PhasePlace    Phase = 1 + iota // no placement possible
	PhaseBook                      // no worker to book
	PhaseReserve                   // the destination could not be asked
	PhasePrefill                   // the source could not be asked, rejected, or failed
	PhaseTransfer                  // a stream broke or what arrived was invalid
	PhaseActivate                  // the destination could not restore
	PhaseDecode                    // the owner failed while decoding
)

var phaseNames = []string{"", "place", "book", "reserve", "prefill", "transfer", "activate", "decode"}

// String returns the stable name.
func (p Phase) String() string { return nameOf("phase", phaseNames, p) }

// MarshalText writes the stable name.
func (p Phase) MarshalText() ([]byte, error) { return textOf("phase", phaseNames, p) }

// UnmarshalText reads the stable name.
func (p *Phase) UnmarshalText(text []byte) (err error) {
	*p, err = fromText[Phase]("phase", phaseNames, text)
	return err
}

// Booking names one of the router's estimates about a request.
type Booking uint8

// Bookings. Each is made and removed once per attempt.
const (
	// BookPrefill: prefill load on the source, until its prefill completes.
	BookPrefill Booking = 1 + iota
	// BookSource: the request on the source, until the source released it, the
	// attempt was given up or the request is done, whichever comes first.
	BookSource
	// BookDecode: decode load on the destination, until the attempt ends.
	BookDecode
	// BookRun: load of a colocated request on its worker, until the attempt ends.
	BookRun
)

var bookingNames = []string{"", "prefill", "source", "decode", "run"}

// String returns the stable name.
func (b Booking) String() string { return nameOf("booking", bookingNames, b) }

// MarshalText writes the stable name.
func (b Booking) MarshalText() ([]byte, error) { return textOf("booking", bookingNames, b) }

// UnmarshalText reads the stable name.
func (b *Booking) UnmarshalText(text []byte) (err error) {
	*b, err = fromText[Booking]("booking", bookingNames, text)
	return err
}

// Status is the terminal status of a client's request.
type Status uint8

// Terminal statuses. Exactly one is given per request.
const (
	StatusCompleted Status = 1 + iota // with a finish reason
	StatusCancelled                   // the client went away
	StatusTimeout                     // the request's deadline came
	StatusRefused                     // it can never be served as asked
	StatusFailed                      // retries are used up or not allowed
)

var statusNames = []string{"", "completed", "cancelled", "timeout", "refused", "failed"}

// String returns the stable name.
func (s Status) String() string { return nameOf("status", statusNames, s) }

// MarshalText writes the stable name.
func (s Status) MarshalText() ([]byte, error) { return textOf("status", statusNames, s) }

// UnmarshalText reads the stable name.
func (s *Status) UnmarshalText(text []byte) (err error) {
	*s, err = fromText[Status]("status", statusNames, text)
	return err
}
