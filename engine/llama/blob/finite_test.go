package blob

import (
	"bytes"
	"encoding/binary"
	"testing"
)

func TestFinite(t *testing.T) {
	type lane struct {
		name  string
		typ   Type
		bits  uint32
		width int
		ok    bool
	}
	for _, c := range []lane{
		{"f16 max", F16, 0x7bff, 2, true},
		{"f16 -max", F16, 0xfbff, 2, true},
		{"f16 denormal", F16, 0x83ff, 2, true},
		{"f16 inf", F16, 0x7c00, 2, false},
		{"f16 -inf", F16, 0xfc00, 2, false},
		{"f16 nan", F16, 0x7e01, 2, false},
		{"bf16 max", BF16, 0x7f7f, 2, true},
		{"bf16 inf", BF16, 0x7f80, 2, false},
		{"bf16 -nan", BF16, 0xffc0, 2, false},
		{"f32 max", F32, 0x7f7fffff, 4, true},
		{"f32 inf", F32, 0x7f800000, 4, false},
		{"f32 nan", F32, 0xffc00001, 4, false},
		{"f32 signalling", F32, 0x7f800001, 4, false},
	} {
		// every lane of every alignment of a buffer with a tail
		for n := c.width; n <= 200; n += c.width {
			b := make([]byte, n)
			at := (n * 7 / 3) / c.width * c.width % n
			if c.width == 2 {
				binary.LittleEndian.PutUint16(b[at:], uint16(c.bits))
			} else {
				binary.LittleEndian.PutUint32(b[at:], c.bits)
			}
			if Finite(c.typ, b) != c.ok {
				t.Errorf("%s at %d of %d: %v", c.name, at, n, !c.ok)
			}
		}
	}
	// no carry between lanes: neighbours at their largest finite value
	full := bytes.Repeat([]byte{0xff, 0xfb}, 64)
	if !Finite(F16, full) {
		t.Error("finite f16 lanes spill")
	}
	q := bytes.Repeat([]byte{0xff}, q8Block*3)
	for i := range 3 {
		binary.LittleEndian.PutUint16(q[i*q8Block:], 0x3c00)
	}
	if !Finite(Q8_0, q) {
		t.Error("q8_0 values are integers")
	}
	binary.LittleEndian.PutUint16(q[q8Block:], 0xfc00)
	if Finite(Q8_0, q) {
		t.Error("an infinite q8_0 scale passed")
	}
	if Finite(Q8_0, q[:q8Block+3]) || Finite(Type(12), nil) {
		t.Error("a part of a block, or an unknown type, passed")
	}
}

// A sampling check sees everything that is wrong in one stretch of n.
func TestSampledFinite(t *testing.T) {
	for _, typ := range []Type{F16, BF16, F32, Q8_0} {
		size := typ.stretch()
		rows := make([]byte, size*20)
		for every := range 6 {
			for at := range 20 {
				b := bytes.Clone(rows)
				for i := range size {
					b[at*size+i] = 0x7f
					if i%4 != 3 && typ == F32 || i%2 == 0 && typ != F32 {
						b[at*size+i] = 0xff
					}
				}
				if want := every > 1 && at%every != 0; finite(typ, b, every) != want {
					t.Errorf("%v, one in %d, fault in stretch %d: %v", typ, every, at, !want)
				}
			}
		}
	}
}

// Numbers are looked through in pieces, each of which is shown once it passed: a
// NaN anywhere, at the borders of pieces too, is found, and nothing after it is
// shown.
func TestPieces(t *testing.T) {
	for _, c := range []struct {
		typ   Type
		width int
		nan   []byte
	}{
		{F16, 2, []byte{0, 0x7e}}, {BF16, 2, []byte{0xc0, 0x7f}}, {F32, 4, []byte{0, 0, 0xc0, 0x7f}}, {Q8_0, q8Block, []byte{0, 0x7e}},
	} {
		size := (2*piece + 10*64*q8Block) / c.width * c.width
		good := make([]byte, size)
		for i := range good {
			good[i] = byte(i * 7 % 97 & 0x3f) // no exponent of all ones
		}
		var seen []byte
		k := checker{b: good, depth: Everything, visit: func(p []byte) { seen = append(seen, p...) }}
		if !k.numbers(c.typ, size) || len(k.b) != 0 || !bytes.Equal(seen, good) {
			t.Errorf("%v: good numbers: %d of %d bytes shown", c.typ, len(seen), size)
		}
		for _, at := range []int{0, piece - c.width, piece, 2*piece - c.width, 2 * piece, size - c.width} {
			bad := bytes.Clone(good)
			copy(bad[at:], c.nan)
			seen = seen[:0]
			k := checker{b: bad, depth: Everything, visit: func(p []byte) { seen = append(seen, p...) }}
			if k.numbers(c.typ, size) {
				t.Errorf("%v: a NaN at %d of %d passed", c.typ, at, size)
			}
			if want := at / piece * piece; len(seen) != want {
				t.Errorf("%v: a NaN at %d: %d bytes shown, expected %d", c.typ, at, len(seen), want)
			}
		}
	}
}
