package kv

import "github.com/tandem-llm/tandem/handoff"

// Manager owns the blocks of one engine. Implementations must behave alike in
// everything that this package says; only what they cost differs.
type Manager interface {
	// Config returns the shape it was made with, with defaults filled in.
	Config() Config

	// Snapshot returns where all blocks are. O(1).
	Snapshot() Snapshot

	// Match returns how many tokens of a prompt Start would find (or Reserve, which
	// may find all of it and needs no marks), and changes nothing.
	Match(n Need, reserve bool) int

	// Start makes an active sequence: it locks the cached prefix and allocates the
	// rest, all or nothing, and returns how many tokens the prefix has. At least
	// the prompt's last token is left to compute. Outcomes: OK, Invalid, Never,
	// LackMemory, LackSlots, LackHeadroom.
	Start(n Need) (s Seq, cached int, o Outcome)

	// Reserve does the same for state that will be received, keyed by id. The prefix
	// stays locked, and may be the whole prompt. Repeated with an id that has a
	// reservation, also one that was activated, it answers Duplicate with the
	// sequence and its prefix; Conflict when the id holds a pin, or is in
	// quarantine.
	Reserve(id handoff.ID, n Need) (s Seq, cached int, o Outcome)

	// Grow makes sure that an active sequence has blocks for that many tokens and
	// returns for how many it has. Growth takes what is promised to nobody, then the
	// sequence's own headroom. Outcomes: OK, Unknown, Conflict, Invalid (beyond the
	// limit), LackMemory, LackHeadroom (the rest is promised to others).
	Grow(s Seq, tokens int) (room int, o Outcome)

	// Publish says that the first tokens of an active sequence are computed: full
	// blocks among them that have a key become prefix hits. A block whose key is
	// stored already is exchanged for the stored one (event Adopted), except
	// that while the sequence is touched, or with Config.Fixed, nothing is
	// exchanged: publishing stops there, and goes on with the next call once it is
	// quiet. Outcomes: OK,
	// Unknown, Conflict, Invalid (more tokens than blocks).
	Publish(s Seq, tokens int, keys []Key) Outcome

	// Published is the number of leading tokens that are prefix hits.
	Published(s Seq) int

	// Hold pins an active sequence under id and ends its headroom. Repeated, it
	// answers Duplicate. Outcomes: OK, Duplicate, Unknown, Invalid, Conflict.
	Hold(id handoff.ID, s Seq) Outcome

	// Resume makes a pinned sequence active again, without an id: what was computed
	// is continued here. Limit and headroom are those of the Need; its Tokens are
	// what the sequence must have room for, and its Keys are not read. All or
	// nothing. Outcomes as for Hold and Grow, and Never.
	Resume(s Seq, n Need) Outcome

	// Rekey moves what old names to id, in one step. Outcomes: OK, Duplicate (done
	// before), Unknown, Invalid, Conflict (id names something else).
	Rekey(old, id handoff.ID) Outcome

	// Activate makes a reservation active and publishes the full blocks of its tokens
	// under keys; its locked prefix is not published again. Repeated, it answers Duplicate. It
	// refuses with Quarantined while the sequence is touched. Outcomes: OK,
	// Duplicate, Unknown, Conflict, Quarantined.
	Activate(id handoff.ID, keys []Key) (Seq, Outcome)

	// Find returns the sequence that id names.
	Find(id handoff.ID) (Seq, bool)

	// Free ends a sequence. Its published blocks stay cached, the others are free. A
	// touched sequence stays counted in its class until Quiet: Quarantined, also
	// when repeated. Outcomes: OK, Unknown, Quarantined.
	Free(s Seq) Outcome

	// Release is Free for what id names.
	Release(id handoff.ID) Outcome

	// Touch says that a transfer more can touch the sequence's memory. Outcomes: OK,
	// Unknown, Quarantined (it was freed: nothing may start).
	Touch(s Seq) Outcome

	// Quiet says that a transfer less can. With the last one a freed sequence's
	// memory returns. Outcomes: OK, Unknown, Duplicate (nothing touched it).
	Quiet(s Seq) Outcome

	// Mark says that the host keeps a snapshot of recurrent state, of so many bytes,
	// for the boundary after the first tokens of a sequence. They must be whole,
	// published blocks, at a multiple of Align. Older snapshots may have to go
	// (event Unmarked). Outcomes: OK, Duplicate (there is one; it counts as used),
	// Unknown, Invalid, LackMemory (larger than all may be together).
	Mark(s Seq, tokens int, bytes int64) Outcome

	// Blocks appends the physical blocks of a sequence in the order of its tokens.
	Blocks(s Seq, dst []int32) []int32

	// Evict drops up to n cached blocks, least recently used first, and returns how
	// many: for hosts that run out of something else that cached blocks need.
	Evict(n int) int

	// Reset drops all cached blocks and marks. It refuses while any sequence
	// exists: Quarantined when a transfer can touch one, else Busy.
	Reset() Outcome

	// Events appends the events since the last call and forgets them.
	Events(dst []Event) []Event
}
