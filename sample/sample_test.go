package sample

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustNew(t testing.TB, p Params, vocab int) *Sampler {
	t.Helper()
	s, err := New(p, vocab)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The known-answer tests of the Random123 distribution.
func TestPhiloxKnownAnswers(t *testing.T) {
	const ones = 0xffffffff
	tests := []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{ones, ones, ones, ones}, [2]uint32{ones, ones}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	}
	for _, tt := range tests {
		if got := philox4x32(tt.counter, tt.key); got != tt.want {
			t.Errorf("philox4x32(%x, %x) = %x, want %x", tt.counter, tt.key, got, tt.want)
		}
	}
}

func TestExp(t *testing.T) {
	if exp(0) != 1 {
		t.Errorf("exp(0) = %v", exp(0))
	}
	worst := 0.0
	for i := range 200_000 {
		x := -float64(i) * 0.00349999
		want := math.Exp(x)
		if d := math.Abs(exp(x)-want) / want; d > worst {
			worst = d
		}
	}
	if worst > 1e-12 {
		t.Errorf("relative error %g", worst)
	}
	for _, x := range []float64{-701, -1e300, math.Inf(-1)} {
		if exp(x) != 0 {
			t.Errorf("exp(%g) = %g", x, exp(x))
		}
	}
}

func TestKeyOrder(t *testing.T) {
	logits := []float32{-math.MaxFloat32, -1, -math.SmallestNonzeroFloat32, 0, math.SmallestNonzeroFloat32, 1, math.MaxFloat32}
	for i, a := range logits {
		if k := keyOf(a, 5); keyLogit(k) != a || keyToken(k) != 5 {
			t.Errorf("key of %g, 5 reads %g, %d", a, keyLogit(k), keyToken(k))
		}
		if i > 0 && keyOf(logits[i-1], 0) >= keyOf(a, 9) {
			t.Errorf("%g does not order before %g", a, logits[i-1])
		}
		if keyOf(a, 1) <= keyOf(a, 2) {
			t.Errorf("at %g, token 1 does not order before token 2", a)
		}
	}
	if keyOf(float32(math.Copysign(0, -1)), 1) != keyOf(0, 1) {
		t.Error("-0 and 0 have different keys")
	}
}

func TestGreedy(t *testing.T) {
	tests := []struct {
		name   string
		p      Params
		prompt []int32
		made   []int32
		logits []float32
		want   int32
	}{
		{"largest", Params{}, nil, nil, []float32{1, 3, 2}, 1},
		{"lowest id on ties", Params{}, nil, nil, []float32{1, 3, 3, 3}, 1},
		{"all equal", Params{}, nil, nil, []float32{-2, -2}, 0},
		{"truncation does not matter", Params{TopK: 1, TopP: 0.1, MinP: 1}, nil, nil, []float32{1, 3, 2}, 1},
		{"bias up", Params{LogitBias: map[int32]float32{0: 2.5}}, nil, nil, []float32{1, 3, 2}, 0},
		{"bias bans", Params{LogitBias: map[int32]float32{1: -100}}, nil, nil, []float32{1, 3, 2}, 2},
		{"bias makes a tie", Params{LogitBias: map[int32]float32{0: 2}}, nil, nil, []float32{1, 3, 2}, 0},
		{"repetition divides positive", Params{RepetitionPenalty: 2}, nil, []int32{1}, []float32{1, 3, 2}, 2},
		{"repetition multiplies negative", Params{RepetitionPenalty: 2}, nil, []int32{0}, []float32{-1, -1.5}, 1},
		{"repetition counts the prompt", Params{RepetitionPenalty: 2}, []int32{1}, nil, []float32{1, 3, 2}, 2},
		{"repetition does not count how often", Params{RepetitionPenalty: 1.2}, nil, []int32{1, 1, 1}, []float32{1, 3, 2}, 1},
		{"presence once", Params{PresencePenalty: 0.9}, nil, []int32{1, 1}, []float32{1, 3, 2}, 1},
		{"presence", Params{PresencePenalty: 1.1}, nil, []int32{1}, []float32{1, 3, 2}, 2},
		{"presence does not count the prompt", Params{PresencePenalty: 1.1}, []int32{1}, nil, []float32{1, 3, 2}, 1},
		{"negative presence attracts", Params{PresencePenalty: -1.1}, nil, []int32{2}, []float32{1, 3, 2}, 2},
		{"frequency once is not enough", Params{FrequencyPenalty: 0.6}, nil, []int32{1}, []float32{1, 3, 2}, 1},
		{"frequency twice is", Params{FrequencyPenalty: 0.6}, nil, []int32{1, 1}, []float32{1, 3, 2}, 2},
		{"frequency does not count the prompt", Params{FrequencyPenalty: 0.6}, []int32{1, 1}, nil, []float32{1, 3, 2}, 1},
		{"what left the window is forgotten", Params{FrequencyPenalty: 2, PenaltyWindow: 2}, nil, []int32{1, 0, 0}, []float32{1, 3, 2}, 1},
		{"what is in the window is not", Params{FrequencyPenalty: 2, PenaltyWindow: 3}, nil, []int32{1, 0, 0}, []float32{1, 3, 2}, 2},
		{"bias comes after the penalties", Params{RepetitionPenalty: 2, LogitBias: map[int32]float32{0: 2}}, nil, []int32{0}, []float32{2, 2.9}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := mustNew(t, tt.p, len(tt.logits))
			if err := s.Prime(tt.prompt); err != nil {
				t.Fatal(err)
			}
			for _, m := range tt.made {
				if err := s.Accept(m); err != nil {
					t.Fatal(err)
				}
			}
			in := slices.Clone(tt.logits)
			c, err := s.Sample(tt.logits)
			if err != nil {
				t.Fatal(err)
			}
			if c.Token != tt.want {
				t.Errorf("token %d, want %d", c.Token, tt.want)
			}
			if !slices.Equal(in, tt.logits) {
				t.Error("Sample modified the logits")
			}
			if !math.IsNaN(float64(c.Logprob)) || c.Top != nil {
				t.Errorf("log-probabilities %v, %v nobody asked for", c.Logprob, c.Top)
			}
		})
	}
}

// support returns the tokens that are drawn at all, over many seeds.
func support(t *testing.T, p Params, logits []float32) []int32 {
	t.Helper()
	seen := map[int32]bool{}
	for p.Seed = range 2000 {
		c, err := mustNew(t, p, len(logits)).Sample(logits)
		if err != nil {
			t.Fatal(err)
		}
		seen[c.Token] = true
	}
	out := []int32{}
	for id := range int32(len(logits)) {
		if seen[id] {
			out = append(out, id)
		}
	}
	return out
}

func TestTruncation(t *testing.T) {
	// Probabilities 0.1, 0.4, 0.2, 0.3.
	logits := []float32{lnf(0.1), lnf(0.4), lnf(0.2), lnf(0.3)}
	tests := []struct {
		name string
		p    Params
		want []int32
	}{
		{"all", Params{}, []int32{0, 1, 2, 3}},
		{"top-k above the vocabulary", Params{TopK: 9}, []int32{0, 1, 2, 3}},
		{"top-k 2", Params{TopK: 2}, []int32{1, 3}},
		{"top-k 1", Params{TopK: 1}, []int32{1}},
		{"top-p reached exactly is enough", Params{TopP: 0.7 - 1e-6}, []int32{1, 3}},
		{"top-p just beyond takes one more", Params{TopP: 0.7 + 1e-6}, []int32{1, 2, 3}},
		{"tiny top-p keeps the likeliest", Params{TopP: 1e-9}, []int32{1}},
		{"top-p 1 is off", Params{TopP: 1}, []int32{0, 1, 2, 3}},
		{"top-p is of what top-k kept", Params{TopK: 2, TopP: 0.5}, []int32{1}}, // 0.4/0.7 > 0.5
		{"min-p", Params{MinP: 0.5 - 1e-6}, []int32{1, 2, 3}},
		{"min-p a little more", Params{MinP: 0.5 + 1e-6}, []int32{1, 3}},
		{"min-p 1", Params{MinP: 1}, []int32{1}},
		{"all three", Params{TopK: 3, TopP: 0.9, MinP: 0.6}, []int32{1, 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.p.Temperature = 1
			if diff := cmp.Diff(tt.want, support(t, tt.p, logits)); diff != "" {
				t.Errorf("tokens drawn (-want +got):\n%s", diff)
			}
		})
	}
	// Temperature 2 flattens the distribution to about .16 .32 .23 .28, so the
	// same top-p needs one token more: truncation looks at what is sampled from.
	if diff := cmp.Diff([]int32{1, 2, 3}, support(t, Params{Temperature: 2, TopP: 0.65}, logits)); diff != "" {
		t.Errorf("temperature before top-p (-want +got):\n%s", diff)
	}
	// Ties at the border go to lower ids.
	if diff := cmp.Diff([]int32{0, 1}, support(t, Params{Temperature: 1, TopK: 2}, []float32{5, 5, 5, 5})); diff != "" {
		t.Errorf("ties (-want +got):\n%s", diff)
	}
}

func lnf(p float64) float32 { return float32(math.Log(p)) }

// Draws follow the distribution: a chi-squared statistic over fixed seeds, so
// the outcome is fixed too.
func TestDistribution(t *testing.T) {
	logits := []float32{-1, 0, 2, 1.5, 0.25, -3, 2, 0.5}
	for _, temperature := range []float32{0.5, 1, 2} {
		for _, vary := range []string{"seed", "index"} {
			const draws = 20_000
			counts := make([]float64, len(logits))
			s := mustNew(t, Params{Temperature: temperature, Seed: 42}, len(logits))
			for i := range uint64(draws) {
				if vary == "seed" {
					s.p.Seed = i
				} else {
					s.index = i
				}
				c, err := s.Sample(logits)
				if err != nil {
					t.Fatal(err)
				}
				counts[c.Token]++
			}
			var sum, chi2 float64
			for _, l := range logits {
				sum += math.Exp(float64(l / temperature))
			}
			for i, l := range logits {
				want := draws * math.Exp(float64(l/temperature)) / sum
				chi2 += (counts[i] - want) * (counts[i] - want) / want
			}
			// Seven degrees of freedom: 24.3 is exceeded once in a thousand.
			if chi2 > 24.3 {
				t.Errorf("temperature %g over %s: chi squared %.1f, counts %v", temperature, vary, chi2, counts)
			}
		}
	}
}

// Sampling is a promise about later builds too: these are the tokens of the
// first one.
func TestGoldenSequence(t *testing.T) {
	const vocab = 1000
	logits := make([]float32, vocab)
	s := mustNew(t, Params{Temperature: 0.9, TopK: 200, TopP: 0.95, MinP: 0.001, Seed: 1234567, FrequencyPenalty: 0.5, RepetitionPenalty: 1.1}, vocab)
	if err := s.Prime([]int32{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	var got []int32
	for step := range 16 {
		for i := range logits {
			logits[i] = float32(philox(uint64(step), uint64(i))>>40) / (1 << 21) // 0 to 8
		}
		c, err := s.Sample(logits)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Accept(c.Token); err != nil {
			t.Fatal(err)
		}
		got = append(got, c.Token)
	}
	want := []int32{169, 355, 521, 482, 962, 979, 409, 588, 451, 224, 134, 143, 471, 11, 695, 519}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
}

func TestLogprobs(t *testing.T) {
	logits := []float32{1, 4, 2, 4, -3}
	lse := 0.0
	for _, l := range logits {
		lse += math.Exp(float64(l))
	}
	lse = math.Log(lse)
	// Everything that changes the choice is on; none of it may show.
	p := Params{Temperature: 0.5, TopK: 2, RepetitionPenalty: 2, LogitBias: map[int32]float32{4: 100}, Logprobs: true, TopLogprobs: 3}
	s := mustNew(t, p, len(logits))
	if err := s.Prime([]int32{1}); err != nil {
		t.Fatal(err)
	}
	c, err := s.Sample(logits)
	if err != nil {
		t.Fatal(err)
	}
	if c.Token != 4 {
		t.Fatalf("token %d, want the biased one", c.Token)
	}
	near := func(got float32, logit float64) bool { return math.Abs(float64(got)-(logit-lse)) < 1e-6 }
	if !near(c.Logprob, -3) {
		t.Errorf("log-probability %v, want %v", c.Logprob, -3-lse)
	}
	if len(c.Top) != 3 || c.Top[0].Token != 1 || c.Top[1].Token != 3 || c.Top[2].Token != 2 ||
		!near(c.Top[0].Logprob, 4) || !near(c.Top[1].Logprob, 4) || !near(c.Top[2].Logprob, 2) {
		t.Errorf("top tokens %v", c.Top)
	}

	// Greedy takes another path.
	c, err = mustNew(t, Params{Logprobs: true, TopLogprobs: MaxTopLogprobs}, len(logits)).Sample(logits)
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for i, top := range c.Top {
		sum += math.Exp(float64(top.Logprob))
		if i > 0 && top.Logprob > c.Top[i-1].Logprob {
			t.Errorf("top tokens out of order: %v", c.Top)
		}
	}
	if len(c.Top) != len(logits) || math.Abs(sum-1) > 1e-6 || c.Logprob != c.Top[0].Logprob {
		t.Errorf("top tokens of the whole vocabulary: %v, probability %g", c.Top, sum)
	}
}

func TestBadLogits(t *testing.T) {
	for _, p := range []Params{{}, {Temperature: 1, Logprobs: true}} {
		s := mustNew(t, p, 3)
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			for at := range 3 {
				l := []float32{1, 2, 3}
				l[at] = float32(bad)
				if _, err := s.Sample(l); !errors.Is(err, ErrLogits) {
					t.Errorf("%v at %d: error %v, want ErrLogits", bad, at, err)
				}
			}
		}
		for _, n := range []int{0, 2, 4} {
			if _, err := s.Sample(make([]float32, n)); !errors.Is(err, ErrLogits) {
				t.Errorf("%d logits of 3: error %v, want ErrLogits", n, err)
			}
		}
	}
	// The largest finite ones are fine, even where penalties overflow.
	s := mustNew(t, Params{Temperature: 1, RepetitionPenalty: 2, FrequencyPenalty: 2}, 3)
	if err := s.Accept(0); err != nil {
		t.Fatal(err)
	}
	c, err := s.Sample([]float32{-math.MaxFloat32, math.MaxFloat32, 0})
	if err != nil || c.Token != 1 {
		t.Errorf("extreme logits: token %d, error %v", c.Token, err)
	}
}

func TestBadTokens(t *testing.T) {
	for _, p := range []Params{{}, {RepetitionPenalty: 2}, {RepetitionPenalty: 2, PenaltyWindow: 2}} {
		s := mustNew(t, p, 1000)
		before := string(mustMarshal(t, s))
		for _, bad := range []int32{-1, 1000, math.MaxInt32, math.MinInt32} {
			if err := s.Accept(bad); !errors.Is(err, ErrToken) {
				t.Errorf("Accept: error %v, want ErrToken", err)
			}
			if err := s.Prime([]int32{7, bad}); !errors.Is(err, ErrToken) {
				t.Errorf("Prime: error %v, want ErrToken", err)
			}
		}
		if string(mustMarshal(t, s)) != before {
			t.Error("a refused token changed the state")
		}
		if err := s.Accept(0); err != nil {
			t.Fatal(err)
		}
		if err := s.Prime([]int32{1}); !errors.Is(err, ErrState) {
			t.Errorf("Prime after Accept: error %v, want ErrState", err)
		}
	}
}

func TestValidate(t *testing.T) {
	nan := float32(math.NaN())
	many := map[int32]float32{}
	for i := range int32(MaxBiases + 1) {
		many[i] = 1
	}
	tests := []struct {
		names string // what the message must name
		p     Params
	}{
		{"temperature", Params{Temperature: -0.1}},
		{"temperature", Params{Temperature: nan}},
		{"temperature", Params{Temperature: float32(math.Inf(1))}},
		{"top_k", Params{TopK: -1}},
		{"top_p", Params{TopP: 1.5}},
		{"top_p", Params{TopP: nan}},
		{"min_p", Params{MinP: -1}},
		{"repetition_penalty", Params{RepetitionPenalty: -1}},
		{"repetition_penalty", Params{RepetitionPenalty: nan}},
		{"repetition_penalty", Params{RepetitionPenalty: 101}},
		{"presence_penalty", Params{PresencePenalty: 2.5}},
		{"frequency_penalty", Params{FrequencyPenalty: -2.5}},
		{"window", Params{PenaltyWindow: -1}},
		{"window", Params{PenaltyWindow: MaxWindow + 1}},
		{"logit_bias", Params{LogitBias: map[int32]float32{54321: 1}}},
		{"logit_bias", Params{LogitBias: map[int32]float32{-54321: 1}}},
		{"logit_bias", Params{LogitBias: map[int32]float32{4321: 101}}},
		{"logit_bias", Params{LogitBias: map[int32]float32{4321: nan}}},
		{"logit_bias", Params{LogitBias: many}},
		{"top_logprobs", Params{TopLogprobs: 1}},
		{"top_logprobs", Params{Logprobs: true, TopLogprobs: 21}},
	}
	for _, tt := range tests {
		_, err := New(tt.p, 5000)
		if !errors.Is(err, ErrParams) || !strings.Contains(err.Error(), tt.names) {
			t.Errorf("%+v: error %v, want ErrParams naming %s", tt.p, err, tt.names)
		} else if strings.Contains(err.Error(), "4321") {
			t.Errorf("the error names a token: %v", err)
		}
	}
	for _, vocab := range []int{-1, 0, MaxVocab + 1} {
		if _, err := New(Params{}, vocab); !errors.Is(err, ErrParams) {
			t.Errorf("vocabulary of %d: error %v, want ErrParams", vocab, err)
		}
	}
	full := Params{
		Temperature: MaxTemperature, TopK: math.MaxInt32, TopP: 1, MinP: 1, RepetitionPenalty: MaxRepetition,
		PresencePenalty: -MaxPenalty, FrequencyPenalty: MaxPenalty, PenaltyWindow: MaxWindow,
		LogitBias: map[int32]float32{0: -MaxBias, 4999: MaxBias}, Logprobs: true, TopLogprobs: MaxTopLogprobs,
	}
	if _, err := New(full, 5000); err != nil {
		t.Errorf("everything at its limit: %v", err)
	}
}

func TestParamsRoundTrip(t *testing.T) {
	p := Params{Temperature: 1, LogitBias: map[int32]float32{3: 1, 1: -1}, Seed: 9}
	s := mustNew(t, p, 10)
	p.LogitBias[3] = 50 // the sampler must not notice
	if got := s.Params(); got.LogitBias[3] != 1 || got.LogitBias[1] != -1 || got.Seed != 9 || s.Vocab() != 10 {
		t.Errorf("Params() = %+v", got)
	}
}

// One workspace serves many samplers without changing what any of them does,
// and remembers nothing when told so.
func TestSharedWorkspace(t *testing.T) {
	var w Workspace
	logits := []float32{1, 2, 3, 2.5, 1.5}
	for seed := range uint64(50) {
		p := Params{Temperature: 1.5, TopP: 0.9, Seed: seed}
		own, shared := mustNew(t, p, 5), mustNew(t, p, 5)
		shared.Use(&w)
		a, _ := own.Sample(logits)
		b, _ := shared.Sample(logits)
		if a.Token != b.Token {
			t.Fatalf("seed %d: %d with a workspace of its own, %d with a shared one", seed, a.Token, b.Token)
		}
	}
	w.Clear()
	left := slices.Concat(w.keys[:cap(w.keys)], w.weights[:cap(w.weights)], w.mass[:])
	for _, b := range w.buckets[:cap(w.buckets)] {
		left = append(left, uint64(b))
	}
	for _, c := range w.cands[:cap(w.cands)] {
		left = append(left, c.key, c.weight)
	}
	for _, v := range left {
		if v != 0 {
			t.Fatal("Clear left something")
		}
	}
}
