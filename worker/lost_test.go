package worker

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/model/tiny"
)

// losing is an engine that loses the sequences of the batches that a test chooses.
type losing struct {
	engine.Engine
	lose func(rows []engine.Row) bool // nil: never
}

func (e *losing) Decode(rows []engine.Row) error {
	if e.lose == nil || !e.lose(rows) {
		return e.Engine.Decode(rows)
	}
	for _, r := range rows {
		if err := e.Drop(r.Seq); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: the test wants it", engine.ErrLost)
}

// An engine that loses a sequence loses what was cached of it: that request fails, and those
// that would begin there, and nobody else; what comes later is computed rightly.
func TestLostSequenceTakesItsPrefix(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			eng := &losing{}
			w := l.worker("p", RolePrefill, arch, func(c *Config) { caching(c); eng.Engine, c.Engine = c.Engine, eng })
			begin := testPrompt(200)
			want := l.ask(w, "t", begin, 30)
			// One answers on top of what is cached, another begins there too and is lost with
			// its first chunk; a third waits for a slot, and would begin there.
			with := func(i int32, n int) []int32 { return append(slices.Clone(begin[:192]), testPrompt(n)[i:]...) }
			well := []request{{newID(), with(0, 20), 150}}
			ill := []request{{newID(), with(1, 90), 4}, {newID(), with(2, 90), 4}}
			inspect(w, func() {
				once := true
				eng.lose = func(rows []engine.Row) bool {
					hit := once && len(rows) > 1 && rows[0].Token == ill[0].prompt[192]
					once = once && !hit
					return hit
				}
			})
			l.runAll(w, append(slices.Clone(well), ill...))
			for i, q := range ill {
				o := l.released(q.id, buspb.Side_SIDE_SOURCE)
				if i == 0 && o != buspb.Outcome_OUTCOME_FAILED {
					t.Errorf("the lost one ended as %v", o)
				}
				if got, _ := l.tokens(q.id); o == buspb.Outcome_OUTCOME_FINISHED_AT_SOURCE {
					newJudge(t, arch).reads("the waiting one", q.prompt, got)
				}
			}
			l.checkAll(newJudge(t, arch), well)
			l.idle(w)
			if got := l.ask(w, "t", begin, 30); !slices.Equal(got.tokens, want.tokens) || string(got.state) != string(want.state) {
				t.Error("after the loss the same prompt has another answer or state")
			}
			if got := l.ask(w, "t", begin, 30); got.cached != 192 || !slices.Equal(got.tokens, want.tokens) {
				t.Errorf("the cache is not used any more, or wrongly: %d tokens cached", got.cached)
			}
			l.idle(w)
			flush(t, w)
		})
	}
}

// Alone, all that is cached of the lost prefix goes.
func TestLostSequenceAlone(t *testing.T) {
	l := newLab(t)
	eng := &losing{}
	w := l.worker("p", RolePrefill, tiny.Llama, func(c *Config) { caching(c); eng.Engine, c.Engine = c.Engine, eng })
	want := l.ask(w, "t", testPrompt(300), 10)
	inspect(w, func() { eng.lose = func([]engine.Row) bool { eng.lose = nil; return true } })
	q := request{newID(), testPrompt(300), 10}
	l.runAll(w, []request{q})
	if o := l.released(q.id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_FAILED {
		t.Errorf("the lost one ended as %v", o)
	}
	l.idle(w)
	if got := l.ask(w, "t", testPrompt(300), 10); got.cached != 0 || !slices.Equal(got.tokens, want.tokens) {
		t.Errorf("%d tokens of a lost prefix are cached; the answer is %v, want %v", got.cached, got.tokens, want.tokens)
	}
	l.idle(w)
	flush(t, w)
}

// Who is let in between the ends of two that were lost, and would begin where they did,
// fails like them.
func TestLostPrefixIsNotSharedAgain(t *testing.T) {
	for _, arch := range []tiny.Arch{tiny.Llama, tiny.Gemma3} {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			eng := &losing{}
			w := l.worker("p", RolePrefill, arch, func(c *Config) { caching(c); eng.Engine, c.Engine = c.Engine, eng })
			begin := testPrompt(200)
			want := l.ask(w, "t", begin, 10)
			inspect(w, func() {
				eng.lose = func(rows []engine.Row) bool { // both answers
					if len(rows) != 2 || rows[0].Seq == rows[1].Seq {
						return false
					}
					eng.lose = nil
					return true
				}
			})
			all := []request{{newID(), begin, 50}, {newID(), begin, 50}, {newID(), begin, 50}} // the third waits for a slot
			l.runAll(w, all)
			for i, q := range all {
				if o := l.released(q.id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_FAILED {
					t.Errorf("request %d ended as %v", i, o)
				}
			}
			l.idle(w)
			got := l.ask(w, "t", begin, 10)
			if got.cached != 0 || !slices.Equal(got.tokens, want.tokens) || string(got.state) != string(want.state) {
				t.Errorf("afterwards the answer or the state is another, with %d tokens cached", got.cached)
			}
			l.idle(w)
			flush(t, w)
		})
	}
}
