package model

import (
	"github.com/tandem-llm/tandem/state"
)

// Bounds that llama.cpp v0.5.0 asserts (its process ends beyond them) or beyond
// which arithmetic on dimensions would be meaningless.
const (
	maxLayers  = 512
	maxExperts = 1024
	maxDim     = 1 << 24
	maxVocab   = 1 << 24
	maxContext = 1 << 30
	maxRow     = 1 << 24 // elements of keys or values per token and layer
)

// hyper are the hyperparameters that every architecture has.
type hyper struct {
	blocks, trunk        int // all layers, and those before the speculation blocks
	embedding            int
	context              int
	heads, headsKV, ffn  []uint32 // per layer of blocks
	keyDim, valueDim     uint32
	keyDimSWA, valDimSWA uint32
	rotated              uint32 // elements of a head that rotary encoding covers
	mla                  bool
	causal               bool
	pooling              uint64
	ropeSections         bool
	rope                 state.Rope
}

func readHyper(r *reader) *hyper {
	h := &hyper{causal: true}
	h.context = int(r.uint(r.key("context_length"), 1, maxContext))
	h.embedding = int(r.uint(r.key("embedding_length"), 1, maxDim))
	h.blocks = int(r.uint(r.key("block_count"), 1, maxLayers))
	nextn := r.uintOr(r.key("nextn_predict_layers"), 0, maxLayers)
	if r.err == nil && nextn >= uint64(h.blocks) {
		r.fail(r.key("nextn_predict_layers"), "%d speculation blocks among %d layers", nextn, h.blocks)
	}
	if r.err != nil {
		return h
	}
	h.trunk = h.blocks - int(nextn)
	if v, ok := r.f.Value(r.key("attention.causal")); ok {
		h.causal, ok = v.Bool()
		if !ok {
			r.fail(r.key("attention.causal"), "not a bool")
		}
	}
	h.pooling = r.uintOr(r.key("pooling_type"), 0, 1<<31)
	h.experts(r)

	zero := make([]uint32, h.blocks)
	or := func(v, absent []uint32) []uint32 {
		if v == nil {
			return absent
		}
		return v
	}
	h.ffn = or(r.perLayer(r.key("feed_forward_length"), h.blocks, maxDim), zero)
	h.heads = or(r.perLayer(r.key("attention.head_count"), h.blocks, maxDim), zero)
	h.headsKV = or(r.perLayer(r.key("attention.head_count_kv"), h.blocks, maxDim), h.heads)
	if r.err == nil && h.heads[0] > 0 {
		head := uint64(h.embedding) / uint64(h.heads[0])
		h.keyDim = uint32(r.uintOr(r.key("attention.key_length"), head, maxDim))
		h.valueDim = uint32(r.uintOr(r.key("attention.value_length"), head, maxDim))
	}
	h.keyDimSWA = uint32(r.uintOr(r.key("attention.key_length_swa"), uint64(h.keyDim), maxDim))
	h.valDimSWA = uint32(r.uintOr(r.key("attention.value_length_swa"), uint64(h.valueDim), maxDim))
	keyMLA := r.uintOr(r.key("attention.key_length_mla"), 0, maxDim)
	valueMLA := r.uintOr(r.key("attention.value_length_mla"), 0, maxDim)
	if r.err == nil && (keyMLA == 0) != (valueMLA == 0) {
		r.fail(r.key("attention.key_length_mla"), "given without value_length_mla, or the other way round")
	}
	h.mla = keyMLA != 0
	h.rotated = uint32(r.uintOr(r.key("rope.dimension_count"), uint64(h.keyDim), maxDim))
	h.readRope(r)
	return h
}

// experts checks the relations that llama.cpp asserts.
func (h *hyper) experts(r *reader) {
	key := r.key("expert_used_count")
	total := uint32(r.uintOr(r.key("expert_count"), 0, maxExperts))
	var used uint32
	for _, n := range r.perLayer(key, h.blocks, maxExperts) {
		used = max(used, n)
	}
	groups := uint32(r.uintOr(r.key("expert_group_count"), 0, maxExperts))
	groupsUsed := uint32(r.uintOr(r.key("expert_group_used_count"), 0, maxExperts))
	if r.arch == "hunyuan-dense" && total <= 1 {
		total, used = 0, 0
	}
	groupKey := r.key("expert_group_count")
	switch {
	case r.err != nil:
	case used > total || total > 0 && used == 0:
		r.fail(key, "%d of %d experts", used, total)
	case total > 0 && groups >= total || total == 0 && groups > 0:
		r.fail(groupKey, "%d groups of %d experts", groups, total)
	case groups > 1 && (total%groups != 0 || groupsUsed == 0 || groupsUsed >= groups):
		r.fail(groupKey, "%d of %d groups of %d experts", groupsUsed, groups, total)
	}
}

// readRope resolves the rotary position configuration as llama.cpp does for a
// context that overrides nothing. For YaRN the attention factor is left as the
// model gives it: llama.cpp derives the one in force from it and the scale.
func (h *hyper) readRope(r *reader) {
	kind := r.textOr(r.key("rope.scaling.type"), "linear")
	scale := r.floatOr(r.key("rope.scaling.factor"), 0)
	if scale == 0 {
		scale = r.floatOr(r.key("rope.scale_linear"), 0)
	}
	h.rope = state.Rope{
		FreqBase:    float32(r.floatOr(r.key("rope.freq_base"), 10000)),
		FreqScale:   1,
		AttnFactor:  float32(r.floatOr(r.key("rope.scaling.attn_factor"), 1)),
		BetaFast:    float32(r.floatOr(r.key("rope.scaling.yarn_beta_fast"), 32)),
		BetaSlow:    float32(r.floatOr(r.key("rope.scaling.yarn_beta_slow"), 1)),
		OrigContext: uint32(r.uintOr(r.key("rope.scaling.original_context_length"), uint64(h.context), maxContext)),
	}
	if scale != 0 {
		h.rope.FreqScale = float32(1 / scale)
	}
	switch kind {
	case "none":
		h.rope.FreqScale = 1
	case "linear":
		if h.rope.FreqScale != 1 {
			h.rope.Scaling = state.RopeLinear
		}
	case "yarn":
		h.rope.Scaling = state.RopeYarn
		h.rope.ExtFactor = float32(r.floatOr(r.key("rope.scaling.yarn_ext_factor"), 1))
	case "longrope":
		h.rope.Scaling = state.RopeLong
	default:
		r.fail(r.key("rope.scaling.type"), "%.40q, want none, linear, yarn or longrope", kind)
	}
	if v, ok := r.f.Value(r.key("rope.dimension_sections")); ok {
		vs, ok := v.Uints()
		if !ok {
			r.fail(r.key("rope.dimension_sections"), "not an array of integers")
		}
		for _, x := range vs {
			h.ropeSections = h.ropeSections || x != 0
		}
	}
}

// check refuses dimensions with which llama.cpp would end the process while it
// builds a model of the given architecture.
func (h *hyper) check(r *reader, a arch) {
	switch {
	case r.err != nil || h.heads[0] == 0:
	case !a.uneven && !h.mla && h.keyDim != h.valueDim:
		r.fail(r.key("attention.value_length"), "%d, keys have %d elements", h.valueDim, h.keyDim)
	case a.rotates && h.rotated != h.keyDim:
		r.fail(r.key("rope.dimension_count"), "%d, heads have %d elements", h.rotated, h.keyDim)
	case h.rotated > h.keyDim || h.rotated%2 != 0:
		r.fail(r.key("rope.dimension_count"), "%d of %d elements", h.rotated, h.keyDim)
	}
	if r.err != nil {
		return
	}
	widest := uint64(max(h.keyDim, h.valueDim, h.keyDimSWA, h.valDimSWA))
	for i, kv := range h.headsKV {
		switch {
		case uint64(kv)*widest > maxRow:
			r.fail(r.key("attention.head_count_kv"), "%d heads of %d elements in layer %d", kv, widest, i)
		case kv != 0 && h.heads[i]%kv != 0:
			r.fail(r.key("attention.head_count_kv"), "%d for %d heads in layer %d", kv, h.heads[i], i)
		}
	}
}

// refusal returns why a model with these hyperparameters cannot be handed off
// whatever its architecture, or "".
func (h *hyper) refusal() string {
	switch {
	case !h.causal:
		return notCausalReason
	case h.pooling != 0:
		return embeddingReason
	case h.ropeSections:
		return mropeReason
	}
	return ""
}

// kvRow returns the elements that layer i caches per token.
func (h *hyper) kvRow(i int, windowed bool) (key, value uint32) {
	k, v := h.keyDim, h.valueDim
	if windowed {
		k, v = h.keyDimSWA, h.valDimSWA
	}
	if h.mla {
		v = 0
	}
	return h.headsKV[i] * k, h.headsKV[i] * v
}

// ssm are the sizes in elements of one recurrent layer's state.
type ssm struct{ conv, state uint64 }

func readSSM(r *reader, a arch, h *hyper) ssm {
	const most = 1 << 20
	switch a.mixer {
	case mixShortConv:
		width := r.uint(r.key("shortconv.l_cache"), 2, most)
		return ssm{conv: uint64(h.embedding) * (width - 1)}
	case mixMamba:
		width := r.uint(r.key("ssm.conv_kernel"), 2, most)
		inner := r.uint(r.key("ssm.inner_size"), 1, maxDim)
		size := r.uint(r.key("ssm.state_size"), 1, most)
		groups := uint64(0)
		if a.groups {
			groups = r.uint(r.key("ssm.group_count"), 1, most)
		}
		rank := r.uint(r.key("ssm.time_step_rank"), 1, maxDim)
		switch {
		case r.err != nil:
		case a.groups && (inner%rank != 0 || inner%groups != 0):
			r.fail(r.key("ssm.inner_size"), "%d channels for %d heads in %d groups", inner, rank, groups)
		case a.doubled && inner != 2*uint64(h.embedding):
			r.fail(r.key("ssm.inner_size"), "%d, want twice the stream's %d", inner, h.embedding)
		}
		if r.err == nil && (inner+2*groups*size > maxDim || inner*size > 1<<32) {
			r.fail(r.key("ssm.state_size"), "%d channels of %d elements in %d groups are more than a model has", inner, size, groups)
			return ssm{}
		}
		return ssm{conv: (width - 1) * (inner + 2*groups*size), state: inner * size}
	}
	return ssm{}
}
