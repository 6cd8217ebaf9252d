package state

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func testHeader(tb testing.TB) UnitHeader {
	return deliver(tb, testInventory(tb), 0, 1, 0, 8, testTokens).units[0].h
}

func drawRange(t *rapid.T, name string) Range {
	first := rapid.Uint32Max(1<<32-2).Draw(t, name+".first")
	return Range{first, rapid.Uint32Range(first+1, 1<<32-1).Draw(t, name+".end")}
}

func drawDigest(t *rapid.T, name string) (d Digest) {
	copy(d[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, name))
	return d
}

func drawHeader(t *rapid.T) UnitHeader {
	lim := DefaultLimits()
	h := UnitHeader{
		Identity: drawDigest(t, "identity"),
		Part:     uint16(rapid.Uint32Max(lim.Parts-1).Draw(t, "part")),
		Unit:     rapid.SampledFrom([]UnitKind{UnitPage, UnitSnapshot}).Draw(t, "unit"),
		Codec:    rapid.SampledFrom([]Codec{CodecRaw, CodecLlamaSeq}).Draw(t, "codec"),
		Final:    rapid.Bool().Draw(t, "final"),
		Index:    rapid.Uint32Max(lim.Units-1).Draw(t, "index"),
		Layers:   drawRange(t, "layers"),
		Tokens:   drawRange(t, "tokens"),
		Length:   rapid.Uint64Range(1, lim.UnitBytes).Draw(t, "length"),
		Checksum: rapid.Uint32().Draw(t, "checksum"),
	}
	copy(h.Handoff[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "handoff"))
	if h.Unit == UnitPage {
		h.Component = rapid.SampledFrom([]Kind{AttentionKV, MTPKV}).Draw(t, "component")
		h.DType = DType(rapid.IntRange(1, 4).Draw(t, "dtype"))
		h.DTypeV = DType(rapid.IntRange(0, 4).Draw(t, "dtype_v"))
	} else {
		h.Tokens.First = 0
	}
	return h
}

func TestHeaderRoundTrip(t *testing.T) {
	lim := DefaultLimits()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHeader(t)
		b := make([]byte, HeaderSize+3)
		if n := h.Encode(b); n != HeaderSize {
			t.Fatalf("Encode wrote %d bytes, want %d", n, HeaderSize)
		}
		got, err := DecodeUnitHeader(b, &lim)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(h, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Any single changed byte is noticed.
func TestHeaderChecksum(t *testing.T) {
	lim := DefaultLimits()
	h := testHeader(t)
	b := make([]byte, HeaderSize)
	h.Encode(b)
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if _, err := DecodeUnitHeader(b, &lim); err == nil {
				t.Errorf("bit %d of byte %d: accepted", bit, i)
			}
			b[i] ^= 1 << bit
		}
	}
}

// headerRefusals change one encoded thing; the header's checksum is made to fit afterwards.
var headerRefusals = []struct {
	name  string
	want  error
	field string
	edit  func(b []byte)
}{
	{"magic", ErrMagic, "magic", func(b []byte) { b[offMagic]++ }},
	{"schema of the future", ErrSchema, "schema", func(b []byte) { b[offSchema] = byte(SchemaVersion) + 1 }},
	{"schema zero", ErrSchema, "schema", func(b []byte) { b[offSchema] = 0 }},
	{"header size", ErrField, "size", func(b []byte) { b[offSize]++ }},
	{"unknown flag", ErrReserved, "flags", func(b []byte) { b[offFlags] |= 2 }},
	{"reserved first byte", ErrReserved, "reserved", func(b []byte) { b[offReserved] = 1 }},
	{"reserved last byte", ErrReserved, "reserved", func(b []byte) { b[offHeaderCRC-1] = 1 }},
	{"positions", ErrField, "positions", func(b []byte) { b[offPositions] = 2 }},
	{"unit kind", ErrField, "unit", func(b []byte) { b[offUnit] = 3 }},
	{"page of nothing", ErrField, "component", func(b []byte) { b[offComponent] = byte(KindNone) }},
	{"page of a fixed component", ErrField, "component", func(b []byte) { b[offComponent] = byte(Conv) }},
	{"snapshot of one component", ErrField, "component", func(b []byte) { b[offUnit] = byte(UnitSnapshot) }},
	{"snapshot with a type", ErrField, "dtype", func(b []byte) { b[offUnit], b[offComponent] = byte(UnitSnapshot), 0 }},
	{"snapshot from the middle", ErrField, "tokens", func(b []byte) {
		b[offUnit], b[offComponent], b[offDType], b[offDTypeV] = byte(UnitSnapshot), 0, 0, 0
		b[offTokenFirst] = 1
	}},
	{"codec zero", ErrField, "codec", func(b []byte) { b[offCodec] = 0 }},
	{"codec unknown", ErrField, "codec", func(b []byte) { b[offCodec] = 9 }},
	{"dtype none", ErrField, "dtype", func(b []byte) { b[offDType] = 0 }},
	{"dtype unknown", ErrField, "dtype", func(b []byte) { b[offDType] = 9 }},
	{"value dtype unknown", ErrField, "dtype_v", func(b []byte) { b[offDTypeV] = 9 }},
	{"layers empty", ErrField, "layers", func(b []byte) { copy(b[offLayerEnd:], b[offLayerFirst:offLayerEnd]) }},
	{"layers inverted", ErrField, "layers", func(b []byte) { b[offLayerFirst+3] = 1 }},
	{"tokens empty", ErrField, "tokens", func(b []byte) { copy(b[offTokenEnd:], b[offTokenFirst:offTokenEnd]) }},
	{"tokens inverted", ErrField, "tokens", func(b []byte) { b[offTokenFirst+3] = 1 }},
	{"no payload", ErrField, "length", func(b []byte) { clear(b[offLength : offLength+8]) }},
	{"payload over the limit", ErrLimit, "length", func(b []byte) { b[offLength+7] = 0x80 }},
	{"index over the limit", ErrLimit, "index", func(b []byte) { b[offIndex+2] = 1 }},
	{"part over the limit", ErrLimit, "part", func(b []byte) { b[offPart] = 64 }},
}

func TestHeaderRefusals(t *testing.T) {
	lim := DefaultLimits()
	h := testHeader(t)
	for _, tt := range headerRefusals {
		t.Run(tt.name, func(t *testing.T) {
			b := make([]byte, HeaderSize)
			h.Encode(b)
			tt.edit(b)
			binary.LittleEndian.PutUint32(b[offHeaderCRC:], UpdateChecksum(0, b[:offHeaderCRC]))
			_, err := DecodeUnitHeader(b, &lim)
			wantRefusal(t, err, tt.want, tt.field)
		})
	}
	t.Run("truncated", func(t *testing.T) {
		b := make([]byte, HeaderSize)
		h.Encode(b)
		for n := range HeaderSize {
			_, err := DecodeUnitHeader(b[:n], &lim)
			wantRefusal(t, err, ErrTruncated, "length")
		}
	})
	t.Run("damaged", func(t *testing.T) {
		b := make([]byte, HeaderSize)
		h.Encode(b)
		b[offIndex]++
		_, err := DecodeUnitHeader(b, &lim)
		wantRefusal(t, err, ErrHeaderChecksum, "")
	})
}

// wantRefusal checks reason and field, and that the error is one of the package's.
func wantRefusal(t *testing.T, err, want error, field string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is no *Error", err)
	}
	if e.Field != field {
		t.Fatalf("error %v names field %q, want %q", err, e.Field, field)
	}
	if e.Error() == "" || e.What == "" {
		t.Fatalf("error %#v says too little", e)
	}
}

func TestHeaderDoesNotAllocate(t *testing.T) {
	lim := DefaultLimits()
	h := testHeader(t)
	b := make([]byte, HeaderSize)
	if n := testing.AllocsPerRun(100, func() {
		h.Encode(b)
		got, err := DecodeUnitHeader(b, &lim)
		if err != nil || got.Length != h.Length {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("encoding and decoding a header allocates %v times, want 0", n)
	}
}

func BenchmarkHeaderEncode(b *testing.B) {
	h := testHeader(b)
	buf := make([]byte, HeaderSize)
	b.ReportAllocs()
	for b.Loop() {
		h.Index++
		h.Encode(buf)
	}
}

func BenchmarkHeaderDecode(b *testing.B) {
	lim := DefaultLimits()
	h := testHeader(b)
	buf := make([]byte, HeaderSize)
	h.Encode(buf)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeUnitHeader(buf, &lim); err != nil {
			b.Fatal(err)
		}
	}
}

// wantReason checks the reason of a refusal alone.
func wantReason(t *testing.T, err, want error) {
	t.Helper()
	var e *Error
	if !errors.Is(err, want) || !errors.As(err, &e) {
		t.Fatalf("error is %v, want %v", err, want)
	}
}
