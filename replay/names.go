package replay

import (
	"fmt"

	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/workload"
)

// name gives a request's blocks their keys, for each size of blocks that the
// fleet's caches have. A block of the trace is several of the fleet's, named after it
// and their place in it.
func (h *host) name(q *request, in *workload.Request) error {
	if len(h.blockSizes) == 0 {
		return nil
	}
	if q.keys == nil {
		q.keys = make([]keys, len(h.blockSizes))
	}
	for i, size := range h.blockSizes {
		k := &q.keys[i]
		k.all, k.prompt = k.all[:0], 0
		if len(in.Hashes) == 0 {
			continue
		}
		if in.HashTokens%size != 0 {
			return fmt.Errorf("replay: the trace names blocks of %d tokens, which blocks of %d do not divide: set memory.block_tokens to a divisor, or prefix_cache to false", in.HashTokens, size)
		}
		parts := in.HashTokens / size
		chain := kv.NewChain(h.salt(in.Tenant), size)
		known := in.Input / in.HashTokens // whole blocks of the prompt
		ids := h.ids[:0]
		for j, id := range in.Hashes {
			if j >= known && len(in.Answer) > 0 {
				break // the block that the prompt ends in is named with the answer
			}
			ids = split(ids, id, parts)
		}
		for _, id := range in.Answer {
			ids = split(ids, id, parts)
		}
		h.ids = ids
		k.prompt = in.Input / size
		if most := (in.Input + in.Output) / size; len(ids) > most {
			ids = ids[:most]
		}
		if len(in.Answer) == 0 && len(ids) > k.prompt {
			ids = ids[:k.prompt]
		}
		k.prompt = min(k.prompt, len(ids))
		k.all = chain.IDs(ids, k.all)
	}
	return nil
}

// split names the parts of a block.
func split(ids []uint64, id uint64, parts int) []uint64 {
	if parts == 1 {
		return append(ids, id)
	}
	for p := range uint64(parts) {
		ids = append(ids, mix(id*uint64(parts)+p))
	}
	return ids
}

// salt separates tenants.
func (h *host) salt(tenant string) kv.Salt {
	if tenant == "" {
		return kv.Salt{}
	}
	s, ok := h.salts[tenant]
	if !ok {
		s = kv.SaltFor(nil, tenant)
		h.salts[tenant] = s
	}
	return s
}
