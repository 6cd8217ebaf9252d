package timed

import (
	"errors"
	"fmt"
)

// Fixed are step times that depend on as little as possible, for closed-form
// checks and for engines that are described by two numbers.
type Fixed struct {
	// DecodeMS is a step that has decodes, whatever their number and context.
	DecodeMS float64 `yaml:"decode_ms" json:"decode_ms"`
	// ChunkMS is each chunk, and TokenMS each of its new tokens; they add to the
	// step that they are in.
	ChunkMS float64 `yaml:"chunk_ms,omitempty" json:"chunk_ms,omitempty"`
	TokenMS float64 `yaml:"token_ms,omitempty" json:"token_ms,omitempty"`
}

// NewFixed makes a model of fixed times.
func NewFixed(f Fixed, o Common) (*Model, error) {
	for _, ms := range []float64{f.DecodeMS, f.ChunkMS, f.TokenMS} {
		if !(ms >= 0 && ms <= 1e12) {
			return nil, errors.New("timed: fixed times are from 0 to 1e12 ms")
		}
	}
	return build(fmt.Sprintf("fixed (%g ms a decode step)", f.DecodeMS), fixed(f), o)
}

type fixed Fixed

func (fixed) same() bool { return true }

func (f fixed) curve(int) (curve, error) {
	return curve{{base: max(1, int64(OfSeconds(f.DecodeMS*1e-3)))}}.seal()
}

func (f fixed) mixed(b *Batch) float64 {
	var ms float64
	if b.Decodes > 0 {
		ms = f.DecodeMS
	}
	for _, c := range b.Chunks {
		ms += f.ChunkMS + float64(f.TokenMS*float64(c.New))
	}
	return ms * float64(Millisecond)
}
