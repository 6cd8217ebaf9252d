package state

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newSealer(tb testing.TB, inv Inventory) *Sealer {
	return NewSealer(SealerConfig{Handoff: testBinding().Handoff, Identity: testIdentity(), Inventory: inv,
		Codec: CodecRaw, Key: testKey(), Limits: DefaultLimits()})
}

// What the source's sealer refuses, so that a fault of the source is found there.
var sealerRefusals = []struct {
	name string
	want error
	seal func(t *testing.T, s *Sealer, inv Inventory) error
}{
	{"page of another size", ErrSize, func(t *testing.T, s *Sealer, inv Inventory) error {
		_, err := s.Page(AttentionKV, Range{0, 8}, false, make([]byte, 100))
		return err
	}},
	{"page of a component the model lacks", ErrComponent, func(t *testing.T, s *Sealer, inv Inventory) error {
		_, err := s.Page(MTPKV, Range{0, 8}, false, make([]byte, 100))
		return err
	}},
	{"page of an inactive component", ErrComponent, func(t *testing.T, s *Sealer, inv Inventory) error {
		inv[0].Inactive = "off"
		_, err := s.Page(AttentionKV, Range{0, 8}, false, make([]byte, inv[0].Bytes(8)))
		return err
	}},
	{"page of no tokens", ErrField, func(t *testing.T, s *Sealer, inv Inventory) error {
		_, err := s.Page(AttentionKV, Range{8, 8}, false, make([]byte, inv[0].Bytes(0)))
		return err
	}},
	{"unit after the final one", ErrFinal, func(t *testing.T, s *Sealer, inv Inventory) error {
		p := make([]byte, inv[0].Bytes(8))
		if _, err := s.Page(AttentionKV, Range{0, 8}, true, p); err != nil {
			t.Fatal(err)
		}
		_, err := s.Page(AttentionKV, Range{8, 16}, true, p)
		return err
	}},
	{"second snapshot", ErrDuplicateSnapshot, func(t *testing.T, s *Sealer, inv Inventory) error {
		refs, n := snapshotRefs(inv, 5)
		if _, err := s.Snapshot(testTokens, false, make([]byte, n), refs); err != nil {
			t.Fatal(err)
		}
		_, err := s.Snapshot(testTokens, true, make([]byte, n), refs)
		return err
	}},
	{"snapshot without a component", ErrComponents, func(t *testing.T, s *Sealer, inv Inventory) error {
		refs, _ := snapshotRefs(inv, 5)
		_, err := s.Snapshot(testTokens, true, make([]byte, refs[2].Offset), refs[:2])
		return err
	}},
	{"snapshot with a longer window than there is", ErrSize, func(t *testing.T, s *Sealer, inv Inventory) error {
		refs, n := snapshotRefs(inv, 9)
		_, err := s.Snapshot(testTokens, true, make([]byte, n), refs)
		return err
	}},
	{"manifest without a final unit", ErrFinal, func(t *testing.T, s *Sealer, inv Inventory) error {
		if _, err := s.Page(AttentionKV, Range{0, 8}, false, make([]byte, inv[0].Bytes(8))); err != nil {
			t.Fatal(err)
		}
		m := testManifest(1)
		_, err := s.Manifest(&m)
		return err
	}},
	{"manifest of another handoff", ErrBinding, func(t *testing.T, s *Sealer, inv Inventory) error {
		m := testManifest(1)
		m.Binding.Handoff[0]++
		_, err := s.Manifest(&m)
		return err
	}},
	{"manifest that contradicts itself", ErrPosition, func(t *testing.T, s *Sealer, inv Inventory) error {
		m := testManifest(1)
		m.History = nil
		_, err := s.Manifest(&m)
		return err
	}},
}

func TestSealerRefusals(t *testing.T) {
	for _, tt := range sealerRefusals {
		t.Run(tt.name, func(t *testing.T) {
			inv := testInventory(t)
			s := newSealer(t, inv)
			err := tt.seal(t, s, inv)
			wantReason(t, err, tt.want)
		})
	}
	t.Run("snapshot of a dense model", func(t *testing.T) {
		_, err := newSealer(t, denseInventory(t)).Snapshot(testTokens, true, []byte{1}, nil)
		wantReason(t, err, ErrUnexpectedUnit)
	})
}

// A refused unit leaves no trace: the next has its index.
func TestSealerRefusalChangesNothing(t *testing.T) {
	inv := denseInventory(t)
	s := newSealer(t, inv)
	if _, err := s.Page(AttentionKV, Range{0, 20}, true, []byte{1}); err == nil {
		t.Fatal("accepted")
	}
	p := fill(inv[0].Bytes(20), 1)
	h, err := s.Page(AttentionKV, Range{0, 20}, true, p)
	if err != nil || h.Index != 0 || s.Units() != 1 {
		t.Fatalf("unit %d of %d: %v", h.Index, s.Units(), err)
	}
}

// The caller's references keep their unit numbers; the manifest gets the right ones.
func TestSealerNumbersComponents(t *testing.T) {
	inv := testInventory(t)
	refs, n := snapshotRefs(inv, 5)
	before := slices.Clone(refs)
	s := newSealer(t, inv)
	if _, err := s.Page(AttentionKV, Range{0, testTokens}, false, make([]byte, inv[0].Bytes(testTokens))); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Snapshot(testTokens, true, make([]byte, n), refs); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, refs); diff != "" {
		t.Error(diff)
	}
	m := testManifest(1)
	if _, err := s.Manifest(&m); err != nil {
		t.Fatal(err)
	}
	for _, r := range m.Components {
		if r.Unit != 1 {
			t.Errorf("component %v is in unit %d, want 1", r.Kind, r.Unit)
		}
	}
}

// Streaming a payload in pieces gives the digest of the whole, and one digester serves many units
// without allocating.
func TestDigesterStreams(t *testing.T) {
	d := deliver(t, testInventory(t), 0, 1, 0, 8, testTokens)
	dg := NewDigester(testKey())
	sum := func(u *unit, piece int) Digest {
		dg.Start(&u.h)
		for p := u.payload; len(p) > 0; {
			n := min(piece, len(p))
			dg.Write(p[:n])
			p = p[n:]
		}
		return dg.Sum()
	}
	for i := range d.units {
		for _, piece := range []int{1, 7, 64, 1 << 20} {
			if sum(&d.units[i], piece) != d.manifest.Units[i].Digest {
				t.Errorf("unit %d in pieces of %d: digest differs", i, piece)
			}
		}
	}
	if n := testing.AllocsPerRun(100, func() { sum(&d.units[0], 64) }); n != 0 {
		t.Errorf("a digest allocates %v times, want 0", n)
	}
	crc := uint32(0)
	for _, b := range d.units[0].payload {
		crc = UpdateChecksum(crc, []byte{b})
	}
	if crc != d.units[0].h.Checksum {
		t.Error("checksum in pieces differs")
	}
	if UpdateChecksum(0, []byte("123456789")) != 0xe3069283 {
		t.Error("checksum is not CRC-32C")
	}
}

// A digest over the checksum follows the header, the checksum and the key, and is never one over the payload.
func TestOverChecksum(t *testing.T) {
	inv := testInventory(t)
	p := make([]byte, inv[0].Bytes(8))
	p[3] = 7
	seal := func(s *Sealer, p []byte) (UnitHeader, Digest) {
		h, err := s.Page(AttentionKV, Range{0, 8}, true, p)
		if err != nil {
			t.Fatal(err)
		}
		return h, s.units[0].Digest
	}
	s := newSealer(t, inv)
	s.OverChecksum()
	h, got := seal(s, p)
	if want := NewDigester(testKey()).OverChecksum(&h); got != want {
		t.Error("the sealer's digest is another one than the digester's")
	}
	if _, whole := seal(newSealer(t, inv), p); got == whole {
		t.Error("it equals the digest over the payload")
	}
	other := h
	other.Checksum ^= 1
	if NewDigester(testKey()).OverChecksum(&other) == got {
		t.Error("the checksum does not count")
	}
	other = h
	other.Tokens.End++
	if NewDigester(testKey()).OverChecksum(&other) == got {
		t.Error("the header does not count")
	}
	key := testKey()
	key[0] ^= 1
	if NewDigester(key).OverChecksum(&h) == got {
		t.Error("the key does not count")
	}
}

// A unit whose digest comes later is the same as any other, and the manifest waits for it.
func TestDeferredDigests(t *testing.T) {
	inv := denseInventory(t)
	seal := func(s *Sealer) []UnitHeader {
		var all []UnitHeader
		for i := range uint32(3) {
			p := make([]byte, inv[0].Bytes(8))
			p[0] = byte(i)
			h, err := s.Page(AttentionKV, Range{8 * i, 8*i + 8}, i == 2, p)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, h)
		}
		return all
	}
	now, later := newSealer(t, inv), newSealer(t, inv)
	later.Defer()
	headers := seal(now)
	if diff := cmp.Diff(headers, seal(later)); diff != "" {
		t.Error(diff)
	}
	if later.Pending() != 3 || now.Pending() != 0 {
		t.Errorf("%d and %d digests are missing", later.Pending(), now.Pending())
	}
	d := NewDigester(testKey())
	for _, i := range []uint32{2, 0, 1} {
		m := Manifest{Binding: testBinding(), Parts: 1, History: make([]int32, 25), Position: 24}
		if _, err := later.Manifest(&m); !errors.Is(err, ErrDigest) {
			t.Errorf("a manifest with %d digests missing: %v", later.Pending(), err)
		}
		p := make([]byte, inv[0].Bytes(8))
		p[0] = byte(i)
		d.Piece(&headers[i], 0, p[:5])
		d.Piece(&headers[i], 5, p[5:])
		if err := later.Digest(i, d.Arrived(&headers[i], false)); err != nil {
			t.Fatal(err)
		}
		if err := later.Digest(i, Digest{1}); !errors.Is(err, ErrDigest) {
			t.Errorf("a second digest: %v", err)
		}
	}
	if err := later.Digest(3, Digest{1}); !errors.Is(err, ErrDigest) {
		t.Errorf("a digest of no unit: %v", err)
	}
	if diff := cmp.Diff(now.units, later.units); diff != "" {
		t.Error(diff)
	}
}
