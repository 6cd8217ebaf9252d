package replay

import (
	"encoding/binary"
	"fmt"

	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/workload"
)

// name gives a request's blocks their keys, for each size of blocks that the
// fleet's caches have.
func (h *host) name(q *request, in *workload.Request) error {
	if len(h.blockSizes) == 0 {
		return nil
	}
	if q.keys == nil {
		q.keys = make([]keys, len(h.blockSizes))
	}
	for i := range q.keys {
		q.keys[i].all, q.keys[i].prompt = q.keys[i].all[:0], 0
	}
	if len(in.Hashes) == 0 {
		return nil
	}
	// The block that the prompt ends in is named as it is with the answer, where that
	// is known: the next turn begins with it.
	ids := in.Hashes
	if len(in.Answer) > 0 {
		h.ids = append(append(h.ids[:0], in.Hashes[:in.Input/in.HashTokens]...), in.Answer...)
		ids = h.ids
	}
	h.chained = kv.NewChain(h.salt(in.Tenant), in.HashTokens).IDs(ids, h.chained[:0])
	for i, size := range h.blockSizes {
		if in.HashTokens%size != 0 {
			return fmt.Errorf("replay: the trace names blocks of %d tokens, which blocks of %d do not divide: set memory.block_tokens to a divisor, or prefix_cache to false", in.HashTokens, size)
		}
		k := &q.keys[i]
		parts, known := in.HashTokens/size, in.Input
		if len(in.Answer) > 0 {
			known += in.Output
		}
		// A sequence that no worker can hold needs no names, however long it is.
		most := min(known/size, len(h.chained)*parts, h.blockMost[i])
		for b := range most {
			k.all = append(k.all, part(&h.chained[b/parts], b%parts))
		}
		k.prompt = min(in.Input/size, most)
	}
	return nil
}

// part names a part of a block of the trace, after the block. Parts of one block are
// neighbours in a manager's table, which makes finding them cheap.
func part(block *kv.Key, n int) kv.Key {
	k := *block
	binary.LittleEndian.PutUint64(k[8:], binary.LittleEndian.Uint64(k[8:])+uint64(n))
	return k
}

// maxSalts is how many tenants' salts are kept; they can be computed again.
const maxSalts = 1024

// salt separates tenants.
func (h *host) salt(tenant string) kv.Salt {
	if tenant == "" {
		return kv.Salt{}
	}
	s, ok := h.salts[tenant]
	if !ok {
		if len(h.salts) == maxSalts { // a trace may name a tenant on each line
			clear(h.salts)
		}
		s = kv.SaltFor(nil, tenant)
		h.salts[tenant] = s
	}
	return s
}
