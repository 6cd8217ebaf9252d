package telemetry

import (
	"time"

	"github.com/tandem-llm/tandem/handoff"
)

// This file is the one definition of what is told about a handoff: the metrics, the trace and what
// `tandem handoffs` shows are made from it. It holds ids, names, counts and times, never content.
//
// Three clocks meet here and none is compared with another: every worker sends offsets since it
// received its command, and the gateway finds out where on its own clock that was (At), to within
// one message of the bus.

// Request is what became of one sample of one prompt. Offsets are since its HTTP request arrived.
type Request struct {
	Key        string        `json:"id"`
	Arrived    time.Time     `json:"arrived"` // the gateway's wall clock
	Mode       Mode          `json:"mode"`    // of its last attempt
	Outcome    Outcome       `json:"outcome"`
	Attempts   int           `json:"attempts"`
	Prompt     int           `json:"prompt_tokens"`
	Cached     int           `json:"cached_tokens"`     // of the prompt, from a prefix cache
	Completion int           `json:"completion_tokens"` // that the client was given
	Admitted   time.Duration `json:"admitted_ns"`       // the wait for admission is over
	TTFT       time.Duration `json:"ttft_ns,omitempty"` // 0: there was no token
	TPOT       time.Duration `json:"tpot_ns,omitempty"` // mean per token after the first; 0: fewer than two
	Total      time.Duration `json:"total_ns"`
	SLO        Verdicts      `json:"slo"`
}

// Handoff is the record of one attempt to serve a request: by a source that hands over to a
// destination, or whole on its source.
type Handoff struct {
	Seq     uint64         `json:"seq"` // numbers the records of one gateway from 1
	ID      handoff.ID     `json:"id"`
	Request Request        `json:"request"`
	Attempt int            `json:"attempt"` // from 1
	Why     Retry          `json:"why"`     // why there was an attempt of this number
	Mode    Mode           `json:"mode"`
	Policy  handoff.Policy `json:"policy"`
	Chosen  Choice         `json:"chosen"` // why it was served in this mode
	Rebound bool           `json:"rebound,omitempty"`

	Ending  Ending   `json:"ending"`
	Failure *Failure `json:"failure,omitempty"` // of EndedFailed
	Target  Target   `json:"target"`            // how far the destination came
	MTP     MTPState `json:"mtp"`
	// MTPWhy says why it is not active; one of a few constant texts.
	MTPWhy string `json:"mtp_why,omitempty"`

	Source      Part  `json:"source"`
	Destination *Part `json:"destination,omitempty"` // nil when there is none
	Gateway     Times `json:"gateway"`

	Summary Summary `json:"summary"`
}

// Times are the gateway's own observations of an attempt, since the request's arrival; 0 where
// something did not happen.
type Times struct {
	Placed     time.Duration `json:"placed_ns"`
	Reserve    time.Duration `json:"reserve_ns,omitempty"`   // the reserve command was sent
	Reserved   time.Duration `json:"reserved_ns,omitempty"`  // the ticket came back
	Dispatched time.Duration `json:"dispatched_ns"`          // the prompt was sent
	Committed  time.Duration `json:"committed_ns,omitempty"` // the destination's word came
	Ended      time.Duration `json:"ended_ns"`               // the request's end, or the next attempt
	// Tokens are the arrivals of the first few tokens of this attempt.
	Tokens []time.Duration `json:"tokens_ns,omitempty"`
	// Sampled says that the first of Tokens is the one that this attempt's source sampled at the end of
	// its prefill: not one of a source that another attempt took over, or whose word was lost.
	Sampled bool `json:"sampled,omitempty"`
}

// MaxTokenTimes bounds Times.Tokens.
const MaxTokenTimes = 8

// Part is what one worker measured, on its own clock: offsets since its command came, 0 where
// something did not happen. Work that the two sides share has its fields here once.
type Part struct {
	Worker      string `json:"worker"`
	Incarnation uint64 `json:"incarnation"`
	Role        string `json:"role"` // the worker's: prefill, decode or both
	// Reported says that the worker's numbers came. A worker that died leaves only names.
	Reported bool `json:"reported"`
	// At is where the worker's offset 0 is on the gateway's axis.
	At time.Duration `json:"at_ns"`

	Slot    time.Duration `json:"slot_ns,omitempty"`    // slot and cells were there; until then it queued
	Opened  time.Duration `json:"opened_ns,omitempty"`  // the stream was authenticated
	Granted time.Duration `json:"granted_ns,omitempty"` // credit was given

	// Of a source. Prompted is the end of prefill: the first token is sampled.
	Prompted time.Duration `json:"prompted_ns,omitempty"`
	Sent     time.Duration `json:"sent_ns,omitempty"` // the destination confirmed that all arrived
	Compute  Work          `json:"compute,omitzero"`  // prompt chunks
	Export   Work          `json:"export,omitzero"`   // units out of the engine
	Seal     Work          `json:"seal,omitzero"`     // checksum and keyed digest of them
	Stall    Work          `json:"stall,omitzero"`    // computed pages waiting for credit or a buffer
	Before   Before        `json:"before,omitzero"`

	// Of a destination. Ready is the end of the switch: the sequence may be decoded.
	Complete time.Duration `json:"complete_ns,omitempty"` // units and manifest are there and valid
	Ready    time.Duration `json:"ready_ns,omitempty"`
	Verify   Work          `json:"verify,omitzero"` // units checked and hashed, beside the engine's thread
	Wait     Work          `json:"wait,omitzero"`   // checked units waiting for the engine's thread
	Import   Work          `json:"import,omitzero"` // units into the engine
	Commit   Work          `json:"commit,omitzero"` // session to sequence, sampler restored
	Decode   Work          `json:"decode,omitzero"` // the first step of the sequence

	// Committed is when a source heard of the destination's commit.
	Committed time.Duration `json:"committed_ns,omitempty"`

	Stream     Stream      `json:"stream,omitzero"`
	Pages      int         `json:"pages"`
	Snapshots  int         `json:"snapshots"`
	Components []Component `json:"components,omitempty"`

	Prompt   int `json:"prompt_tokens"`   // positions handed over or computed here
	Cached   int `json:"cached_tokens"`   // of them, found in this worker's prefix cache
	Computed int `json:"computed_tokens"` // that this worker's engine consumed, prompt and answer
	// Skipped tokens begin the prompt, and their pages did not travel, because the destination had them.
	Skipped      int   `json:"skipped_tokens,omitempty"`
	SkippedBytes int64 `json:"skipped_bytes,omitempty"` // of those pages
}

// Component is payload bytes of one component, by its name in package state.
type Component struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// Stream is one side's view of the bytes between two workers.
type Stream struct {
	Lane      string        `json:"lane"` // as LaneName has it
	Bytes     int64         `json:"bytes"`
	Units     int           `json:"units"`
	Open      time.Duration `json:"open_ns"`       // dialling to the open's answer, at the side that dialled
	FirstByte time.Duration `json:"first_byte_ns"` // grant to the first unit
	Busy      time.Duration `json:"busy_ns"`       // a unit was under way
	RTT       time.Duration `json:"rtt_ns"`        // of the control connection, smoothed
}

// Before is what was done when prefill ended, of the same work's totals.
type Before struct {
	Exported int64         `json:"exported_bytes"`
	Export   time.Duration `json:"export_ns"` // export and seal
	Sent     int64         `json:"sent_bytes"`
	Wire     time.Duration `json:"wire_ns"`
}

// Work is something that was done in pieces: how often, how long in all, and when.
type Work struct {
	Count int           `json:"count"`
	Busy  time.Duration `json:"busy_ns"`
	// Spans are at most MaxSpans stretches in order, neighbours joined where there were more.
	Spans []Span `json:"spans,omitempty"`
}

// MaxSpans bounds Work.Spans.
const MaxSpans = 8

// Span is a stretch of time in which Busy was spent.
type Span struct {
	Begin time.Duration `json:"begin_ns"`
	End   time.Duration `json:"end_ns"`
	Busy  time.Duration `json:"busy_ns"`
}

// IsZero reports whether nothing was done; it leaves such work out of JSON.
func (w Work) IsZero() bool { return w.Count == 0 }

// Begin is when the first piece began.
func (w Work) Begin() time.Duration {
	if len(w.Spans) == 0 {
		return 0
	}
	return w.Spans[0].Begin
}

// End is when the last piece ended.
func (w Work) End() time.Duration {
	if len(w.Spans) == 0 {
		return 0
	}
	return w.Spans[len(w.Spans)-1].End
}

// until is the busy time before t. Inside a joined stretch it is spread evenly.
func (w Work) until(t time.Duration) (busy time.Duration) {
	for _, s := range w.Spans {
		switch {
		case s.End <= t:
			busy += s.Busy
		case s.Begin < t:
			busy += time.Duration(float64(s.Busy) * float64(t-s.Begin) / float64(s.End-s.Begin))
		}
	}
	return busy
}
