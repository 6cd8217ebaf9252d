package enginetest

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/engine"
)

func testInfo(t *testing.T, open Open) {
	a, b := opened(t, open, standard), opened(t, open, standard)
	i := a.Info()
	if err := i.Identity.Match(b.Info().Identity); err != nil {
		t.Errorf("two engines of one model differ: %v", err)
	}
	if i.Slots != standard.Slots || i.BatchTokens != standard.BatchTokens || i.Cells < standard.Cells {
		t.Errorf("%d slots, %d cells, batches of %d, asked for %+v", i.Slots, i.Cells, i.BatchTokens, standard)
	}
	if i.ContextTokens < 1 || i.ContextTokens > i.Cells || i.Layers < 1 || i.Threads < 1 {
		t.Errorf("%+v", i)
	}
	if i.Architecture == "" || i.Backend == "" || i.Build == "" || i.Identity.EngineBuild == "" {
		t.Errorf("something has no name: %+v", i)
	}
	if i.ColocatedOnly != "" {
		t.Fatalf("the suite needs a model whose state moves: %s", i.ColocatedOnly)
	}
	if err := i.Inventory.Check(); err != nil {
		t.Error(err)
	}
	if i.Inventory.Paged() != a.Paged() {
		t.Errorf("Paged %v, the inventory says %v", a.Paged(), i.Inventory.Paged())
	}
	if !a.Paged() && a.PageBytes(7) != 0 || a.PageBytes(0) != 0 || a.PageBytes(-1) != 0 {
		t.Errorf("pages of nothing have bytes")
	}
}

func testVocab(t *testing.T, open Open) {
	v := opened(t, open, standard).Vocab()
	if v.Size() < 2 {
		t.Fatalf("%d tokens", v.Size())
	}
	for _, id := range []engine.Token{-1, engine.Token(v.Size()), 1<<31 - 1, -1 << 31} {
		if v.Piece(id) != nil || v.Text(id) != "" || v.IsEOG(id) || v.IsControl(id) {
			t.Errorf("token %d means something", id)
		}
	}
	for _, id := range []engine.Token{v.BOS(), v.EOS()} {
		if id < -1 || int(id) >= v.Size() {
			t.Errorf("special token %d of %d", id, v.Size())
		}
		if id >= 0 && v.Text(id) == "" {
			t.Errorf("special token %d has no name", id)
		}
	}
	for _, text := range []string{"", "a", "Hello, world!", "línea\n\tzwei  三 🙂", "nul \x00 inside"} {
		tokens, err := v.Tokenize(text, false, false)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		var got []byte
		for _, id := range tokens {
			got = append(got, v.Piece(id)...)
		}
		if !bytes.HasSuffix(bytes.TrimPrefix(got, []byte(" ")), []byte(text)) {
			t.Errorf("%q comes back as %q", text, got)
		}
	}
	plain, err1 := v.Tokenize("x", false, false)
	special, err2 := v.Tokenize("x", true, false)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if v.AddBOS() != (len(special) > 0 && special[0] == v.BOS() && !slices.Equal(plain, special)) {
		t.Errorf("AddBOS is %v; with special tokens %d, without %d", v.AddBOS(), len(special), len(plain))
	}
	if v.EOS() >= 0 && v.IsControl(v.EOS()) {
		name := v.Text(v.EOS())
		parsed, err1 := v.Tokenize(name, false, true)
		literal, err2 := v.Tokenize(name, false, false)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if !slices.Equal(parsed, []engine.Token{v.EOS()}) || slices.Contains(literal, v.EOS()) {
			t.Errorf("%q parses to %v, and as text to %v", name, parsed, literal)
		}
	}
	if _, err := v.Tokenize("\xff\xfe", false, false); err == nil {
		t.Error("text that is not UTF-8 was tokenized")
	}
}

// What Decode refuses, it refuses as stated, and nothing changes.
func testDecodeRefusals(t *testing.T, open Open) {
	e := opened(t, open, standard)
	size := engine.Token(e.Vocab().Size())
	Prefill(t, e, 0, Prompt(e.Vocab(), 20, 1), 20, nil)
	before := Canonical(t, e, 0)
	row := func(tok engine.Token, pos, seq int32) engine.Row {
		return engine.Row{Token: tok, Pos: pos, Seq: seq, Output: true}
	}
	imp, err := e.BeginImport(2, 5)
	if err != nil {
		t.Fatal(err)
	}
	defer imp.Discard()
	for _, c := range []struct {
		name string
		rows []engine.Row
		want error
	}{
		{"no rows", nil, engine.ErrBatch},
		{"too many rows", make([]engine.Row, standard.BatchTokens+1), engine.ErrBatch},
		{"negative token", []engine.Row{row(-1, 20, 0)}, engine.ErrBatch},
		{"token out of range", []engine.Row{row(size, 20, 0)}, engine.ErrBatch},
		{"negative slot", []engine.Row{row(1, 0, -1)}, engine.ErrSequence},
		{"slot out of range", []engine.Row{row(1, 0, int32(standard.Slots))}, engine.ErrSequence},
		{"slot far out of range", []engine.Row{row(1, 0, 300)}, engine.ErrSequence},
		{"importing slot", []engine.Row{row(1, 0, 2)}, engine.ErrSequence},
		{"position repeated", []engine.Row{row(1, 19, 0)}, engine.ErrBatch},
		{"position skipped", []engine.Row{row(1, 21, 0)}, engine.ErrBatch},
		{"position negative", []engine.Row{row(1, -1, 1)}, engine.ErrBatch},
		{"empty slot not at 0", []engine.Row{row(1, 20, 1)}, engine.ErrBatch},
		{"second row repeats", []engine.Row{row(1, 20, 0), row(1, 20, 0)}, engine.ErrBatch},
		{"rows out of order", []engine.Row{row(1, 21, 0), row(1, 20, 0)}, engine.ErrBatch},
		{"bad row after good ones", []engine.Row{row(1, 20, 0), row(1, 0, 1), row(size, 1, 1)}, engine.ErrBatch},
	} {
		if err := e.Decode(c.rows); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if e.Tokens(0) != 20 || e.Tokens(1) != 0 {
			t.Fatalf("%s: changed the slots", c.name)
		}
	}
	if !bytes.Equal(before, Canonical(t, e, 0)) {
		t.Error("refused batches changed state")
	}
	if err := e.Decode([]engine.Row{row(1, 20, 0), row(1, 0, 1), row(2, 1, 1)}); err != nil {
		t.Errorf("a good batch afterwards: %v", err)
	}

	// The longest sequence ends at ContextTokens.
	small := opened(t, open, Config{Slots: 1, Cells: 256, BatchTokens: 256})
	n := small.Info().ContextTokens
	for at := 0; at < n; at += 256 {
		if err := small.Decode(Rows(Prompt(small.Vocab(), min(256, n-at), 2), at, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := small.Decode([]engine.Row{row(1, int32(n), 0)}); !errors.Is(err, engine.ErrContext) {
		t.Errorf("position %d: %v", n, err)
	}
	if small.Tokens(0) != n {
		t.Errorf("%d tokens, want %d", small.Tokens(0), n)
	}
}

func testLogits(t *testing.T, open Open) {
	e := opened(t, open, standard)
	if _, err := e.Logits(0); !errors.Is(err, engine.ErrNoOutput) {
		t.Errorf("before any batch: %v", err)
	}
	tokens := Prompt(e.Vocab(), 8, 3)
	rows := append(Rows(tokens, 0, 0), Rows(tokens[:3], 0, 1)...)
	rows[2].Output = true
	if err := e.Decode(rows); err != nil {
		t.Fatal(err)
	}
	for i := -1; i <= len(rows); i++ {
		l, err := e.Logits(i)
		if i >= 0 && i < len(rows) && rows[i].Output {
			if err != nil || len(l) != e.Vocab().Size() {
				t.Errorf("row %d: %d logits, %v", i, len(l), err)
			}
			for _, v := range l {
				if v != v {
					t.Fatalf("row %d has a NaN", i)
				}
			}
		} else if !errors.Is(err, engine.ErrNoOutput) {
			t.Errorf("row %d without output: %v", i, err)
		}
	}
	// Rows 2 and 10 end the same three tokens, in two slots.
	a, err1 := e.Logits(2)
	b, err2 := e.Logits(10)
	if err1 != nil || err2 != nil || Argmax(a) != Argmax(b) {
		t.Errorf("equal prefixes want different tokens: %v %v", err1, err2)
	}
	if err := e.Decode(nil); err == nil {
		t.Fatal("an empty batch passed")
	}
	if err := e.Decode([]engine.Row{{Token: 1, Pos: 3, Seq: 1}}); err != nil {
		t.Fatalf("a batch without output: %v", err)
	}
	if _, err := e.Logits(0); !errors.Is(err, engine.ErrNoOutput) {
		t.Errorf("logits of a row without output: %v", err)
	}
}

func testDrop(t *testing.T, open Open) {
	e := opened(t, open, standard)
	for _, seq := range []int32{-1, int32(standard.Slots), 255, 256, 1 << 20} {
		if err := e.Drop(seq); !errors.Is(err, engine.ErrSequence) {
			t.Errorf("Drop(%d): %v", seq, err)
		}
		if e.Tokens(seq) != 0 {
			t.Errorf("slot %d has tokens", seq)
		}
	}
	tokens := Prompt(e.Vocab(), 40, 4)
	Prefill(t, e, 0, tokens, 40, nil)
	Prefill(t, e, 1, tokens[:30], 30, nil)
	kept := Canonical(t, e, 1)
	for range 2 { // twice is as good as once
		if err := e.Drop(0); err != nil || e.Tokens(0) != 0 {
			t.Fatalf("Drop: %v, %d tokens left", err, e.Tokens(0))
		}
	}
	if _, err := e.Canonical(0); !errors.Is(err, engine.ErrSequence) {
		t.Errorf("a dropped slot has state: %v", err)
	}
	if e.Tokens(1) != 30 || !bytes.Equal(kept, Canonical(t, e, 1)) {
		t.Error("dropping one slot changed another")
	}
	Prefill(t, e, 0, tokens[:5], 5, nil) // it can be used again from the start
}

// A request alone gives the same bits whatever ran in the engine before.
func testRepeatable(t *testing.T, open Open) {
	e := opened(t, open, standard)
	run := func(seq int32) ([]byte, [][]float32) {
		logits := Prefill(t, e, seq, Prompt(e.Vocab(), 150, 5), 64, nil)
		_, all := Greedy(t, e, seq, logits, 8)
		state := Canonical(t, e, seq)
		if err := e.Drop(seq); err != nil {
			t.Fatal(err)
		}
		return state, all
	}
	state, want := run(0)
	// Disturb: two sequences in the same batches, dropped in another order, and
	// an import that fails.
	a, b := Prompt(e.Vocab(), 90, 6), Prompt(e.Vocab(), 70, 7)
	for i := 0; i < 90; i += 30 {
		rows := Rows(a[i:i+30], i, 0)
		if i < 60 {
			rows = append(rows, Rows(b[i:i+30], i, 2)...)
		}
		if err := e.Decode(rows); err != nil {
			t.Fatal(err)
		}
	}
	if imp, err := e.BeginImport(1, 10); err != nil {
		t.Fatal(err)
	} else if imp.Commit() == nil {
		t.Fatal("an empty import committed")
	}
	for _, seq := range []int32{0, 2} {
		if err := e.Drop(seq); err != nil {
			t.Fatal(err)
		}
	}
	for _, seq := range []int32{0, 1} {
		s, got := run(seq)
		if err := SameBits(want, got); err != nil {
			t.Errorf("again in slot %d: %v", seq, err)
		}
		if !bytes.Equal(s, state) {
			t.Errorf("again in slot %d: other state", seq)
		}
	}
}

// A batch that does not fit changes nothing, and fits once there is room.
func testNoCells(t *testing.T, open Open) {
	e := opened(t, open, Config{Slots: 3, Cells: 256, BatchTokens: 256})
	if !e.Paged() {
		return // nothing to run out of
	}
	cells := e.Info().Cells
	half := Prompt(e.Vocab(), cells/2, 8)
	Prefill(t, e, 0, half, 64, nil)
	Prefill(t, e, 1, half[:cells/4], 64, nil)
	s0, s1 := Canonical(t, e, 0), Canonical(t, e, 1)
	rows := append(Rows(half, 0, 2), Rows(half[:1], len(half), 0)...)
	for range 3 {
		if err := e.Decode(rows); !errors.Is(err, engine.ErrNoCells) {
			t.Fatalf("more than there is room for: %v", err)
		}
		if e.Tokens(0) != len(half) || e.Tokens(1) != cells/4 || e.Tokens(2) != 0 {
			t.Fatal("a batch that does not fit changed the slots")
		}
	}
	if !bytes.Equal(s0, Canonical(t, e, 0)) || !bytes.Equal(s1, Canonical(t, e, 1)) {
		t.Error("a batch that does not fit changed state")
	}
	if err := e.Drop(1); err != nil {
		t.Fatal(err)
	}
	if err := e.Decode(Rows(half, 0, 2)); err != nil {
		t.Errorf("when there is room: %v", err)
	}
}

func testClosed(t *testing.T, open Open) {
	e := open(t, standard)
	Prefill(t, e, 0, Prompt(e.Vocab(), 10, 9), 10, nil)
	imp, err := e.BeginImport(1, 4)
	if err != nil {
		t.Fatal(err)
	}
	v := e.Vocab()
	for range 2 {
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err1 := e.Logits(0)
	_, err2 := e.ExportPage(0, 0, 1, nil)
	_, err3 := e.SnapshotBytes(0)
	_, _, err4 := e.ExportSnapshot(0, nil)
	_, err5 := e.BeginImport(0, 1)
	_, err6 := e.Canonical(0)
	_, err7 := v.Tokenize("x", false, false)
	for i, err := range []error{
		e.Decode([]engine.Row{{}}), e.Drop(0), err1, err2, err3, err4, err5, err6, err7,
		imp.Page(0, 4, nil), imp.Snapshot(nil), imp.Commit(),
	} {
		if !errors.Is(err, engine.ErrClosed) && !errors.Is(err, engine.ErrImportDead) {
			t.Errorf("call %d on a closed engine: %v", i, err)
		}
	}
	if e.Tokens(0) != 0 {
		t.Error("a closed engine holds tokens")
	}
}
