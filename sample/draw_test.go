package sample

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The weights of the very unlikely: down to one unit, then nothing.
func TestWeigh(t *testing.T) {
	x := []float32{0, -1, -30.4, -31, -31.3, -1000}
	keys := make([]uint64, len(x))
	for i, v := range x {
		keys[i] = keyOf(v, int32(i))
	}
	var w Workspace
	w.grow(len(keys))
	total, drawable := w.weigh(keys, 1)
	want := []uint64{1 << weightBits, 6471803571004, 1, 1, 0, 0} // 2^44 e^x, rounded
	if diff := cmp.Diff(want, w.weights); diff != "" {
		t.Errorf("weights (-want +got):\n%s", diff)
	}
	if sum := want[0] + want[1] + want[2] + want[3]; total != sum || drawable != 4 {
		t.Errorf("total %d of %d tokens, want %d of 4", total, drawable, sum)
	}
}

// Every unit of weight belongs to the right token, borders included.
func TestReach(t *testing.T) {
	keys := []uint64{keyOf(0, 2), keyOf(-30.4, 0), keyOf(0, 1), keyOf(-31, 3)}
	var w Workspace
	w.grow(len(keys))
	w.weigh(keys, 1)
	const one = 1 << weightBits
	tests := []struct {
		need  uint64
		count bool
		token int32
		mass  uint64
	}{
		{1, byWeight, 1, one},
		{one, byWeight, 1, one},
		{one + 1, byWeight, 2, 2 * one},
		{2 * one, byWeight, 2, 2 * one},
		{2*one + 1, byWeight, 0, 2*one + 1},
		{2*one + 2, byWeight, 3, 2*one + 2},
		{1, byCount, 1, one},
		{2, byCount, 2, 2 * one},
		{3, byCount, 0, 2*one + 1},
		{4, byCount, 3, 2*one + 2},
	}
	for _, tt := range tests {
		key, mass := w.reach(tt.need, tt.count)
		if keyToken(key) != tt.token || mass != tt.mass {
			t.Errorf("reach(%d, %v) = token %d, mass %d; want %d, %d", tt.need, tt.count, keyToken(key), mass, tt.token, tt.mass)
		}
	}
}

// A top-k too large for the heap that leaves out just one drawable token.
func TestLargeTopK(t *testing.T) {
	logits := make([]float32, smallK+2)
	logits[7] = -0.01
	for seed := range uint64(3000) {
		c, err := mustNew(t, Params{Temperature: 1, TopK: smallK + 1, Seed: seed}, len(logits)).Sample(logits)
		if err != nil {
			t.Fatal(err)
		}
		if c.Token == 7 {
			t.Fatalf("seed %d draws the token that top-k leaves out", seed)
		}
	}
}

// Of tokens that tie for the last place the lower ids are reported.
func TestTopTokensTie(t *testing.T) {
	c, err := mustNew(t, Params{Logprobs: true, TopLogprobs: 2}, 4).Sample([]float32{1, 2, 1, 1})
	if err != nil {
		t.Fatal(err)
	}
	if c.Top[0].Token != 1 || c.Top[1].Token != 0 {
		t.Errorf("top tokens %v", c.Top)
	}
}
