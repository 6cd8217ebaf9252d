package sample

import (
	"math"
	"math/bits"
	"slices"
)

// Workspace is the memory Sample computes in: 24 bytes per vocabulary token. The
// zero value is ready. It holds no results, but what it held of one sequence
// stays until the next use; [Workspace.Clear] erases it.
type Workspace struct {
	keys  []uint64
	cands []cand
}

// Clear overwrites everything computed so far.
func (w *Workspace) Clear() {
	clear(w.keys[:cap(w.keys)])
	clear(w.cands[:cap(w.cands)])
}

func (w *Workspace) grow(n int) {
	if cap(w.keys) < n {
		w.keys, w.cands = make([]uint64, n), make([]cand, n)
	}
	w.keys, w.cands = w.keys[:n], w.cands[:n]
}

// A key orders tokens the way every step wants them: the larger logit first, on
// equal logits the lower id first. The high half is the logit's bits made to
// compare as an integer, the low half the complement of the id. Keys are
// distinct, and a larger key is a likelier token.
func keyOf(logit float32, token int32) uint64 {
	b := math.Float32bits(logit + 0) // -0 compares equal to 0, so it must become it
	if b>>31 != 0 {
		b = ^b
	} else {
		b |= 1 << 31
	}
	return uint64(b)<<32 | uint64(^uint32(token))
}

func keyToken(k uint64) int32 { return int32(^uint32(k)) }

func keyLogit(k uint64) float32 {
	b := uint32(k >> 32)
	if b>>31 != 0 {
		b &^= 1 << 31
	} else {
		b = ^b
	}
	return math.Float32frombits(b)
}

// cand is a token with its weight: its probability divided by the likeliest
// token's, as a fixed-point number of weightBits fractional bits. Integers make
// every sum exact, so that how candidates are ordered and filtered on the way
// cannot change the result. 2^weightBits * MaxVocab fits in 63 bits.
type cand struct {
	key    uint64
	weight uint64
}

const weightBits = 44

// draw applies the transformations and chooses.
func (s *Sampler) draw(logits []float32) int32 {
	if s.work == nil {
		s.work = new(Workspace)
	}
	s.work.grow(s.vocab)
	keys := s.work.keys
	for i, l := range logits {
		keys[i] = keyOf(l, int32(i))
	}
	for _, e := range s.hist.entries {
		keys[e.token] = keyOf(finite(s.p.penalize(logits[e.token], e)), e.token)
	}
	for _, b := range s.biases {
		keys[b.token] = keyOf(finite(keyLogit(keys[b.token])+b.value), b.token)
	}
	if s.p.Temperature == 0 || s.p.TopK == 1 {
		return keyToken(slices.Max(keys))
	}
	if s.p.TopK > 0 && s.p.TopK < len(keys) {
		keys = selectTop(keys, s.p.TopK)
	}
	cands, total := s.weigh(keys)
	if p := s.p.TopP; p > 0 && p < 1 {
		cands, total = nucleus(cands, total, p)
	}
	if s.p.MinP > 0 {
		cands, total = atLeast(cands, uint64(math.Ceil(float64(s.p.MinP)*(1<<weightBits))))
	}
	// The high word of the product is uniform in [0, total).
	r, _ := bits.Mul64(philox(s.p.Seed, s.index), total)
	n, _ := prefix(cands, r+1)
	return keyToken(cands[n-1].key)
}

// finite keeps a logit that penalties or bias pushed out of range inside it.
func finite(l float32) float32 {
	return max(-math.MaxFloat32, min(math.MaxFloat32, l))
}

// selectTop moves the k largest keys to the front and returns them.
func selectTop(keys []uint64, k int) []uint64 {
	if k > 64 {
		quickselect(keys, k)
		return keys[:k]
	}
	// A heap of the k largest so far, smallest on top: after a few thousand keys
	// almost every further one costs a single comparison.
	heap := keys[:k]
	for i := k/2 - 1; i >= 0; i-- {
		siftDown(heap, i)
	}
	for i := k; i < len(keys); i++ {
		if keys[i] > heap[0] {
			heap[0], keys[i] = keys[i], heap[0]
			siftDown(heap, 0)
		}
	}
	return heap
}

func siftDown(heap []uint64, i int) {
	for {
		child := 2*i + 1
		if child >= len(heap) {
			return
		}
		if child+1 < len(heap) && heap[child+1] < heap[child] {
			child++
		}
		if heap[i] <= heap[child] {
			return
		}
		heap[i], heap[child] = heap[child], heap[i]
		i = child
	}
}

// quickselect moves the k largest keys to the front, 0 < k < len(keys).
func quickselect(keys []uint64, k int) {
	lo, hi := 0, len(keys)
	for budget := 2 * bits.Len(uint(len(keys))); hi-lo > 16; budget-- {
		if budget == 0 {
			break // an input that defeats the pivots: sort the rest
		}
		pivot := median(keys[lo], keys[lo+(hi-lo)/2], keys[hi-1])
		// Larger than or equal to the pivot go left.
		at := lo
		for i := lo; i < hi; i++ {
			if keys[i] >= pivot {
				keys[i], keys[at] = keys[at], keys[i]
				at++
			}
		}
		switch {
		case at == k:
			return
		case at > k && at < hi:
			hi = at
		case at > k:
			// The pivot is the smallest: nothing was split off.
			budget = 1
		default:
			lo = at
		}
	}
	slices.SortFunc(keys[lo:hi], func(a, b uint64) int {
		if a > b {
			return -1
		}
		return 1
	})
}

func median(a, b, c uint64) uint64 {
	return max(min(a, b), min(max(a, b), c))
}

// weigh turns keys into candidates and returns them with the sum of their
// weights. Tokens of weight zero are left out; the likeliest weighs 2^weightBits.
func (s *Sampler) weigh(keys []uint64) (cands []cand, total uint64) {
	top := float64(keyLogit(slices.Max(keys)))
	scale := 1 / float64(s.p.Temperature)
	cands = s.work.cands[:0]
	for _, k := range keys {
		w := uint64(float64(exp(float64(float64(keyLogit(k))-top)*scale)*(1<<weightBits)) + 0.5)
		if w > 0 {
			cands = append(cands, cand{k, w})
			total += w
		}
	}
	return cands, total
}

// nucleus keeps the fewest likeliest candidates that have at least p of the
// total weight, 0 < p < 1.
func nucleus(cands []cand, total uint64, p float32) ([]cand, uint64) {
	// float32 times an integer of up to 63 bits: round down, so that p close to 1
	// does not ask for more than there is; at least the likeliest stays.
	need := max(1, min(total, uint64(float64(p)*float64(total))))
	// All candidates below the average of what may be lost have, together, less
	// than what may be lost, so none of them is needed. This leaves a handful of
	// a vocabulary unless the distribution is flat.
	cands, _ = atLeast(cands, (total-need)/uint64(len(cands)))
	n, sum := prefix(cands, need)
	return cands[:n], sum
}

// atLeast keeps the candidates of at least that weight.
func atLeast(cands []cand, weight uint64) (kept []cand, total uint64) {
	kept = cands[:0]
	for _, c := range cands {
		if c.weight >= weight {
			kept = append(kept, c)
			total += c.weight
		}
	}
	return kept, total
}

// prefix returns how many candidates, likeliest first, it takes to have the
// weight need, and their weight; it moves them to the front with the last one
// needed at their end. 1 <= need <= the sum of all weights. It is a quickselect
// that counts weight instead of elements: linear time, nothing is sorted but
// the last few.
func prefix(cands []cand, need uint64) (n int, sum uint64) {
	lo, hi := 0, len(cands)
	for budget := 2 * bits.Len(uint(len(cands))); hi-lo > 16 && budget > 0; budget-- {
		pivot := median(cands[lo].key, cands[lo+(hi-lo)/2].key, cands[hi-1].key)
		at, left := lo, sum
		for i := lo; i < hi; i++ {
			if c := cands[i]; c.key >= pivot {
				left += c.weight
				cands[i], cands[at] = cands[at], c
				at++
			}
		}
		switch {
		case left < need:
			lo, sum = at, left
		case at < hi:
			hi = at
		default:
			budget = 1 // the pivot is the smallest: nothing was split off
		}
	}
	slices.SortFunc(cands[lo:hi], func(a, b cand) int {
		if a.key > b.key {
			return -1
		}
		return 1
	})
	for lo < hi && sum < need {
		sum += cands[lo].weight
		lo++
	}
	return lo, sum
}

// topTokens returns the likeliest tokens of the unmodified logits.
func (s *Sampler) topTokens(logits []float32, lse float64) []TopToken {
	n := cap(s.top)
	if n == 0 {
		return nil
	}
	// Insertion into a short sorted list; almost every token fails the first
	// comparison. Logprob holds the logit until the end.
	top := s.top[:0]
	for i, l := range logits {
		if len(top) == n {
			if l <= top[n-1].Logprob { // on equal logits the lower id, seen first, stays
				continue
			}
			top = top[:n-1]
		}
		at := len(top)
		top = append(top, TopToken{})
		for at > 0 && top[at-1].Logprob < l {
			top[at] = top[at-1]
			at--
		}
		top[at] = TopToken{int32(i), l}
	}
	for i := range top {
		top[i].Logprob = float32(float64(top[i].Logprob) - lse)
	}
	return top
}
