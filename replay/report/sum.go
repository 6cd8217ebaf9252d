package report

import "math/bits"

// sum is an exact sum of products of counts and times: blocks over picoseconds
// need more than 64 bits.
type sum struct{ hi, lo uint64 }

func (s *sum) add(x uint64) {
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, x, 0)
	s.hi += carry
}

func (s *sum) addMul(a, b uint64) {
	hi, lo := bits.Mul64(a, b)
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.hi += hi + carry
}

func (s *sum) addSum(o sum) {
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, o.lo, 0)
	s.hi += o.hi + carry
}

// over returns the quotient rounded to the nearest, 0 for n = 0. What does not
// fit saturates.
func (s sum) over(n uint64) uint64 {
	if n == 0 {
		return 0
	}
	s.add(n / 2)
	if s.hi >= n {
		return 1<<64 - 1
	}
	q, _ := bits.Div64(s.hi, s.lo, n)
	return q
}

func (s sum) float() float64 { return float64(s.hi)*(1<<64) + float64(s.lo) }
