// Package ledger is what both managers of kv have in common: sequences and their
// handles, ids, the class of every block, headroom, quarantine, marks and events.
// What differs, how prefixes are found, locked, published and evicted, is an
// Index.
//
// Manager has the methods of kv.Manager, whose comments are the contract.
package ledger

import (
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

// Index is the prefix index of a manager. It owns the classes of blocks: every
// change goes through Book.Shift. The ledger has checked all arguments.
type Index interface {
	// Find returns how many of the leading keys are cached blocks, rounded down to
	// Align and, if marked, to a marked boundary; and how many of those no
	// sequence has.
	Find(keys []kv.Key, marked bool) (n, cached int)
	// Lock gives the sequence, which has no blocks yet, the blocks that Find found.
	Lock(q *Seq, keys []kv.Key)
	// Take gives the sequence n more blocks of its own, evicting what it must. The
	// ledger has seen that Cached + Free suffice.
	Take(q *Seq, n int)
	// Publish stores the sequence's blocks from Published to len(keys), or to where
	// it must stop.
	Publish(q *Seq, self kv.Seq, keys []kv.Key)
	// Move changes the class of the sequence's blocks.
	Move(q *Seq, to Class)
	// Drop takes the sequence's blocks away: published ones stay cached.
	Drop(q *Seq)
	// Evict drops the least recently used cached block, if there is one.
	Evict() bool
}

// Class says where a block is, or of which class a sequence is.
type Class uint8

// Classes of blocks; those from Active on are also classes of sequences.
const (
	Free Class = iota
	Cached
	Active
	Pinned
	Reserved
	classes
)

// Seq is one sequence.
type Seq struct {
	Class Class // Active, Pinned or Reserved; Free: this entry is not in use
	// Blocks in the order of tokens. The first Published of them are in the index,
	// shared or not; the others are its own, and in no index.
	Blocks    []int32
	Published int
	Node      int32 // kv/radix: where the path of published blocks ends
	Touched   int32 // transfers that can touch it; nothing is exchanged meanwhile

	draining bool       // freed while touched: Quiet frees it
	keyed    bool       // id is in Book.ids, and names this sequence
	id       handoff.ID // zero when not keyed
	gen      uint32     // of the handle; counts lives of this entry
	prefix   int32      // blocks found at the start
	full     int32      // blocks that the tokens it came with fill
	limit    int32      // most blocks it may have
	headroom int32      // blocks of growth promised now
}
