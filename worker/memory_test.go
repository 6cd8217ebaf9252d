package worker

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/sched"
	"github.com/tandem-llm/tandem/telemetry"
)

// memoryFor is the memory of an engine of that size.
func memoryFor(t *testing.T, cfg Config, slots, cells int) *memory {
	t.Helper()
	return memoryOf(t, cfg, engine.Info{Slots: slots, Cells: cells, BatchTokens: 512})
}

func memoryOf(t *testing.T, cfg Config, info engine.Info) *memory {
	t.Helper()
	m, err := newMemory(cfg, info)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestBlocksDividePages(t *testing.T) {
	for page, want := range map[int]int{512: 64, 64: 64, 100: 50, 96: 48, 16: 16, 97: 1, 1: 1} {
		m := memoryFor(t, Config{Role: RolePrefill, PageTokens: page, ContextTokens: 1000}, 4, 8192)
		if m.block != want || m.kv.Snapshot().Blocks != 8192/want {
			t.Errorf("pages of %d: %d blocks of %d, want blocks of %d", page, m.kv.Snapshot().Blocks, m.block, want)
		}
	}
	var bad *kv.ConfigError
	if _, err := newMemory(Config{Role: RolePrefill, PageTokens: 64, ContextTokens: 60}, engine.Info{Slots: 1, Cells: 60, BatchTokens: 64}); !errors.As(err, &bad) {
		t.Errorf("an engine smaller than a block: %v", err)
	}
}

// Prompts that are computed here and state that peers send have slots and cells of their
// own, or two workers of role both could wait for each other in a circle.
func TestSidesKeepTheirShares(t *testing.T) {
	cfg := Config{Role: RoleBoth, PageTokens: 20, ContextTokens: 600}
	submit := func(m *memory, prompt int) (state sched.State, o sched.Outcome) {
		ref, o := m.sched.Submit(0, newID(), sched.Request{Prompt: prompt, MaxTokens: 1, Held: true})
		return m.sched.Info(ref).State, o
	}
	reserve := func(m *memory, prompt int) (state sched.State, o sched.Outcome) {
		ref, o := m.sched.Reserve(0, newID(), sched.Reservation{Prompt: prompt, MaxTokens: 1})
		return m.sched.Info(ref).State, o
	}
	m := memoryFor(t, cfg, 4, 1000)
	for i, want := range []sched.State{sched.StatePrefilling, sched.StatePrefilling, sched.StateWaiting} {
		if s, _ := submit(m, 1); s != want {
			t.Errorf("prompt %d is %v, want %v", i, s, want)
		}
	}
	if s, _ := reserve(m, 1); s != sched.StateReserved {
		t.Errorf("the slots kept for peers are gone: a reservation is %v", s)
	}
	m = memoryFor(t, cfg, 4, 1000)
	if _, o := submit(m, 501); o != sched.Never {
		t.Errorf("a prompt larger than its side's share: %v", o)
	}
	if s, _ := submit(m, 500); s != sched.StatePrefilling {
		t.Errorf("a prompt as large as its side's share is %v", s)
	}
	if s, _ := reserve(m, 500); s != sched.StateReserved {
		t.Errorf("the cells kept for peers are gone: a reservation is %v", s)
	}
	cfg.Role, cfg.ContextTokens = RoleDecode, 1000
	m = memoryFor(t, cfg, 4, 1000)
	if s, _ := reserve(m, 1000); s != sched.StateReserved {
		t.Errorf("alone a side has everything, but the reservation is %v", s)
	}
	if _, o := reserve(m, 1001); o != sched.Never {
		t.Errorf("a reservation larger than the worker: %v", o)
	}
}

func TestMostTokens(t *testing.T) {
	for _, c := range []struct {
		name                                string
		history, emitted, maxTokens, ctx, n int
	}{
		{"as many as the client wants", 10, 0, 5, 100, 5},
		{"forced tokens were sent before", 12, 2, 5, 100, 3},
		{"one more than the context has positions for", 90, 0, 50, 100, 11},
		{"a full context still gives one", 100, 0, 50, 100, 1},
		{"never none", 10, 5, 5, 100, 1},
	} {
		if got := mostTokens(c.history, c.emitted, c.maxTokens, c.ctx); got != c.n {
			t.Errorf("%s: %d tokens, want %d", c.name, got, c.n)
		}
	}
}

// runCommand asks for a colocated answer of so many tokens.
func runCommand(id handoff.ID, prompt, tokens int) *buspb.Command {
	return &buspb.Command{Gateway: "gw", GatewayIncarnation: 1, Handoff: id[:], Request: "run-" + id.String(), Body: &buspb.Command_Run{Run: &buspb.Run{
		Terms:      &buspb.Terms{Tenant: "t", BudgetMs: 60_000, RemainingMs: 60_000, Policy: buspb.Policy_POLICY_DISABLED},
		Generation: &buspb.Generation{Tokens: testPrompt(prompt), MaxTokens: uint32(tokens), IgnoreEos: true},
	}}}
}

// inspect runs a function on the owner goroutine of a worker.
func inspect(w *Worker, fn func()) {
	done := make(chan struct{})
	w.box.post(func() { fn(); close(done) })
	<-done
}

// More requests than slots, with answers of all lengths: everybody gets all of it, in the
// order of arrival, the parts of the capacity add up all the time, and in the end
// everything is free.
func TestCrowd(t *testing.T) {
	l := newLab(t)
	w := l.worker("p", RolePrefill, tiny.NemotronHMoE, nil)
	stop := make(chan struct{})
	var watch sync.WaitGroup
	most := telemetry.Capacity{}
	watch.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			inspect(w, func() {
				slots, cells := w.capacity()
				for _, c := range []telemetry.Capacity{slots, cells} {
					if c.Active+c.Pinned+c.Reserved+c.Cached+c.Free != c.Total {
						t.Errorf("%+v does not add up", c)
					}
				}
				most.Active = max(most.Active, slots.Active)
				if r := w.registration(); r.CellsFree > r.CellsTotal || r.SlotsFree > r.SlotsTotal {
					t.Errorf("%d of %d cells and %d of %d slots are free", r.CellsFree, r.CellsTotal, r.SlotsFree, r.SlotsTotal)
				}
			})
		}
	})
	const crowd = 11
	var ids []handoff.ID
	for i := range crowd {
		ids = append(ids, newID())
		inspect(w, func() {
			if r := w.execute(runCommand(ids[i], 20+37*i, 1+5*i), w.now()); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
				t.Errorf("run: %v", r)
			}
		})
	}
	for i, id := range ids {
		if o := l.released(id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_FINISHED_AT_SOURCE {
			t.Errorf("request %d ended as %v", i, o)
		}
		if got, finish := l.tokens(id); len(got) != 1+5*i || finish != buspb.Finish_FINISH_LENGTH {
			t.Errorf("request %d has %d tokens, finish %v", i, len(got), finish)
		}
	}
	close(stop)
	watch.Wait()
	if most.Active != 4 {
		t.Errorf("at most %d slots were in use, want all 4", most.Active)
	}
	var began []handoff.ID
	for _, e := range w.cfg.Events.Since(0) {
		if e.Kind == "chunk_computed" && e.First == 0 {
			began = append(began, e.Handoff)
		}
	}
	if !slices.Equal(began, ids) {
		t.Error("prompts were not begun in the order of arrival")
	}
	l.idle(w)
	inspect(w, func() {
		if !w.mem.sched.Drained() || w.mem.kv.Snapshot().Free != w.mem.kv.Snapshot().Blocks || w.mem.mirror.Empty() != 4 {
			t.Errorf("idle, but %+v, %d slots empty, drained %v", w.mem.kv.Snapshot(), w.mem.mirror.Empty(), w.mem.sched.Drained())
		}
	})
}
