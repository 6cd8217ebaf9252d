package state

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// feed gives everything of d to a, manifest last, and stops at the first refusal.
func feed(a *Assembly, d *delivery) error {
	for i := range d.units {
		if err := a.Unit(&d.units[i].h, d.units[i].payload); err != nil {
			return err
		}
	}
	return a.Manifest(d.encode())
}

// drawParts draws a handoff of one or two parts, dense or hybrid, with a random skip and random
// pages.
func drawParts(rt *rapid.T, tb testing.TB) (Expect, []*delivery) {
	inv := testInventory(tb)
	if rapid.Bool().Draw(rt, "dense") {
		inv = denseInventory(tb)
	}
	invs := []Inventory{inv}
	if rapid.Bool().Draw(rt, "split") {
		second := slices.Clone(inv)
		for i := range second {
			second[i].Layers = Range{second[i].Layers.End, second[i].Layers.End + 3}
			second[i].PerToken *= 2
		}
		invs = append(invs, second)
	}
	exp := testExpect(invs...)
	exp.Skip = rapid.Uint32Max(testTokens).Draw(rt, "skip")
	var ds []*delivery
	for i, inv := range invs {
		var cuts []uint32
		for c := exp.Skip; c < testTokens; {
			c = rapid.Uint32Range(c+1, testTokens).Draw(rt, "cut")
			cuts = append(cuts, c)
		}
		ds = append(ds, deliver(tb, inv, i, len(invs), exp.Skip, cuts...))
	}
	return exp, ds
}

// event is one thing that arrives.
type event struct {
	d    *delivery
	unit int // or −1 for the manifest
}

func (e event) give(a *Assembly) error {
	if e.unit < 0 {
		return a.Manifest(e.d.encode())
	}
	u := &e.d.units[e.unit]
	if e.unit%2 == 1 { // as a host that hashed while the payload streamed
		d := NewDigester(testKey())
		d.Start(&u.h)
		d.Write(u.payload)
		return a.Streamed(&u.h, uint64(len(u.payload)), UpdateChecksum(0, u.payload), d.Sum())
	}
	return a.Unit(&u.h, u.payload)
}

func shuffled(t *rapid.T, ds []*delivery) (out []event) {
	for _, d := range ds {
		for i := -1; i < len(d.units); i++ {
			out = append(out, event{d, i})
		}
	}
	return rapid.Permutation(out).Draw(t, "order")
}

// Whatever the order, a handoff is complete exactly when the last thing has come.
func TestAssemblyAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		exp, ds := drawParts(rt, t)
		a := newAssembly(t, exp)
		var bytes uint64
		units := 0
		for _, e := range shuffled(rt, ds) {
			if a.Complete() || a.Missing() == nil || a.Sequence() != nil {
				rt.Fatal("complete too early")
			}
			if err := e.give(a); err != nil {
				rt.Fatal(err)
			}
			if e.unit >= 0 {
				units++
				bytes += e.d.units[e.unit].h.Length
			}
		}
		if !a.Complete() || a.Missing() != nil || a.Err() != nil {
			rt.Fatalf("not complete: %v", a.Missing())
		}
		if n, b := a.Received(); n != units || b != bytes {
			rt.Fatalf("received %d units and %d bytes, want %d and %d", n, b, units, bytes)
		}
		for i, d := range ds {
			if diff := cmp.Diff(&d.manifest, a.PartManifest(i)); diff != "" {
				rt.Fatal(diff)
			}
		}
		if diff := cmp.Diff(ds[0].manifest.History, a.Sequence().History); diff != "" {
			rt.Fatal(diff)
		}
		// Anything more is refused, and what was complete no longer counts.
		if err := shuffled(rt, ds)[0].give(a); err == nil {
			rt.Fatal("a repetition was accepted")
		}
		if a.Complete() || a.Sequence() != nil || a.PartManifest(0) != nil {
			rt.Fatal("complete after a refusal")
		}
	})
}

// One thing lost: never complete, and Missing names its kind.
func TestAssemblyLoss(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		exp, ds := drawParts(rt, t)
		events := shuffled(rt, ds)
		lost := rapid.IntRange(0, len(events)-1).Draw(rt, "lost")
		a := newAssembly(t, exp)
		for i, e := range events {
			if i == lost {
				continue
			}
			if err := e.give(a); err != nil {
				rt.Fatal(err)
			}
		}
		want := ErrMissingManifest
		if e := events[lost]; e.unit >= 0 {
			want = ErrMissingPages
			if e.d.units[e.unit].h.Unit == UnitSnapshot {
				want = ErrMissingSnapshot
			}
		}
		if err := a.Missing(); a.Complete() || !errors.Is(err, want) {
			rt.Fatalf("missing is %v, want %v", err, want)
		}
	})
}

// One payload byte changed, with or without the checksum made to fit: always refused, at the unit or
// at the manifest.
func TestAssemblyDamage(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		exp, ds := drawParts(rt, t)
		d := ds[0]
		if len(d.units) == 0 {
			rt.Skip("nothing to damage")
		}
		m := d.encode()
		u := &d.units[rapid.IntRange(0, len(d.units)-1).Draw(rt, "unit")]
		u.payload[rapid.IntRange(0, len(u.payload)-1).Draw(rt, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		want := ErrChecksum
		if rapid.Bool().Draw(rt, "checksum fits") {
			u.h.Checksum, want = UpdateChecksum(0, u.payload), ErrDigest
		}
		a := newAssembly(t, exp)
		early := rapid.Bool().Draw(rt, "manifest first")
		var err error
		if early {
			err = a.Manifest(m)
		}
		for i := range d.units {
			if err == nil {
				err = a.Unit(&d.units[i].h, d.units[i].payload)
			}
		}
		if err == nil {
			err = a.Manifest(m)
		}
		if !errors.Is(err, want) {
			rt.Fatalf("error is %v, want %v", err, want)
		}
		for _, e := range shuffled(rt, ds) {
			if e.give(a) != err {
				rt.Fatal("the first refusal does not stand")
			}
		}
	})
}

// Coverage agrees with a plain set of tokens under random ranges.
func TestCoverage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 40
		var c coverage
		var have [n]bool
		for range rapid.IntRange(0, 30).Draw(t, "ranges") {
			first := rapid.IntRange(0, n-1).Draw(t, "first")
			end := rapid.IntRange(first+1, n).Draw(t, "end")
			r := Range{uint32(first), uint32(end)}
			overlap := slices.Contains(have[first:end], true)
			if c.overlaps(r) != overlap {
				t.Fatalf("overlaps(%v) of %v is %v", r, c, !overlap)
			}
			if c.add(r) == overlap {
				t.Fatalf("add(%v) to %v: overlap %v", r, c, overlap)
			}
			if !overlap {
				for i := first; i < end; i++ {
					have[i] = true
				}
			}
			for i := 1; i < len(c); i++ {
				if c[i-1].End >= c[i].First {
					t.Fatalf("ranges touch: %v", c)
				}
			}
		}
		lo := rapid.IntRange(0, n-1).Draw(t, "want.first")
		hi := rapid.IntRange(lo, n).Draw(t, "want.end")
		var want Range
		for i := lo; i < hi; i++ {
			if !have[i] {
				end := i
				for end < hi && !have[end] {
					end++
				}
				want = Range{uint32(i), uint32(end)}
				break
			}
		}
		if got := c.missing(Range{uint32(lo), uint32(hi)}); got != want {
			t.Fatalf("missing [%d,%d) of %v is %v, want %v", lo, hi, c, got, want)
		}
	})
}

// BenchmarkAssembly is a destination's validation of 4 MiB pages: checksum, keyed digest and
// bookkeeping.
func BenchmarkAssembly(b *testing.B) {
	inv := Inventory{{Kind: AttentionKV, Layers: Range{0, 8}, Count: 8, DType: F16, DTypeV: F16, PerToken: 8192}}
	s := NewSealer(SealerConfig{Handoff: testBinding().Handoff, Identity: testIdentity(), Inventory: inv,
		Codec: CodecRaw, Key: testKey(), Limits: DefaultLimits()})
	p := make([]byte, 4<<20)
	for i := range p {
		p[i] = byte(rand.Uint32())
	}
	h, err := s.Page(AttentionKV, Range{0, 512}, false, p)
	if err != nil {
		b.Fatal(err)
	}
	exp := testExpect(inv)
	exp.Tokens = 512
	b.Run("whole", func(b *testing.B) {
		b.SetBytes(int64(len(p)))
		for b.Loop() {
			a := newAssembly(b, exp)
			if err := a.Unit(&h, p); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("checksum", func(b *testing.B) {
		b.SetBytes(int64(len(p)))
		for b.Loop() {
			if UpdateChecksum(0, p) != h.Checksum {
				b.Fatal("checksum differs")
			}
		}
	})
	b.Run("digest", func(b *testing.B) {
		b.SetBytes(int64(len(p)))
		d := NewDigester(testKey())
		b.ReportAllocs()
		for b.Loop() {
			d.Start(&h)
			d.Write(p)
			d.Sum()
		}
	})
	b.Run("copy", func(b *testing.B) {
		q := make([]byte, len(p))
		b.SetBytes(int64(len(p)))
		for b.Loop() {
			copy(q, p)
		}
	})
}
