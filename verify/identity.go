package verify

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/tandem-llm/tandem/state"
)

// Identity is a state.Identity as it is written in reports and certificates, with its digest.
type Identity struct {
	// Digest is state.Identity.Digest, in hexadecimal: what unit headers carry.
	Digest         string `json:"digest"`
	Schema         uint16 `json:"schema"`
	Weights        string `json:"weights"`
	Tokenizer      string `json:"tokenizer"`
	Architecture   string `json:"architecture"`
	Layers         uint32 `json:"layers"`
	Rope           Rope   `json:"rope"`
	KVTypeK        string `json:"kv_type_k"`
	KVTypeV        string `json:"kv_type_v"`
	FlashAttention bool   `json:"flash_attention"`
	SWAFull        bool   `json:"swa_full"`
	EngineBuild    string `json:"engine_build"`
	EngineState    uint32 `json:"engine_state"`
	Endian         uint8  `json:"endian"`
}

// Rope is state.Rope.
type Rope struct {
	Scaling     uint8   `json:"scaling"`
	FreqBase    float32 `json:"freq_base"`
	FreqScale   float32 `json:"freq_scale"`
	ExtFactor   float32 `json:"ext_factor"`
	AttnFactor  float32 `json:"attn_factor"`
	BetaFast    float32 `json:"beta_fast"`
	BetaSlow    float32 `json:"beta_slow"`
	OrigContext uint32  `json:"orig_context"`
}

// identityOf writes an identity down. State, whose digest must come out the same, shows that no field is missing.
func identityOf(id state.Identity) Identity {
	r := id.Rope
	return Identity{
		id.Digest().Hex(), id.Schema, id.Weights.Hex(), id.Tokenizer.Hex(), id.Architecture, id.Layers,
		Rope{uint8(r.Scaling), r.FreqBase, r.FreqScale, r.ExtFactor, r.AttnFactor, r.BetaFast, r.BetaSlow, r.OrigContext},
		id.KVTypeK.String(), id.KVTypeV.String(), id.FlashAttention, id.SWAFull, id.EngineBuild, id.EngineState, uint8(id.Endian),
	}
}

// State is the identity that was written down. It refuses one whose digest is another's.
func (w Identity) State() (state.Identity, error) {
	weights, err1 := digest(w.Weights)
	tokenizer, err2 := digest(w.Tokenizer)
	k, ok1 := state.ParseDType(w.KVTypeK)
	v, ok2 := state.ParseDType(w.KVTypeV)
	if err := errors.Join(err1, err2); err != nil {
		return state.Identity{}, err
	}
	if !ok1 || !ok2 {
		return state.Identity{}, fmt.Errorf("%w: KV types %q and %q", ErrCertificate, w.KVTypeK, w.KVTypeV)
	}
	r := w.Rope
	id := state.Identity{
		Schema: w.Schema, Weights: weights, Tokenizer: tokenizer, Architecture: w.Architecture, Layers: w.Layers,
		Rope: state.Rope{
			Scaling: state.RopeScaling(r.Scaling), FreqBase: r.FreqBase, FreqScale: r.FreqScale, ExtFactor: r.ExtFactor,
			AttnFactor: r.AttnFactor, BetaFast: r.BetaFast, BetaSlow: r.BetaSlow, OrigContext: r.OrigContext,
		},
		KVTypeK: k, KVTypeV: v, FlashAttention: w.FlashAttention, SWAFull: w.SWAFull,
		EngineBuild: w.EngineBuild, EngineState: w.EngineState, Endian: state.Endian(w.Endian),
	}
	if got := id.Digest().Hex(); got != w.Digest {
		return state.Identity{}, fmt.Errorf("%w: an identity whose digest is another's", ErrCertificate)
	}
	return id, nil
}

func digest(s string) (d state.Digest, err error) {
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != len(d) {
		return d, fmt.Errorf("%w: %d characters are no digest", ErrCertificate, len(s))
	}
	copy(d[:], raw)
	return d, nil
}
