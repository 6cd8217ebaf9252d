package block

import (
	"fmt"

	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/internal/ledger"
)

// check sees that every block is in exactly one place and counted there.
func check(manager kv.Manager) error {
	m := manager.(*Manager)
	x := &m.index
	refs := make([]ledger.Refs, len(x.refs))
	published := make([]bool, len(x.refs))
	err := x.book.Each(func(q *ledger.Seq) error {
		for i, b := range q.Blocks {
			refs[b] = refs[b].Add(q.Class)
			if i < q.Published {
				published[b] = true
			} else if x.refs[b] != ledger.Refs(0).Add(q.Class) {
				return fmt.Errorf("block %d is not published and has refs %x", b, x.refs[b])
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	place := make([]string, len(x.refs))
	counts := map[ledger.Class]int{}
	put := func(b int32, where string, c ledger.Class) error {
		if place[b] != "" {
			return fmt.Errorf("block %d is %s and %s", b, place[b], where)
		}
		place[b] = where
		counts[c]++
		return nil
	}
	for b := range refs {
		if refs[b] != x.refs[b] {
			return fmt.Errorf("block %d has refs %x, counted %x", b, x.refs[b], refs[b])
		}
		if refs[b] != 0 {
			if err := put(int32(b), "in use", refs[b].Class()); err != nil {
				return err
			}
			if _, found := x.book.Table.Get(&x.book.Table.Keys[b]); found != published[b] {
				return fmt.Errorf("block %d: published %v, in the table %v", b, published[b], found)
			}
		}
	}
	end := int32(len(refs))
	for b := x.next[end]; b != end; b = x.next[b] {
		if err := put(b, "cached", ledger.Cached); err != nil {
			return err
		}
		if at, ok := x.book.Table.Get(&x.book.Table.Keys[b]); !ok || at != b {
			return fmt.Errorf("cached block %d is not found by its key", b)
		}
	}
	for b := x.free; b >= 0; b = x.next[b] {
		if err := put(b, "free", ledger.Free); err != nil {
			return err
		}
		if x.book.Table.Keys[b] != (kv.Key{}) || x.book.Marks.Has(b) {
			return fmt.Errorf("free block %d has a key or a mark", b)
		}
	}
	for b := range place {
		if place[b] == "" {
			return fmt.Errorf("block %d is nowhere", b)
		}
	}
	return x.book.Counted(counts)
}
