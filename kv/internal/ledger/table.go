package ledger

import (
	"encoding/binary"

	"github.com/tandem-llm/tandem/kv"
)

// Table finds blocks by key: chained hashing over the keys themselves, which are
// random already. It allocates only when it is made.
type Table struct {
	Keys  []kv.Key // of each block; zero: none
	heads []int32  // block + 1 of each bucket; a power of two of them, at least one per block
	next  []int32  // block + 1 of the next one in the bucket, for linked blocks
}

func (t *Table) init(blocks int) {
	buckets := 1
	for buckets < blocks {
		buckets *= 2
	}
	t.Keys = make([]kv.Key, blocks)
	t.next = make([]int32, blocks)
	t.heads = make([]int32, buckets)
}

func (t *Table) bucket(k *kv.Key) *int32 {
	return &t.heads[binary.LittleEndian.Uint64(k[8:])&uint64(len(t.heads)-1)]
}

// Get returns the linked block with a key.
func (t *Table) Get(k *kv.Key) (int32, bool) {
	for at := *t.bucket(k); at != 0; at = t.next[at-1] {
		if t.Keys[at-1] == *k {
			return at - 1, true
		}
	}
	return 0, false
}

// Link makes a block findable under its key. One that was linked under an equal
// key before is hidden until this one is unlinked.
func (t *Table) Link(block int32) {
	head := t.bucket(&t.Keys[block])
	t.next[block] = *head
	*head = block + 1
}

// Unlink undoes Link. The key must not have changed meanwhile.
func (t *Table) Unlink(block int32) {
	at := t.bucket(&t.Keys[block])
	for *at != block+1 {
		at = &t.next[*at-1]
	}
	*at = t.next[block]
}
