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
// change goes through Manager.Shift. The ledger has checked all arguments.
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
	keyed    bool       // id is in Manager.ids, and names this sequence
	id       handoff.ID // zero when not keyed
	gen      uint32     // of the handle; counts lives of this entry
	prefix   int32      // blocks found at the start
	limit    int32      // most blocks it may have
	headroom int32      // blocks of growth promised now
}

// Manager implements kv.Manager over an Index.
type Manager struct {
	Table Table // by key; what an entry is, is the Index's
	Marks Marks // zero size when not Config.Marked

	cfg      kv.Config
	index    Index
	counts   [classes]int // blocks of each class; the sum is Config.Blocks
	headroom int          // sum over sequences; never more than counts[Cached] + counts[Free]
	seqs     []Seq        // entry i has handle gen<<32 | i+1
	unused   []uint32     // entries of seqs that are not in use
	alive    int          // entries that are
	ids      map[handoff.ID]uint32
	events   []kv.Event
}

// Check validates a configuration and fills in defaults.
func Check(cfg kv.Config) (kv.Config, error) {
	bad := func(field string, value int, want string) (kv.Config, error) {
		return cfg, &kv.ConfigError{Field: field, Value: value, Want: want}
	}
	switch {
	case cfg.Blocks < 1 || cfg.Blocks > kv.MaxBlocks:
		return bad("Blocks", cfg.Blocks, "1 to 134217728")
	case cfg.BlockTokens < 1 || cfg.BlockTokens > kv.MaxTokens:
		return bad("BlockTokens", cfg.BlockTokens, "1 to 1073741824")
	case cfg.Slots < 0 || cfg.Slots > kv.MaxSequences:
		return bad("Slots", cfg.Slots, "0 to 1048576")
	case cfg.Align < 0 || cfg.Align > cfg.Blocks:
		return bad("Align", cfg.Align, "0 to Blocks")
	case cfg.MarkBytes < 0:
		return bad("MarkBytes", int(cfg.MarkBytes), "not less than 0")
	}
	cfg.Align = max(cfg.Align, 1)
	return cfg, nil
}

// Init makes m ready for an index. cfg comes from Check.
func (m *Manager) Init(cfg kv.Config, index Index) {
	m.cfg, m.index = cfg, index
	m.counts[Free] = cfg.Blocks
	m.ids = make(map[handoff.ID]uint32)
	m.Table.init(cfg.Blocks)
	if cfg.Marked {
		m.Marks.init(cfg.Blocks, cfg.MarkBytes)
	}
}

// Config is documented at kv.Manager, like every exported method with its name.
func (m *Manager) Config() kv.Config { return m.cfg }

// Snapshot is documented at kv.Manager.
func (m *Manager) Snapshot() kv.Snapshot {
	return kv.Snapshot{
		Blocks: m.cfg.Blocks,
		Active: m.counts[Active], Pinned: m.counts[Pinned], Reserved: m.counts[Reserved],
		Cached: m.counts[Cached], Free: m.counts[Free],
		Slots: m.alive, SlotsAll: m.cfg.Slots, Headroom: m.headroom, Marks: m.Marks.used,
	}
}

// Shift moves n blocks from one class to another.
func (m *Manager) Shift(from, to Class, n int) {
	m.counts[from] -= n
	m.counts[to] += n
}

// Stored records that a block of a sequence is a hit from now on.
func (m *Manager) Stored(s kv.Seq, block int32, at int, keys []kv.Key) {
	if !m.cfg.Events {
		return
	}
	e := kv.Event{Kind: kv.Stored, Block: block, Index: int32(at), Seq: s, Key: keys[at]}
	if at > 0 {
		e.Parent = keys[at-1]
	}
	m.events = append(m.events, e)
}

// Adopted records that a sequence has a stored block instead of an equal one.
func (m *Manager) Adopted(s kv.Seq, block, from int32, at int, keys []kv.Key) {
	if m.cfg.Events {
		m.events = append(m.events, kv.Event{Kind: kv.Adopted, Block: block, Index: int32(at), From: from, Seq: s, Key: keys[at]})
	}
}

// Removed records that a block is no hit any more, and drops its mark.
func (m *Manager) Removed(block int32, key kv.Key) {
	if m.Marks.drop(block) {
		m.unmarked(block, key)
	}
	if m.cfg.Events {
		m.events = append(m.events, kv.Event{Kind: kv.Removed, Block: block, Key: key})
	}
}

func (m *Manager) unmarked(block int32, key kv.Key) {
	if m.cfg.Events {
		m.events = append(m.events, kv.Event{Kind: kv.Unmarked, Block: block, Key: key})
	}
}

// Stays reports whether the sequence's own blocks must not be exchanged for equal
// ones: a transfer reads or writes them, or the engine cannot.
func (m *Manager) Stays(q *Seq) bool { return q.Touched > 0 || m.cfg.Fixed }

// Align is the number of blocks that hits are rounded to.
func (m *Manager) Align() int { return m.cfg.Align }

// Events is documented at kv.Manager.
func (m *Manager) Events(dst []kv.Event) []kv.Event {
	dst = append(dst, m.events...)
	m.events = m.events[:0]
	return dst
}

// Evict is documented at kv.Manager.
func (m *Manager) Evict(n int) (done int) {
	// What is promised to growth may be cached, but evicting it only makes it free.
	for done < n && m.index.Evict() {
		done++
	}
	return done
}

// Reset is documented at kv.Manager.
func (m *Manager) Reset() kv.Outcome {
	if m.alive > 0 {
		for i := range m.seqs {
			if m.seqs[i].Touched > 0 {
				return kv.Quarantined
			}
		}
		return kv.Busy
	}
	m.Evict(m.cfg.Blocks)
	return kv.OK
}
