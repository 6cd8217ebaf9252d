package blob

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func shapeOf(s *Schema) Shape {
	return Shape{Memory: s.Memory, Window: s.WindowTokens, NoValues: s.Memory.Attention() && s.Base.V == nil}
}

func TestLearn(t *testing.T) {
	for _, name := range schemaNames() {
		t.Run(name, func(t *testing.T) {
			want := schemas[name]
			b := full(want, 3, span(0, 2), span(0, min(2, want.WindowTokens)))
			got, err := Learn(shapeOf(want), b)
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
				t.Errorf("Learn = %+v, want %+v", got, want)
			}
			for m := Dense; m <= HybridISWA; m++ {
				if m != want.Memory {
					if _, err := Learn(Shape{Memory: m, Window: 4}, b); err == nil {
						t.Errorf("Learn took a %v blob for %v", want.Memory, m)
					}
				}
			}
			// A REC section does not state how many layers it has, so a cut at
			// the end of a row there cannot be seen; Learn is for own blobs.
			ends := map[int]bool{}
			if want.Memory.Recurrence() {
				at := len(b) - rowBytes(want.R) - rowBytes(want.S)
				for _, x := range append(slices.Clone(want.R), want.S...) {
					at += rowBytes([]Tensor{x})
					ends[at] = true
				}
			}
			for cut := range len(b) {
				if _, err := Learn(shapeOf(want), b[:cut]); err == nil && !ends[cut] {
					t.Errorf("Learn took the first %d of %d bytes", cut, len(b))
				}
			}
		})
	}
}

func TestLearnRefuses(t *testing.T) {
	s := schemas["dense"]
	good := full(s, 0, span(0, 2), nil)
	meta := headerBytes + kvCountBytes
	layout := meta + 2*kvCellBytes
	for _, c := range []struct {
		name string
		at   int
		v    uint32
	}{
		{"streams", 8, 2},
		{"no cells", 12, 0},
		{"cells beyond the blob", 12, math.MaxUint32},
		{"cell with extra fields", meta + 4, 0},
		{"transposed V", layout, 1},
		{"absurd layers", layout + 4, math.MaxUint32},
		{"unknown type", layout + 8, 7},
		{"odd row", layout + 12, 7},
		{"row beyond the blob", layout + 16, 1},
	} {
		b := bytes.Clone(good)
		binary.LittleEndian.PutUint32(b[c.at:], c.v)
		if _, err := Learn(Shape{Memory: Dense}, b); err == nil {
			t.Errorf("%s: accepted", c.name)
		}
	}
}

// Sizes are what llama.cpp writes, and components cover a snapshot back to back.
func TestSizes(t *testing.T) {
	for _, name := range schemaNames() {
		s := schemas[name]
		for n := 1; n < 9; n++ {
			least, w := s.WindowCells(n)
			if s.Memory.Attention() {
				if got, want := s.PageBytes(n), len(page(s, 0, span(0, n))); got != want {
					t.Errorf("%s: PageBytes(%d) = %d, want %d", name, n, got, want)
				}
			}
			if got, want := s.FullBytes(n, w), len(full(s, 0, span(0, n), span(n-w, n))); got != want {
				t.Errorf("%s: FullBytes(%d) = %d, want %d", name, n, got, want)
			}
			if s.Memory == Dense {
				if s.SnapshotBytes(0) != 0 || s.Components(0) != nil || least != 0 {
					t.Errorf("%s has a snapshot", name)
				}
				continue
			}
			snap := snapshot(s, 0, n, span(n-w, n))
			if got := s.SnapshotBytes(w); got != len(snap) {
				t.Errorf("%s: SnapshotBytes(%d) = %d, want %d", name, n, got, len(snap))
			}
			at := 0
			for _, c := range s.Components(w) {
				if c.Offset != at || c.Length <= 0 {
					t.Errorf("%s: component %v at %d, want %d", name, c.Kind, c.Offset, at)
				}
				at = c.Offset + c.Length
			}
			if at != len(snap) {
				t.Errorf("%s: components end at %d of %d", name, at, len(snap))
			}
		}
	}
}

// What llama.cpp writes in any slot and cell order seals to the same payload,
// which checks; and every byte of it that is not a number is checked.
func TestSealAndCheck(t *testing.T) {
	var scratch Scratch
	r := rand.New(rand.NewPCG(1, 2))
	for _, name := range schemaNames() {
		s := schemas[name]
		t.Run(name, func(t *testing.T) {
			const n, first = 5, 7
			if s.Memory.Attention() {
				a, b := page(s, 2, span(first, first+n)), page(s, 9, span(first, first+n))
				for _, p := range [][]byte{a, b, page(s, 4, shuffled(r, span(first, first+n)))} {
					if err := s.CheckPage(p, first, first+n, Everything, &scratch); err == nil {
						t.Fatal("a page with foreign sequence ids passed")
					}
					if err := s.SealPage(p, first, first+n, &scratch); err != nil {
						t.Fatal(err)
					}
					if err := s.CheckPage(p, first, first+n, Everything, &scratch); err != nil {
						t.Fatal(err)
					}
				}
				if !bytes.Equal(a, b) {
					t.Error("the slot shows in a sealed page")
				}
				everyByteCounts(t, a, s.PageRegions(n), func(b []byte) error {
					return s.CheckPage(b, first, first+n, Everything, &scratch)
				})
			} else if s.CheckPage(nil, 0, 1, Everything, &scratch) == nil {
				t.Error("a page without attention passed")
			}
			if s.Memory == Dense {
				if s.CheckSnapshot(nil, 1, Everything, &scratch) == nil {
					t.Error("a snapshot of a dense memory passed")
				}
				return
			}
			const tokens = 11
			least, most := s.WindowCells(tokens)
			for w := least; w <= most; w++ {
				a := snapshot(s, 2, tokens, span(tokens-w, tokens))
				if got, err := s.SealSnapshot(a, tokens, &scratch); err != nil || got != w {
					t.Fatal(got, err)
				}
				if err := s.CheckSnapshot(a, tokens, Everything, &scratch); err != nil {
					t.Fatal(err)
				}
				everyByteCounts(t, a, s.SnapshotRegions(w), func(b []byte) error {
					return s.CheckSnapshot(b, tokens, Everything, &scratch)
				})
			}
		})
	}
}

// everyByteCounts flips each byte outside of the regions, which must be
// refused, and puts a NaN at the start and end of each region, which must be
// refused by that region's name.
func everyByteCounts(t *testing.T, good []byte, regions []Region, check func([]byte) error) {
	t.Helper()
	number := make([]bool, len(good))
	for _, g := range regions {
		for i := g.Offset; i < g.Offset+g.Length; i++ {
			number[i] = true
		}
		width, nan := 2, []byte{0xff, 0xff, 0xff, 0xff}
		switch g.Type {
		case F32:
			width = 4
		case Q8_0:
			width = q8Block
			nan = nan[:2]
		case F16, BF16:
			nan = nan[:2]
		}
		for _, at := range []int{g.Offset, g.Offset + g.Length - width} {
			b := bytes.Clone(good)
			copy(b[at:], nan)
			var e *Error
			if err := check(b); !errors.As(err, &e) || e.Kind != g.Kind || e.Layer != g.Layer {
				t.Errorf("NaN in %v layer %d %v: %v", g.Kind, g.Layer, g.Part, err)
			}
		}
	}
	for i := range good {
		if number[i] {
			continue
		}
		for _, flip := range []byte{1, 0x80} {
			b := bytes.Clone(good)
			b[i] ^= flip
			if check(b) == nil {
				t.Errorf("byte %d is framing and does not count", i)
			}
		}
	}
	for _, n := range []int{0, 1, len(good) / 2, len(good) - 1} {
		if check(good[:n]) == nil {
			t.Errorf("truncated to %d of %d bytes: passed", n, len(good))
		}
	}
	if check(append(bytes.Clone(good), 0)) == nil {
		t.Error("a trailing byte passed")
	}
}

func TestPositions(t *testing.T) {
	var scratch Scratch
	s := schemas["hybrid-iswa"]
	page := func(cells ...int32) []byte { return page(s, 0, cells) }
	for _, c := range []struct {
		name  string
		cells []int32
		ok    bool
	}{
		{"ascending", []int32{4, 5, 6}, true},
		{"permuted", []int32{6, 4, 5}, true},
		{"repeated", []int32{4, 5, 5}, false},
		{"below", []int32{3, 5, 6}, false},
		{"above", []int32{4, 5, 7}, false},
		{"negative", []int32{-1, 5, 6}, false},
		{"leaking", []int32{-2, 5, 6}, false},
		{"most negative", []int32{math.MinInt32, 5, 6}, false},
		{"most positive", []int32{4, 5, math.MaxInt32}, false},
	} {
		err := s.CheckPage(page(c.cells...), 4, 7, Everything, &scratch)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for _, r := range [][2]int{{-1, 2}, {4, 4}, {7, 4}, {4, 1 << 31}} {
		if s.CheckPage(page(4, 5, 6), r[0], r[1], Everything, &scratch) == nil {
			t.Errorf("[%d,%d) passed", r[0], r[1])
		}
	}
	// The window holds exactly the last positions; the recurrent cell the last.
	for _, c := range []struct {
		window []int32
		tokens int
		ok     bool
	}{
		{[]int32{7, 8, 9}, 10, true},
		{[]int32{9, 7, 8}, 10, true},
		{[]int32{6, 7, 8}, 10, false},
		{[]int32{8, 9}, 10, true}, // 7 is of no use to position 10
		{[]int32{7, 8}, 10, false},
		{[]int32{9}, 10, false},
		{[]int32{6, 7, 8, 9}, 10, false},
		{[]int32{0, 1}, 2, true},
	} {
		b := snapshot(s, 0, c.tokens, c.window)
		if err := s.CheckSnapshot(b, c.tokens, Everything, &scratch); (err == nil) != c.ok {
			t.Errorf("window %v after %d: %v", c.window, c.tokens, err)
		}
	}
	if s.CheckSnapshot(snapshot(s, 0, 9, span(7, 10)), 10, Everything, &scratch) == nil {
		t.Error("a recurrent position other than the attention position passed")
	}
}

func TestCanonical(t *testing.T) {
	for _, name := range schemaNames() {
		s := schemas[name]
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				var scratch Scratch
				n := rapid.IntRange(1, 12).Draw(t, "tokens")
				r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0))
				least, most := s.WindowCells(n)
				w := span(n-rapid.IntRange(least, most).Draw(t, "window"), n)
				want := full(s, 0, span(0, n), span(n-least, n))
				got, err := s.Canonical(full(s, int32(r.IntN(256)), shuffled(r, span(0, n)), shuffled(r, w)), n, &scratch)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Error("canonical form depends on placement")
				}
				// Any change of any number shows.
				b := full(s, 1, shuffled(r, span(0, n)), w)
				if s.Memory == ISWA && len(w) == 0 {
					return // ends in framing
				}
				i := len(b) - 1 - r.IntN(int(s.lastRow()))
				b[i] ^= 1
				got, err = s.Canonical(b, n, &scratch)
				if err == nil && bytes.Equal(got, want) {
					t.Error("a changed number does not show")
				}
			})
			var scratch Scratch
			if _, err := s.Canonical(nil, 3, &scratch); err == nil {
				t.Error("nothing is canonical")
			}
		})
	}
}

// lastRow is the bytes of the last row of a blob, all of them numbers.
func (s *Schema) lastRow() uint64 {
	switch {
	case s.Memory.Recurrence():
		return s.S[len(s.S)-1].Row
	case s.Memory.Window():
		return s.Window.V[len(s.Window.V)-1].Row
	case s.Base.V == nil:
		return s.Base.K[len(s.Base.K)-1].Row
	}
	return s.Base.V[len(s.Base.V)-1].Row
}

func TestSlicePage(t *testing.T) {
	for _, name := range schemaNames() {
		s := schemas[name]
		if !s.Memory.Attention() {
			if _, err := s.SlicePage(nil, nil, 0, 1, 0, 1); err == nil {
				t.Errorf("%s: sliced", name)
			}
			continue
		}
		src := page(s, 0, span(10, 18))
		for from := 10; from < 18; from++ {
			for to := from + 1; to <= 18; to++ {
				dst := make([]byte, s.PageBytes(to-from))
				n, err := s.SlicePage(dst, src, 10, 18, from, to)
				if err != nil || !bytes.Equal(dst[:n], page(s, 0, span(from, to))) {
					t.Fatalf("%s: [%d,%d): %v", name, from, to, err)
				}
			}
		}
		dst := make([]byte, len(src))
		for _, r := range [][2]int{{9, 12}, {16, 19}, {12, 12}, {13, 12}} {
			if _, err := s.SlicePage(dst, src, 10, 18, r[0], r[1]); err == nil {
				t.Errorf("%s: [%d,%d) sliced", name, r[0], r[1])
			}
		}
		if _, err := s.SlicePage(dst[:1], src, 10, 18, 10, 18); err == nil {
			t.Errorf("%s: wrote past dst", name)
		}
		if _, err := s.SlicePage(dst, page(s, 0, []int32{11, 10}), 10, 12, 10, 11); err == nil {
			t.Errorf("%s: sliced a page out of order", name)
		}
	}
}

func TestChecksDoNotAllocate(t *testing.T) {
	s := schemas["hybrid-iswa"]
	var scratch Scratch
	ordered, mixed := page(s, 0, span(0, 64)), page(s, 0, shuffled(rand.New(rand.NewPCG(1, 1)), span(0, 64)))
	n := testing.AllocsPerRun(50, func() {
		if s.CheckPage(ordered, 0, 64, Everything, &scratch) != nil || s.CheckPage(mixed, 0, 64, Everything, &scratch) != nil {
			t.Fatal("refused")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
