package model

import "github.com/tandem-llm/tandem/gguf"

// arch states how llama.cpp v0.5.0 lays out the memory of one architecture.
type arch struct {
	recurrent recurrentRule
	mixer     mixer
	// groups: the recurrent layers read ssm.group_count (Mamba-2 and later).
	groups bool
	window windowRule

	// What llama.cpp asserts of the dimensions while it builds the model.
	// uneven: keys and values of a head may differ in length. rotates: rotary
	// encoding covers the whole head. doubled: inner_size is twice the width of
	// the stream.
	uneven, rotates, doubled bool
}

// mixer says what a recurrent layer keeps.
type mixer int

const (
	_ mixer = iota
	// mixMamba keeps a convolution and a state of inner_size × state_size:
	// Mamba, Mamba-2 and gated delta nets alike.
	mixMamba
	// mixShortConv keeps a convolution only.
	mixShortConv
)

// recurrentRule says which layers are recurrent.
type recurrentRule int

const (
	never    recurrentRule = iota
	every                  // all, and none attends
	everyToo               // all, and all attend as well
	noKV                   // those without key/value heads
	noKVNoFF               // those with neither key/value heads nor a feed-forward part
	interval               // all but every n-th, or as a list says
)

// windowRule says which layers attend within a sliding window.
type windowRule struct {
	kind windowKind
	// width is the window when the file does not say; pattern is how many
	// layers make one period, of which the last attends to everything.
	width, pattern uint64
}

type windowKind int

const (
	noWindow       windowKind = iota
	windowAlways              // the width has a default or must be given
	windowIfGiven             // only when the file gives a width above zero
	windowAttended            // when given, every attention layer
)

// archs is the allow-list. An architecture belongs here when its memory follows
// the rules above; see create_memory and load_arch_hparams in llama.cpp.
var archs = func() map[string]arch {
	m := map[string]arch{
		"deepseek2": {uneven: true}, "minicpm3": {uneven: true},

		"cohere2": {window: windowRule{kind: windowAlways, pattern: 4}},
		"gemma2":  {window: windowRule{kind: windowAlways, width: 4096, pattern: 2}},
		"gemma3":  {window: windowRule{kind: windowIfGiven, pattern: 6}},
		"gpt-oss": {window: windowRule{kind: windowAlways, pattern: 2}},
		"olmo2":   {window: windowRule{kind: windowIfGiven, pattern: 4}, rotates: true},

		"mamba":  {recurrent: every, mixer: mixMamba},
		"mamba2": {recurrent: every, mixer: mixMamba, groups: true},

		"falcon-h1":      {recurrent: everyToo, mixer: mixMamba, groups: true},
		"granitehybrid":  {recurrent: noKV, mixer: mixMamba, groups: true, doubled: true},
		"jamba":          {recurrent: noKV, mixer: mixMamba, doubled: true},
		"lfm2":           {recurrent: noKV, mixer: mixShortConv, window: windowRule{kind: windowAttended}},
		"lfm2moe":        {recurrent: noKV, mixer: mixShortConv},
		"nemotron_h":     {recurrent: noKVNoFF, mixer: mixMamba, groups: true},
		"nemotron_h_moe": {recurrent: noKVNoFF, mixer: mixMamba, groups: true},
		"qwen3next":      {recurrent: interval, mixer: mixMamba, groups: true},
	}
	for _, name := range []string{
		"bailingmoe", "bailingmoe2", "bloom", "chatglm", "command-r", "gemma", "glm4", "glm4moe",
		"gpt2", "gptneox", "minicpm", "minimax-m2", "nemotron", "phi2", "phi3", "phimoe", "qwen",
		"stablelm", "starcoder",
	} {
		m[name] = arch{}
	}
	for _, name := range []string{
		"arcee", "baichuan", "codeshell", "deepseek", "dots1", "ernie4_5", "ernie4_5-moe", "exaone",
		"falcon", "granite", "granitemoe", "hunyuan-dense", "hunyuan-moe", "internlm2", "llama",
		"mistral3", "olmo", "olmoe", "orion", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "seed_oss",
		"smollm3", "starcoder2", "xverse",
	} {
		m[name] = arch{rotates: true}
	}
	return m
}()

// Reasons that several architectures share.
const (
	indexReason     = "sparse attention keeps an index cache that this build does not carry"
	mropeReason     = "multi-dimensional rotary positions (M-RoPE) extend every cache cell, which this build does not carry"
	diffusionReason = "it is a diffusion model: it has no state that grows token by token"
	encoderReason   = "it has an encoder, whose output would have to move with the state"
	embeddingReason = "it makes embeddings, not text"
	draftReason     = "it drafts for another model and shares its caches"
	notCausalReason = "it is not causal: it has no next token to continue with"
	sharedReason    = "layers share each other's caches, which is not verified with this build"
	linearReason    = "linear attention state of this kind is not verified with this build"
)

// refused gives the reason for architectures that are known not to fit.
var refused = func() map[string]string {
	m := map[string]string{
		"exaone4": "its window rule depends on the model's size and is not verified with this build",
		"llama4":  "chunked attention windows are not verified with this build",
	}
	for why, names := range map[string][]string{
		indexReason:     {"deepseek32", "deepseek4", "dots3note", "glm-dsa", "hy_v4", "minimax-m3", "qwen4exp"},
		mropeReason:     {"hunyuan_vl", "paddleocr", "qwen2vl", "qwen3tts", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"},
		diffusionReason: {"dream", "llada", "llada-moe", "rnd1"},
		encoderReason:   {"t5"},
		embeddingReason: {
			"bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llama-embed",
			"modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "t5encoder",
		},
		draftReason:  {"dflash", "eagle3", "gemma4-assistant"},
		sharedReason: {"gemma3n", "gemma4"},
		linearReason: {"arwkv7", "bailingmoe3", "kimi-k3", "kimi-linear", "minimax-01", "rwkv6", "rwkv6qwen2", "rwkv7"},
	} {
		for _, n := range names {
			m[n] = why
		}
	}
	return m
}()

// lookup returns the memory rules of an architecture, or why there are none.
func lookup(name string) (arch, string) {
	if a, ok := archs[name]; ok {
		return a, ""
	}
	if why, ok := refused[name]; ok {
		return arch{}, why
	}
	return arch{}, "the architecture is not among those that this build has been taught"
}

// recurrentLayers returns, per layer, whether it keeps recurrent state.
func (a arch) recurrentLayers(r *reader, h *hyper) []bool {
	out := make([]bool, h.blocks)
	period := uint64(4)
	if a.recurrent == interval {
		if list := r.perLayer(r.key("attention.recurrent_layers"), h.blocks, 1); list != nil {
			for i := range h.trunk {
				out[i] = list[i] != 0
			}
			return out
		}
		period = max(1, r.uintOr(r.key("full_attention_interval"), period, maxLayers))
	}
	for i := range h.trunk {
		switch a.recurrent {
		case every, everyToo:
			out[i] = true
		case noKV:
			out[i] = h.headsKV[i] == 0
		case noKVNoFF:
			out[i] = h.headsKV[i] == 0 && h.ffn[i] == 0
		case interval:
			out[i] = (uint64(i)+1)%period != 0
		}
	}
	return out
}

// attends reports whether trunk layer i has a key/value cache.
func (a arch) attends(i int, h *hyper, recurrent bool) bool {
	switch a.recurrent {
	case every:
		return false
	case everyToo:
		return true
	case noKVNoFF:
		return !recurrent && h.ffn[i] == 0
	}
	return !recurrent
}

// windowLayers returns the window's width and, per layer, whether the layer
// attends within it.
func (a arch) windowLayers(r *reader, h *hyper) (int, []bool) {
	out := make([]bool, h.blocks)
	key := r.key("attention.sliding_window")
	given := r.f.Has(key)
	width := r.uintOr(key, a.window.width, maxContext)
	switch {
	case a.window.kind == noWindow || r.err != nil:
		return 0, out
	case a.window.kind != windowAlways && (!given || width == 0):
		return 0, out
	case width == 0:
		r.fail(key, "the architecture needs a window above zero")
		return 0, out
	case a.window.kind == windowAttended:
		for i := range h.trunk {
			out[i] = h.headsKV[i] != 0
		}
		return int(width), out
	}
	patternKey := r.key("attention.sliding_window_pattern")
	if v, ok := r.f.Value(patternKey); ok && v.Type() == gguf.TypeArray {
		list := r.perLayer(patternKey, h.blocks, 1)
		for i := range list {
			out[i] = list[i] != 0 && i < h.trunk
		}
		return int(width), out
	}
	pattern := r.uintOr(patternKey, a.window.pattern, maxLayers)
	for i := range h.trunk {
		out[i] = pattern == 0 || uint64(i)%pattern < pattern-1
	}
	return int(width), out
}
