package llama

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/state"
)

// State moves exactly between contexts of other sizes and for every cache type.
// Answers are the same bits where the order of additions is the same: with one
// thread and the same cells, which a solo request in an idle engine always gets.
func TestContextsOfOtherSizes(t *testing.T) {
	for _, arch := range tiny.Archs() {
		for _, kv := range []state.DType{state.F16, state.BF16, state.Q8_0} {
			t.Run(fmt.Sprint(arch, " ", kv), func(t *testing.T) {
				src := open(t, arch, func(o *Options) { o.KVType = kv })
				dst := open(t, arch, func(o *Options) {
					o.KVType, o.Slots, o.Cells, o.BatchTokens, o.UBatch = kv, 5, 2048, 512, 64
				})
				if err := src.Info().Identity.Match(dst.Info().Identity); err != nil {
					t.Fatal(err)
				}
				x, logits := enginetest.PrefillAndExport(t, src, 2, enginetest.Prompt(src.Vocab(), 300, 1), 128)
				if err := enginetest.Import(dst, 4, x); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(enginetest.Canonical(t, src, 2), enginetest.Canonical(t, dst, 4)) {
					t.Error("the state that arrived is not the state that left")
				}
				want, wantLogits := enginetest.Greedy(t, src, 2, logits, 8)
				got, gotLogits := enginetest.Greedy(t, dst, 4, logits, 8)
				if err := enginetest.SameBits(wantLogits, gotLogits); err != nil || !slices.Equal(want, got) {
					t.Errorf("%v and %v: %v", want, got, err)
				}
			})
		}
	}
}

// Engines that must not exchange state have identities that differ, and a blob
// of one is refused by the other even so.
func TestOtherIdentities(t *testing.T) {
	a := open(t, tiny.Llama)
	b := open(t, tiny.Llama, func(o *Options) { o.KVType = state.BF16 })
	if a.Info().Identity.Match(b.Info().Identity) == nil {
		t.Error("another cache type has the same identity")
	}
	x, _ := enginetest.PrefillAndExport(t, a, 0, enginetest.Prompt(a.Vocab(), 64, 1), 64)
	if err := enginetest.Import(b, 0, x); !errors.Is(err, engine.ErrPayload) {
		t.Errorf("f16 pages in a bf16 cache: %v", err)
	}
	c := open(t, tiny.NemotronHMoE)
	if a.Info().Identity.Match(c.Info().Identity) == nil {
		t.Error("another model has the same identity")
	}
	if err := enginetest.Import(c, 0, x); !errors.Is(err, engine.ErrPayload) {
		t.Errorf("another model's pages: %v", err)
	}
}

// No component is decoration: a change of any tensor of any layer, of one whole
// page, or of the snapshot, with every check satisfied, changes the answer.
func TestEveryComponentCounts(t *testing.T) {
	const steps = 4
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			src, dst := open(t, arch), open(t, arch)
			prompt := enginetest.Prompt(src.Vocab(), targetTokens, 1)
			x, logits := enginetest.PrefillAndExport(t, src, 0, prompt, targetPage)
			other, _ := enginetest.PrefillAndExport(t, src, 1, enginetest.Prompt(src.Vocab(), targetTokens, 2), targetPage)
			answer := func(x enginetest.Exported) ([][]float32, error) {
				defer dst.Drop(0)
				if err := enginetest.Import(dst, 0, x); err != nil {
					return nil, err
				}
				_, all := enginetest.Greedy(t, dst, 0, logits, steps)
				return all, nil
			}
			want, err := answer(x)
			if err != nil {
				t.Fatal(err)
			}
			differs := func(name string, x enginetest.Exported) {
				t.Helper()
				got, err := answer(x)
				if err != nil {
					t.Errorf("%s: %v", name, err)
				} else if enginetest.SameBits(want[1:], got[1:]) == nil {
					t.Errorf("%s: the answer is the same", name)
				}
			}
			g := &target{Engine: dst, x: x}
			flip := func(page int, r region) {
				differs(r.name, g.with(page, func(b []byte) []byte {
					for i := r.at + r.width - 1; i < r.at+r.n; i += r.width {
						b[i] ^= 0x80 // the sign: everything stays finite
					}
					return b
				}))
			}
			if dst.Paged() {
				for _, r := range regionsOf(dst, targetPage, -1) {
					flip(1, r)
				}
				for i := range x.Pages {
					differs(fmt.Sprintf("page %d of another prompt", i), g.with(i, func([]byte) []byte { return other.Pages[i].Payload }))
				}
			}
			if len(x.Snapshot) == 0 {
				return
			}
			window := 0
			if dst.schema.Memory.Window() {
				window = int(binary.LittleEndian.Uint32(x.Snapshot[12:]))
			}
			for _, r := range regionsOf(dst, 0, window) {
				flip(-1, r)
			}
			differs("snapshot of another prompt", g.with(-1, func([]byte) []byte { return other.Snapshot }))
		})
	}
}

// The window is as long as the model says: its snapshot has one cell less once a
// neighbour has been given the cell that the next token cannot see, and arrives
// as the same state.
func TestWindowLosesItsOldestCell(t *testing.T) {
	const n = 700
	src := open(t, tiny.Gemma3, func(o *Options) { o.Slots, o.UBatch, o.Cells = 2, 64, 4096 })
	dst := open(t, tiny.Gemma3)
	prompt := enginetest.Prompt(src.Vocab(), n, 1)
	enginetest.Prefill(t, src, 0, prompt, 256, nil)
	count := func() uint32 {
		snap, _ := enginetest.ExportSnapshot(t, src, 0)
		return binary.LittleEndian.Uint32(snap[12:])
	}
	before, state := count(), enginetest.Canonical(t, src, 0)
	if int(before) != src.schema.WindowTokens {
		t.Fatalf("%d cells in a window of %d", before, src.schema.WindowTokens)
	}
	for at := 0; at < 3000 && count() == before; at += 100 {
		if err := src.Decode(enginetest.Rows(prompt[:100], at, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if got := count(); got != before-1 {
		t.Fatalf("%d cells, expected %d", got, before-1)
	}
	if !bytes.Equal(state, enginetest.Canonical(t, src, 0)) {
		t.Error("the canonical state shows what no token can see")
	}
	x := enginetest.Exported{Tokens: n, Pages: []enginetest.Page{enginetest.ExportPage(t, src, 0, 0, n)}}
	x.Snapshot, _ = enginetest.ExportSnapshot(t, src, 0)
	if err := enginetest.Import(dst, 0, x); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(state, enginetest.Canonical(t, dst, 0)) {
		t.Error("the state that arrived is not the state that left")
	}
}

// A window whose cells have been handed round between sequences can leave an
// empty cache whose next search does not begin at the first cell, and then the
// order of additions is another one. A request alone must not notice. The seed is
// one of few with which it does when the engine does not start over.
func TestIdleEngineStartsOver(t *testing.T) {
	o := options(t, tiny.Gemma3)
	file, err := os.ReadFile(o.Model)
	if err != nil {
		t.Fatal(err)
	}
	key := []byte("gemma3.attention.sliding_window\x04\x00\x00\x00")
	at := bytes.Index(file, key)
	if at < 0 {
		t.Fatal("the model has no window")
	}
	binary.LittleEndian.PutUint32(file[at+len(key):], 32) // a window that goes round soon
	path := filepath.Join(t.TempDir(), "window.gguf")
	if err := os.WriteFile(path, file, 0o644); err != nil {
		t.Fatal(err)
	}
	e := open(t, tiny.Gemma3, func(o *Options) { o.Model, o.Cells, o.BatchTokens, o.UBatch = path, 2048, 64, 32 })
	solo := func() [][]float32 {
		logits := enginetest.Prefill(t, e, 0, enginetest.Prompt(e.Vocab(), 100, 1), 64, nil)
		_, all := enginetest.Greedy(t, e, 0, logits, 2)
		if err := e.Drop(0); err != nil {
			t.Fatal(err)
		}
		return all
	}
	want := solo()
	r := rand.New(rand.NewPCG(6, 1))
	prompt := enginetest.Prompt(e.Vocab(), 64, 2)
	for range 40 {
		s := int32(r.IntN(3))
		if e.Tokens(s) > 400 {
			if err := e.Drop(s); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Decode(enginetest.Rows(prompt[:1+r.IntN(60)], e.Tokens(s), s)); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range r.Perm(3) {
		if err := e.Drop(int32(s)); err != nil {
			t.Fatal(err)
		}
	}
	if err := enginetest.SameBits(want, solo()); err != nil {
		t.Error(err)
	}
}

// Steady state allocates nothing: not a step, not a page out, not a page in.
func TestAllocations(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			e := open(t, arch)
			prompt := enginetest.Prompt(e.Vocab(), 200, 1)
			enginetest.Prefill(t, e, 0, prompt, 100, nil)
			row := []engine.Row{{Token: 1, Seq: 0, Output: true}}
			pos := int32(200)
			none := func(name string, f func()) {
				t.Helper()
				if n := testing.AllocsPerRun(20, f); n != 0 {
					t.Errorf("%s allocates %v times", name, n)
				}
			}
			none("a step", func() {
				row[0].Pos = pos
				pos++
				if err := e.Decode(row); err != nil {
					t.Fatal(err)
				}
				if _, err := e.Logits(0); err != nil {
					t.Fatal(err)
				}
			})
			if !e.Paged() {
				return
			}
			page := make([]byte, e.PageBytes(4))
			none("a page out", func() {
				if _, err := e.ExportPage(0, 96, 100, page); err != nil {
					t.Fatal(err)
				}
			})
			pages := make([][]byte, 50)
			for i := range pages {
				pages[i] = enginetest.ExportPage(t, e, 0, 4*i, 4*i+4).Payload
			}
			imp, err := e.BeginImport(1, 200)
			if err != nil {
				t.Fatal(err)
			}
			if err := imp.Page(0, 4, pages[0]); err != nil { // makes what is reused
				t.Fatal(err)
			}
			next := 1
			none("a page in", func() {
				if err := imp.Page(4*next, 4*next+4, pages[next]); err != nil {
					t.Fatal(err)
				}
				next++
			})
		})
	}
}

// The threads that compute are started with the engine and end with it: steps
// start none, and engines that come and go leave none.
func TestThreadsLiveWithTheEngine(t *testing.T) {
	tasks := func() int {
		list, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Skip("this system does not list threads")
		}
		return len(list)
	}
	const engines, threads = 24, 2
	before := tasks()
	for range engines {
		o := options(t, tiny.Llama)
		o.Threads = threads
		e, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		if e.pool == 0 || tasks() < threads {
			t.Errorf("an open engine has no threads of its own: %d in the process", tasks())
		}
		enginetest.Prefill(t, e, 0, enginetest.Prompt(e.Vocab(), 20, 1), 10, nil)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if grown := tasks() - before; grown > engines*(threads-1)/2 {
		t.Errorf("%d threads more after all engines were closed", grown)
	}
}
