package workload

import (
	"math"
	"math/rand/v2"

	"github.com/tandem-llm/tandem/engine/timed"
)

// starts is when open sessions start, one after another.
type starts struct {
	kind    Arrivals
	rand    *rand.Rand
	at      timed.Time
	count   float64 // sessions so far
	gap     float64 // mean seconds; for bursty those within a burst
	cv      float64
	on, off float64    // mean seconds
	until   timed.Time // end of this burst
}

func newStarts(s *Spec) starts {
	var source rand.PCG
	seedPCG(&source, s.Seed, 0, uint64(drawStart))
	t := starts{kind: s.Arrivals, rand: rand.New(&source), gap: 1 / s.Rate, cv: s.CV, on: s.On, off: s.Off}
	if t.kind == Bursty {
		// All of the rate falls into the bursts.
		t.gap *= t.on / (t.on + t.off)
		t.until = t.length(t.on)
	}
	return t
}

// next returns the next start, Never past the end of virtual time.
func (t *starts) next() timed.Time {
	var gap timed.Time
	switch t.kind {
	case Constant:
		// From the count, so that no rounding adds up.
		t.at = timed.OfSeconds(t.count * t.gap)
		t.count++
		return t.at
	case Gamma:
		shape := 1 / (t.cv * t.cv)
		gap = timed.OfSeconds(drawGamma(t.rand, shape) * (t.gap / shape))
	default:
		gap = t.length(t.gap)
	}
	t.at = later(t.at, gap)
	// What is left of a gap goes on in the next burst: exponential gaps have no
	// memory.
	for t.kind == Bursty && t.at >= t.until && t.at < timed.Never {
		pause := t.length(t.off)
		t.at = later(t.at, pause)
		t.until = later(later(t.until, pause), t.length(t.on))
	}
	return t.at
}

// length draws an exponential length of so many seconds in the mean.
func (t *starts) length(mean float64) timed.Time {
	return timed.OfSeconds(mean * t.rand.ExpFloat64())
}

// later adds a length, up to Never.
func later(at, length timed.Time) timed.Time { return at + min(length, timed.Never-at) }

// drawGamma draws from a gamma distribution of scale 1 (Marsaglia and Tsang: A
// Simple Method for Generating Gamma Variables, 2000; below shape 1 by their
// boost).
func drawGamma(r *rand.Rand, shape float64) float64 {
	boost := 1.0
	if shape < 1 {
		boost = math.Pow(1-r.Float64(), 1/shape)
		shape++
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-r.Float64()) < 0.5*x*x+d-d*v+d*math.Log(v) {
			return d * v * boost
		}
	}
}
