package worker

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/telemetry"
)

// caching is a worker whose engine keeps prefixes in half of its four slots.
func caching(c *Config) { c.PrefixCache, c.CachedSlots, c.SnapshotBytes = true, 2, 1<<30 }

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
// from there, by whole pages, and comes out as if it had been computed alone. Where there
// is state beside pages, it begins only where a snapshot was kept.
func TestPrefixIsNotComputedAgain(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			cold, w := l.worker("cold", RolePrefill, arch, nil), l.worker("p", RolePrefill, arch, caching)
			long := testPrompt(300)
			alone := map[string]answer{} // each prompt once: alone it comes out alike every time
			same := func(what, tenant string, prompt []int32, dense, marked uint32) answer {
				t.Helper()
				cached := dense
				if arch != tiny.Llama {
					cached = marked
				}
				want, ok := alone[fmt.Sprint(prompt)]
				if !ok {
					want = l.ask(cold, tenant, prompt, 20)
					alone[fmt.Sprint(prompt)] = want
				}
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
			first := same("the first", "t", long, 0, 0)
			same("the same again", "t", long, 256, 256)
			same("a whole number of pages", "t", long[:256], 192, 0)
			same("another end", "t", append(slices.Clone(long[:200]), 7, 8, 9), 192, 192)
			same("another end behind the boundary", "t", append(slices.Clone(long[:256]), 7, 8, 9), 256, 256)
			same("another beginning", "t", append([]int32{9}, long[:200]...), 0, 0)
			same("another token", "t", append(append(slices.Clone(long[:100]), long[100]+1), long[101:]...), 64, 0)
			same("one that parts where another one did", "t", append(slices.Clone(long[:90]), 7, 8, 9), 64, 64)
			same("another tenant", "u", long, 0, 0)
			turn := append(slices.Clone(long), first.tokens...)
			same("the next turn", "t", append(turn, testPrompt(40)...), 256, 256)
			l.idle(w) // what is cached is free
			inspect(w, func() {
				if _, cells := w.capacity(); cells.Cached == 0 || cells.Active+cells.Cached+cells.Free != cells.Total {
					t.Errorf("idle, with a cache: %+v", cells)
				}
			})
			flush(t, w)
			same("after everything was evicted", "t", long, 0, 0)
		})
	}
}

// checkSnapshots checks that a worker keeps the snapshots that its manager counts, on the
// owner goroutine.
func checkSnapshots(t *testing.T, w *Worker) {
	t.Helper()
	sum := int64(0)
	for _, b := range w.mem.snapshots {
		sum += int64(len(b))
	}
	if marks := w.mem.kv.Snapshot().Marks; sum != marks || sum > w.cfg.SnapshotBytes {
		t.Errorf("snapshots of %d bytes, %d of them counted, %d allowed", sum, marks, w.cfg.SnapshotBytes)
	}
}

// flush evicts everything from the cache of a worker that owns nothing, which leaves
// nothing.
func flush(t *testing.T, w *Worker) {
	t.Helper()
	inspect(w, func() {
		checkSnapshots(t, w)
		for w.evict(1) {
			checkSnapshots(t, w)
		}
		if n := len(w.mem.snapshots); n > 0 {
			t.Errorf("%d snapshots are left", n)
		}
	})
	empty(t, w)
}

// The next turn of a long answer begins with the answer's own blocks.
func TestAnswerIsCached(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			w := l.worker("p", RolePrefill, arch, caching)
			first := l.ask(w, "t", testPrompt(100), 100) // 199 positions are computed
			turn := append(testPrompt(100), first.tokens...)
			if got := l.ask(w, "t", append(turn, 1, 2, 3), 4); got.cached != 192 || got.computed != 203-192 {
				t.Errorf("%d tokens cached, %d computed", got.cached, got.computed)
			}
			l.idle(w)
			flush(t, w)
		})
	}
}

// In a long prompt a boundary is kept now and then, and the last one.
func TestSnapshotsOfALongPrompt(t *testing.T) {
	l := newLab(t)
	w := l.worker("p", RolePrefill, tiny.NemotronHMoE, caching)
	long := testPrompt(64*18 + 20)
	l.ask(w, "t", long, 4)
	inspect(w, func() {
		if n := len(w.mem.snapshots); n != 3 { // after 8, 16 and 18 pages
			t.Errorf("%d snapshots", n)
		}
	})
	if got := l.ask(w, "t", append(slices.Clone(long[:64*12]), 7), 4); got.cached != 64*8 {
		t.Errorf("%d tokens cached, want eight pages", got.cached)
	}
	l.idle(w)
	flush(t, w)
}

func TestSnapshotDue(t *testing.T) {
	for _, c := range []struct {
		computed, history int
		want              bool
	}{
		{0, 10, false}, {10, 10, false}, {64, 300, false}, {256, 300, true}, {192, 256, true}, {128, 256, false},
		{256, 257, true}, {320, 321, true}, {512, 2000, true}, {576, 2000, false}, {1024, 2000, true},
	} {
		if got := snapshotDue(c.computed, c.history, 64); got != c.want {
			t.Errorf("after %d of %d tokens: %v", c.computed, c.history, got)
		}
	}
}

// Restored pages are handed over as computed ones are: the destination has every byte.
func TestPrefixIsHandedOver(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			source, dst := l.worker("p", RolePrefill, arch, caching), l.worker("d", RoleDecode, arch, nil)
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
			flush(t, source)
		})
	}
}

// A source that began with a prefix and lost its destination hands the same state to another,
// and gives everything back.
func TestPrefixIsHandedOverTwice(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			source, dst := l.worker("p", RolePrefill, arch, caching), l.worker("d", RoleDecode, arch, nil)
			want := l.ask(source, "t", testPrompt(200), 12)
			a := l.attempt(source, dst, testPrompt(200), 12).sourceFirst()
			a.gen.Sampling = nil
			a.terms.Destination = &buspb.Peer{Worker: "gone", Incarnation: 1} // it died before it came
			l.pinned(a)
			b := l.attempt(source, dst, testPrompt(200), 12)
			b.gen.Sampling, b.request = nil, a.request
			take := b.prefillCommand(l.reserve(b))
			take.GetPrefill().Reuse = a.id[:]
			computed := l.computedOn(source)
			l.command(b.source, take)
			if o := l.released(b.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_COMPLETED {
				t.Errorf("the second destination ended as %v", o)
			}
			l.released(a.id, buspb.Side_SIDE_SOURCE)
			l.released(b.id, buspb.Side_SIDE_SOURCE)
			if got := l.answer(b.id); got.cached != 192 || !slices.Equal(got.tokens, want.tokens) {
				t.Errorf("%d tokens cached; the answer is %v, want %v", got.cached, got.tokens, want.tokens)
			}
			l.mu.Lock()
			restored := l.states[b.id.String()+string(telemetry.Destination)]
			l.mu.Unlock()
			if !bytes.Equal(restored, want.state) {
				t.Error("the state is another than that of the prompt computed alone")
			}
			if n := l.computedOn(source) - computed; n != 0 {
				t.Errorf("%d tokens were computed again", n)
			}
			l.idle(source)
			l.idle(dst)
			flush(t, source)
		})
	}
}

// Conversations that share beginnings, many at once, in less memory than they need, with
// fewer slots than prefixes and room for three snapshots: everybody is answered rightly, and
// nothing is left but the cache.
func TestCacheUnderPressure(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			w := l.worker("p", RolePrefill, arch, caching)
			_, snapshot := w.info.Inventory.SnapshotBytes(1000)
			w.cfg.SnapshotBytes = 3*int64(snapshot) + 1
			shrink(t, w, 20*64)
			var all []request
			for round := range 3 {
				var some []request
				for i := range 5 {
					kind := (round + i) % 6
					prompt := testPrompt(100 + 64*i)
					for j := 64 * (1 + kind%4); j < len(prompt); j++ {
						prompt[j] = (prompt[j] + int32(kind)) % 250
					}
					some = append(some, request{newID(), prompt, 8 + 16*i})
				}
				all = append(all, some...)
				l.runAll(w, some)
				if round%2 == 1 {
					l.released(some[4].id, buspb.Side_SIDE_SOURCE)
				}
				inspect(w, func() { checkSnapshots(t, w) })
			}
			l.checkAll(newJudge(t, arch), all)
			hits := 0
			for _, q := range all {
				if l.answer(q.id).cached > 0 {
					hits++
				}
			}
			if t.Logf("%d of %d prompts were cached, %d requests preempted", hits, len(all), preemptions(t, w, telemetry.Recomputed)); hits == 0 {
				t.Error("nothing was ever cached")
			}
			l.idle(w)
			flush(t, w)
		})
	}
}

// No more is kept than is allowed, the most recently used.
func TestCachedTokens(t *testing.T) {
	for _, arch := range []tiny.Arch{tiny.Llama, tiny.NemotronHMoE} {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			w := l.worker("p", RolePrefill, arch, func(c *Config) { caching(c); c.CachedTokens = 320 })
			one, two := testPrompt(300), testPrompt(400)[100:]
			for i, c := range []struct {
				prompt []int32
				cached uint32
			}{{one, 0}, {one, 256}, {two, 0}, {two, 256}, {one, 0}} { // 256 of one and 64 of the other fit
				got := l.ask(w, "t", c.prompt, 4)
				if arch == tiny.Llama && i == 4 {
					c.cached = 64
				}
				if got.cached != c.cached {
					t.Errorf("request %d: %d tokens cached, want %d", i, got.cached, c.cached)
				}
				l.idle(w)
				inspect(w, func() {
					if _, cells := w.capacity(); cells.Cached > 320 || cells.Cached < 256 {
						t.Errorf("request %d: %d tokens are cached", i, cells.Cached)
					}
					checkSnapshots(t, w)
				})
			}
			flush(t, w)
		})
	}
}

// Snapshots are content: their bytes do not outlive them.
func TestSnapshotsAreZeroed(t *testing.T) {
	m := &memory{snapshots: map[int32][]byte{1: {1, 2}, 2: {3}, 3: {4}}}
	one, two, three := m.snapshots[1], m.snapshots[2], m.snapshots[3]
	if m.dropSnapshot(1); !bytes.Equal(one, []byte{0, 0}) || len(m.snapshots) != 2 || two[0] != 3 {
		t.Errorf("dropped one: %v, left %v", one, m.snapshots)
	}
	if m.dropSnapshots(); len(m.snapshots) != 0 || two[0] != 0 || three[0] != 0 {
		t.Errorf("dropped all: %v, %v, left %v", two, three, m.snapshots)
	}
}

// When all that may be kept is kept, the next snapshot is written where the one lay that
// went for it.
func TestSnapshotTakesThePlaceOfAnother(t *testing.T) {
	l := newLab(t)
	w := l.worker("p", RolePrefill, tiny.NemotronHMoE, caching)
	_, size := w.info.Inventory.SnapshotBytes(64)
	w.cfg.SnapshotBytes = int64(size)
	shrink(t, w, 8192)
	var at []*byte
	for i := range int32(3) {
		l.ask(w, "t", append([]int32{i}, testPrompt(90)...), 4)
		inspect(w, func() {
			checkSnapshots(t, w)
			for _, buf := range w.mem.snapshots {
				at = append(at, &buf[0])
			}
		})
	}
	if len(at) != 3 || at[1] != at[0] || at[2] != at[0] {
		t.Errorf("three snapshots, one at a time, lay at %v", at)
	}
	l.idle(w)
	flush(t, w)
}

func TestCacheRefusals(t *testing.T) {
	l := newLab(t)
	for _, c := range []Config{{Role: RolePrefill, CachedSlots: 4}, {Role: RoleBoth, CachedSlots: 3}, {Role: RolePrefill, CachedSlots: -1}, {Role: RolePrefill, PrefixCache: true}} {
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

func (s sized) Info() engine.Info {
	return engine.Info{Slots: s.slots, BatchTokens: 512, Inventory: state.Inventory{{Kind: state.AttentionKV, PerToken: 1}}}
}
