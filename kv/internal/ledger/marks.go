package ledger

// Marks are the blocks whose end has a snapshot of recurrent state: a list in the
// order of use, bounded by the sum of bytes. The zero value has none and takes
// none.
type Marks struct {
	limit, used int64
	places      []place // of each block, and one more: the list's ends
}

type place struct {
	bytes      int64 // 0: no mark
	prev, next int32 // used longer ago, used later; the last place closes the ring
}

func (k *Marks) init(blocks int, limit int64) {
	k.limit = limit
	k.places = make([]place, blocks+1)
	k.places[blocks] = place{prev: int32(blocks), next: int32(blocks)}
}

// Has reports whether a block is marked.
func (k *Marks) Has(block int32) bool {
	return int(block) < len(k.places)-1 && k.places[block].bytes > 0
}

// oldest is the mark that was not used for longest. There must be one.
func (k *Marks) oldest() int32 { return k.places[len(k.places)-1].next }

func (k *Marks) add(block int32, bytes int64) {
	k.used += bytes
	k.places[block].bytes = bytes
	k.link(block)
}

// drop forgets a mark and reports whether there was one.
func (k *Marks) drop(block int32) bool {
	if !k.Has(block) {
		return false
	}
	k.used -= k.places[block].bytes
	k.places[block].bytes = 0
	k.unlink(block)
	return true
}

// use makes a mark the most recently used one.
func (k *Marks) use(block int32) {
	if k.Has(block) {
		k.unlink(block)
		k.link(block)
	}
}

func (k *Marks) link(block int32) {
	end := int32(len(k.places) - 1)
	last := k.places[end].prev
	k.places[block].prev, k.places[block].next = last, end
	k.places[last].next, k.places[end].prev = block, block
}

func (k *Marks) unlink(block int32) {
	p := &k.places[block]
	k.places[p.prev].next, k.places[p.next].prev = p.next, p.prev
}
