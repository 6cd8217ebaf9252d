// Package radix manages memory in the shape of SGLang: a radix tree over pages,
// whose nodes are runs of pages without a branch. A sequence locks the path from
// the root to the end of its prefix; what is not locked is cached, and evicted
// leaf by leaf, least recently used first, page by page from a leaf's end.
// Requests take one of a fixed number of slots.
//
// Make a Manager with New; kv.Manager says what each method does. In the words of
// kv a page is a block. Locking costs the number of nodes on the path, finding a
// prefix one table look-up per node and one comparison per page. A page costs
// about 40 bytes and a node 48.
package radix

import (
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/internal/ledger"
)

// Manager is a kv.Manager over a radix tree. Make it with New.
type Manager struct {
	ledger.Manager
	tree tree
}

var _ kv.Manager = (*Manager)(nil)

// New makes a manager with all pages free. Config.Slots must be given: it is the
// number of request slots, which every sequence takes, from its reservation on.
// The error is a *kv.ConfigError.
func New(cfg kv.Config) (*Manager, error) {
	cfg, err := ledger.Check(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Slots == 0 {
		return nil, &kv.ConfigError{Field: "Slots", Value: 0, Want: "1 to 1048576 request slots"}
	}
	m := &Manager{}
	m.tree.init(ledger.Init(&m.Manager, cfg, &m.tree), cfg.Blocks)
	return m, nil
}

const root = 0

// node is a run of pages that have been used together so far. Locking a node means
// locking its ancestors, so whatever is not locked can be evicted from the leaves
// on. The root has no pages.
type node struct {
	refs ledger.Refs // sequences of each class whose path goes through; root: not counted
	// used orders eviction: the tick of the last lock or unlock of the path.
	used        uint64
	parent      int32
	first, last int32 // pages, linked by next and prev
	pages       int32
	children    int32
	at          int32 // place in leaves; -1: locked, or not a leaf
}

// tree holds every page: in a node, in a sequence, or on the stack of free ones.
type tree struct {
	book  *ledger.Book
	nodes []node
	spare []int32 // entries of nodes that are not in use
	// owner is the node of a page that is the first of one. Exactly those pages are
	// linked in the ledger's table, by the key that leads to the node.
	owner []int32
	// next and prev link the pages of a node; -1 ends a run. next also links the
	// stack of free pages.
	next, prev []int32
	free       int32 // top of the stack; none: -1
	leaves     heap  // nodes that are neither locked nor have children
	tick       uint64
}

func (t *tree) init(book *ledger.Book, pages int) {
	t.book = book
	t.nodes = append(t.nodes, node{parent: -1, first: -1, last: -1, at: -1})
	t.owner = make([]int32, pages)
	t.next = make([]int32, pages)
	t.prev = make([]int32, pages)
	for p := range int32(pages) {
		t.next[p] = p + 1 // lowest first
	}
	t.next[pages-1] = -1
}

// child returns the child of a node whose first page has that key. Keys are
// chained, so there is no second place where it could be; the parent is compared
// for callers whose keys are not.
func (t *tree) child(of int32, key *kv.Key) (int32, bool) {
	p, ok := t.book.Table.Get(key)
	if !ok {
		return 0, false
	}
	c := t.owner[p]
	return c, t.nodes[c].parent == of
}

// walk follows keys from below a node and calls visit for each page.
func (t *tree) walk(at int32, keys []kv.Key, visit func(i int, page, node int32)) {
	for i := 0; i < len(keys); {
		c, ok := t.child(at, &keys[i])
		if !ok {
			return
		}
		for p := t.nodes[c].first; p >= 0; p = t.next[p] {
			if i == len(keys) || t.book.Table.Keys[p] != keys[i] {
				return
			}
			visit(i, p, c)
			i++
		}
		at = c
	}
}

// Find implements ledger.Index.
func (t *tree) Find(keys []kv.Key, marked bool) (n, cached int) {
	align := t.book.Align()
	unused := 0
	t.walk(root, keys, func(i int, page, in int32) {
		if t.nodes[in].refs == 0 {
			unused++
		}
		if (i+1)%align == 0 && (!marked || t.book.Marks.Has(page)) {
			n, cached = i+1, unused
		}
	})
	return n, cached
}

// Lock implements ledger.Index.
func (t *tree) Lock(q *ledger.Seq, keys []kv.Key) {
	q.Node = root
	end := int32(-1)
	t.walk(root, keys, func(_ int, page, in int32) {
		q.Blocks = append(q.Blocks, page)
		end, q.Node = page, in
	})
	q.Published = len(q.Blocks)
	if end >= 0 {
		q.Node = t.split(q.Node, end)
	}
	t.tick++
	for n := q.Node; n != root; n = t.nodes[n].parent {
		t.lock(n, q.Class)
	}
}

// lock adds one sequence to a node.
func (t *tree) lock(n int32, class ledger.Class) {
	d := &t.nodes[n]
	before := d.refs.Class()
	d.refs = d.refs.Add(class)
	if after := d.refs.Class(); after != before {
		t.book.Shift(before, after, int(d.pages))
	}
	d.used = t.tick
	if d.at >= 0 {
		t.leaves.remove(t.nodes, d.at)
	}
}

// unlock takes one sequence from a node.
func (t *tree) unlock(n int32, class ledger.Class) {
	d := &t.nodes[n]
	before := d.refs.Class()
	d.refs = d.refs.Sub(class)
	if after := d.refs.Class(); after != before {
		t.book.Shift(before, after, int(d.pages))
	}
	d.used = t.tick
	t.leaf(n)
}

// leaf enters a node among the leaves that can be evicted, if it is one.
func (t *tree) leaf(n int32) {
	if d := &t.nodes[n]; n != root && d.refs == 0 && d.children == 0 && d.at < 0 {
		t.leaves.push(t.nodes, n)
	}
}

// split makes a node end at one of its pages and returns the node that does: the
// given one, or a new one above it. The lower part keeps its number, because
// sequences whose path ends there know it by that.
func (t *tree) split(n, end int32) int32 {
	if t.nodes[n].last == end {
		return n
	}
	up := t.entry()
	d := &t.nodes[n]
	u := &t.nodes[up]
	*u = node{refs: d.refs, used: d.used, parent: d.parent, first: d.first, last: end, children: 1, at: -1}
	for p := d.first; ; p = t.next[p] {
		u.pages++
		if p == end {
			break
		}
	}
	d.parent, d.first, d.pages = up, t.next[end], d.pages-u.pages
	t.next[end], t.prev[d.first] = -1, -1
	t.owner[u.first], t.owner[d.first] = up, n
	t.book.Table.Link(d.first)
	return up
}

// entry takes an entry of nodes that is not in use.
func (t *tree) entry() int32 {
	if n := len(t.spare); n > 0 {
		e := t.spare[n-1]
		t.spare = t.spare[:n-1]
		return e
	}
	t.nodes = append(t.nodes, node{})
	return int32(len(t.nodes) - 1)
}
