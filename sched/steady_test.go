package sched

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

// twin runs the same commands on two schedulers, one step by step, one skipping.
// Whatever one can see of them must be equal at every command.
func twin(t *testing.T, seed uint64) (skipped int) {
	a, err := newWorld(seed)
	if err != nil {
		t.Fatal(err)
	}
	b, err := newWorld(seed)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(seed, 3))
	var notesA, notesB []Notice
	var ids []handoff.ID
	both := func(f func(w *world)) {
		f(a)
		f(b)
		notesA, notesB = a.s.Notices(notesA[:0]), b.s.Notices(notesB[:0])
		if !slices.Equal(notesA, notesB) {
			t.Fatalf("seed %d: notices (-steps +skip):\n%s", seed, cmp.Diff(notesA, notesB))
		}
		if x, y := a.m.Snapshot(), b.m.Snapshot(); x != y {
			t.Fatalf("seed %d: snapshots (-steps +skip):\n%s", seed, cmp.Diff(x, y))
		}
		if x, y := a.s.Load(), b.s.Load(); x != y {
			t.Fatalf("seed %d: loads (-steps +skip):\n%s", seed, cmp.Diff(x, y))
		}
		for i := range a.s.running {
			if x, y := a.s.running[i], b.s.running[i]; x != y {
				t.Fatalf("seed %d: running %d: %+v, skipping %+v", seed, i, x, y)
			}
		}
		if err := b.s.check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	for i := range 60 {
		id := handoff.Mint(uint64(i), [10]byte{2})
		size := a.m.Config().BlockTokens
		prompt, most := 1+r.IntN(4*size), 1+r.IntN(25)
		switch r.IntN(5) {
		case 0, 1, 2:
			q := Request{Prompt: prompt, MaxTokens: most, Held: r.IntN(4) == 0, Keys: promptKeys[r.IntN(universe)][:min(8, prompt/size)]}
			both(func(w *world) { w.s.Submit(0, id, q) })
			ids = append(ids, id)
		case 3:
			both(func(w *world) { w.s.Reserve(0, id, Reservation{Prompt: prompt, MaxTokens: most}) })
			both(func(w *world) { w.s.Activate(0, id) })
			ids = append(ids, id)
		case 4:
			if len(ids) > 0 {
				gone := ids[r.IntN(len(ids))]
				both(func(w *world) { w.s.Release(0, gone) })
			}
		}
		for steps := r.IntN(40); steps > 0; {
			n := b.s.Steady(steps)
			if n > 1 && n < steps && r.IntN(2) == 0 {
				n = 1 + r.IntN(n)
			}
			if n == 0 {
				steps--
				both(func(w *world) {
					if !w.s.Plan(0).Empty() {
						w.s.Done(0, Results{})
					}
				})
				continue
			}
			steps -= n
			skipped += n
			both(func(w *world) {
				if w == b {
					if took := w.s.Skip(n); took != n {
						t.Fatalf("seed %d: skipped %d of %d", seed, took, n)
					}
					return
				}
				for range n {
					if step := w.s.Plan(0); len(step.Chunks) > 0 || len(step.Decodes) == 0 {
						t.Fatalf("seed %d: not a step of decodes only", seed)
					}
					w.s.Done(0, Results{})
				}
			})
		}
	}
	return skipped
}

func TestSkipEqualsSteps(t *testing.T) {
	skipped := 0
	for seed := range uint64(300) {
		skipped += twin(t, seed)
	}
	if skipped < 1000 {
		t.Errorf("only %d steps were skipped: the test tests nothing", skipped)
	}
}

// Steady is 0 whenever something else than decodes is possible.
func TestSteadyKnowsWhenNot(t *testing.T) {
	s := newScheduler(t, kv.Config{Blocks: 100, BlockTokens: 4}, Config{Budget: 16, Running: 4})
	if n := s.Steady(10); n != 0 {
		t.Errorf("%d steps of nothing", n)
	}
	s.Submit(0, handoff.ID{1}, Request{Prompt: 5, MaxTokens: 20})
	if n := s.Steady(10); n != 0 {
		t.Errorf("%d steps with a prompt to compute", n)
	}
	s.Plan(0)
	if n := s.Steady(10); n != 0 {
		t.Errorf("%d steps during a step", n)
	}
	s.Done(0, Results{})
	if n := s.Steady(1000); n != 18 { // one token from the prompt, 18 to skip, the last step ends it
		t.Errorf("%d steps until the last token, want 18", n)
	}
	if n := s.Skip(19); n != 0 {
		t.Errorf("skipped %d, beyond what is steady", n)
	}
	if n := s.Skip(18); n != 18 || s.Info(0).Tokens != 19 {
		t.Errorf("skipped %d, %+v", n, s.Info(0))
	}
	s.Plan(0)
	s.Done(0, Results{})
	if s.Info(0).State != StateFinished || s.Info(0).Tokens != 20 {
		t.Errorf("%+v", s.Info(0))
	}
}
