package sample

import (
	"math"
	"math/big"
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// reference is the sampler written the obvious way: the whole history, every
// transformation over the whole vocabulary, a full sort.
type reference struct {
	p           Params
	prompt, out []int32
}

func (r *reference) logits(in []float32) []float32 {
	l := slices.Clone(in)
	all := slices.Concat(r.prompt, r.out)
	made := len(r.out)
	if w := r.p.PenaltyWindow; w > 0 && len(all) > w {
		all = all[len(all)-w:]
		made = min(made, w)
	}
	for t := range l {
		seen, count := 0, 0
		for i, a := range all {
			if a == int32(t) {
				seen++
				if i >= len(all)-made {
					count++
				}
			}
		}
		if rp := r.p.RepetitionPenalty; seen > 0 && rp != 0 {
			if l[t] > 0 {
				l[t] /= rp
			} else {
				l[t] *= rp
			}
		}
		if count > 0 {
			l[t] -= float32(float32(count) * r.p.FrequencyPenalty)
			l[t] -= r.p.PresencePenalty
		}
		l[t] += r.p.LogitBias[int32(t)]
	}
	return l
}

func (r *reference) sample(in []float32) int32 {
	l := r.logits(in)
	order := make([]int, len(l))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case l[a] > l[b]:
			return -1
		case l[a] < l[b]:
			return 1
		}
		return 0
	})
	if r.p.Temperature == 0 {
		return int32(order[0])
	}
	if k := r.p.TopK; k > 0 && k < len(order) {
		order = order[:k]
	}
	weight := func(t int) uint64 {
		x := float64(l[t]) - float64(l[order[0]])
		x *= 1 / float64(r.p.Temperature)
		return uint64(float64(exp(x)*(1<<weightBits)) + 0.5)
	}
	total := func(order []int) (sum uint64) {
		for _, t := range order {
			sum += weight(t)
		}
		return sum
	}
	if p := r.p.TopP; p > 0 && p < 1 {
		need := uint64(float64(p) * float64(total(order)))
		var sum uint64
		for i, t := range order {
			if sum += weight(t); sum >= need {
				order = order[:i+1]
				break
			}
		}
	}
	order = slices.DeleteFunc(order, func(t int) bool {
		return float64(weight(t)) < float64(r.p.MinP)*(1<<weightBits)
	})
	// floor(random * total / 2^64), without the trick.
	x := new(big.Int).SetUint64(philox(r.p.Seed, uint64(len(r.out))))
	x.Mul(x, new(big.Int).SetUint64(total(order)))
	n := x.Rsh(x, 64).Uint64()
	var sum uint64
	for _, t := range order {
		if sum += weight(t); sum > n {
			return int32(t)
		}
	}
	panic("the weights do not add up")
}

// genParams draws parameters for a vocabulary, each off about half of the time.
func genParams(vocab int) *rapid.Generator[Params] {
	return rapid.Custom(func(t *rapid.T) Params {
		on := func(name string) bool { return rapid.Bool().Draw(t, name) }
		var p Params
		if rapid.IntRange(0, 7).Draw(t, "sampled") > 0 {
			p.Temperature = rapid.SampledFrom([]float32{1e-3, 0.1, 0.7, 1, 1.3, 5, 100}).Draw(t, "temperature")
		}
		if on("k") {
			p.TopK = rapid.IntRange(1, vocab+1).Draw(t, "top_k")
		}
		if on("p") {
			p.TopP = rapid.SampledFrom([]float32{1e-6, 0.1, 0.5, 0.9, 0.999, 0.9999999, 1}).Draw(t, "top_p")
		}
		if on("m") {
			p.MinP = rapid.SampledFrom([]float32{1e-6, 0.05, 0.5, 1}).Draw(t, "min_p")
		}
		if on("penalties") {
			p.RepetitionPenalty = rapid.SampledFrom([]float32{0, 0.5, 1, 1.1, 2}).Draw(t, "repetition")
			p.PresencePenalty = rapid.SampledFrom([]float32{0, -2, 0.3, 2}).Draw(t, "presence")
			p.FrequencyPenalty = rapid.SampledFrom([]float32{0, -0.5, 0.1, 2}).Draw(t, "frequency")
			p.PenaltyWindow = rapid.SampledFrom([]int{0, 1, 2, 5, 64}).Draw(t, "window")
		}
		if on("bias") {
			p.LogitBias = rapid.MapOfN(rapid.Int32Range(0, int32(vocab-1)), rapid.Float32Range(-100, 100), 0, 4).Draw(t, "bias")
		}
		if on("logprobs") {
			p.Logprobs = true
			p.TopLogprobs = rapid.IntRange(0, MaxTopLogprobs).Draw(t, "top_logprobs")
		}
		p.Seed = rapid.Uint64().Draw(t, "seed")
		return p
	})
}

// genLogits fills logits from a seed: shapes with ties, steps, flat and peaked
// regions, which matter, instead of thousands of drawn numbers, which do not.
func genLogits(vocab int) *rapid.Generator[[]float32] {
	return rapid.Custom(func(t *rapid.T) []float32 {
		seed := rapid.Uint64().Draw(t, "logits")
		scale := rapid.SampledFrom([]float32{0, 0.1, 1, 8, 1000}).Draw(t, "scale")
		coarse := rapid.Bool().Draw(t, "ties")
		l := make([]float32, vocab)
		for i := range l {
			u := float32(int32(philox(seed, uint64(i)))) / (1 << 31) // -1 to 1
			if coarse {
				u = float32(math.Round(float64(u*4))) / 4
			}
			l[i] = scale * u
		}
		return l
	})
}

var vocabs = rapid.SampledFrom([]int{1, 2, 17, 100, 1500})

func TestSampleIsTheReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vocab := vocabs.Draw(t, "vocab")
		p := genParams(vocab).Draw(t, "params")
		token := rapid.Int32Range(0, int32(min(vocab, 8)-1))
		ref := reference{p: p, prompt: rapid.SliceOfN(token, 0, 8).Draw(t, "prompt")}
		s, err := New(p, vocab)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Prime(ref.prompt); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			l := genLogits(vocab).Draw(t, "logits")
			for range 3 {
				c, err := s.Sample(l)
				if err != nil {
					t.Fatal(err)
				}
				if want := ref.sample(l); c.Token != want {
					t.Fatalf("token %d at index %d, want %d", c.Token, s.Index(), want)
				}
				keep := c.Token
				if rapid.Bool().Draw(t, "forced") {
					keep = token.Draw(t, "token")
				}
				if err := s.Accept(keep); err != nil {
					t.Fatal(err)
				}
				ref.out = append(ref.out, keep)
			}
		}
	})
}

// The state can move at any point: a sampler restored from it continues
// identically, to the last byte of its own state.
func TestRestoreContinues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vocab := vocabs.Draw(t, "vocab")
		p := genParams(vocab).Draw(t, "params")
		s, err := New(p, vocab)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Prime(rapid.SliceOfN(rapid.Int32Range(0, int32(min(vocab, 8)-1)), 0, 80).Draw(t, "prompt")); err != nil {
			t.Fatal(err)
		}
		moved := s
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "move") {
				if moved, err = Restore(mustMarshal(t, moved), vocab); err != nil {
					t.Fatal(err)
				}
			}
			l := genLogits(vocab).Draw(t, "logits")
			a, errA := s.Sample(l)
			b, errB := moved.Sample(l)
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			if a.Token != b.Token || math.Float32bits(a.Logprob) != math.Float32bits(b.Logprob) || !slices.Equal(a.Top, b.Top) {
				t.Fatalf("moved sampler chose %v, the one that stayed %v", b, a)
			}
			if errA, errB = s.Accept(a.Token), moved.Accept(a.Token); errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
		}
		if got, want := mustMarshal(t, moved), mustMarshal(t, s); string(got) != string(want) {
			t.Fatalf("states differ:\n%x\n%x", got, want)
		}
	})
}

// Tokens that are given rather than sampled leave the same state and the same
// continuation behind.
func TestForcedTokensContinue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const vocab = 100
		p := genParams(vocab).Draw(t, "params")
		prompt := []int32{1, 2, 3}
		a, err := New(p, vocab)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := New(p, vocab)
		if err := a.Prime(prompt); err != nil {
			t.Fatal(err)
		}
		if err := b.Prime(prompt); err != nil {
			t.Fatal(err)
		}
		var made []int32
		for range rapid.IntRange(0, 10).Draw(t, "steps") {
			c, err := a.Sample(genLogits(vocab).Draw(t, "logits"))
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Accept(c.Token); err != nil {
				t.Fatal(err)
			}
			made = append(made, c.Token)
		}
		for _, token := range made {
			if err := b.Accept(token); err != nil {
				t.Fatal(err)
			}
		}
		if string(mustMarshal(t, a)) != string(mustMarshal(t, b)) {
			t.Fatal("states differ")
		}
		l := genLogits(vocab).Draw(t, "last")
		ca, _ := a.Sample(l)
		cb, _ := b.Sample(l)
		if ca.Token != cb.Token {
			t.Fatalf("forced sampler continues with %d, want %d", cb.Token, ca.Token)
		}
	})
}

func mustMarshal(t interface{ Fatal(...any) }, s *Sampler) []byte {
	b, err := s.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The selections against a sort, and within their budget of linear passes.
func TestSelections(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3000).Draw(t, "n")
		l := genLogits(n).Draw(t, "logits")
		keys := make([]uint64, n)
		for i := range keys {
			keys[i] = keyOf(l[i], int32(i))
		}
		sorted := slices.Clone(keys)
		slices.Sort(sorted)
		slices.Reverse(sorted)

		k := rapid.IntRange(1, n).Draw(t, "k")
		if k < n {
			got := slices.Clone(selectTop(slices.Clone(keys), k))
			slices.Sort(got)
			slices.Reverse(got)
			if !slices.Equal(got, sorted[:k]) {
				t.Fatalf("selectTop(%d of %d) is wrong", k, n)
			}
		}

		cands := make([]cand, n)
		var total uint64
		for i, key := range keys {
			cands[i] = cand{key, 1 + philox(7, uint64(i))>>40}
			total += cands[i].weight
		}
		weightOf := make(map[uint64]uint64)
		for _, c := range cands {
			weightOf[c.key] = c.weight
		}
		hi, _ := bits.Mul64(rapid.Uint64().Draw(t, "need"), total)
		need := hi + 1
		got := prefix(cands, need, byWeight)
		var want int
		for sum := uint64(0); sum < need; want++ {
			sum += weightOf[sorted[want]]
		}
		if got != want || cands[got-1].key != sorted[want-1] {
			t.Fatalf("prefix(%d of %d) = %d, want %d", need, total, got, want)
		}
		if got := prefix(cands, uint64(k), byCount); got != k || cands[k-1].key != sorted[k-1] {
			t.Fatalf("prefix(%d tokens) = %d", k, got)
		}
	})
}
