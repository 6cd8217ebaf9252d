package radix

// heap holds the nodes that can be evicted, the least recently used one first.
// Two of them never have the same tick: an operation touches one path, and of one
// path only the last node can be a leaf.
type heap []int32

func (h *heap) push(nodes []node, n int32) {
	*h = append(*h, n)
	nodes[n].at = int32(len(*h) - 1)
	h.up(nodes, len(*h)-1)
}

// remove takes out the node at a place.
func (h *heap) remove(nodes []node, at int32) {
	old := *h
	last := len(old) - 1
	nodes[old[at]].at = -1
	moved := old[last]
	*h = old[:last]
	if int(at) == last {
		return
	}
	old[at] = moved
	nodes[moved].at = at
	if !h.down(nodes, int(at)) {
		h.up(nodes, int(at))
	}
}

func (h heap) up(nodes []node, i int) {
	for i > 0 {
		above := (i - 1) / 2
		if nodes[h[above]].used <= nodes[h[i]].used {
			return
		}
		h.swap(nodes, i, above)
		i = above
	}
}

// down reports whether anything moved.
func (h heap) down(nodes []node, i int) (moved bool) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h); c++ {
			if nodes[h[c]].used < nodes[h[least]].used {
				least = c
			}
		}
		if least == i {
			return moved
		}
		h.swap(nodes, i, least)
		i, moved = least, true
	}
}

func (h heap) swap(nodes []node, i, j int) {
	h[i], h[j] = h[j], h[i]
	nodes[h[i]].at, nodes[h[j]].at = int32(i), int32(j)
}
