package blob

import (
	"bytes"
	"testing"
)

// FuzzCheck feeds arbitrary bytes as every kind of blob of every schema.
// Whatever is accepted must survive being put into canonical form.
func FuzzCheck(f *testing.F) {
	names := schemaNames()
	for i, name := range names {
		s := schemas[name]
		if s.Memory.Attention() {
			f.Add(uint8(i), uint16(3), uint16(8), page(s, 0, span(3, 8)))
		}
		_, w := s.WindowCells(8)
		if s.Memory != Dense {
			f.Add(uint8(i), uint16(0), uint16(8), snapshot(s, 0, 8, span(8-w, 8)))
		}
		f.Add(uint8(i), uint16(0), uint16(8), full(s, 5, span(0, 8), span(8-w, 8)))
	}
	f.Fuzz(func(t *testing.T, which uint8, first, end uint16, b []byte) {
		s := schemas[names[int(which)%len(names)]]
		var scratch Scratch
		if s.CheckPage(b, int(first), int(end), Everything, &scratch) == nil {
			if len(b) != s.PageBytes(int(end)-int(first)) {
				t.Error("accepted a page of another length")
			}
			out := make([]byte, len(b))
			if n, err := s.SlicePage(out, b, int(first), int(end), int(first), int(end)); err == nil && !bytes.Equal(out[:n], b) {
				t.Error("the whole slice of a page is another page")
			}
		}
		_ = s.CheckSnapshot(b, int(end), Everything, &scratch)
		if c, err := s.Canonical(bytes.Clone(b), int(end), &scratch); err == nil {
			again, err := s.Canonical(bytes.Clone(c), int(end), &scratch)
			if err != nil || !bytes.Equal(c, again) {
				t.Errorf("canonical form is not stable: %v", err)
			}
		}
	})
}

// FuzzLearn: no panic, and whatever schema comes out accounts for every byte.
func FuzzLearn(f *testing.F) {
	for _, name := range schemaNames() {
		s := schemas[name]
		f.Add(uint8(s.Memory), uint16(s.WindowTokens), s.Base.V == nil, full(s, 0, span(0, 2), span(0, min(2, s.WindowTokens))))
	}
	f.Fuzz(func(t *testing.T, memory uint8, window uint16, noValues bool, b []byte) {
		m := Memory(memory % 7)
		s, err := Learn(Shape{m, int(window), noValues}, b)
		if err != nil {
			return
		}
		uneven := func(kv KV) bool { return len(kv.V) != len(kv.K) && (!noValues || len(kv.V) != 0) }
		if uneven(s.Base) || uneven(s.Window) || len(s.R) != len(s.S) {
			t.Error("uneven layers")
		}
		if n := s.FullBytes(1, min(1, s.WindowTokens)); n > 2*len(b)+64 {
			t.Errorf("one token has %d bytes, learned from %d", n, len(b))
		}
	})
}
