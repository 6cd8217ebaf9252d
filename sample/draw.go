package sample

import (
	"math"
	"math/bits"
	"slices"
)

// Workspace is the memory Sample computes in: up to 34 bytes per vocabulary token.
// The zero value is ready. It holds no results, but what it held of one sequence
// stays until the next use; [Workspace.Clear] erases it.
type Workspace struct {
	keys    []uint64 // one per token; see keyOf
	weights []uint64 // of keys; see weightBits
	buckets []uint16 // of keys: which bucket counts the key
	cands   []cand   // one bucket's tokens, spread out for a look inside

	// The distribution as a histogram over the distance from the likeliest
	// token. Every truncation and the draw itself ask how far one has to go from
	// the likeliest token on; the histogram answers to within one bucket.
	mass  [buckets]uint64
	count [buckets]uint32
}

// Buckets are 1/bucketsPerNat wide in units of the natural logarithm. Together
// they span 32, where weights have long been zero.
const (
	buckets       = 2048
	bucketsPerNat = 64
	noBucket      = buckets // of tokens whose weight is zero
)

// Clear overwrites everything computed so far.
func (w *Workspace) Clear() {
	clear(w.keys[:cap(w.keys)])
	clear(w.weights[:cap(w.weights)])
	clear(w.buckets[:cap(w.buckets)])
	clear(w.cands[:cap(w.cands)])
	w.mass, w.count = [buckets]uint64{}, [buckets]uint32{}
}

func (w *Workspace) grow(n int) {
	if cap(w.keys) < n {
		w.keys, w.weights, w.buckets = make([]uint64, n), make([]uint64, n), make([]uint16, n)
	}
	w.keys = w.keys[:n]
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
	w := s.work
	w.grow(s.vocab)
	keys := w.keys
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
	k := s.p.TopK
	if k > 0 && k <= smallK && k < len(keys) {
		keys, k = selectTop(keys, k), 0
	}
	// Each truncation keeps some of the likeliest tokens, so all that has to be
	// known of it is their weight: mass is that of the tokens still in the game.
	mass, drawable := w.weigh(keys, 1/float64(s.p.Temperature))
	if k > 0 && k < drawable {
		_, mass = w.reach(uint64(k), byCount)
	}
	if p := s.p.TopP; p > 0 && p < 1 {
		// Rounded down, so that p close to 1 does not ask for more than there is;
		// at least the likeliest stays.
		_, mass = w.reach(max(1, min(mass, uint64(float64(p)*float64(mass)))), byWeight)
	}
	if s.p.MinP > 0 {
		mass = min(mass, w.atLeast(uint64(math.Ceil(float64(s.p.MinP)*(1<<weightBits)))))
	}
	// The high word of the product is uniform in [0, mass).
	r, _ := bits.Mul64(philox(s.p.Seed, s.index), mass)
	key, _ := w.reach(r+1, byWeight)
	return keyToken(key)
}

// finite keeps a logit that penalties or bias pushed out of range inside it.
func finite(l float32) float32 {
	return max(-math.MaxFloat32, min(math.MaxFloat32, l))
}

// smallK is the largest top-k for which a heap beats looking at every weight.
const smallK = 256

// selectTop moves the k largest keys, 0 < k < len(keys), to the front and
// returns them. It is a heap of the k largest so far, smallest on top: after a
// few thousand keys almost every further one costs a single comparison.
func selectTop(keys []uint64, k int) []uint64 {
	heap := keys[:k]
	for i := k/2 - 1; i >= 0; i-- {
		siftDown(heap, i)
	}
	for _, key := range keys[k:] {
		if key > heap[0] {
			heap[0] = key
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

// weigh computes the weights of the keys, their histogram, their sum, and how
// many are not zero. The likeliest weighs 2^weightBits; the scale is
// 1/temperature.
func (w *Workspace) weigh(keys []uint64, scale float64) (total uint64, drawable int) {
	w.mass, w.count = [buckets]uint64{}, [buckets]uint32{}
	w.keys, w.weights, w.buckets = keys, w.weights[:len(keys)], w.buckets[:len(keys)]
	top := float64(keyLogit(slices.Max(keys)))
	for i, k := range keys {
		x := float64(float64(keyLogit(k))-top) * scale
		w.weights[i], w.buckets[i] = 0, noBucket
		if x < -31.5 {
			continue // far below half of 2^-weightBits
		}
		weight := uint64(float64(exp(x)*(1<<weightBits)) + 0.5)
		if weight == 0 {
			continue
		}
		b := uint(x*-bucketsPerNat) % buckets
		w.weights[i], w.buckets[i] = weight, uint16(b)
		w.mass[b] += weight
		w.count[b]++
		total += weight
		drawable++
	}
	return total, drawable
}

// What reach counts.
const (
	byWeight = false
	byCount  = true
)

// reach goes through the tokens, likeliest first, until it has passed need of
// them, or of their weight, and returns the last one's key and the weight of
// all it passed. need is at least 1 and at most what there is.
func (w *Workspace) reach(need uint64, count bool) (key, mass uint64) {
	// Whole buckets first,
	at := 0
	for ; ; at++ {
		have := w.mass[at]
		if count {
			have = uint64(w.count[at])
		}
		if have >= need {
			break
		}
		need -= have
		mass += w.mass[at]
	}
	// then inside the last one.
	w.cands = w.cands[:0]
	for i, b := range w.buckets {
		if int(b) == at {
			w.cands = append(w.cands, cand{w.keys[i], w.weights[i]})
		}
	}
	n := prefix(w.cands, need, count)
	for _, c := range w.cands[:n] {
		mass += c.weight
	}
	return w.cands[n-1].key, mass
}

// atLeast returns the sum of all weights of at least that size.
func (w *Workspace) atLeast(weight uint64) (mass uint64) {
	for _, v := range w.weights {
		if v >= weight {
			mass += v
		}
	}
	return mass
}

// prefix returns how many candidates, likeliest first, it takes to have need of
// them, or of their weight, and moves those to the front with the last one at
// their end. need is at least 1 and at most what there is. It is a quickselect,
// linear in time: nothing is sorted but the last few.
func prefix(cands []cand, need uint64, count bool) int {
	lo, hi := 0, len(cands)
	var sum uint64 // of what is left of lo
	// The budget is for inputs that defeat the pivots: their rest is sorted.
	for budget := 2 * bits.Len(uint(len(cands))); hi-lo > 16 && budget > 0; budget-- {
		// Keys are distinct, so the median of three has something on either side.
		pivot := median(cands[lo].key, cands[lo+(hi-lo)/2].key, cands[hi-1].key)
		at, left := lo, sum
		for i := lo; i < hi; i++ {
			if c := cands[i]; c.key >= pivot {
				left += c.measure(count)
				cands[i], cands[at] = cands[at], c
				at++
			}
		}
		if left < need {
			lo, sum = at, left
		} else {
			hi = at
		}
	}
	slices.SortFunc(cands[lo:hi], func(a, b cand) int {
		if a.key > b.key {
			return -1
		}
		return 1
	})
	for sum < need {
		sum += cands[lo].measure(count)
		lo++
	}
	return lo
}

func (c cand) measure(count bool) uint64 {
	if count {
		return 1
	}
	return c.weight
}

func median(a, b, c uint64) uint64 {
	return max(min(a, b), min(max(a, b), c))
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
