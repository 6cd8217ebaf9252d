package radix

import (
	"fmt"

	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/internal/ledger"
)

// check sees that every page is in exactly one place, that the tree is one, and
// that locks and counts are what sequences say.
func check(manager kv.Manager) error {
	m := manager.(*Manager)
	t := &m.tree
	place := make([]string, len(t.next))
	counts := map[ledger.Class]int{}
	put := func(p int32, where string, c ledger.Class) error {
		if place[p] != "" {
			return fmt.Errorf("page %d is %s and %s", p, place[p], where)
		}
		place[p] = where
		counts[c]++
		return nil
	}
	spare := map[int32]bool{}
	for _, n := range t.spare {
		spare[n] = true
	}
	refs := make([]ledger.Refs, len(t.nodes))
	err := t.book.Each(func(q *ledger.Seq) error {
		depth := 0
		for n := q.Node; n != root; n = t.nodes[n].parent {
			if spare[n] {
				return fmt.Errorf("a path goes through node %d, which is not in use", n)
			}
			refs[n] = refs[n].Add(q.Class)
			depth += int(t.nodes[n].pages)
		}
		if depth != q.Published {
			return fmt.Errorf("a path of %d pages for %d published ones", depth, q.Published)
		}
		at := q.Published
		for n := q.Node; n != root; n = t.nodes[n].parent {
			for p := t.nodes[n].last; p >= 0; p = t.prev[p] {
				if at--; q.Blocks[at] != p {
					return fmt.Errorf("block %d of a sequence is page %d, its path says %d", at, q.Blocks[at], p)
				}
			}
		}
		for _, p := range q.Blocks[q.Published:] {
			if err := put(p, "a sequence's own", q.Class); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	children := make([]int32, len(t.nodes))
	leaves := 0
	for i := 1; i < len(t.nodes); i++ {
		n, d := int32(i), &t.nodes[i]
		if spare[n] {
			continue
		}
		children[d.parent]++
		if d.refs != refs[n] {
			return fmt.Errorf("node %d has refs %x, counted %x", n, d.refs, refs[n])
		}
		pages := int32(0)
		for p := d.first; p >= 0; p = t.next[p] {
			pages++
			if err := put(p, "in a node", d.refs.Class()); err != nil {
				return err
			}
		}
		if pages != d.pages || pages == 0 {
			return fmt.Errorf("node %d has %d pages, counted %d", n, d.pages, pages)
		}
		// Where keys are not chained, one node may hide another with the same key.
		if c, ok := t.child(d.parent, &t.book.Table.Keys[d.first]); (!ok || c != n) && !hidden(t, n) {
			return fmt.Errorf("node %d is not found from its parent", n)
		}
		if d.at >= 0 {
			leaves++
			if t.leaves[d.at] != n {
				return fmt.Errorf("node %d is not where it says among the leaves", n)
			}
		}
	}
	for i := 1; i < len(t.nodes); i++ {
		if d := &t.nodes[i]; !spare[int32(i)] {
			if d.children != children[i] {
				return fmt.Errorf("node %d has %d children, counted %d", i, d.children, children[i])
			}
			if (d.at >= 0) != (d.refs == 0 && d.children == 0) {
				return fmt.Errorf("node %d: among the leaves %v, refs %x, children %d", i, d.at >= 0, d.refs, d.children)
			}
		}
	}
	if leaves != len(t.leaves) {
		return fmt.Errorf("%d leaves listed, counted %d", len(t.leaves), leaves)
	}
	for p := t.free; p >= 0; p = t.next[p] {
		if err := put(p, "free", ledger.Free); err != nil {
			return err
		}
		if t.book.Table.Keys[p] != (kv.Key{}) || t.book.Marks.Has(p) {
			return fmt.Errorf("free page %d has a key or a mark", p)
		}
	}
	for p := range place {
		if place[p] == "" {
			return fmt.Errorf("page %d is nowhere", p)
		}
	}
	return t.book.Counted(counts)
}

// hidden reports whether the table finds another node under a node's key.
func hidden(t *tree, n int32) bool {
	p, ok := t.book.Table.Get(&t.book.Table.Keys[t.nodes[n].first])
	return ok && t.owner[p] != n && t.nodes[t.owner[p]].first == p
}
