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
