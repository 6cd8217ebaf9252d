package sched

import (
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

// Ref is a small number that stands for a request as long as it lives, for hosts
// to index with. It is used again after the request is gone.
type Ref int32

// Request is a prompt to compute, and the answer that may follow here.
type Request struct {
	Prompt    int      // tokens to compute, forced ones included; at least 1
	MaxTokens int      // tokens it may still generate, the one after the prompt included; at least 1
	Held      bool     // pin it for a reader when the prompt is computed, instead of decoding
	Keys      []kv.Key // of the prompt's full blocks; kept, and not to be changed until the request is gone
}

// Reservation is room for a prompt's state that another worker computes, and for
// the answer.
type Reservation struct {
	Prompt    int           // tokens of state that come
	MaxTokens int           // tokens of the answer, the one that the source samples included; at least 1
	Deadline  time.Duration // from then on it is neither granted nor activated; 0: none
	Keys      []kv.Key      // as in Request
}

// Decode is a row of one token: the next one of a request.
type Decode struct {
	Ref Ref
	Pos int32 // tokens it has, and so the position of the row

	room int32 // tokens for which it has blocks; never less than Pos
	last int32 // Pos at which it ends: when its limit is reached, or earlier when told so
}

// Chunk is a range of one prompt's tokens.
type Chunk struct {
	Ref        Ref
	First, End int32 // absolute; End is a multiple of Config.Page, or the prompt's end
	Last       bool  // the prompt is complete, and a token follows
}

// Step is what to compute. Its slices belong to the scheduler and are valid until
// Done.
type Step struct {
	Decodes []Decode
	Chunks  []Chunk
	Context int64 // sum of Pos over Decodes
}

// Empty reports whether there is nothing to compute.
func (s Step) Empty() bool { return len(s.Decodes) == 0 && len(s.Chunks) == 0 }

// Results is what came of a step. Every row that is not named was computed, and
// its request goes on; requests that reach their limit of tokens finish without
// being named. Refs that were not in the step are ignored.
type Results struct {
	Finished []Ref // the answer ended with the token that was sampled
	Failed   []Ref // not computed: the request is Stopped
}

// Outcome is the answer to a command.
type Outcome uint8

// Outcomes.
const (
	Accepted    Outcome = 1 + iota
	Duplicate           // it was done before, or need not be done; nothing changed
	Unknown             // no such request
	Invalid             // the arguments cannot be right
	Conflict            // the request is in a state in which this cannot be
	Never               // it cannot fit, whatever else ends
	NoRoom              // there is no memory for it now (Rebind)
	Expired             // its deadline has passed
	Touched             // a transfer can still touch its memory
	Stepping            // accepted; it takes effect when the running step is done
	Quarantined         // accepted; the memory returns with Quiet
)

var outcomeNames = [...]string{
	"none", "accepted", "duplicate", "unknown", "invalid", "conflict", "never", "no room", "expired", "touched", "stepping", "quarantined",
}

// String returns a stable name.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "invalid outcome"
}

// State is where a request is.
type State uint8

// States.
const (
	StateGone       State = iota // not here, or not any more
	StateWaiting                 // a prompt that waits for memory or a running slot
	StatePrefilling              // its prompt is computed chunk by chunk
	StateDecoding                // in every step
	StatePinned                  // computed, held for a reader
	StateReserving               // waits for memory or slots
	StateReserved                // has them; state may come
	StateReady                   // could run; waits for a running slot
	StateFinished                // its answer is complete
	StateStopped                 // cancelled or failed; it runs no more
	StateQuarantine              // released, but a transfer can touch its memory
)

var stateNames = [...]string{
	"gone", "waiting", "prefilling", "decoding", "pinned", "reserving", "reserved", "ready", "finished", "stopped", "quarantine",
}

// String returns a stable name.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "invalid state"
}

// NoticeKind says what happened to a request.
type NoticeKind uint8

// Notices.
const (
	// NoteAdmitted: the prompt has its memory, and its first Tokens are cached: the host
	// gives the sequence their state before the next step. Again after NotePreempted.
	NoteAdmitted NoticeKind = 1 + iota
	// NoteGranted: the reservation has its memory. Tokens: leading tokens that are here
	// already, locked until release.
	NoteGranted
	// NoteRefused: the reservation's deadline passed while it waited.
	NoteRefused
	// NotePromoted: a Ready request runs from the next step on.
	NotePromoted
	// NotePinned: the prompt of a held request is computed, and pinned since the same
	// transition. Tokens: its length. Blocks: what it has.
	NotePinned
	// NoteFinished: the answer is complete. Tokens: how many it has. The memory stays
	// until Release.
	NoteFinished
	// NotePreempted: its memory was taken; it is Waiting again. Tokens: what it had.
	NotePreempted
	// NoteFailed: it lacked memory and is not recomputed here. It is Stopped, and its
	// memory is back unless a transfer can touch it. Tokens: what it had.
	NoteFailed
	// NoteRetired: the step that ran when it was cancelled is done; no step uses it any
	// more.
	NoteRetired
	// NoteFreed: memory returned that a Release could not return at once.
	NoteFreed
)

var noticeNames = [...]string{
	"none", "admitted", "granted", "refused", "promoted", "pinned", "finished", "preempted", "failed", "retired", "freed",
}

// String returns a stable name.
func (k NoticeKind) String() string {
	if int(k) < len(noticeNames) {
		return noticeNames[k]
	}
	return "invalid notice"
}

// Notice tells the host what happened to a request.
type Notice struct {
	Kind   NoticeKind
	Ref    Ref
	Tokens int32
	Blocks int32
	ID     handoff.ID
	Seq    kv.Seq // the memory that it is about; zero without any
}

// Info describes a request.
type Info struct {
	State    State
	Seq      kv.Seq // zero without memory
	Computed int    // tokens whose state is here
	Target   int    // tokens to compute before the next token is sampled
	Tokens   int    // tokens generated here, and for a reservation by its source
	Touched  bool
}
