package soak

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/model/tiny"
)

func openTiny(t *testing.T) engine.Engine {
	t.Helper()
	lib, err := install.Ensure(t.Context(), install.Options{})
	if err != nil {
		t.Fatal(err)
	}
	file, err := tiny.Cached(tiny.NemotronHMoE)
	if err != nil {
		t.Fatal(err)
	}
	e, err := llama.Open(llama.Options{Lib: lib.Dir, Model: file, Slots: 3, Cells: 3072, BatchTokens: 64, UBatch: 64, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// generate answers a request alone.
func generate(t *testing.T, r *reference, q *Request) []int32 {
	t.Helper()
	var out []int32
	row, err := r.extend(0, 0, q.Prompt)
	for err == nil && len(out) < q.Max {
		var logits []float32
		if logits, err = r.eng.Logits(row); err != nil {
			break
		}
		best, _ := twoBest(logits)
		out = append(out, best)
		row, err = r.extend(0, len(q.Prompt)+len(out)-1, out[len(out)-1:])
	}
	if err == nil {
		err = r.eng.Drop(0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestReferenceFindsAWrongToken: the reference agrees with its own answer, finds a planted
// token and no other, and what batching makes of the answer does not explain it.
func TestReferenceFindsAWrongToken(t *testing.T) {
	eng, crowd := openTiny(t), openTiny(t)
	g := NewGenerator(1, Shape{Vocab: []int32{65, 66, 67, 68, 69, 70, 71, 72}, Page: 64, Context: 1024})
	noise, err := measureNoise(t.Context(), eng, crowd, 64, g, noiseSize{rounds: 1, steps: 40})
	if err != nil {
		t.Fatal(err)
	}
	if noise.Bound <= 0 || noise.Bound > noise.Margin || noise.Max < noise.Usual || noise.Steps == 0 {
		t.Errorf("noise %+v: it decides nothing", noise)
	}
	ref, ctl := newReference(eng, 64), newControl(newReference(crowd, 64), g, noise.Bound)
	ctl.tries = 6
	q := &Request{Prompt: g.tokens(g.rng(saltRequest, 1), nil, 150), Max: 20}
	answer := generate(t, ref, q)
	v, err := ref.follow(q, answer, 0)
	if err != nil || v.first >= 0 || v.gap != 0 || len(v.far) > 0 {
		t.Fatalf("its own answer: %+v, %v", v, err)
	}
	for _, at := range []int{0, 7, 19} {
		wrong := slices.Clone(answer)
		wrong[at] = 300 // far from what the model says
		v, err := ref.follow(q, wrong[:at+1], noise.Bound)
		if err != nil || v.first != at || v.at != at || !slices.Equal(v.far, []int{at}) {
			t.Fatalf("token %d is wrong: %+v, %v", at, v, err)
		}
		left, err := ctl.explain(t.Context(), q, wrong[:at+1], v.far)
		if err != nil || !slices.Equal(left, v.far) {
			t.Errorf("token %d is wrong and explained: %v, %v", at, left, err)
		}
	}
	if left, err := ctl.explain(t.Context(), q, answer, []int{0, 7, 19}); err != nil || len(left) > 0 {
		t.Errorf("tokens %v of the right answer are not explained, %v", left, err)
	}
	if _, err := ref.follow(q, []int32{-1}, 0); err == nil {
		t.Error("a token that is none was followed")
	}
	for slot := range int32(3) {
		if eng.Tokens(slot)+crowd.Tokens(slot) > 0 {
			t.Errorf("slot %d is not empty", slot)
		}
	}
}

// TestReferenceDraws: an answer that was drawn at random is drawn again.
func TestReferenceDraws(t *testing.T) {
	ref := newReference(openTiny(t), 64)
	q := &Request{Prompt: []int32{65, 66, 67}, Max: 8}
	answer := generate(t, ref, q)
	q.Sampling = sampling(NewGenerator(1, Shape{}).rng(saltRequest, 1))
	v, err := ref.follow(q, answer, 0)
	if err != nil || v.first < 0 {
		t.Errorf("drawing with a seed gives the greedy answer: %+v, %v", v, err)
	}
}
