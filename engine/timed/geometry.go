package timed

import (
	"errors"
	"math"

	"github.com/tandem-llm/tandem/state"
)

// Geometry says how large a sequence's continuation state is, by component, over
// all layers and all tensor-parallel ways: what a handoff has to move. All sizes
// are bytes.
type Geometry struct {
	// AttentionPerToken is append-only attention state per token.
	AttentionPerToken int64 `yaml:"attention_per_token,omitempty" json:"attention_per_token,omitempty"`
	// WindowPerToken is attention state of sliding-window layers per token, of which
	// the last WindowTokens are kept.
	WindowPerToken int64 `yaml:"window_per_token,omitempty" json:"window_per_token,omitempty"`
	WindowTokens   int64 `yaml:"window_tokens,omitempty" json:"window_tokens,omitempty"`
	// Recurrent and Conv are state of a fixed size, overwritten at each token.
	Recurrent int64 `yaml:"recurrent,omitempty" json:"recurrent,omitempty"`
	Conv      int64 `yaml:"conv,omitempty" json:"conv,omitempty"`
	// MTPPerToken is append-only state per token of multi-token-prediction layers.
	MTPPerToken int64 `yaml:"mtp_per_token,omitempty" json:"mtp_per_token,omitempty"`
}

// PerToken is the bytes that each token adds for as long as the sequence lives:
// those that can leave page by page while the prompt is computed.
func (g Geometry) PerToken() int64 { return g.AttentionPerToken + g.MTPPerToken }

// Snapshot is the bytes that leave after the last token: window, recurrent and
// convolution state of a sequence of that many tokens.
func (g Geometry) Snapshot(tokens int64) int64 {
	return g.WindowPerToken*min(tokens, g.WindowTokens) + g.Recurrent + g.Conv
}

// Bytes is the whole state of a sequence of that many tokens.
func (g Geometry) Bytes(tokens int64) int64 { return g.PerToken()*tokens + g.Snapshot(tokens) }

// Geometry computes the size of a sequence's state from the model's shape. Of the
// options it uses the element sizes, 0 meaning the usual ones, and whether
// speculation keeps state of the MTP layers.
func (s *ModelSpec) Geometry(o Options) Geometry {
	or := func(v, d float64) float64 {
		if v == 0 {
			return d
		}
		return v
	}
	kv, ssm, conv := or(o.KVBits, 16), or(o.RecurrentBits, 32), or(o.ConvBits, 16)
	bytes := func(elements int, bits float64) int64 { return int64(math.Ceil(float64(elements) * bits / 8)) }
	var g Geometry
	for _, b := range s.Blocks {
		switch {
		case b.Attention != nil && b.Attention.Window > 0:
			g.WindowPerToken += bytes(b.cached(), kv)
			g.WindowTokens = max(g.WindowTokens, int64(b.Attention.Window))
		case b.Mamba != nil:
			inner := b.Mamba.Heads * b.Mamba.HeadDim
			g.Recurrent += bytes(b.Count*inner*b.Mamba.State, ssm)
			g.Conv += bytes(b.Count*(inner+2*b.Mamba.Groups*b.Mamba.State)*(b.Mamba.Conv-1), conv)
		default:
			g.AttentionPerToken += bytes(b.cached(), kv)
		}
	}
	if o.Speculation != nil && o.Speculation.Kind == MTP {
		for _, b := range s.MTP {
			g.MTPPerToken += bytes(b.cached(), kv)
		}
	}
	return g
}

// cached is elements of attention state per token over the group's layers.
func (b *Block) cached() int {
	switch {
	case b.Attention != nil:
		return b.Count * 2 * b.Attention.KVHeads * b.Attention.HeadDim
	case b.MLA != nil:
		return b.Count * (b.MLA.KVRank + b.MLA.RopeDim)
	}
	return 0
}

// A Part is one component of a sequence's state.
type Part struct {
	Kind state.Kind
	// PerToken is bytes per token, of the last Window tokens if that is not 0.
	PerToken, Window int64
	// Fixed is bytes whatever the number of tokens.
	Fixed int64
}

// Parts lists the components that take room, in the order of their kinds.
func (g Geometry) Parts() []Part {
	var parts []Part
	for _, p := range []Part{
		{Kind: state.AttentionKV, PerToken: g.AttentionPerToken},
		{Kind: state.WindowKV, PerToken: g.WindowPerToken, Window: g.WindowTokens},
		{Kind: state.Recurrent, Fixed: g.Recurrent},
		{Kind: state.Conv, Fixed: g.Conv},
		{Kind: state.MTPKV, PerToken: g.MTPPerToken},
	} {
		if p.PerToken > 0 || p.Fixed > 0 {
			parts = append(parts, p)
		}
	}
	return parts
}

func (g Geometry) check() error {
	for _, v := range []int64{g.AttentionPerToken, g.WindowPerToken, g.WindowTokens, g.Recurrent, g.Conv, g.MTPPerToken} {
		if v < 0 || v > 1<<40 {
			return errors.New("timed: sizes of state are from 0 to 2^40 bytes")
		}
	}
	return nil
}
