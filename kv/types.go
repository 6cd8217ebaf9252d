package kv

// Config is the shape of a manager. It does not change.
type Config struct {
	Blocks      int // physical blocks, 1 to MaxBlocks
	BlockTokens int // tokens of a block (kv/radix: of a page), 1 to MaxTokens

	// Slots is the most sequences that may exist at once, in whatever class. 0 means
	// that memory is the only limit. Engines with a fixed cost per sequence
	// (recurrent state, a table of requests) need it; kv/radix always has one.
	Slots int

	// Align makes prefix hits end at multiples of so many blocks: where prefill
	// chunks and transfer pages are larger than blocks, a hit must not move their
	// boundaries. 0 means 1.
	Align int

	// Marked makes hits of Start end where a snapshot is marked; see Mark.
	Marked bool
	// MarkBytes bounds the bytes of all marked snapshots.
	MarkBytes int64

	// Fixed keeps the blocks of a sequence as they are, for engines that cannot
	// exchange a part of a sequence's state for an equal one (recurrent families):
	// publishing ends at a block whose key is stored already, and the rest stays
	// the sequence's own.
	Fixed bool

	// Events records events for the host, which must then take them.
	Events bool
}

// Limits that keep every sum within its integer.
const (
	MaxBlocks    = 1 << 27
	MaxTokens    = 1 << 30 // of one sequence, and of one block
	MaxSequences = 1 << 20 // at once
)

// Seq is a handle of a sequence: valid from Start or Reserve until its memory is
// free. A handle that is not valid any more is answered with Unknown; it never
// names a later sequence. The zero Seq is none.
type Seq uint64

// Need is what a new sequence asks for. Keys are only read during the call.
type Need struct {
	// Tokens is the length of the prompt: blocks for all of it are allocated at
	// once, so that a sequence never waits for memory in the middle of a prompt.
	Tokens int
	// Limit is the most tokens it may ever have, which decides whether it can fit
	// at all. 0 means Tokens.
	Limit int
	// Headroom is the number of tokens of growth beyond Tokens that are promised.
	// Growth takes blocks that are promised to nobody first, so the promise stays
	// until memory is short; it never goes beyond Limit.
	Headroom int
	// Keys are those of the prompt's full blocks, from the first. Fewer, or none,
	// mean less sharing.
	Keys []Key
}

// Snapshot is where all blocks are. Active + Pinned + Reserved + Cached + Free =
// Blocks; shared blocks count once, for the strongest class.
type Snapshot struct {
	Blocks   int   `json:"blocks"`    // all
	Active   int   `json:"active"`    // of sequences that compute
	Pinned   int   `json:"pinned"`    // held for readers
	Reserved int   `json:"reserved"`  // promised to incoming state, locked prefixes included
	Cached   int   `json:"cached"`    // prefix hits that no sequence has
	Free     int   `json:"free"`      // the rest
	Slots    int   `json:"slots"`     // sequences that exist
	SlotsAll int   `json:"slots_all"` // Config.Slots, 0 without limit
	Headroom int   `json:"headroom"`  // blocks of promised growth; a part of Cached + Free
	Marks    int64 `json:"marks"`     // bytes of marked snapshots
}

// Used is the number of blocks that sequences have.
func (s Snapshot) Used() int { return s.Active + s.Pinned + s.Reserved }

// Available is the number of blocks that a new sequence could get.
func (s Snapshot) Available() int { return s.Cached + s.Free - s.Headroom }

// Outcome is the answer to an operation. Anything but OK changed nothing, with
// the exceptions that the operation names.
type Outcome uint8

// Outcomes.
const (
	OK           Outcome = 1 + iota
	Duplicate            // that was done before
	Unknown              // no such sequence, or no such id
	Invalid              // the arguments cannot be right
	Conflict             // the id, or the sequence, is in another state
	Never                // it does not fit, even if nothing else were here
	LackMemory           // too few blocks now
	LackSlots            // too many sequences now
	LackHeadroom         // the blocks are there, but promised to growth
	Quarantined          // a transfer can still touch the memory
	Busy                 // sequences exist
)

var outcomeNames = [...]string{
	"none", "ok", "duplicate", "unknown", "invalid", "conflict", "never", "lack memory", "lack slots", "lack headroom", "quarantined", "busy",
}

// String returns a stable name.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "invalid outcome"
}

// Lacks reports whether waiting may help.
func (o Outcome) Lacks() bool { return o == LackMemory || o == LackSlots || o == LackHeadroom }

// EventKind says what happened to a block.
type EventKind uint8

// Events.
const (
	// Stored: Block is a prefix hit from now on. Fields: Seq, Index, Key, Parent.
	Stored EventKind = 1 + iota
	// Removed: Block was evicted and is no hit any more. Fields: Key. The host that
	// keeps state for cached blocks drops that of this one.
	Removed
	// Adopted: sequence Seq has Block at Index now, instead of From, which is free:
	// both hold the same, and the block was stored by another sequence. Fields:
	// Seq, Index, Key, From.
	Adopted
	// Unmarked: the snapshot marked on Block is to be dropped. Fields: Key.
	Unmarked
)

var eventNames = [...]string{"none", "stored", "removed", "adopted", "unmarked"}

// String returns a stable name.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return "invalid event"
}

// Event is one change of the prefix index. Keys are derived from content: they do
// not belong in logs.
type Event struct {
	Kind   EventKind
	Block  int32 // physical block
	Index  int32 // block of the sequence, from 0
	From   int32
	Seq    Seq
	Key    Key
	Parent Key // key of the block before, zero for the first
}
