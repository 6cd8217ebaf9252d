package state

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// allocated returns the bytes that f allocates. Others in the process may add a little.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// bounded fails if f allocates more than in proportion to its input: a declared length must not
// allocate by itself.
func bounded(t *testing.T, input int, f func()) {
	t.Helper()
	if n, most := allocated(f), uint64(256<<10+16*input); n > most {
		t.Fatalf("decoding %d bytes allocated %d, want at most %d", input, n, most)
	}
}

func FuzzUnitHeader(f *testing.F) {
	d := deliver(f, testInventory(f), 0, 1, 0, 8, testTokens)
	for i := range d.units {
		b := make([]byte, HeaderSize)
		d.units[i].h.Encode(b)
		f.Add(b)
	}
	lim := DefaultLimits()
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= HeaderSize { // so that the fuzzer gets past the header's checksum
			binary.LittleEndian.PutUint32(b[offHeaderCRC:], UpdateChecksum(0, b[:offHeaderCRC]))
		}
		var h UnitHeader
		var err error
		bounded(t, len(b), func() { h, err = DecodeUnitHeader(b, &lim) })
		if err != nil {
			return
		}
		if h.Length > lim.UnitBytes || h.Index >= lim.Units || uint32(h.Part) >= lim.Parts {
			t.Fatalf("accepted over the limits: %+v", h)
		}
		again := make([]byte, HeaderSize)
		h.Encode(again)
		if !bytes.Equal(again, b[:HeaderSize]) {
			t.Fatalf("decoded and encoded again differs:\n%x\n%x", b[:HeaderSize], again)
		}
	})
}

func FuzzIdentity(f *testing.F) {
	f.Add(testIdentity().Encode())
	f.Add(Identity{Schema: SchemaVersion, Endian: BigEndian}.Encode())
	lim := DefaultLimits()
	f.Fuzz(func(t *testing.T, b []byte) {
		var id Identity
		var err error
		bounded(t, len(b), func() { id, err = DecodeIdentity(b, &lim) })
		if err != nil {
			return
		}
		if !bytes.Equal(id.Encode(), b) {
			t.Fatalf("decoded and encoded again differs: %+v", id)
		}
		if err := id.Match(id); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzBinding(f *testing.F) {
	f.Add(testBinding().Encode())
	f.Add(Binding{}.Encode())
	lim := DefaultLimits()
	f.Fuzz(func(t *testing.T, b []byte) {
		var bind Binding
		var err error
		bounded(t, len(b), func() { bind, err = DecodeBinding(b, &lim) })
		if err == nil && !bytes.Equal(bind.Encode(), b) {
			t.Fatalf("decoded and encoded again differs: %+v", bind)
		}
	})
}

func FuzzManifest(f *testing.F) {
	for _, inv := range []Inventory{testInventory(f), denseInventory(f)} {
		d := deliver(f, inv, 0, 1, 0, 8, testTokens)
		f.Add(d.manifest.appendUnsealed(nil))
	}
	lim := DefaultLimits()
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= manifestHeaderSize { // so that the fuzzer gets past the frame
			binary.LittleEndian.PutUint32(b[8:], uint32(len(b)-manifestHeaderSize))
		}
		b = seal(b, testKey())
		var m *Manifest
		var err error
		bounded(t, len(b), func() { m, err = DecodeManifest(b, testKey(), &lim) })
		if err != nil {
			return
		}
		again, err := m.Encode(testKey(), &lim)
		if err != nil {
			t.Fatalf("decoded but not encoded: %v", err)
		}
		m2, err := DecodeManifest(again, testKey(), &lim)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, m2); diff != "" {
			t.Fatal(diff)
		}
	})
}

// FuzzAssembly plays a script of events against an assembly: each four bytes pick a unit or the
// manifest, and a byte of its encoding to change. Nothing panics, and complete means untouched
// coverage: every token once and the snapshot.
func FuzzAssembly(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0})
	f.Add([]byte{3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0})
	f.Add([]byte{2, 0, 0, 0, 1, 64, 0, 1, 0, 0, 0, 0, 3, 1, 0, 1})
	f.Fuzz(func(t *testing.T, script []byte) {
		inv := testInventory(t)
		d := deliver(t, inv, 0, 1, 0, 8, testTokens)
		a := newAssembly(t, testExpect(inv))
		clean, given := true, map[byte]bool{}
		lim := DefaultLimits()
		for ; len(script) >= 4; script = script[4:] {
			which, at, xor := script[0]%4, int(binary.LittleEndian.Uint16(script[1:])), script[3]
			clean = clean && xor == 0 && !given[which]
			given[which] = true
			if which == 3 {
				m := d.manifest.appendUnsealed(nil)
				m[at%len(m)] ^= xor
				err := a.Manifest(seal(m, testKey()))
				if (err != nil) != (a.Err() != nil) {
					t.Fatalf("error %v, but the assembly says %v", err, a.Err())
				}
				continue
			}
			var b [HeaderSize]byte
			d.units[which].h.Encode(b[:])
			b[at%HeaderSize] ^= xor
			binary.LittleEndian.PutUint32(b[offHeaderCRC:], UpdateChecksum(0, b[:offHeaderCRC]))
			h, err := DecodeUnitHeader(b[:], &lim)
			if err != nil {
				return
			}
			if err := a.Unit(&h, d.units[which].payload); (err != nil) != (a.Err() != nil) {
				t.Fatalf("error %v, but the assembly says %v", err, a.Err())
			}
		}
		if clean && a.Err() != nil {
			t.Fatalf("untouched, but refused: %v", a.Err())
		}
		if a.Complete() {
			p := &a.parts[0]
			if gap := p.cover[0].missing(Range{0, testTokens}); gap != (Range{}) || !p.snapshot || len(p.seen) != 3 {
				t.Fatalf("complete with gap %v, snapshot %v, %d units", gap, p.snapshot, len(p.seen))
			}
		}
		if clean && len(given) == 4 != a.Complete() {
			t.Fatalf("%d of 4 given, complete is %v: %v", len(given), a.Complete(), a.Missing())
		}
	})
}

// A length that lies allocates nothing for itself: every 32-bit word of every encoding is set to
// large values in turn.
func TestHostileLengths(t *testing.T) {
	lim := DefaultLimits()
	// Even with limits that allow everything, lengths are compared with the bytes that are there.
	most := Limits{1 << 63, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1}
	m := wholeManifest(t)
	for _, x := range []struct {
		name   string
		b      []byte
		decode func([]byte, *Limits)
	}{
		{"identity", testIdentity().Encode(), func(b []byte, l *Limits) { _, _ = DecodeIdentity(b, l) }},
		{"binding", testBinding().Encode(), func(b []byte, l *Limits) { _, _ = DecodeBinding(b, l) }},
		{"manifest", m.appendUnsealed(nil), func(b []byte, l *Limits) { _, _ = DecodeManifest(seal(b, testKey()), testKey(), l) }},
	} {
		t.Run(x.name, func(t *testing.T) {
			for _, v := range []uint32{1<<32 - 1, 1<<31 - 1, 1 << 28, 1 << 20} {
				for i := 0; i+4 <= len(x.b); i++ {
					b := bytes.Clone(x.b)
					binary.LittleEndian.PutUint32(b[i:], v)
					bounded(t, len(b), func() { x.decode(b, &lim) })
					bounded(t, len(b), func() { x.decode(b, &most) })
				}
			}
		})
	}
}
