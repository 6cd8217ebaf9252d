package sample

import (
	"fmt"
	"math"
	"testing"
)

// benchParams are the parameters whose cost differs.
var benchParams = []struct {
	name string
	p    Params
}{
	{"greedy", Params{}},
	{"greedy+logprobs20", Params{Logprobs: true, TopLogprobs: 20}},
	{"temperature", Params{Temperature: 0.8}},
	{"top-k=40", Params{Temperature: 0.8, TopK: 40}},
	{"top-k=1000", Params{Temperature: 0.8, TopK: 1000}},
	{"top-p=0.95", Params{Temperature: 0.8, TopP: 0.95}},
	{"min-p=0.05", Params{Temperature: 0.8, MinP: 0.05}},
	{"everything", Params{Temperature: 0.8, TopK: 1000, TopP: 0.95, MinP: 0.05, RepetitionPenalty: 1.1, FrequencyPenalty: 0.1, PenaltyWindow: 256, LogitBias: map[int32]float32{5: 1}, Logprobs: true, TopLogprobs: 20}},
}

func TestSampleDoesNotAllocate(t *testing.T) {
	const vocab = 2000
	logits := benchLogits(vocab, 4)
	for _, bp := range benchParams {
		s := mustNew(t, bp.p, vocab)
		step := func() {
			c, err := s.Sample(logits)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Accept((c.Token + int32(s.index)) % vocab); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 * 256 { // fill the window
			step()
		}
		if n := testing.AllocsPerRun(50, step); n != 0 {
			t.Errorf("%s: %v allocations per token", bp.name, n)
		}
	}
}

// benchLogits are normally distributed with the given deviation, as those of
// models are in the bulk; a deviation of 3 to 4 has a nucleus of hundreds.
func benchLogits(n int, deviation float64) []float32 {
	l := make([]float32, n)
	for i := range l {
		u := float64(philox(1, uint64(i))>>11)/(1<<53) + 1e-18
		v := float64(philox(2, uint64(i))>>11) / (1 << 53)
		l[i] = float32(deviation * math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*v))
	}
	return l
}

func BenchmarkSample(b *testing.B) {
	const vocab = 131_072
	for _, deviation := range []float64{0.5, 3} {
		logits := benchLogits(vocab, deviation)
		for _, bp := range benchParams {
			b.Run(fmt.Sprintf("deviation=%g/%s", deviation, bp.name), func(b *testing.B) {
				s := mustNew(b, bp.p, vocab)
				b.ReportAllocs()
				for b.Loop() {
					c, err := s.Sample(logits)
					if err != nil {
						b.Fatal(err)
					}
					if err := s.Accept(c.Token); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
