package timed

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestDrawsHaveTheExpectedMean(t *testing.T) {
	for _, s := range []*Speculation{
		{Kind: MTP, Draft: 1, Accept: []float64{0.85}},
		{Kind: MTP, Draft: 3, Accept: []float64{0.9, 0.7, 0.5}},
		{Kind: MTP, Draft: 5, Accept: []float64{0.6}},
		{Kind: Suffix, Draft: 16, Accept: []float64{0.8}, Hit: 0.4},
		{Kind: Suffix, Draft: 4, Accept: []float64{0}},
		{Kind: Suffix, Draft: 4, Accept: []float64{1}},
	} {
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		total, proposed := 0, 0
		const requests, steps = 200, 500
		for r := range uint64(requests) {
			for i := range uint64(steps) {
				drafted, tokens := s.Draw(7, r, i)
				if tokens < 1 || tokens > drafted+1 {
					t.Fatalf("%d tokens of %d drafted", tokens, drafted)
				}
				total += tokens
				proposed += drafted
			}
		}
		near(t, "tokens a step", float64(total)/(requests*steps), s.Expected(), 0.01)
		near(t, "tokens drafted", float64(proposed)/(requests*steps), float64(s.Draft)*s.hit(), 0.01)
	}
}

func TestDrawsAreDeterministicAndIndependent(t *testing.T) {
	s := &Speculation{Kind: Suffix, Draft: 8, Accept: []float64{0.7}, Hit: 0.5}
	// These are part of every report with speculation: they must never change.
	var first []int
	for i := range uint64(12) {
		_, tokens := s.Draw(1, 2, i)
		first = append(first, tokens)
	}
	if got, want := first, []int{2, 1, 1, 1, 3, 1, 5, 1, 2, 8, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("request 2 of seed 1 yields %v, want %v", got, want)
	}
	differ := func(a, b [3]uint64) bool {
		for i := range uint64(64) {
			_, x := s.Draw(a[0], a[1], a[2]+i)
			_, y := s.Draw(b[0], b[1], b[2]+i)
			if x != y {
				return true
			}
		}
		return false
	}
	rapid.Check(t, func(t *rapid.T) {
		seed, request := rapid.Uint64().Draw(t, "seed"), rapid.Uint64().Draw(t, "request")
		if !differ([3]uint64{seed, request}, [3]uint64{seed + 1, request}) ||
			!differ([3]uint64{seed, request}, [3]uint64{seed, request + 1}) ||
			!differ([3]uint64{seed, request}, [3]uint64{seed, request, 1}) {
			t.Fatal("two sequences of draws are the same")
		}
	})
}

func TestSpeculationRefusesNonsense(t *testing.T) {
	for name, s := range map[string]Speculation{
		"no kind":            {Draft: 1, Accept: []float64{0.5}},
		"nothing drafted":    {Kind: MTP, Accept: []float64{0.5}},
		"no probability":     {Kind: MTP, Draft: 1},
		"a probability of 2": {Kind: MTP, Draft: 1, Accept: []float64{2}},
		"hits of MTP":        {Kind: MTP, Draft: 1, Accept: []float64{0.5}, Hit: 0.5},
	} {
		if _, err := NewFixed(Fixed{DecodeMS: 1}, Common{Speculation: &s}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
