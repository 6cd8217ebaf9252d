// Package mirror says which of an engine's slots holds the state of which block,
// for engines that keep state by sequence and share it by copying a range from
// one sequence to another without moving bytes (llama.cpp with a unified cache).
//
// A manager of kv counts blocks; the engine has slots. Each sequence of the
// manager is open in one slot. When it ends, its slot is retired: it keeps the
// blocks that are still cached and loses everything else, until the last of them
// is evicted. So cached prefixes cost no bytes of their own, and an eviction by
// the manager frees memory in the engine at once.
//
// # Host's guide
//
// After every call to the scheduler, Apply all events of the manager, then go
// through the notices twice, first for what ended:
//
//	NotePreempted, NoteFailed,  Close(n.Seq), if the manager has no blocks for it any
//	NoteFreed                   more; the same after a Release that was accepted, also
//	                            with all events applied first
//
// then for what began:
//
//	NoteAdmitted, NoteGranted   Open(n.Seq, manager.Blocks(n.Seq), n.Tokens), unless the
//	                            manager has no blocks for n.Seq: it was preempted since
//
// and execute the operations that come back, in order, before the next step. Open
// answers ErrNoSlot when all slots are in use or retired: evict one cached block
// (kv.Manager.Evict), Apply its events, and try again. That ends: what an open
// sequence has is held by an open slot, so retired slots hold what is cached, and
// the prefixes of sequences that are about to be opened. With nothing cached left
// these fit into as many retired slots as there are such sequences, because of
// different contents at one position each needs one; what is spread over more is
// moved together.
//
// The mirror is pure and not safe for concurrent use. With s slots and sequences
// of b blocks, Apply costs O(1), Close O(s + b) with little sharing and O(s·b) at
// most, Open O(b) while there is an empty slot. In steady state nothing allocates.
package mirror

import (
	"errors"
	"slices"

	"github.com/tandem-llm/tandem/kv"
)

// OpKind names an operation on the engine.
type OpKind uint8

// Operations.
const (
	// Share: Slot has the positions [First, End) of From too, from now on. It has none
	// of them yet. No bytes move.
	Share OpKind = 1 + iota
	// Trim: Slot has the positions [First, End) no more; others that share them keep
	// them. End is -1 for all from First on.
	Trim
	// Retire: Slot is not stepped any more; what it has besides positions, such as
	// recurrent state, is dropped. Trims follow.
	Retire
	// Empty: Slot has nothing any more, and may be opened again.
	Empty
)

var opNames = [...]string{"none", "share", "trim", "retire", "empty"}

// String returns a stable name.
func (k OpKind) String() string {
	if int(k) < len(opNames) {
		return opNames[k]
	}
	return "invalid operation"
}

// Op is one operation. Positions are tokens.
type Op struct {
	Kind       OpKind
	Slot       int32
	From       int32 // Share
	First, End int   // Share, Trim
}

// Errors of Open.
var (
	ErrNoSlot = errors.New("mirror: all slots are open or retired; evict a cached block and try again")
	ErrLost   = errors.New("mirror: no slot holds a block of the prefix; events or notices were left out")
	ErrOpen   = errors.New("mirror: the sequence is open already")
)

const none int32 = -1

// slot is one of the engine's.
type slot struct {
	seq  kv.Seq // open for it; zero: retired, or empty
	held int    // blocks whose holder this is
	// blocks that are published, by index; none: not published, or, in a retired
	// slot, not held any more. An open slot lists those of other holders too.
	blocks []int32
}

// place is where a block's state is.
type place struct{ slot, index int32 }

// Mirror is made by New.
type Mirror struct {
	size  int     // tokens of a block
	at    []place // of each block; slot none: not published
	slots []slot
	empty []int32 // slots, the lowest last
	open  []int32 // slots of sequences
	bySeq map[kv.Seq]int32
}

// New makes a mirror of a manager and an engine of slots slots, all empty. There
// must be one more than the manager has sequences at once, or Open may find no
// slot; those beyond are what cached prefixes live in.
func New(cfg kv.Config, slots int) *Mirror {
	m := &Mirror{size: cfg.BlockTokens, at: make([]place, cfg.Blocks), slots: make([]slot, slots), bySeq: make(map[kv.Seq]int32, slots)}
	for i := range m.at {
		m.at[i].slot = none
	}
	for i := slots - 1; i >= 0; i-- {
		m.empty = append(m.empty, int32(i))
	}
	return m
}

// Slot returns the slot in which a sequence is open.
func (m *Mirror) Slot(s kv.Seq) (int32, bool) {
	at, ok := m.bySeq[s]
	return at, ok
}

// Empty returns how many slots are neither open nor retired.
func (m *Mirror) Empty() int { return len(m.empty) }

// Open gives a sequence a slot and shares its cached prefix of that many tokens
// with it. blocks are those of the manager.
func (m *Mirror) Open(s kv.Seq, blocks []int32, cached int, ops []Op) (int32, []Op, error) {
	n := cached / m.size
	switch {
	case s == 0 || n > len(blocks):
		return none, ops, ErrLost
	}
	if _, ok := m.bySeq[s]; ok {
		return none, ops, ErrOpen
	}
	for i, b := range blocks[:n] {
		if p := m.at[b]; p.slot == none || p.index != int32(i) {
			return none, ops, ErrLost
		}
	}
	if len(m.empty) == 0 {
		if ops = m.gather(ops); len(m.empty) == 0 {
			return none, ops, ErrNoSlot
		}
	}
	at := m.empty[len(m.empty)-1]
	m.empty = m.empty[:len(m.empty)-1]
	m.bySeq[s] = at
	m.open = append(m.open, at)
	q := &m.slots[at]
	q.seq, q.blocks = s, append(q.blocks[:0], blocks[:n]...)
	for i, b := range q.blocks {
		ops = m.share(at, m.at[b].slot, i, ops)
	}
	for i, b := range q.blocks { // after all sharing: what is left empty is emptied
		ops = m.inherit(at, b, i, ops)
	}
	return at, ops, nil
}

// share shares one block, as a part of the last operation if it can be.
func (m *Mirror) share(to, from int32, index int, ops []Op) []Op {
	first := index * m.size
	if n := len(ops); n > 0 {
		if last := &ops[n-1]; last.Kind == Share && last.Slot == to && last.From == from && last.End == first {
			last.End += m.size
			return ops
		}
	}
	return append(ops, Op{Kind: Share, Slot: to, From: from, First: first, End: first + m.size})
}

// trim takes one block away, as a part of the last operation if it can be.
func (m *Mirror) trim(from int32, index int, ops []Op) []Op {
	first := index * m.size
	if n := len(ops); n > 0 {
		if last := &ops[n-1]; last.Kind == Trim && last.Slot == from && last.End == first {
			last.End += m.size
			return ops
		}
	}
	return append(ops, Op{Kind: Trim, Slot: from, First: first, End: first + m.size})
}

// inherit makes an open slot, which has the block too, its holder, if a retired
// slot was: so that retired slots hold only what no sequence has.
func (m *Mirror) inherit(at, block int32, index int, ops []Op) []Op {
	old := m.at[block].slot
	if m.slots[old].seq != 0 {
		return ops
	}
	m.at[block].slot = at
	m.slots[at].held++
	return m.letGo(old, index, ops)
}

// letGo takes a block from a retired slot.
func (m *Mirror) letGo(from int32, index int, ops []Op) []Op {
	q := &m.slots[from]
	q.blocks[index] = none
	q.held--
	if q.held > 0 {
		return m.trim(from, index, ops)
	}
	return m.clear(from, ops)
}

// clear empties a slot that is not open. Open takes the lowest one: an engine that is
// idle places the next sequence as a fresh one does.
func (m *Mirror) clear(at int32, ops []Op) []Op {
	q := &m.slots[at]
	q.blocks = q.blocks[:0]
	i, _ := slices.BinarySearchFunc(m.empty, at, func(have, want int32) int { return int(want - have) })
	m.empty = slices.Insert(m.empty, i, at)
	return append(ops, Op{Kind: Empty, Slot: at})
}

// gather empties a retired slot whose blocks all have room in others: a retired
// slot is only storage, so what it holds need not be of one sequence.
func (m *Mirror) gather(ops []Op) []Op {
	for at := range m.slots {
		q := &m.slots[at]
		if q.seq != 0 || q.held == 0 || !m.movable(int32(at)) {
			continue
		}
		for i, b := range q.blocks {
			if b == none {
				continue
			}
			to := m.room(int32(at), i)
			ops = m.share(to, int32(at), i, ops)
			m.list(to, int32(i), b)
			m.slots[to].held++
			m.at[b].slot = to
		}
		q.held = 0
		return m.clear(int32(at), ops)
	}
	return ops
}

func (m *Mirror) movable(at int32) bool {
	for i, b := range m.slots[at].blocks {
		if b != none && m.room(at, i) == none {
			return false
		}
	}
	return true
}

// room returns another retired slot that holds nothing at an index.
func (m *Mirror) room(but int32, index int) int32 {
	for to := range m.slots {
		q := &m.slots[to]
		if int32(to) != but && q.seq == 0 && q.held > 0 && (index >= len(q.blocks) || q.blocks[index] == none) {
			return int32(to)
		}
	}
	return none
}

// Close ends a sequence. Its slot keeps what is cached and nobody else has. It
// does nothing for a sequence that is not open.
func (m *Mirror) Close(s kv.Seq, ops []Op) []Op {
	at, ok := m.bySeq[s]
	if !ok {
		return ops
	}
	delete(m.bySeq, s)
	i := slices.Index(m.open, at)
	m.open[i] = m.open[len(m.open)-1]
	m.open = m.open[:len(m.open)-1]
	q := &m.slots[at]
	q.seq = 0
	m.bequeath(at)
	if q.held == 0 {
		return m.clear(at, ops)
	}
	ops = append(ops, Op{Kind: Retire, Slot: at})
	keep := 0
	for i, b := range q.blocks {
		if b != none && m.at[b].slot == at {
			keep = i + 1
			continue
		}
		q.blocks[i] = none
		ops = m.trim(at, i, ops)
	}
	q.blocks = q.blocks[:keep]
	// Trims beyond what is kept become one with everything that was never published.
	for n := len(ops); ops[n-1].Kind == Trim && ops[n-1].Slot == at && ops[n-1].End > keep*m.size; n = len(ops) {
		ops = ops[:n-1]
	}
	return append(ops, Op{Kind: Trim, Slot: at, First: keep * m.size, End: -1})
}

// bequeath makes open slots the holders of what they share with one that retires.
// Published blocks are chained, so two sequences share a prefix and nothing else.
func (m *Mirror) bequeath(at int32) {
	q := &m.slots[at]
	for _, other := range m.open {
		o := &m.slots[other]
		for i := 0; i < min(len(q.blocks), len(o.blocks)) && q.blocks[i] == o.blocks[i] && q.blocks[i] != none; i++ {
			if p := &m.at[q.blocks[i]]; p.slot == at {
				p.slot = other
				q.held--
				o.held++
			}
		}
	}
}

// Apply follows one event of the manager.
func (m *Mirror) Apply(e kv.Event, ops []Op) []Op {
	switch e.Kind {
	case kv.Stored:
		if at, ok := m.bySeq[e.Seq]; ok {
			m.at[e.Block] = place{at, e.Index}
			m.slots[at].held++
			m.list(at, e.Index, e.Block)
		}
	case kv.Adopted:
		at, ok := m.bySeq[e.Seq]
		if p := m.at[e.Block]; ok && p.slot != none {
			m.list(at, e.Index, e.Block)
			ops = m.trim(at, int(e.Index), ops)
			ops = m.share(at, p.slot, int(e.Index), ops)
			ops = m.inherit(at, e.Block, int(e.Index), ops)
		}
	case kv.Removed:
		p := m.at[e.Block]
		if p.slot == none {
			return ops
		}
		m.at[e.Block].slot = none
		if q := &m.slots[p.slot]; q.seq != 0 {
			// Its sequence ended, and the host has not come to the notice yet: Close trims.
			q.blocks[p.index] = none
			q.held--
			return ops
		}
		return m.letGo(p.slot, int(p.index), ops)
	}
	return ops
}

// list enters a published block of an open slot.
func (m *Mirror) list(at, index, block int32) {
	q := &m.slots[at]
	for int(index) >= len(q.blocks) {
		q.blocks = append(q.blocks, none)
	}
	q.blocks[index] = block
}
