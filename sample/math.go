package sample

import "math"

// exp returns e to the x for x <= 0, to a relative error below 1e-11. It is here
// instead of math.Exp because that is assembly on some architectures and not on
// others; this one is the same additions and multiplications everywhere (the
// explicit conversions forbid fusing them), so every machine draws the same
// token.
func exp(x float64) float64 {
	if x < -700 {
		return 0
	}
	const (
		log2e = 1.44269504088896338700
		ln2hi = 6.93147180369123816490e-01 // few enough bits that k*ln2hi is exact
		ln2lo = 1.90821492927058770002e-10
		shift = 1<<52 + 1<<51 // adding it rounds to an integer, in the low bits
	)
	kb := float64(x*log2e) + shift
	k := float64(kb - shift)
	r := float64(x-float64(k*ln2hi)) - float64(k*ln2lo) // |r| <= ln(2)/2
	// Taylor's polynomial of degree 10, in four independent chains.
	r2 := float64(r * r)
	r4 := float64(r2 * r2)
	p0 := 1 + r
	p1 := float64(1.0/2) + float64(r*(1.0/6))
	p2 := float64(1.0/24) + float64(r*(1.0/120))
	p3 := float64(1.0/720) + float64(r*(1.0/5040))
	p4 := float64(1.0/40320) + float64(r*(1.0/362880)) + float64(r2*(1.0/3628800))
	lo := p0 + float64(r2*p1)
	hi := p2 + float64(r2*p3) + float64(r4*p4)
	p := lo + float64(r4*hi)
	// Multiply by 2^k in the exponent: p is in [0.7, 1.5] and k > -1011.
	return math.Float64frombits(math.Float64bits(p) + math.Float64bits(kb)<<52)
}

// logSumExp is the logarithm of the sum of the exponentials of the logits, of
// which largest is the largest.
func logSumExp(logits []float32, largest float32) float64 {
	var sum float64
	for _, l := range logits {
		sum += exp(float64(l) - float64(largest))
	}
	return float64(largest) + math.Log(sum)
}
