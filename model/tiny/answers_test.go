package tiny_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/model/tiny"
)

const (
	answers  = 100
	length   = 32 // tokens of an answer
	together = 20 // answers computed at once
)

// prompts are 100 prompts of many kinds: short questions through the chat
// template that differ in a word or two, bare texts, repetitions of different
// lengths, texts that differ only in the middle or, a few hundred tokens back,
// at the start.
func prompts() []string {
	chat := func(format string, args ...any) string {
		return "<|im_start|>user\n" + fmt.Sprintf(format, args...) + "<|im_end|>\n<|im_start|>assistant\n"
	}
	places := []string{"France", "Peru", "Japan", "Kenya", "Norway", "Chile", "India", "Canada", "Egypt", "Fiji"}
	filler := strings.Repeat("The quick brown fox jumps over the lazy dog, and seven wizards count the stars. ", 4)
	var all []string
	for i, place := range places {
		all = append(all,
			chat("What is the capital of %s?", place),
			chat("Compute %d + %d.", 7*i+3, 13*i+1),
			chat("Tell me about topic %d please.", i),
			chat("%s. %s Summarize.", place, filler),
			chat("%s%s%s", filler[:160], place, filler[:160]),
			chat("日本 café → %s", strings.Repeat("я", i+1)),
			chat("%s", strings.Repeat("yes ", i+2)),
			strings.Repeat("a", 5+3*i),
			string(rune('a'+i)),
			fmt.Sprintf("prompt %d", i),
		)
	}
	return all
}

func open(t *testing.T, arch tiny.Arch) *llama.Engine {
	t.Helper()
	lib, err := install.Ensure(context.Background(), install.Options{Progress: func(line string) { fmt.Fprintln(os.Stderr, line) }})
	if err != nil {
		t.Fatal(err)
	}
	path, err := tiny.Cached(arch)
	if err != nil {
		t.Fatal(err)
	}
	e, err := llama.Open(llama.Options{Lib: lib.Dir, Model: path, Slots: together, Cells: 16384, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// answer is a greedy answer, and the most probable end-of-generation token met
// on the way.
type answer struct {
	tokens []engine.Token
	ending float64
}

// answerAll computes the answers of up to together prompts, in one batch after
// their prompts.
func answerAll(t *testing.T, e *llama.Engine, prompts []string) []answer {
	t.Helper()
	out := make([]answer, len(prompts))
	next := make([]engine.Row, len(prompts))
	take := func(seq, row int) {
		logits, err := e.Logits(row)
		if err != nil {
			t.Fatal(err)
		}
		best, sum, ending := 0, 0.0, 0.0
		for i, x := range logits {
			if x > logits[best] {
				best = i
			}
		}
		for i, x := range logits {
			p := math.Exp(float64(x - logits[best]))
			sum += p
			if e.Vocab().IsEOG(engine.Token(i)) {
				ending += p
			}
		}
		a := &out[seq]
		a.tokens = append(a.tokens, engine.Token(best))
		a.ending = max(a.ending, ending/sum)
		next[seq].Token = engine.Token(best)
	}
	for seq, text := range prompts {
		tokens, err := e.Vocab().Tokenize(text, false, true)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Drop(int32(seq)); err != nil {
			t.Fatal(err)
		}
		rows := make([]engine.Row, len(tokens))
		for i, tok := range tokens {
			rows[i] = engine.Row{Token: tok, Pos: int32(i), Seq: int32(seq), Output: i == len(tokens)-1}
		}
		for len(rows) > 0 {
			chunk := rows[:min(len(rows), e.Info().BatchTokens)]
			rows = rows[len(chunk):]
			if err := e.Decode(chunk); err != nil {
				t.Fatal(err)
			}
			if len(rows) == 0 {
				take(seq, len(chunk)-1)
			}
		}
		next[seq] = engine.Row{Token: next[seq].Token, Pos: int32(len(tokens)), Seq: int32(seq), Output: true}
	}
	for range length - 1 {
		if err := e.Decode(next); err != nil {
			t.Fatal(err)
		}
		for seq := range prompts {
			take(seq, seq)
			next[seq].Pos++
		}
	}
	return out
}

// The models must not hide missing state: answers to different prompts differ,
// and none falls into a loop or ends early.
func TestAnswersDependOnTheirPrompts(t *testing.T) {
	all := prompts()
	if len(all) != answers {
		t.Fatalf("%d prompts", len(all))
	}
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			e := open(t, arch)
			distinct := make(map[string]bool)
			least := length
			for first := 0; first < answers; first += together {
				for i, a := range answerAll(t, e, all[first:first+together]) {
					kinds := make(map[engine.Token]bool)
					for _, tok := range a.tokens {
						kinds[tok] = true
					}
					least = min(least, len(kinds))
					if len(kinds) < 16 {
						t.Errorf("prompt %d: %d distinct tokens in %d", first+i, len(kinds), length)
					}
					if a.ending > 1e-6 {
						t.Errorf("prompt %d: an end of generation has probability %.2g", first+i, a.ending)
					}
					distinct[fmt.Sprint(a.tokens)] = true
				}
			}
			t.Logf("%d distinct answers, at least %d distinct tokens in %d", len(distinct), least, length)
			if len(distinct) < 90 {
				t.Errorf("%d distinct answers to %d prompts, want at least 90", len(distinct), answers)
			}
		})
	}
}

// A recurrent model remembers how a prompt began, more than a thousand tokens
// back.
func TestBeginningStaysVisible(t *testing.T) {
	filler := strings.Repeat("The quick brown fox jumps over the lazy dog, and seven wizards count the stars. ", 18)
	for _, arch := range []tiny.Arch{tiny.Mamba2, tiny.NemotronHMoE} {
		t.Run(string(arch), func(t *testing.T) {
			e := open(t, arch)
			got := answerAll(t, e, []string{"apple. " + filler, "stone. " + filler})
			if fmt.Sprint(got[0].tokens) == fmt.Sprint(got[1].tokens) {
				t.Error("prompts that differ in their first word have the same answer")
			}
		})
	}
}
