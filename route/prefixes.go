package route

import "github.com/tandem-llm/tandem/kv"

// prefixes is what a worker is thought to have cached: keys of blocks, the least recently used one
// forgotten first. A block is never used less recently than those that follow it, so of any prompt
// the known blocks are the first ones. Its zero value is empty.
type prefixes struct {
	at    map[kv.Key]int32 // place in nodes
	nodes []prefix         // a ring by use through nodes[0], which has no key
}

type prefix struct {
	key        kv.Key
	less, more int32 // neighbours: used just before, just after
}

// match returns how many of the keys are known, from the first, asking for every so many-th one.
// O(log keys).
func (p *prefixes) match(keys []kv.Key, every int) int {
	low, high := 0, len(keys)/every
	for low < high {
		middle := int(uint(low+high) / 2)
		if _, known := p.at[keys[(middle+1)*every-1]]; known {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low * every
}

// add uses every so many-th of the keys, keeping at most limit of all. It allocates only while it
// grows.
func (p *prefixes) add(keys []kv.Key, every, limit int) {
	count := min(len(keys)/every, limit)
	if count == 0 {
		return
	}
	if p.at == nil {
		p.at = make(map[kv.Key]int32)
		p.nodes = append(p.nodes, prefix{})
	}
	// Backwards, so that a block is used after those that follow it. A key that is not there takes
	// the place of the least recently used one, which is none that was used here before: those are
	// fewer than limit.
	for i := count - 1; i >= 0; i-- {
		key := keys[(i+1)*every-1]
		n, known := p.at[key]
		switch {
		case known:
			p.unlink(n)
		case len(p.at) >= limit:
			n = p.nodes[0].more
			p.unlink(n)
			delete(p.at, p.nodes[n].key)
			p.at[key] = n
		default:
			n = int32(len(p.nodes))
			p.nodes = append(p.nodes, prefix{})
			p.at[key] = n
		}
		last := p.nodes[0].less
		p.nodes[n] = prefix{key, last, 0}
		p.nodes[last].more, p.nodes[0].less = n, n
	}
}

func (p *prefixes) unlink(n int32) {
	less, more := p.nodes[n].less, p.nodes[n].more
	p.nodes[less].more, p.nodes[more].less = more, less
}
