package enginetest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/tandem-llm/tandem/engine"
)

// Whatever is wrong with an import is refused, kills it, empties its slot, and
// changes nothing else.
func testImportRefusals(t *testing.T, open Open) {
	src, e := opened(t, open, standard), opened(t, open, standard)
	x, _ := PrefillAndExport(t, src, 0, Prompt(src.Vocab(), 100, 12), 40)
	want := Canonical(t, src, 0)
	Prefill(t, e, 1, Prompt(e.Vocab(), 50, 13), 50, nil)
	neighbour := Canonical(t, e, 1)

	pages := func(imp engine.Import, list ...Page) error {
		for _, p := range list {
			if err := imp.Page(p.First, p.End, p.Payload); err != nil {
				return err
			}
		}
		return nil
	}
	cases := []struct {
		name string
		run  func(engine.Import) error
		want error
	}{
		{"nothing arrived", func(i engine.Import) error { return i.Commit() }, engine.ErrCoverage},
	}
	add := func(name string, want error, run func(engine.Import) error) {
		cases = append(cases, struct {
			name string
			run  func(engine.Import) error
			want error
		}{name, run, want})
	}
	if e.Paged() {
		p := x.Pages
		add("a page twice", engine.ErrCoverage, func(i engine.Import) error { return pages(i, p[0], p[0]) })
		add("a page missing", engine.ErrCoverage, func(i engine.Import) error {
			if err := pages(i, p[0], p[2]); err != nil {
				return err
			}
			return i.Commit()
		})
		add("the last page missing", engine.ErrCoverage, func(i engine.Import) error {
			if err := pages(i, p[0], p[1]); err != nil {
				return err
			}
			return i.Commit()
		})
		add("beyond the sequence", engine.ErrCoverage, func(i engine.Import) error { return i.Page(80, 120, p[1].Payload) })
		add("before the sequence", engine.ErrCoverage, func(i engine.Import) error { return i.Page(-40, 0, p[1].Payload) })
		add("an empty page", engine.ErrCoverage, func(i engine.Import) error { return i.Page(40, 40, nil) })
		add("another range", engine.ErrPayload, func(i engine.Import) error { return i.Page(40, 80, p[0].Payload) })
		add("overlapping", engine.ErrCoverage, func(i engine.Import) error {
			return pages(i, p[0], Page{20, 60, p[1].Payload})
		})
		for _, m := range damages(p[1].Payload) {
			add("page "+m.name, engine.ErrPayload, func(i engine.Import) error {
				return pages(i, p[0], Page{p[1].First, p[1].End, m.payload})
			})
		}
	} else {
		add("a page", engine.ErrUnsupported, func(i engine.Import) error { return i.Page(0, 40, make([]byte, 100)) })
	}
	if len(x.Snapshot) > 0 {
		add("the snapshot missing", engine.ErrCoverage, func(i engine.Import) error {
			if err := pages(i, x.Pages...); err != nil {
				return err
			}
			return i.Commit()
		})
		add("the snapshot twice", engine.ErrOutOfOrder, func(i engine.Import) error {
			if err := pages(i, x.Pages...); err != nil {
				return err
			}
			if err := i.Snapshot(x.Snapshot); err != nil {
				return err
			}
			return i.Snapshot(x.Snapshot)
		})
		if e.Paged() {
			add("the snapshot early", engine.ErrOutOfOrder, func(i engine.Import) error { return i.Snapshot(x.Snapshot) })
		}
		for _, m := range damages(x.Snapshot) {
			add("snapshot "+m.name, engine.ErrPayload, func(i engine.Import) error {
				if err := pages(i, x.Pages...); err != nil {
					return err
				}
				return i.Snapshot(m.payload)
			})
		}
	} else {
		add("a snapshot", engine.ErrUnsupported, func(i engine.Import) error { return i.Snapshot(make([]byte, 100)) })
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			imp, err := e.BeginImport(0, 100)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.run(imp); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if err := imp.Commit(); !errors.Is(err, engine.ErrImportDead) {
				t.Errorf("Commit afterwards: %v", err)
			}
			if e.Tokens(0) != 0 {
				t.Error("the slot holds tokens")
			}
		})
	}
	if !bytes.Equal(neighbour, Canonical(t, e, 1)) {
		t.Error("refused imports changed a neighbour")
	}
	if err := Import(e, 0, x); err != nil {
		t.Fatalf("a good import afterwards: %v", err)
	}
	if !bytes.Equal(want, Canonical(t, e, 0)) {
		t.Error("a good import afterwards is not its source")
	}
}

type damage struct {
	name    string
	payload []byte
}

// damages are faults that any framed payload must notice.
func damages(good []byte) []damage {
	cut := func(n int) []byte { return bytes.Clone(good[:n]) }
	flip := func(i int) []byte {
		b := bytes.Clone(good)
		b[i] ^= 0x80
		return b
	}
	list := []damage{
		{"empty", nil},
		{"cut to 4 bytes", cut(4)},
		{"cut to half", cut(len(good) / 2)},
		{"without its last byte", cut(len(good) - 1)},
		{"with a byte more", append(bytes.Clone(good), 0)},
		{"twice", append(bytes.Clone(good), good...)},
		{"zero", make([]byte, len(good))},
		{"ones", bytes.Repeat([]byte{0xff}, len(good))},
	}
	for i := range min(24, len(good)) {
		list = append(list, damage{fmt.Sprintf("with byte %d flipped", i), flip(i)})
	}
	return list
}

// An import that does not fit is dead and leaves no trace.
func testImportNoCells(t *testing.T, open Open) {
	c := Config{Slots: 3, Cells: 256, BatchTokens: 256}
	src, e := opened(t, open, c), opened(t, open, c)
	if !e.Paged() {
		return
	}
	n := e.Info().Cells / 2
	x, _ := PrefillAndExport(t, src, 0, Prompt(src.Vocab(), n, 14), 32)
	Prefill(t, e, 1, Prompt(e.Vocab(), n+10, 15), 64, nil)
	neighbour := Canonical(t, e, 1)
	for range 3 {
		if err := Import(e, 0, x); !errors.Is(err, engine.ErrNoCells) {
			t.Fatalf("more than there is room for: %v", err)
		}
		if e.Tokens(0) != 0 || !bytes.Equal(neighbour, Canonical(t, e, 1)) {
			t.Fatal("an import that does not fit left a trace")
		}
	}
	// Exactly the cells that are free can still be used.
	free := e.Info().Cells - n - 10
	Prefill(t, e, 2, Prompt(e.Vocab(), free, 16), 64, nil)
	if err := e.Decode(Rows([]engine.Token{1}, free, 2)); !errors.Is(err, engine.ErrNoCells) {
		t.Errorf("one token more: %v", err)
	}
	if err := e.Drop(1); err != nil {
		t.Fatal(err)
	}
	if err := e.Drop(2); err != nil {
		t.Fatal(err)
	}
	if err := Import(e, 0, x); err != nil {
		t.Errorf("when there is room: %v", err)
	}
}

// Cells need not lie beside each other: neither those of a page nor those of a batch.
func testScatteredCells(t *testing.T, open Open) {
	c := Config{Slots: 3, Cells: 256, BatchTokens: 256}
	src, e := opened(t, open, c), opened(t, open, c)
	if !e.Paged() {
		return
	}
	n := e.Info().Cells / 2
	x, _ := PrefillAndExport(t, src, 0, Prompt(src.Vocab(), n, 14), n)
	stay := Prompt(e.Vocab(), n, 15)
	for first := 0; first < n; first += 16 {
		for seq := range int32(2) {
			if err := e.Decode(Rows(stay[first:first+16], first, seq)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		if err := e.Drop(1); err != nil {
			t.Fatal(err)
		}
		if err := Import(e, 1, x); err != nil {
			t.Fatalf("a page of %d tokens where 16 cells in turns are free: %v", n, err)
		}
		if !bytes.Equal(Canonical(t, e, 1), Canonical(t, src, 0)) {
			t.Error("what was imported into scattered cells is another state")
		}
	}
	if err := e.Drop(1); err != nil {
		t.Fatal(err)
	}
	if err := e.Decode(Rows(stay, 0, 1)); err != nil {
		t.Errorf("a batch of %d tokens there: %v", n, err)
	}
}
