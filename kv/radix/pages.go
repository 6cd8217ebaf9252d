package radix

import (
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/internal/ledger"
)

// Take implements ledger.Index.
func (t *tree) Take(q *ledger.Seq, n int) {
	for range n {
		if t.free < 0 {
			t.Evict()
		}
		p := t.free
		t.free = t.next[p]
		q.Blocks = append(q.Blocks, p)
	}
	t.book.Shift(ledger.Free, q.Class, n)
}

// Publish implements ledger.Index: it inserts the sequence's pages below the end
// of its path, and moves the end of the path along.
func (t *tree) Publish(q *ledger.Seq, self kv.Seq, keys []kv.Key) {
	t.tick++
	for i := q.Published; i < len(keys); i = q.Published {
		c, ok := t.child(q.Node, &keys[i])
		switch {
		case ok && t.book.Stays(q):
			return
		case ok:
			t.adopt(q, self, c, keys)
		default:
			if _, elsewhere := t.book.Table.Get(&keys[i]); elsewhere {
				return // the caller's keys are not chained: what cannot be found is not stored
			}
			t.insert(q, self, keys)
		}
	}
}

// adopt exchanges the sequence's pages for the equal ones of child c, and makes
// the path end after the last of them.
func (t *tree) adopt(q *ledger.Seq, self kv.Seq, c int32, keys []kv.Key) {
	end := int32(-1)
	for p := t.nodes[c].first; p >= 0 && q.Published < len(keys) && t.book.Table.Keys[p] == keys[q.Published]; p = t.next[p] {
		i := q.Published
		mine := q.Blocks[i]
		q.Blocks[i] = p
		q.Published++
		end = p
		t.book.Shift(q.Class, ledger.Free, 1)
		t.push(mine)
		t.book.Adopted(self, p, mine, i, keys)
	}
	q.Node = t.split(c, end)
	t.lock(q.Node, q.Class)
}

// insert puts all pages up to len(keys) into the tree. A leaf that nobody else
// has locked grows, so that a prompt published chunk by chunk is one node.
func (t *tree) insert(q *ledger.Seq, self kv.Seq, keys []kv.Key) {
	n := q.Node
	if n == root || t.nodes[n].children > 0 || t.nodes[n].refs != ledger.Refs(0).Add(q.Class) {
		up := n
		n = t.entry()
		t.nodes[n] = node{refs: ledger.Refs(0).Add(q.Class), parent: up, first: -1, last: -1, at: -1}
		t.nodes[up].children++
	}
	d := &t.nodes[n]
	d.used = t.tick
	for i := q.Published; i < len(keys); i++ {
		p := q.Blocks[i]
		t.book.Table.Keys[p] = keys[i]
		t.prev[p], t.next[p] = d.last, -1
		if d.last >= 0 {
			t.next[d.last] = p
		} else {
			d.first = p
			t.owner[p] = n
			t.book.Table.Link(p)
		}
		d.last = p
		d.pages++
		t.book.Stored(self, p, i, keys)
	}
	q.Node, q.Published = n, len(keys)
}

// Move implements ledger.Index.
func (t *tree) Move(q *ledger.Seq, to ledger.Class) {
	for n := q.Node; n != root; n = t.nodes[n].parent {
		d := &t.nodes[n]
		before := d.refs.Class()
		d.refs = d.refs.Sub(q.Class).Add(to)
		if after := d.refs.Class(); after != before {
			t.book.Shift(before, after, int(d.pages))
		}
	}
	t.book.Shift(q.Class, to, len(q.Blocks)-q.Published)
}

// Drop implements ledger.Index.
func (t *tree) Drop(q *ledger.Seq) {
	for i := len(q.Blocks) - 1; i >= q.Published; i-- {
		t.push(q.Blocks[i])
	}
	t.book.Shift(q.Class, ledger.Free, len(q.Blocks)-q.Published)
	t.tick++
	for n := q.Node; n != root; n = t.nodes[n].parent {
		t.unlock(n, q.Class)
	}
}

// Evict implements ledger.Index: it drops the last page of the least recently used
// leaf.
func (t *tree) Evict() bool {
	if len(t.leaves) == 0 {
		return false
	}
	n := t.leaves[0]
	d := &t.nodes[n]
	p := d.last
	keys := t.book.Table.Keys
	key := keys[p]
	d.last = t.prev[p]
	d.pages--
	if d.pages > 0 {
		t.next[d.last] = -1
	} else {
		t.book.Table.Unlink(p)
		t.leaves.remove(t.nodes, 0)
		t.nodes[d.parent].children--
		t.leaf(d.parent)
		t.spare = append(t.spare, n)
	}
	keys[p] = kv.Key{}
	t.book.Removed(p, key)
	t.book.Shift(ledger.Cached, ledger.Free, 1)
	t.push(p)
	return true
}

// push puts a page on the stack of free ones.
func (t *tree) push(p int32) {
	t.next[p] = t.free
	t.free = p
}
