package enginetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/state"
)

// State that leaves one engine and enters another is the same state: equal
// canonical bytes, and the same answer bit for bit. Exporting disturbs nothing.
func testHandoff(t *testing.T, open Open) {
	for _, c := range []struct{ prompt, chunk int }{
		{1, 64}, {2, 64}, {63, 64}, {64, 64}, {65, 64}, {300, 100}, {511, 128}, {512, 256}, {700, 256},
	} {
		t.Run(fmt.Sprintf("%d by %d", c.prompt, c.chunk), func(t *testing.T) {
			const steps = 12
			src, dst := opened(t, open, standard), opened(t, open, standard)
			tokens := Prompt(src.Vocab(), c.prompt, uint64(c.prompt))

			plain := Prefill(t, src, 0, tokens, c.chunk, nil)
			want, wantLogits := Greedy(t, src, 0, plain, steps)
			if err := src.Drop(0); err != nil {
				t.Fatal(err)
			}

			x, logits := PrefillAndExport(t, src, 0, tokens, c.chunk)
			checkSizes(t, src, x)
			state := Canonical(t, src, 0)
			if err := SameBits([][]float32{plain}, [][]float32{logits}); err != nil {
				t.Errorf("exporting changed the source's logits: %v", err)
			}
			if err := Import(dst, 0, x); err != nil {
				t.Fatal(err)
			}
			if dst.Tokens(0) != c.prompt {
				t.Errorf("%d tokens arrived of %d", dst.Tokens(0), c.prompt)
			}
			if !bytes.Equal(state, Canonical(t, dst, 0)) {
				t.Error("the state that arrived is not the state that left")
			}
			again := Exported{Tokens: x.Tokens}
			for _, p := range x.Pages {
				again.Pages = append(again.Pages, ExportPage(t, dst, 0, p.First, p.End))
			}
			again.Snapshot, _ = ExportSnapshot(t, dst, 0)
			if !slices.EqualFunc(x.Pages, again.Pages, func(a, b Page) bool { return bytes.Equal(a.Payload, b.Payload) }) ||
				!bytes.Equal(x.Snapshot, again.Snapshot) {
				t.Error("exported once more it is other bytes")
			}
			got, gotLogits := Greedy(t, dst, 0, logits, steps)
			if !slices.Equal(want, got) {
				t.Errorf("the destination answers %v, the source %v", got, want)
			}
			if err := SameBits(wantLogits, gotLogits); err != nil {
				t.Errorf("destination against source: %v", err)
			}
			if !bytes.Equal(Canonical(t, dst, 0), func() []byte {
				Greedy(t, src, 0, logits, steps)
				return Canonical(t, src, 0)
			}()) {
				t.Error("after the answer the states differ")
			}
		})
	}
}

// checkSizes compares what came out with what the inventory announced.
func checkSizes(t *testing.T, e engine.Engine, x Exported) {
	t.Helper()
	inv := e.Info().Inventory
	for _, p := range x.Pages {
		if c := inv.Find(state.AttentionKV); uint64(len(p.Payload)) != c.Bytes(uint32(p.End-p.First)) {
			t.Errorf("a page of %d tokens has %d bytes, the inventory says %d", p.End-p.First, len(p.Payload), c.Bytes(uint32(p.End-p.First)))
		}
	}
	if inv.Snapshot() != (len(x.Snapshot) > 0) {
		t.Fatalf("a snapshot of %d bytes, the inventory says %v", len(x.Snapshot), inv.Snapshot())
	}
	least, most := inv.SnapshotBytes(uint32(x.Tokens))
	if n := uint64(len(x.Snapshot)); n < least || n > most {
		t.Errorf("a snapshot of %d bytes, the inventory says %d to %d", n, least, most)
	}
	at := uint64(0)
	for _, p := range x.Parts {
		if p.Offset != at || p.Length == 0 || inv.Find(p.Kind) == nil {
			t.Errorf("%v lies at %d+%d, expected at %d", p.Kind, p.Offset, p.Length, at)
		}
		at = p.Offset + p.Length
	}
	if at != uint64(len(x.Snapshot)) {
		t.Errorf("components cover %d of %d bytes", at, len(x.Snapshot))
	}
}

func testExportRefusals(t *testing.T, open Open) {
	e := opened(t, open, standard)
	Prefill(t, e, 0, Prompt(e.Vocab(), 30, 10), 30, nil)
	before := Canonical(t, e, 0)
	buf := make([]byte, 1<<20)
	range_ := engine.ErrCoverage
	slot := engine.ErrSequence
	short := engine.ErrBuffer
	if !e.Paged() {
		range_, short = engine.ErrUnsupported, engine.ErrUnsupported
	}
	for _, c := range []struct {
		name       string
		seq        int32
		first, end int
		dst        []byte
		want       error
	}{
		{"negative start", 0, -1, 5, buf, range_},
		{"empty range", 0, 5, 5, buf, range_},
		{"inverted range", 0, 6, 5, buf, range_},
		{"beyond the end", 0, 20, 31, buf, range_},
		{"short buffer", 0, 0, 30, buf[:e.PageBytes(30)/2], short},
		{"no buffer", 0, 0, 30, nil, short},
		{"empty slot", 1, 0, 5, buf, slot},
		{"negative slot", -1, 0, 5, buf, slot},
		{"slot out of range", 3, 0, 5, buf, slot},
		{"slot 256", 256, 0, 5, buf, slot},
	} {
		if n, err := e.ExportPage(c.seq, c.first, c.end, c.dst); !errors.Is(err, c.want) || n != 0 {
			t.Errorf("page, %s: %d, %v, want %v", c.name, n, err, c.want)
		}
	}
	for _, seq := range []int32{-1, 1, 3, 256} {
		if _, err := e.SnapshotBytes(seq); !errors.Is(err, slot) {
			t.Errorf("SnapshotBytes(%d): %v", seq, err)
		}
		if _, _, err := e.ExportSnapshot(seq, buf); !errors.Is(err, slot) {
			t.Errorf("ExportSnapshot(%d): %v", seq, err)
		}
		if _, err := e.Canonical(seq); !errors.Is(err, slot) {
			t.Errorf("Canonical(%d): %v", seq, err)
		}
	}
	if n, _ := e.SnapshotBytes(0); n > 0 {
		if _, _, err := e.ExportSnapshot(0, buf[:n-1]); !errors.Is(err, engine.ErrBuffer) {
			t.Errorf("a short buffer: %v", err)
		}
	}
	if !bytes.Equal(before, Canonical(t, e, 0)) {
		t.Error("refused exports changed state")
	}
}

// The states of an import, and what each refuses.
func testImportStates(t *testing.T, open Open) {
	src, e := opened(t, open, standard), opened(t, open, standard)
	x, _ := PrefillAndExport(t, src, 1, Prompt(src.Vocab(), 100, 11), 40)
	begin := func(seq int32, n int) engine.Import {
		t.Helper()
		imp, err := e.BeginImport(seq, n)
		if err != nil {
			t.Fatal(err)
		}
		return imp
	}
	for _, seq := range []int32{-1, 3, 255, 256} {
		if _, err := e.BeginImport(seq, 5); !errors.Is(err, engine.ErrSequence) {
			t.Errorf("BeginImport(%d): %v", seq, err)
		}
	}
	for _, n := range []int{0, -1} {
		if _, err := e.BeginImport(0, n); !errors.Is(err, engine.ErrSequence) {
			t.Errorf("an import of %d tokens: %v", n, err)
		}
	}
	if _, err := e.BeginImport(0, e.Info().ContextTokens+1); !errors.Is(err, engine.ErrContext) {
		t.Errorf("an import of too many tokens: %v", err)
	}

	// An importing slot is neither empty nor held.
	imp := begin(0, 100)
	if _, err := e.BeginImport(0, 100); !errors.Is(err, engine.ErrSequence) {
		t.Errorf("a second import of one slot: %v", err)
	}
	if _, err := e.Canonical(0); !errors.Is(err, engine.ErrSequence) || e.Tokens(0) != 0 {
		t.Errorf("an importing slot holds %d tokens, %v", e.Tokens(0), err)
	}
	// Dropping the slot ends its import.
	if err := e.Drop(0); err != nil {
		t.Fatal(err)
	}
	for i, err := range []error{imp.Page(0, 40, nil), imp.Snapshot(nil), imp.Commit()} {
		if !errors.Is(err, engine.ErrImportDead) {
			t.Errorf("call %d after Drop: %v", i, err)
		}
	}
	if err := imp.Discard(); err != nil {
		t.Errorf("Discard after Drop: %v", err)
	}
	// So does discarding, at any point, as often as one likes.
	for n := 0; n <= len(x.Pages); n++ {
		imp := begin(0, 100)
		for _, p := range x.Pages[:n] {
			if err := imp.Page(p.First, p.End, p.Payload); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := imp.Discard(); err != nil || e.Tokens(0) != 0 {
				t.Errorf("discarding after %d pages: %v", n, err)
			}
		}
		if err := imp.Commit(); !errors.Is(err, engine.ErrImportDead) {
			t.Errorf("Commit after Discard: %v", err)
		}
	}
	// A committed import is over; its slot is held and can go on.
	if err := Import(e, 0, x); err != nil {
		t.Fatal(err)
	}
	if _, err := e.BeginImport(0, 5); !errors.Is(err, engine.ErrSequence) {
		t.Errorf("an import into a held slot: %v", err)
	}
	imp = begin(2, 100)
	for _, p := range slices.Backward(x.Pages) { // in any order
		if err := imp.Page(p.First, p.End, p.Payload); err != nil {
			t.Fatal(err)
		}
	}
	if len(x.Snapshot) > 0 {
		if err := imp.Snapshot(x.Snapshot); err != nil {
			t.Fatal(err)
		}
	}
	if err := imp.Commit(); err != nil {
		t.Fatal(err)
	}
	for i, err := range []error{imp.Page(0, 40, nil), imp.Snapshot(nil), imp.Commit()} {
		if !errors.Is(err, engine.ErrImportDead) {
			t.Errorf("call %d after Commit: %v", i, err)
		}
	}
	if err := imp.Discard(); err != nil || e.Tokens(2) != 100 {
		t.Errorf("Discard after Commit: %v, %d tokens", err, e.Tokens(2))
	}
	want := Canonical(t, src, 1)
	if !bytes.Equal(want, Canonical(t, e, 0)) || !bytes.Equal(want, Canonical(t, e, 2)) {
		t.Error("imports in one and the other order differ from their source")
	}
}

// Imports, exports and decoding of several sequences in turn do not mix.
func testInterleaved(t *testing.T, open Open) {
	src, dst, ref := opened(t, open, standard), opened(t, open, standard), opened(t, open, standard)
	r := rand.New(rand.NewPCG(17, 17))
	const n, chunk = 192, 32
	prompts := [][]engine.Token{Prompt(src.Vocab(), n, 18), Prompt(src.Vocab(), n, 19)}
	local := Prompt(dst.Vocab(), 60, 20)
	// The source prefills both in the same batches, so their cells interleave.
	x := [2]Exported{{Tokens: n}, {Tokens: n}}
	for at := 0; at < n; at += chunk {
		rows := append(Rows(prompts[0][at:at+chunk], at, 0), Rows(prompts[1][at:at+chunk], at, 2)...)
		if err := src.Decode(rows); err != nil {
			t.Fatal(err)
		}
		if src.Paged() {
			x[0].Pages = append(x[0].Pages, ExportPage(t, src, 0, at, at+chunk))
			x[1].Pages = append(x[1].Pages, ExportPage(t, src, 2, at, at+chunk))
		}
	}
	x[0].Snapshot, _ = ExportSnapshot(t, src, 0)
	x[1].Snapshot, _ = ExportSnapshot(t, src, 2)
	// The destination takes both in pieces while it decodes a third.
	Prefill(t, ref, 1, local, 1, nil)
	var imps [2]engine.Import
	for i, seq := range []int32{0, 2} {
		var err error
		if imps[i], err = dst.BeginImport(seq, n); err != nil {
			t.Fatal(err)
		}
	}
	next := [2]int{}
	done := [2]bool{}
	for at := 0; at < len(local) || !done[0] || !done[1]; {
		switch i := r.IntN(3); {
		case i == 2:
			if at < len(local) {
				if err := dst.Decode(Rows(local[at:at+1], at, 1)); err != nil {
					t.Fatal(err)
				}
				at++
			}
		case done[i]:
		case next[i] < len(x[i].Pages):
			p := x[i].Pages[next[i]]
			next[i]++
			if err := imps[i].Page(p.First, p.End, p.Payload); err != nil {
				t.Fatal(err)
			}
		default:
			if len(x[i].Snapshot) > 0 {
				if err := imps[i].Snapshot(x[i].Snapshot); err != nil {
					t.Fatal(err)
				}
			}
			if err := imps[i].Commit(); err != nil {
				t.Fatal(err)
			}
			done[i] = true
		}
	}
	for i, seq := range []int32{0, 2} {
		if !bytes.Equal(Canonical(t, src, seq), Canonical(t, dst, seq)) {
			t.Errorf("sequence %d is not its source", i)
		}
	}
	if dst.Tokens(1) != len(local) || len(Canonical(t, dst, 1)) != len(Canonical(t, ref, 1)) {
		t.Error("the decoding sequence has another length")
	}
	// All three go on together.
	rows := []engine.Row{
		{Token: 1, Pos: n, Seq: 0, Output: true}, {Token: 2, Pos: int32(len(local)), Seq: 1, Output: true}, {Token: 3, Pos: n, Seq: 2, Output: true},
	}
	if err := dst.Decode(rows); err != nil {
		t.Fatal(err)
	}
}
