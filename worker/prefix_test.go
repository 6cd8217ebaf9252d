package worker

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/telemetry"
)

// caching is a worker whose engine keeps prefixes in half of its four slots.
func caching(c *Config) { c.CachedSlots = 2 }

// answer is what a colocated request came to.
type answer struct {
	tokens           []int32
	state            []byte // after the prompt
	cached, computed uint32
}

// ask runs one colocated request alone.
func (l *lab) ask(w *Worker, tenant string, prompt []int32, tokens int) answer {
	l.t.Helper()
	id := newID()
	c := runCommand(id, 1, tokens)
	c.GetRun().Generation.Tokens, c.GetRun().Terms.Tenant = prompt, tenant
	if r := l.command(w.cfg.Identity.Name(), c); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
		l.t.Fatalf("run: %v", r)
	}
	l.released(id, buspb.Side_SIDE_SOURCE)
	return l.answer(id)
}

// answer collects what a source said of a request.
func (l *lab) answer(id handoff.ID) answer {
	l.t.Helper()
	u := l.await(id, "usage", func(s *buspb.Status) bool { return s.GetTokens().GetUsage() != nil }).GetTokens().GetUsage()
	a := answer{cached: u.Cached, computed: u.Computed}
	a.tokens, _ = l.tokens(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	a.state = l.states[id.String()+string(telemetry.Source)]
	return a
}

// A prompt that begins as an earlier one, or as an earlier one and its answer, is computed
// from there, by whole pages, and comes out as if it had been computed alone.
func TestPrefixIsNotComputedAgain(t *testing.T) {
	l := newLab(t)
	cold, w := l.worker("cold", RolePrefill, tiny.Llama, nil), l.worker("p", RolePrefill, tiny.Llama, caching)
	long := testPrompt(300)
	same := func(what, tenant string, prompt []int32, cached uint32) answer {
		t.Helper()
		want := l.ask(cold, tenant, prompt, 20)
		got := l.ask(w, tenant, prompt, 20)
		if got.cached != cached || got.computed != uint32(len(prompt))-cached {
			t.Errorf("%s: %d tokens cached and %d computed of %d, want %d cached", what, got.cached, got.computed, len(prompt), cached)
		}
		if !bytes.Equal(got.state, want.state) || len(got.state) == 0 {
			t.Errorf("%s: the state is another", what)
		}
		if !slices.Equal(got.tokens, want.tokens) {
			t.Errorf("%s: the answer is another", what)
		}
		return got
	}
	first := same("the first", "t", long, 0)
	same("the same again", "t", long, 256)
	same("a whole number of pages", "t", long[:256], 192)
	same("another end", "t", append(slices.Clone(long[:200]), 7, 8, 9), 192)
	same("another beginning", "t", append([]int32{9}, long[:200]...), 0)
	same("another tenant", "u", long, 0)
	turn := append(slices.Clone(long), first.tokens...)
	same("the next turn", "t", append(turn, testPrompt(40)...), 256)
	l.idle(w) // what is cached is free
	inspect(w, func() {
		if _, cells := w.capacity(); cells.Cached == 0 || cells.Active+cells.Cached+cells.Free != cells.Total {
			t.Errorf("idle, with a cache: %+v", cells)
		}
		for w.evict(1) {
		}
		if s := w.mem.kv.Snapshot(); s.Free != s.Blocks || w.mem.mirror.Empty() != w.info.Slots {
			t.Errorf("nothing is cached any more, but %+v, %d slots empty", s, w.mem.mirror.Empty())
		}
	})
	same("after everything was evicted", "t", long, 0)
}

// The next turn of a long answer begins with the answer's own blocks.
func TestAnswerIsCached(t *testing.T) {
	l := newLab(t)
	w := l.worker("p", RolePrefill, tiny.Llama, caching)
	first := l.ask(w, "t", testPrompt(100), 100) // 199 positions are computed
	turn := append(testPrompt(100), first.tokens...)
	if got := l.ask(w, "t", append(turn, 1, 2, 3), 4); got.cached != 192 || got.computed != 203-192 {
		t.Errorf("%d tokens cached, %d computed", got.cached, got.computed)
	}
	l.idle(w)
}

// Restored pages are handed over as computed ones are: the destination has every byte.
func TestPrefixIsHandedOver(t *testing.T) {
	l := newLab(t)
	source, dst := l.worker("p", RolePrefill, tiny.Llama, caching), l.worker("d", RoleDecode, tiny.Llama, nil)
	want := l.ask(source, "t", testPrompt(200), 12)
	for _, first := range []bool{false, true} {
		a := l.attempt(source, dst, testPrompt(200), 12)
		a.gen.Sampling = nil
		if first {
			p := l.pinned(a.sourceFirst())
			l.command(a.dst, a.pullCommand(p))
		} else {
			l.command(a.source, a.prefillCommand(l.reserve(a)))
		}
		if o := l.released(a.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_COMPLETED {
			t.Errorf("the destination ended as %v", o)
		}
		l.released(a.id, buspb.Side_SIDE_SOURCE)
		got := l.answer(a.id)
		l.mu.Lock()
		restored := l.states[a.id.String()+string(telemetry.Destination)]
		l.mu.Unlock()
		if got.cached != 192 || got.computed != 8 {
			t.Errorf("%d tokens cached, %d computed", got.cached, got.computed)
		}
		if !bytes.Equal(restored, want.state) || !bytes.Equal(got.state, want.state) {
			t.Error("the state is another than that of the prompt computed alone")
		}
		if !slices.Equal(got.tokens, want.tokens) {
			t.Error("the answer is another")
		}
	}
	l.idle(source)
	l.idle(dst)
}

// Conversations that share beginnings, many at once, in less memory than they need and with
// fewer slots than prefixes: everybody is answered, and nothing is left but the cache.
func TestCacheUnderPressure(t *testing.T) {
	l := newLab(t)
	w := l.worker("p", RolePrefill, tiny.Llama, caching)
	cfg := Config{Role: RolePrefill, PageTokens: 64, CachedSlots: 2} // and no room promised for answers
	inspect(w, func() { w.mem = memoryFor(t, cfg, 4, 20*64) })
	var ids []handoff.ID
	var lengths []int
	cached := uint32(0)
	for round := range 8 {
		inspect(w, func() {
			for i := range 5 {
				id := newID()
				c := runCommand(id, 1, 10+30*i)
				prompt := testPrompt(100 + 64*i)
				for j := 64 * (1 + (round+i)%4); j < len(prompt); j++ {
					prompt[j] = (prompt[j] + int32(round+i)) % 250
				}
				c.GetRun().Generation.Tokens = prompt
				ids, lengths = append(ids, id), append(lengths, 10+30*i)
				if r := w.execute(c, w.now()); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
					t.Errorf("run: %v", r)
				}
			}
		})
		if round%2 == 1 {
			l.released(ids[len(ids)-1], buspb.Side_SIDE_SOURCE)
		}
	}
	for i, id := range ids {
		if o := l.released(id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_FINISHED_AT_SOURCE {
			t.Fatalf("request %d ended as %v", i, o)
		}
		got := l.answer(id)
		cached += got.cached
		if len(got.tokens) != lengths[i] {
			t.Errorf("request %d has %d tokens, want %d", i, len(got.tokens), lengths[i])
		}
	}
	if cached == 0 {
		t.Error("nothing was ever cached")
	}
	l.idle(w)
	inspect(w, func() {
		for w.evict(1) {
		}
		if s := w.mem.kv.Snapshot(); s.Free != s.Blocks || w.mem.mirror.Empty() != 4 {
			t.Errorf("nothing is cached any more, but %+v, %d slots empty", s, w.mem.mirror.Empty())
		}
		for slot := range int32(4) {
			if err := w.eng.Retire(slot); err == nil {
				t.Errorf("slot %d still holds something", slot)
			}
		}
	})
}

func TestCacheRefusals(t *testing.T) {
	l := newLab(t)
	eng := l.worker("p", RolePrefill, tiny.NemotronHMoE, nil).info
	if _, err := newMemory(Config{Role: RolePrefill, PageTokens: 64, ContextTokens: 64, CachedSlots: 1}, eng); err == nil || !strings.Contains(err.Error(), "cached") {
		t.Errorf("a cache for a model whose pages are not all its state: %v", err)
	}
	for _, c := range []Config{{Role: RolePrefill, CachedSlots: 4}, {Role: RoleBoth, CachedSlots: 3}, {Role: RolePrefill, CachedSlots: -1}} {
		c.Engine, c.Identity, c.Incarnation = sized{slots: 4}, l.issue("worker", "x"), 1
		if err := c.setDefaults(); err == nil || !strings.Contains(err.Error(), "slots") {
			t.Errorf("%d cached slots of 4 in role %s: %v", c.CachedSlots, c.Role, err)
		}
	}
}

// sized is an engine that only has a size.
type sized struct {
	engine.Engine
	slots int
}

func (s sized) Info() engine.Info { return engine.Info{Slots: s.slots, BatchTokens: 512} }
