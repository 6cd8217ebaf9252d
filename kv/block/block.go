// Package block manages memory in the shape of vLLM: blocks of a fixed size, full
// ones found by the hash chain of their tokens, free cached ones in one list by
// last use. A sequence's last, partial block and everything not yet published is
// its own.
//
// Make a Manager with New; kv.Manager says what each method does. Finding a
// prefix is one table look-up per block, evicting a block is O(1), and a block
// costs about 40 bytes. Sequences need no slot unless Config.Slots says so.
package block

import (
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/internal/ledger"
)

// Manager is a kv.Manager over fixed blocks. Make it with New.
type Manager struct {
	ledger.Manager
	index index
}

var _ kv.Manager = (*Manager)(nil)

// New makes a manager with all blocks free. The error is a *kv.ConfigError. All
// memory that depends on the number of blocks is allocated here.
func New(cfg kv.Config) (*Manager, error) {
	cfg, err := ledger.Check(cfg)
	if err != nil {
		return nil, err
	}
	m := &Manager{}
	m.index.init(ledger.Init(&m.Manager, cfg, &m.index), cfg.Blocks)
	return m, nil
}

// MarkFound is Mark for the boundary after blocks that are found, named by their keys,
// whichever sequence has them, or none: where Config.Fixed keeps a sequence's own blocks
// beside equal ones, what is found is the others. It returns the block that is marked
// now, or was. Outcomes: OK, Duplicate, Invalid (not all of them are found, or this is no
// boundary), LackMemory.
func (m *Manager) MarkFound(keys []kv.Key, bytes int64) (int32, kv.Outcome) {
	cfg := m.Config()
	if !cfg.Marked || bytes < 1 || len(keys) == 0 || len(keys)%cfg.Align != 0 {
		return 0, kv.Invalid
	}
	if n, _ := m.index.Find(keys, false); n < len(keys) {
		return 0, kv.Invalid
	}
	block, _ := m.index.book.Table.Get(&keys[len(keys)-1])
	return block, m.index.book.Mark(block, bytes)
}

// index holds every block: in use, in the list of cached ones, or on the stack of
// free ones.
type index struct {
	book *ledger.Book
	// refs counts the sequences of each block. A block with none is on exactly one
	// of the lists below.
	refs []ledger.Refs
	// next and prev link the cached blocks in a ring by last use; the last entry
	// closes it. next also links the stack of free blocks.
	next, prev []int32
	free       int32 // top of the stack of blocks without key and sequence; none: -1
}

func (x *index) init(book *ledger.Book, blocks int) {
	x.book = book
	x.refs = make([]ledger.Refs, blocks)
	x.next = make([]int32, blocks+1)
	x.prev = make([]int32, blocks+1)
	end := int32(blocks)
	x.next[end], x.prev[end] = end, end
	for b := range end {
		x.next[b] = b + 1 // lowest first
	}
	x.next[end-1] = -1
}

// Find implements ledger.Index. Keys are chained, so the first miss ends it.
func (x *index) Find(keys []kv.Key, marked bool) (n, cached int) {
	align := x.book.Align()
	unused := 0
	for i := range keys {
		b, ok := x.book.Table.Get(&keys[i])
		if !ok {
			break
		}
		if x.refs[b] == 0 {
			unused++
		}
		if (i+1)%align == 0 && (!marked || x.book.Marks.Has(b)) {
			n, cached = i+1, unused
		}
	}
	return n, cached
}

// Lock implements ledger.Index.
func (x *index) Lock(q *ledger.Seq, keys []kv.Key) {
	for i := range keys {
		b, _ := x.book.Table.Get(&keys[i])
		x.ref(b, q.Class)
		q.Blocks = append(q.Blocks, b)
	}
	q.Published = len(keys)
}

// ref gives a published block to one more sequence.
func (x *index) ref(b int32, class ledger.Class) {
	r := x.refs[b]
	if r == 0 {
		x.unlink(b)
	}
	x.refs[b] = r.Add(class)
	if to := x.refs[b].Class(); to != r.Class() {
		x.book.Shift(r.Class(), to, 1)
	}
}

// Take implements ledger.Index. Free blocks first; then cached ones, in the order
// in which Evict would drop them.
func (x *index) Take(q *ledger.Seq, n int) {
	one := ledger.Refs(0).Add(q.Class)
	blocks := q.Blocks
	taken := 0
	for ; taken < n && x.free >= 0; taken++ {
		b := x.free
		x.free = x.next[b]
		x.refs[b] = one
		blocks = append(blocks, b)
	}
	x.book.Shift(ledger.Free, q.Class, taken)
	if rest := n - taken; rest > 0 {
		end := int32(len(x.next) - 1)
		b := x.next[end]
		for range rest {
			x.forget(b)
			x.refs[b] = one
			blocks = append(blocks, b)
			b = x.next[b]
		}
		x.next[end], x.prev[b] = b, end
		x.book.Shift(ledger.Cached, q.Class, rest)
	}
	q.Blocks = blocks
}

// forget makes a cached block no hit.
func (x *index) forget(b int32) {
	t := &x.book.Table
	key := &t.Keys[b]
	t.Unlink(b)
	if x.book.Observed() {
		x.book.Removed(b, *key)
	}
	*key = kv.Key{}
}

// Publish implements ledger.Index.
func (x *index) Publish(q *ledger.Seq, self kv.Seq, keys []kv.Key) {
	t := &x.book.Table
	for i := q.Published; i < len(keys); i++ {
		mine := q.Blocks[i]
		b, ok := t.Get(&keys[i])
		switch {
		case !ok:
			t.Keys[mine] = keys[i]
			t.Link(mine)
			x.book.Stored(self, mine, i, keys)
		case x.book.Stays(q):
			return
		default:
			x.ref(b, q.Class)
			q.Blocks[i] = b
			x.refs[mine] = 0
			x.book.Shift(q.Class, ledger.Free, 1)
			x.push(mine)
			x.book.Adopted(self, b, mine, i, keys)
		}
		q.Published = i + 1
	}
}

// Move implements ledger.Index.
func (x *index) Move(q *ledger.Seq, to ledger.Class) {
	alone, after, moved := ledger.Refs(0).Add(q.Class), ledger.Refs(0).Add(to), 0
	for _, b := range q.Blocks {
		r := x.refs[b]
		if r == alone { // most are
			x.refs[b] = after
			moved++
			continue
		}
		x.refs[b] = r.Sub(q.Class).Add(to)
		x.book.Shift(r.Class(), x.refs[b].Class(), 1)
	}
	x.book.Shift(q.Class, to, moved)
}

// Drop implements ledger.Index. Blocks go last first, so that of one prefix the
// last block is evicted first and no cached block is ever out of reach.
func (x *index) Drop(q *ledger.Seq) {
	for i := len(q.Blocks) - 1; i >= q.Published; i-- {
		x.refs[q.Blocks[i]] = 0
		x.push(q.Blocks[i])
	}
	x.book.Shift(q.Class, ledger.Free, len(q.Blocks)-q.Published)
	alone, cached := ledger.Refs(0).Add(q.Class), 0
	for i := q.Published - 1; i >= 0; i-- {
		b := q.Blocks[i]
		r := x.refs[b]
		if r == alone {
			x.refs[b] = 0
			x.link(b)
			cached++
			continue
		}
		x.refs[b] = r.Sub(q.Class)
		x.book.Shift(r.Class(), x.refs[b].Class(), 1)
	}
	x.book.Shift(q.Class, ledger.Cached, cached)
}

// Evict implements ledger.Index.
func (x *index) Evict() bool {
	b := x.next[len(x.next)-1]
	if int(b) == len(x.next)-1 {
		return false
	}
	x.unlink(b)
	x.forget(b)
	x.book.Shift(ledger.Cached, ledger.Free, 1)
	x.push(b)
	return true
}

// push puts a block on the stack of free ones.
func (x *index) push(b int32) {
	x.next[b] = x.free
	x.free = b
}

// link makes a block the most recently used cached one.
func (x *index) link(b int32) {
	end := int32(len(x.next) - 1)
	last := x.prev[end]
	x.prev[b], x.next[b] = last, end
	x.next[last], x.prev[end] = b, b
}

func (x *index) unlink(b int32) {
	x.next[x.prev[b]], x.prev[x.next[b]] = x.next[b], x.prev[b]
}
