package blob

import "encoding/binary"

// Lane masks. A float is NaN or infinite exactly when all its exponent bits are
// set. Masked to the exponent, adding its lowest bit carries into the sign
// position exactly then, and never into the next lane.
const (
	f16Exp, f16One, f16Top    = 0x7c007c007c007c00, 0x0400040004000400, 0x8000800080008000
	bf16Exp, bf16One, bf16Top = 0x7f807f807f807f80, 0x0080008000800080, 0x8000800080008000
	f32Exp, f32One, f32Top    = 0x7f8000007f800000, 0x0080000000800000, 0x8000000080000000
)

// q8Block is the bytes of 32 values of type Q8_0: an F16 scale, then 32 int8.
const q8Block = 34

// Finite reports whether no number in rows of type t is NaN or infinite. For
// Q8_0 these are the scales: its values are integers. rows holds whole rows;
// unknown types are not finite.
func Finite(t Type, rows []byte) bool {
	switch t {
	case F16:
		return lanes(rows, f16Exp, f16One)&f16Top == 0
	case BF16:
		return lanes(rows, bf16Exp, bf16One)&bf16Top == 0
	case F32:
		return lanes(rows, f32Exp, f32One)&f32Top == 0
	case Q8_0:
		return q8Scales(rows)
	}
	return false
}

// stretch is the bytes that a sampling check looks at together: a cache line, or
// two blocks of Q8_0.
func (t Type) stretch() int {
	if t == Q8_0 {
		return 2 * q8Block
	}
	return 64
}

// finite is Finite for one in every stretches of rows.
func finite(t Type, rows []byte, every int) bool {
	if every <= 1 {
		return Finite(t, rows)
	}
	size := t.stretch()
	for len(rows) > 0 {
		if !Finite(t, rows[:min(size, len(rows))]) {
			return false
		}
		rows = rows[min(size*every, len(rows)):]
	}
	return true
}

// lanes returns the union of (word & exp) + one over the words of b. Four
// accumulators keep the adds independent; the loop is memory bound.
func lanes(b []byte, exp, one uint64) uint64 {
	var a0, a1, a2, a3 uint64
	for len(b) >= 64 {
		_ = b[63]
		a0 |= binary.LittleEndian.Uint64(b)&exp + one
		a1 |= binary.LittleEndian.Uint64(b[8:])&exp + one
		a2 |= binary.LittleEndian.Uint64(b[16:])&exp + one
		a3 |= binary.LittleEndian.Uint64(b[24:])&exp + one
		a0 |= binary.LittleEndian.Uint64(b[32:])&exp + one
		a1 |= binary.LittleEndian.Uint64(b[40:])&exp + one
		a2 |= binary.LittleEndian.Uint64(b[48:])&exp + one
		a3 |= binary.LittleEndian.Uint64(b[56:])&exp + one
		b = b[64:]
	}
	for len(b) >= 8 {
		a0 |= binary.LittleEndian.Uint64(b)&exp + one
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		a1 |= binary.LittleEndian.Uint64(last[:])&exp + one
	}
	return a0 | a1 | a2 | a3
}

func q8Scales(b []byte) bool {
	var acc uint32
	for len(b) >= q8Block {
		acc |= uint32(binary.LittleEndian.Uint16(b))&0x7c00 + 0x0400
		b = b[q8Block:]
	}
	return acc&0x8000 == 0 && len(b) == 0
}
