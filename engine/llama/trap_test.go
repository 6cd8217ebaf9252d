package llama

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/state"
)

// The tests in this file show that what llama.cpp does not survive, or survives
// with wrong state, cannot be asked of it through this package.

// target is an engine with a neighbour in slot 1, and what a source exported for
// slot 0.
type target struct {
	*Engine
	x         enginetest.Exported
	neighbour []byte
}

const targetTokens, targetPage = 200, 100

func newTarget(t *testing.T, arch tiny.Arch) *target {
	t.Helper()
	src, e := open(t, arch), open(t, arch)
	g := &target{Engine: e}
	g.x, _ = enginetest.PrefillAndExport(t, src, 0, enginetest.Prompt(src.Vocab(), targetTokens, 1), targetPage)
	enginetest.Prefill(t, e, 1, enginetest.Prompt(e.Vocab(), 50, 2), 50, nil)
	g.neighbour = enginetest.Canonical(t, e, 1)
	return g
}

// refuses imports x and wants an error that names component, then checks that
// neither the slot, nor T, nor the neighbour, nor the room has changed.
func (g *target) refuses(t *testing.T, name string, component state.Kind, x enginetest.Exported) {
	t.Helper()
	err := enginetest.Import(g, 0, x)
	var p *engine.PayloadError
	if !errors.As(err, &p) || !errors.Is(err, engine.ErrPayload) || p.Component != component {
		t.Errorf("%s: %v, expected a fault in %v", name, err, component)
	}
	g.clean(t, name)
}

func (g *target) clean(t *testing.T, name string) {
	t.Helper()
	for _, seq := range []int32{0, g.scratchSeq} {
		if last, _ := llama.MemorySeqPosMax(g.native.mem, llama.SeqId(seq)); last != -1 {
			t.Fatalf("%s: sequence %d is left at position %d", name, seq, last)
		}
		full := llama.StateSeqGetSizeExt(g.ctx, llama.SeqId(seq), 0)
		if empty := llama.StateSeqGetSizeExt(g.ctx, 2, 0); full != empty {
			t.Fatalf("%s: sequence %d has %d bytes of state, an empty one has %d", name, seq, full, empty)
		}
	}
	if !bytes.Equal(g.neighbour, enginetest.Canonical(t, g, 1)) {
		t.Fatalf("%s: the neighbour changed", name)
	}
}

// with returns x with a changed copy of one page or, for page -1, the snapshot.
func (g *target) with(page int, change func(b []byte) []byte) enginetest.Exported {
	x := g.x
	if page < 0 {
		x.Snapshot = change(bytes.Clone(x.Snapshot))
		return x
	}
	x.Pages = append([]enginetest.Page(nil), x.Pages...)
	x.Pages[page].Payload = change(bytes.Clone(x.Pages[page].Payload))
	return x
}

func put32(at int, v uint32) func([]byte) []byte {
	return func(b []byte) []byte {
		binary.LittleEndian.PutUint32(b[at:], v)
		return b
	}
}

// Offsets in a page: header 8, n_stream, cells, then 12 bytes for each cell.
const (
	atStreams, atCells, atFirstCell = 8, 12, 16
	atLastCell                      = atFirstCell + 12*(targetPage-1)
	atLayout                        = atFirstCell + 12*targetPage
)

func TestPageTraps(t *testing.T) {
	for _, arch := range []tiny.Arch{tiny.Llama, tiny.Gemma3, tiny.NemotronHMoE} {
		t.Run(string(arch), func(t *testing.T) {
			g := newTarget(t, arch)
			kv := state.AttentionKV
			for _, c := range []struct {
				name      string
				component state.Kind
				change    func([]byte) []byte
			}{
				{"bad magic", 0, put32(0, 1)},
				{"a sequence id", 0, put32(4, 0xffffffff)},
				{"two streams", kv, put32(atStreams, 2)},
				{"no cells", kv, put32(atCells, 0)},
				{"a cell more", kv, put32(atCells, targetPage+1)},
				{"a cell less", kv, put32(atCells, targetPage-1)},
				{"more cells than the cache", kv, put32(atCells, 100000)},
				{"2^31 cells", kv, put32(atCells, 1<<31-1)},
				{"2^32-1 cells", kv, put32(atCells, math.MaxUint32)},
				{"position -1", kv, put32(atFirstCell, math.MaxUint32)},
				{"position -2, which leaks the cell", kv, put32(atFirstCell, math.MaxUint32-1)},
				{"the least position", kv, put32(atFirstCell, 1<<31)},
				{"the largest position", kv, put32(atLastCell, 1<<31-1)},
				{"a position twice", kv, put32(atFirstCell, targetPage+5)},
				{"a position beyond the page", kv, put32(atLastCell, 2*targetPage)},
				{"a cell without a sequence", kv, put32(atFirstCell+4, 0)},
				{"a cell of two sequences", kv, put32(atFirstCell+4, 2)},
				{"a cell of 2^32-1 sequences", kv, put32(atFirstCell+4, math.MaxUint32)},
				{"a cell of sequence 999", kv, put32(atFirstCell+8, 999)},
				{"transposed values", kv, put32(atLayout, 1)},
				{"one layer", kv, put32(atLayout+4, 1)},
				{"999 layers", kv, put32(atLayout+4, 999)},
				{"another type", kv, put32(atLayout+8, 0)},
				{"an impossible type", kv, put32(atLayout+8, math.MaxUint32)},
				{"longer rows", kv, put32(atLayout+12, 258)},
				{"rows of 2^32 bytes", kv, put32(atLayout+16, 1)},
				{"trailing bytes", 0, func(b []byte) []byte { return append(b, 1, 2, 3, 4) }},
				{"truncated", 0, func(b []byte) []byte { return b[:len(b)-1] }},
				{"nothing", 0, func([]byte) []byte { return nil }},
			} {
				g.refuses(t, c.name, c.component, g.with(1, c.change))
			}
			// A page carries attention state only. Window cells or a recurrent
			// cell in it would take effect before the snapshot.
			tail := g.schema.PageBytes(targetPage)
			if g.schema.Memory.Recurrence() {
				rec := tail - len(g.schema.AppendEmptyREC(nil))
				g.refuses(t, "a recurrent cell in a page", state.Recurrent, g.with(0, put32(rec, 1)))
				tail = rec
			}
			if g.schema.Memory.Window() {
				g.refuses(t, "window cells in a page", state.WindowKV, g.with(0, put32(tail-4, 1)))
			}
			// The largest batch still fits afterwards: nothing leaked.
			free := g.info.Cells - 50
			enginetest.Prefill(t, g, 2, enginetest.Prompt(g.Vocab(), free, 3), 256, nil)
		})
	}
}

func TestSnapshotTraps(t *testing.T) {
	for _, arch := range []tiny.Arch{tiny.Mamba2, tiny.NemotronHMoE} {
		t.Run(string(arch), func(t *testing.T) {
			g := newTarget(t, arch)
			rec, conv := state.Recurrent, state.Conv
			for _, c := range []struct {
				name      string
				component state.Kind
				change    func([]byte) []byte
			}{
				{"bad magic", 0, put32(0, 1)},
				{"no cell", rec, put32(8, 0)},
				{"two cells, which stop the process", rec, put32(8, 2)},
				{"64 cells", rec, put32(8, 64)},
				{"2^32-1 cells", rec, put32(8, math.MaxUint32)},
				{"position -1", rec, put32(12, math.MaxUint32)},
				{"position -5", rec, put32(12, math.MaxUint32-4)},
				{"a position other than the attention's", rec, put32(12, 7)},
				{"a position one less", rec, put32(12, targetTokens-2)},
				{"a sequence list", rec, put32(16, 1)},
				{"transposed state", rec, put32(20, 1)},
				{"99 layers", rec, put32(24, 99)},
				{"another type", conv, put32(28, 1)},
				{"other rows", conv, put32(32, 4)},
				{"trailing bytes", 0, func(b []byte) []byte { return append(b, 0) }},
				{"truncated", 0, func(b []byte) []byte { return b[:len(b)-1] }},
				{"two whole cells", 0, func(b []byte) []byte {
					two := append([]byte(nil), b[:8]...)
					two = append32(two, 2, targetTokens-1, 0, targetTokens-1, 0)
					return append(two, b[20:]...)
				}},
			} {
				g.refuses(t, c.name, c.component, g.with(-1, c.change))
			}
		})
	}
	t.Run("gemma3", func(t *testing.T) {
		g := newTarget(t, tiny.Gemma3)
		win := state.WindowKV
		cells := binary.LittleEndian.Uint32(g.x.Snapshot[12:])
		for _, c := range []struct {
			name      string
			component state.Kind
			change    func([]byte) []byte
		}{
			{"two streams", win, put32(8, 2)},
			{"no cells", win, put32(12, 0)},
			{"too few cells", win, put32(12, cells-2)},
			{"too many cells", win, put32(12, cells+1)},
			{"2^32-1 cells", win, put32(12, math.MaxUint32)},
			{"a position before the window", win, put32(16, 3)},
			{"a position twice", win, put32(16, targetTokens-1)},
			{"a position not yet there", win, put32(16, targetTokens)},
			{"a leaking position", win, put32(16, math.MaxUint32-1)},
			{"transposed values", win, put32(16+12*int(cells), 1)},
			{"trailing bytes", 0, func(b []byte) []byte { return append(b, 0) }},
		} {
			g.refuses(t, c.name, c.component, g.with(-1, c.change))
		}
	})
}

// A NaN or an infinity in any tensor would reach neighbours through the shared
// cache and stay there: each is refused by the name of its component and layer.
func TestNonFiniteIsRefused(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			g := newTarget(t, arch)
			window := 0
			if g.schema.Memory.Window() {
				window = int(binary.LittleEndian.Uint32(g.x.Snapshot[12:]))
			}
			check := func(page int, regions []region) {
				for _, r := range regions {
					width, bad := 2, []uint32{0x7e00, 0x7c00, 0xfc00}
					if r.width == 4 {
						width, bad = 4, []uint32{0x7fc00000, 0x7f800000, 0xff800000}
					}
					for i, v := range bad {
						at := r.at + (r.n/width/2+i)*width
						x := g.with(page, func(b []byte) []byte {
							if width == 2 {
								binary.LittleEndian.PutUint16(b[at:], uint16(v))
							} else {
								binary.LittleEndian.PutUint32(b[at:], v)
							}
							return b
						})
						g.refuses(t, r.name, r.kind, x)
						scan := func() error {
							if page < 0 {
								return g.ScanSnapshot(x.Tokens, x.Snapshot)
							}
							return g.ScanPage(x.Pages[page].First, x.Pages[page].End, x.Pages[page].Payload)
						}
						for _, err := range []error{enginetest.Import(g, 0, x), scan()} {
							var p *engine.PayloadError
							if !errors.As(err, &p) || p.Layer != r.layer {
								t.Errorf("%s: %v, expected a refusal of layer %d", r.name, err, r.layer)
							}
						}
					}
				}
			}
			if g.Paged() {
				check(1, regionsOf(g.Engine, targetPage, -1))
			}
			check(-1, regionsOf(g.Engine, 0, window))
		})
	}
}

// region is the numbers of one tensor in a payload.
type region struct {
	name         string
	kind         state.Kind
	layer        int
	at, n, width int
}

// regionsOf lists the tensors of a page of tokens cells or, for window >= 0, of
// a snapshot.
func regionsOf(e *Engine, tokens, window int) []region {
	list := e.schema.PageRegions(tokens)
	if window >= 0 {
		list = e.schema.SnapshotRegions(window)
	}
	layers := map[state.Kind][]int{
		state.AttentionKV: e.layers.base, state.WindowKV: e.layers.window,
		state.Conv: e.layers.recurrent, state.Recurrent: e.layers.recurrent,
	}
	var out []region
	for _, r := range list {
		width := 2
		if r.Type.String() == "f32" {
			width = 4
		}
		layer := layers[r.Kind][r.Layer]
		out = append(out, region{fmt.Sprintf("%v layer %d %v", r.Kind, layer, r.Part), r.Kind, layer, r.Offset, r.Length, width})
	}
	return out
}

// An aborted computation leaves a part of its batch behind: all sequences of the
// batch go, others stay and the engine goes on. With recurrent state also
// sequences outside of the batch may be damaged, so the engine must not go on.
func TestAbortedBatch(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			e := open(t, arch)
			for seq := range int32(3) {
				enginetest.Prefill(t, e, seq, enginetest.Prompt(e.Vocab(), 40, uint64(seq)), 40, nil)
			}
			kept := enginetest.Canonical(t, e, 1)
			armed, calls := true, 0
			llama.SetAbortCallback(e.ctx, func() bool {
				calls++
				return armed && calls > 20
			})
			prompt := enginetest.Prompt(e.Vocab(), 60, 9)
			rows := append(enginetest.Rows(prompt, 40, 0), enginetest.Rows(prompt, 40, 2)...)
			err := e.Decode(rows)
			armed = false
			if e.recurrence {
				if !errors.Is(err, engine.ErrFatal) {
					t.Errorf("an aborted batch: %v", err)
				}
				return
			}
			if !errors.Is(err, engine.ErrLost) {
				t.Fatalf("an aborted batch: %v", err)
			}
			if e.Tokens(0) != 0 || e.Tokens(1) != 40 || e.Tokens(2) != 0 {
				t.Errorf("%d, %d, %d tokens, expected 0, 40, 0", e.Tokens(0), e.Tokens(1), e.Tokens(2))
			}
			if !bytes.Equal(kept, enginetest.Canonical(t, e, 1)) {
				t.Error("a sequence outside of the batch changed")
			}
			if _, err := e.Logits(len(rows) - 1); !errors.Is(err, engine.ErrNoOutput) {
				t.Errorf("logits of a lost batch: %v", err)
			}
			for _, seq := range []int32{0, 2} {
				enginetest.Prefill(t, e, seq, prompt, 60, nil)
			}
		})
	}
}

// Whatever llama.cpp left in T when an import fails, it does not stay there.
func TestFailureEmptiesTheScratchSequence(t *testing.T) {
	for _, arch := range tiny.Archs() {
		g := newTarget(t, arch)
		imp, err := g.BeginImport(0, targetTokens)
		if err != nil {
			t.Fatal(err)
		}
		g.native.copySeq(1, g.scratchSeq, -1, -1)
		if err := imp.Commit(); !errors.Is(err, engine.ErrCoverage) {
			t.Errorf("%s: %v", arch, err)
		}
		g.clean(t, string(arch))
	}
}

// A failed computation breaks the engine for good, rather than letting it go on
// with parts of a batch in place.
func TestFatalStaysFatal(t *testing.T) {
	e := open(t, tiny.Llama)
	_ = e.fatal("test")
	if err := e.Decode(enginetest.Rows([]engine.Token{1}, 0, 0)); !errors.Is(err, engine.ErrFatal) {
		t.Errorf("Decode: %v", err)
	}
	if _, err := e.BeginImport(0, 1); !errors.Is(err, engine.ErrFatal) {
		t.Errorf("BeginImport: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// Two goroutines in one engine are noticed, not endured.
func TestOverlappingCalls(t *testing.T) {
	e := open(t, tiny.NemotronHMoE)
	enginetest.Prefill(t, e, 0, enginetest.Prompt(e.Vocab(), 10, 1), 10, nil)
	imp, err := e.BeginImport(1, 10)
	if err != nil {
		t.Fatal(err)
	}
	e.busy.Store(1) // as if another call were running
	_, err1 := e.Logits(9)
	_, err2 := e.ExportPage(0, 0, 1, nil)
	_, err3 := e.SnapshotBytes(0)
	_, _, err4 := e.ExportSnapshot(0, nil)
	_, err5 := e.BeginImport(2, 1)
	_, err6 := e.Canonical(0)
	for i, err := range []error{
		err1, err2, err3, err4, err5, err6, e.Decode(enginetest.Rows([]engine.Token{1}, 10, 0)), e.Drop(0), e.Close(),
		imp.Page(0, 10, nil), imp.Snapshot(nil), imp.Commit(), imp.Discard(),
	} {
		if !errors.Is(err, engine.ErrConcurrent) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	e.busy.Store(0)
	if e.Tokens(0) != 10 {
		t.Error("a refused call changed the slot")
	}
}

// Sizes with which llama.cpp aborts are refused as options.
func TestOptions(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Options)
	}{
		{"Slots", func(o *Options) { o.Slots = 256 }},
		{"Slots", func(o *Options) { o.Slots = -1 }},
		{"Cells", func(o *Options) { o.Cells = -1 }},
		{"Cells", func(o *Options) { o.Cells = 1 << 40 }},
		{"BatchTokens", func(o *Options) { o.BatchTokens = 4 }},
		{"BatchTokens", func(o *Options) { o.BatchTokens = 1 << 20 }},
		{"UBatch", func(o *Options) { o.UBatch = 1 }},
		{"UBatch", func(o *Options) { o.BatchTokens, o.UBatch = 64, 65 }},
		{"Threads", func(o *Options) { o.Threads = -1 }},
		{"CheckOneIn", func(o *Options) { o.CheckOneIn = -1 }},
		{"GPULayers", func(o *Options) { o.GPULayers = -1 }},
		{"KVType", func(o *Options) { o.KVType = state.F32 }},
	} {
		o := options(t, tiny.Llama)
		c.change(&o)
		e, err := Open(o)
		if !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), c.name) {
			t.Errorf("%s: %v", c.name, err)
		}
		if e != nil {
			e.Close()
		}
	}
	// The most sequences there can be.
	e := open(t, tiny.Mamba2, func(o *Options) { o.Slots = 255 })
	enginetest.Prefill(t, e, 254, enginetest.Prompt(e.Vocab(), 10, 1), 10, nil)
}
