package timed

import (
	"errors"
	"fmt"
	"math"
)

// Fitted are coefficients of measured step times, in milliseconds. A step takes
//
//	larger base + Σ chunks [ ChunkMS + TokenMS·t + PastMS·s + PairMS·(s·t + t²/2) ]
//	            + SequenceMS·decodes + (ContextMS + PairMS·decodes)·context
//
// for t new tokens on top of s. The base is StepMS if there are chunks and that
// of the decodes if there are some: weights are read once.
type Fitted struct {
	StepMS  float64 `yaml:"step_ms" json:"step_ms"`
	ChunkMS float64 `yaml:"chunk_ms,omitempty" json:"chunk_ms,omitempty"`
	TokenMS float64 `yaml:"token_ms" json:"token_ms"`
	PastMS  float64 `yaml:"past_ms,omitempty" json:"past_ms,omitempty"`
	PairMS  float64 `yaml:"pair_ms" json:"pair_ms"`
	// Decode holds for batches up to UpTo sequences, in ascending order; the last one
	// has 0 there and holds for all larger ones.
	Decode []DecodeFit `yaml:"decode" json:"decode"`
}

// DecodeFit are the coefficients of decodes. ContextMS is for engines in which a
// sequence looks at its own tokens, PairMS for those in which it passes over those of
// all, as llama.cpp does.
type DecodeFit struct {
	UpTo       int     `yaml:"up_to,omitempty" json:"up_to,omitempty"`
	StepMS     float64 `yaml:"step_ms" json:"step_ms"`
	SequenceMS float64 `yaml:"sequence_ms" json:"sequence_ms"`
	ContextMS  float64 `yaml:"context_ms" json:"context_ms"`
	PairMS     float64 `yaml:"pair_ms,omitempty" json:"pair_ms,omitempty"`
}

// NewFitted makes a model of fitted coefficients.
func NewFitted(f Fitted, o Common) (*Model, error) {
	if len(f.Decode) == 0 || len(f.Decode) > 64 {
		return nil, errors.New("timed: fitted coefficients need 1 to 64 groups for decodes")
	}
	all := []float64{f.StepMS, f.ChunkMS, f.TokenMS, f.PastMS, f.PairMS}
	for i, d := range f.Decode {
		all = append(all, d.StepMS, d.SequenceMS, d.ContextMS, d.PairMS)
		last := i == len(f.Decode)-1
		if last != (d.UpTo == 0) || !last && (d.UpTo < 1 || i > 0 && d.UpTo <= f.Decode[i-1].UpTo) {
			return nil, errors.New("timed: up_to of fitted decodes ascends and is left out in the last group only")
		}
	}
	for _, v := range all {
		// Not negative: a fit with less than nothing would end before it began.
		if !(v >= 0 && v <= 1e12) {
			return nil, fmt.Errorf("timed: fitted coefficients are from 0 to 1e12 ms, not %g", v)
		}
	}
	return build("fitted coefficients", fitted(f), o)
}

type fitted Fitted

func (fitted) same() bool { return false }

func (f fitted) decodeFit(decodes int) *DecodeFit {
	for i := range f.Decode {
		if d := &f.Decode[i]; d.UpTo == 0 || decodes <= d.UpTo {
			return d
		}
	}
	panic("unreachable: the last group has no bound")
}

// slope is milliseconds per token of context.
func (d *DecodeFit) slope(rows float64) float64 { return d.ContextMS + float64(d.PairMS*rows) }

const millisecond = float64(Millisecond)

func (f fitted) curve(decodes int) (curve, error) {
	d := f.decodeFit(decodes)
	base := (d.StepMS + float64(d.SequenceMS*float64(decodes))) * millisecond
	return curve{{base: max(1, whole(base)), slope: whole(d.slope(float64(decodes)) * millisecond)}}.seal()
}

func (f fitted) mixed(b *Batch) float64 {
	var base, ms float64
	if rows := b.Decodes + b.Drafts; b.Decodes > 0 {
		d := f.decodeFit(rows)
		base = d.StepMS
		ms = float64(d.SequenceMS*float64(rows)) + float64(d.slope(float64(rows))*float64(b.Context))
	}
	if len(b.Chunks) > 0 {
		base = max(base, f.StepMS)
	}
	for _, c := range b.Chunks {
		t, s := float64(c.New), float64(c.Past)
		ms += f.ChunkMS + float64(f.TokenMS*t) + float64(f.PastMS*s) + float64(f.PairMS*c.pairs())
	}
	return (base + ms) * millisecond
}

// pairs is how many tokens the chunk's tokens see, all together.
func (c Chunk) pairs() float64 {
	t := float64(c.New)
	return float64(float64(c.Past)*t) + float64(t*t/2)
}

// Polynomial are the step times of Dynamo's mocker: a parabola over the step's
// new tokens, and one over the part of the attention memory in use. A step with
// both takes both.
type Polynomial struct {
	// PrefillMS and DecodeMS are the coefficients of 1, x and x², in milliseconds.
	PrefillMS [3]float64 `yaml:"prefill_ms,flow" json:"prefill_ms"`
	DecodeMS  [3]float64 `yaml:"decode_ms,flow" json:"decode_ms"`
	// LeastMS is the least time of a decode step.
	LeastMS float64 `yaml:"least_ms,omitempty" json:"least_ms,omitempty"`
	// Tokens is the size of the attention memory; with more context than that, all
	// of it is in use.
	Tokens int64 `yaml:"tokens" json:"tokens"`
}

// NewPolynomial makes a model of polynomials. A decode's parabola is taken as 256
// straight pieces, which is off by at most its third coefficient / 2^18.
func NewPolynomial(p Polynomial, o Common) (*Model, error) {
	for _, v := range append(append(p.PrefillMS[:], p.DecodeMS[:]...), p.LeastMS) {
		if !(math.Abs(v) <= 1e12) {
			return nil, fmt.Errorf("timed: a coefficient of a polynomial is %g", v)
		}
	}
	if p.Tokens < 1 || p.Tokens >= maxContext {
		return nil, fmt.Errorf("timed: the memory of a polynomial is %d tokens, and must be from 1 to 2^31−1", p.Tokens)
	}
	return build("polynomial", polynomial(p), o)
}

type polynomial Polynomial

func (polynomial) same() bool { return true }

func (p polynomial) curve(int) (curve, error) {
	n := min(p.Tokens, 256)
	points := make([]point, n+1)
	for i := range points {
		at := p.Tokens * int64(i) / n
		points[i] = point{at, p.decodeMS(at) * millisecond}
	}
	return through(points, false).seal()
}

func (p polynomial) decodeMS(context int64) float64 {
	u := min(1, float64(context)/float64(p.Tokens))
	return max(p.LeastMS, parabola(&p.DecodeMS, u))
}

func parabola(c *[3]float64, x float64) float64 {
	return c[0] + float64((c[1]+float64(c[2]*x))*x)
}

func (p polynomial) mixed(b *Batch) float64 {
	var ms float64
	if b.Decodes > 0 {
		ms = p.decodeMS(b.Context)
	}
	tokens := 0
	for _, c := range b.Chunks {
		tokens += c.New
	}
	if tokens > 0 {
		ms += max(0, parabola(&p.PrefillMS, float64(tokens)))
	}
	return ms * millisecond
}

// A point is a step's time in picoseconds at a context.
type point struct {
	context int64
	ps      float64
}

// through is the unsealed curve through points with ascending contexts, at least
// one. It is flat before the first point, and after the last one flat or, with
// extend, as steep as between the last two if that rises. Slopes are cut to whole
// picoseconds towards zero, so the curve stays between its points.
func through(points []point, extend bool) curve {
	value := func(i int) int64 { return max(1, whole(points[i].ps)) }
	var c curve
	if points[0].context > 0 {
		c = append(c, seg{base: value(0)})
	}
	for i := range points {
		s := seg{from: points[i].context, base: value(i)}
		switch {
		case i+1 < len(points):
			s.slope = (value(i+1) - s.base) / (points[i+1].context - s.from)
		case extend && i > 0:
			s.slope = max(0, c[len(c)-1].slope)
		}
		c = append(c, s)
	}
	return c
}
