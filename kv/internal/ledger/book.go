package ledger

import (
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

// Book is what the sequences and the Index of a manager share.
type Book struct {
	Table Table // by key; what an entry is, is the Index's
	Marks Marks // zero size when not Config.Marked

	cfg      kv.Config
	counts   [classes]int // blocks of each class; the sum is Config.Blocks
	headroom int          // sum over sequences; never more than counts[Cached] + counts[Free]
	seqs     []Seq        // entry i has handle gen<<32 | i+1
	unused   []uint32     // entries of seqs that are not in use
	alive    int          // entries that are
	ids      map[handoff.ID]uint32
	events   []kv.Event
}

// Shift moves n blocks from one class to another.
func (b *Book) Shift(from, to Class, n int) {
	b.counts[from] -= n
	b.counts[to] += n
}

// Stored records that a block of a sequence is a hit from now on.
func (b *Book) Stored(s kv.Seq, block int32, at int, keys []kv.Key) {
	if !b.cfg.Events {
		return
	}
	e := kv.Event{Kind: kv.Stored, Block: block, Index: int32(at), Seq: s, Key: keys[at]}
	if at > 0 {
		e.Parent = keys[at-1]
	}
	b.events = append(b.events, e)
}

// Adopted records that a sequence has a stored block instead of an equal one.
func (b *Book) Adopted(s kv.Seq, block, from int32, at int, keys []kv.Key) {
	if b.cfg.Events {
		b.events = append(b.events, kv.Event{Kind: kv.Adopted, Block: block, Index: int32(at), From: from, Seq: s, Key: keys[at]})
	}
}

// Observed reports whether anybody learns from Removed.
func (b *Book) Observed() bool { return b.cfg.Events || b.cfg.Marked }

// Removed records that a block is no hit any more, and drops its mark.
func (b *Book) Removed(block int32, key kv.Key) {
	if b.Marks.drop(block) {
		b.unmarked(block, key)
	}
	if b.cfg.Events {
		b.events = append(b.events, kv.Event{Kind: kv.Removed, Block: block, Key: key})
	}
}

func (b *Book) unmarked(block int32, key kv.Key) {
	if b.cfg.Events {
		b.events = append(b.events, kv.Event{Kind: kv.Unmarked, Block: block, Key: key})
	}
}

// Stays reports whether the sequence's own blocks must not be exchanged for equal
// ones: a transfer reads or writes them, or the engine cannot.
func (b *Book) Stays(q *Seq) bool { return q.Touched > 0 || b.cfg.Fixed }

// Align is the number of blocks that hits are rounded to.
func (b *Book) Align() int { return b.cfg.Align }
