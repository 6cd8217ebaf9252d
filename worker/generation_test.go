package worker

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/sample"
	"github.com/tandem-llm/tandem/state"
)

func testVocab(t *testing.T) engine.Vocab {
	t.Helper()
	lib, err := install.Ensure(context.Background(), install.Options{})
	if err != nil {
		t.Fatal(err)
	}
	file, err := tiny.Cached(tiny.Llama)
	if err != nil {
		t.Fatal(err)
	}
	v, err := llama.OpenVocab(lib.Dir, file)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// favour returns logits whose largest is the wanted token's.
func favour(v engine.Vocab, want engine.Token) []float32 {
	l := make([]float32, v.Size())
	l[want] = 10
	return l
}

// byteTokens maps bytes to the vocabulary's token of that single byte.
func byteTokens(t *testing.T, v engine.Vocab, s string) []int32 {
	t.Helper()
	var out []int32
	for i := range len(s) {
		id := int32(0)
		for ; int(id) < v.Size(); id++ {
			if p := v.Piece(id); len(p) == 1 && p[0] == s[i] {
				break
			}
		}
		if int(id) == v.Size() {
			t.Fatalf("no token for byte %d", s[i])
		}
		out = append(out, id)
	}
	return out
}

func TestGenerationEnds(t *testing.T) {
	v := testVocab(t)
	abc := byteTokens(t, v, "abcdef")
	for _, c := range []struct {
		name    string
		params  state.Generation
		feed    []int32
		context int
		want    []finish
	}{
		{"at the token limit", state.Generation{MaxTokens: 3}, abc[:3], 100, []finish{finishNone, finishNone, finishLength}},
		{"on the first token", state.Generation{MaxTokens: 1}, abc[:1], 100, []finish{finishLength}},
		{"on end of generation", state.Generation{MaxTokens: 9}, []int32{abc[0], v.EOS()}, 100, []finish{finishNone, finishStop}},
		{"not before the least number of tokens", state.Generation{MaxTokens: 9, MinTokens: 2}, []int32{v.EOS(), abc[0], v.EOS()}, 100, []finish{finishNone, finishNone, finishStop}},
		{"not on end of generation when that is ignored", state.Generation{MaxTokens: 2, IgnoreEOS: true}, []int32{v.EOS(), v.EOS()}, 100, []finish{finishNone, finishLength}},
		{"on a stop string across tokens", state.Generation{MaxTokens: 9, Stop: []string{"cd"}}, abc[:4], 100, []finish{finishNone, finishNone, finishNone, finishStop}},
		{"at the end of the context", state.Generation{MaxTokens: 99}, abc[:3], 5, []finish{finishNone, finishNone, finishLength}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := newGeneration(v, c.params, sample.Params{}, byteTokens(t, v, "xyz"), 0, c.context)
			if err != nil {
				t.Fatal(err)
			}
			for i, id := range c.feed {
				tok, err := g.next(favour(v, id))
				if err != nil {
					t.Fatal(err)
				}
				if tok.id != id || tok.index != i || tok.finish != c.want[i] {
					t.Errorf("token %d: id right %v, index %d, finish %q, want finish %q", i, tok.id == id, tok.index, tok.finish, c.want[i])
				}
			}
		})
	}
}

// TestGenerationContinuesAfterForcedTokens: an answer that is continued with
// tokens given by an earlier attempt is in the same state as one that sampled
// them, stop strings included.
func TestGenerationContinuesAfterForcedTokens(t *testing.T) {
	v := testVocab(t)
	p := sample.Params{Temperature: 0.8, Seed: 5, RepetitionPenalty: 1.2, FrequencyPenalty: 0.2}
	params := state.Generation{MaxTokens: 50, Stop: []string{"ab"}}
	prompt := byteTokens(t, v, "prompt")
	whole, err := newGeneration(v, params, p, slices.Clone(prompt), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	flat := make([]float32, v.Size())
	for i := range flat {
		flat[i] = float32(math.Sin(float64(i)))
	}
	for range 10 {
		if _, err := whole.next(flat); err != nil {
			t.Fatal(err)
		}
	}
	// "a" is the beginning of the stop string: what is held back moves too.
	if _, err := whole.next(favour(v, byteTokens(t, v, "a")[0])); err != nil {
		t.Fatal(err)
	}
	forced, err := newGeneration(v, params, p, slices.Clone(whole.history), whole.emitted(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	sampler, err := whole.sampler.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	restored, err := restoreGeneration(v, &state.Manifest{
		Generation: params, Sampler: sampler, History: slices.Clone(whole.history), Usage: state.Usage{Prompt: uint32(len(prompt))},
	}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		logits := flat
		if i == 19 {
			logits = favour(v, byteTokens(t, v, "b")[0])
		}
		want, err := whole.next(logits)
		if err != nil {
			t.Fatal(err)
		}
		for name, g := range map[string]*generation{"forced": forced, "restored": restored} {
			got, err := g.next(logits)
			if err != nil {
				t.Fatal(err)
			}
			if got.id != want.id || got.index != want.index || got.finish != want.finish {
				t.Fatalf("%s generation diverges at step %d", name, i)
			}
		}
	}
}

func TestGenerationRefusesNonsense(t *testing.T) {
	v := testVocab(t)
	for name, call := range map[string]func() error{
		"all tokens forced": func() error {
			_, err := newGeneration(v, state.Generation{MaxTokens: 5}, sample.Params{}, []int32{1, 2}, 2, 100)
			return err
		},
		"token outside the vocabulary": func() error {
			_, err := newGeneration(v, state.Generation{MaxTokens: 5}, sample.Params{}, []int32{1, int32(v.Size())}, 0, 100)
			return err
		},
		"negative token": func() error {
			_, err := newGeneration(v, state.Generation{MaxTokens: 5}, sample.Params{}, []int32{-1}, 0, 100)
			return err
		},
		"empty stop string": func() error {
			_, err := newGeneration(v, state.Generation{MaxTokens: 5, Stop: []string{""}}, sample.Params{}, []int32{1}, 0, 100)
			return err
		},
		"prompt longer than the history": func() error {
			s, _ := sample.New(sample.Params{}, v.Size())
			b, _ := s.MarshalBinary()
			_, err := restoreGeneration(v, &state.Manifest{Sampler: b, History: []int32{1, 2}, Usage: state.Usage{Prompt: 3}}, 100)
			return err
		},
		"hostile sampler state": func() error {
			_, err := restoreGeneration(v, &state.Manifest{Sampler: []byte("no sampler"), History: []int32{1, 2}, Usage: state.Usage{Prompt: 1}}, 100)
			return err
		},
	} {
		if call() == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
