package soak

import "math"

// Share is how many of some answers had a property.
type Share struct {
	Count int `json:"count"`
	Of    int `json:"of"`
}

// Rate is the share, 0 of none.
func (s Share) Rate() float64 {
	if s.Of == 0 {
		return 0
	}
	return float64(s.Count) / float64(s.Of)
}

// higher returns the probability that a would be found at least so much oftener than b
// if both had the same rate: Fisher's exact test, one-sided. It takes time proportional
// to the smaller of a.Of and the counts' sum.
func higher(a, b Share) float64 {
	if a.Of == 0 || b.Of == 0 {
		return 1
	}
	all, marked := a.Of+b.Of, a.Count+b.Count
	p := 0.0
	for k := a.Count; k <= min(a.Of, marked); k++ {
		if marked-k > b.Of {
			continue
		}
		p += math.Exp(choose(a.Of, k) + choose(b.Of, marked-k) - choose(all, marked))
	}
	return min(p, 1)
}

// choose is the logarithm of n over k.
func choose(n, k int) float64 {
	lg := func(n int) float64 { v, _ := math.Lgamma(float64(n + 1)); return v }
	return lg(n) - lg(k) - lg(n-k)
}

// atMost is an upper bound of a rate, which holds with a confidence of 95 %: Wilson's
// score, one-sided.
func atMost(s Share) float64 {
	if s.Of == 0 {
		return 1
	}
	const z = 1.6449
	n, p := float64(s.Of), s.Rate()
	return min(1, (p+z*z/(2*n)+z*math.Sqrt(p*(1-p)/n+z*z/(4*n*n)))/(1+z*z/n))
}
