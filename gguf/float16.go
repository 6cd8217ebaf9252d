package gguf

import "math"

// Float16 returns the IEEE 754 binary16 bits of f, rounded to nearest even.
// Values beyond the range become infinities; every NaN becomes one quiet NaN.
func Float16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	exp := int32(b>>23&0xff) - 127 + 15
	frac := b & 0x7fffff
	switch {
	case b&0x7f800000 == 0x7f800000:
		if frac != 0 {
			return sign | 0x7e00
		}
		return sign | 0x7c00
	case exp >= 31:
		return sign | 0x7c00
	case exp <= 0:
		if exp < -10 {
			return sign
		}
		// A subnormal: make the leading one explicit and shift it down.
		return sign | uint16(roundShift(frac|0x800000, uint32(14-exp)))
	}
	// A carry out of the fraction correctly increments the exponent, up to
	// infinity.
	return sign + uint16(uint32(exp)<<10) + uint16(roundShift(frac, 13))
}

// roundShift returns v >> n rounded to nearest, ties to even; 0 < n < 32.
func roundShift(v, n uint32) uint32 {
	q, rest, half := v>>n, v&(1<<n-1), uint32(1)<<(n-1)
	if rest > half || rest == half && q&1 == 1 {
		q++
	}
	return q
}
