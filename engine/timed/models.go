package timed

import (
	"fmt"
	"strings"
)

// Where shapes of models were read. Both projects keep copies of the config.json
// that publishers put beside the weights.
const (
	aiconfigurator = "config.json as kept by ai-dynamo/aiconfigurator 095f58a, model_configs/"
	litgpt         = "config.json as kept by Lightning-AI/litgpt 0006c97, litgpt/config.py: "
	blis           = "config.json as kept by inference-sim/inference-sim f90a1e3, model_configs/"
)

// Models lists the built-in descriptions of models, in a fixed order.
func Models() []ModelSpec {
	return []ModelSpec{
		llama("llama-3.2-1b", litgpt+"Llama-3.2-1B", 16, 2048, 32, 8, 64, 8192, 128256, true),
		llama("llama-3.2-3b", litgpt+"Llama-3.2-3B", 28, 3072, 24, 8, 128, 8192, 128256, true),
		llama("llama-3-8b", aiconfigurator+"meta-llama--Meta-Llama-3.1-8B (the shape of 3 and 3.1 is the same)", 32, 4096, 32, 8, 128, 14336, 128256, false).context(8192),
		llama("llama-3-70b", aiconfigurator+"meta-llama--Meta-Llama-3.1-70B (the shape of 3, 3.1 and 3.3 is the same)", 80, 8192, 64, 8, 128, 28672, 128256, false).context(8192),
		llama("llama-3.1-8b", aiconfigurator+"meta-llama--Meta-Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256, false),
		llama("llama-3.1-70b", aiconfigurator+"meta-llama--Meta-Llama-3.1-70B", 80, 8192, 64, 8, 128, 28672, 128256, false),
		llama("llama-3.1-405b", aiconfigurator+"meta-llama--Meta-Llama-3.1-405B", 126, 16384, 128, 8, 128, 53248, 128256, false),

		llama("qwen2.5-0.5b", litgpt+"Qwen2.5-0.5B", 24, 896, 14, 2, 64, 4864, 151936, true).bias().context(32768),
		llama("qwen2.5-7b", blis+"qwen2.5-7b-instruct", 28, 3584, 28, 4, 128, 18944, 152064, false).bias().context(32768),
		llama("qwen2.5-14b", litgpt+"Qwen2.5-14B", 48, 5120, 40, 8, 128, 13824, 152064, false).bias(),
		llama("qwen2.5-32b", litgpt+"Qwen2.5-32B", 64, 5120, 40, 8, 128, 27648, 152064, false).bias(),
		llama("qwen2.5-72b", litgpt+"Qwen2.5-72B", 80, 8192, 64, 8, 128, 29568, 152064, false).bias(),
		llama("qwen3-0.6b", aiconfigurator+"Qwen--Qwen3-0.6B", 28, 1024, 16, 8, 128, 3072, 151936, true).context(40960),
		llama("qwen3-1.7b", aiconfigurator+"Qwen--Qwen3-1.7B", 28, 2048, 16, 8, 128, 6144, 151936, true).context(40960),
		llama("qwen3-8b", aiconfigurator+"Qwen--Qwen3-8B", 36, 4096, 32, 8, 128, 12288, 151936, false).context(40960),
		llama("qwen3-14b", blis+"qwen3-14b", 40, 5120, 40, 8, 128, 17408, 151936, false).context(40960),
		llama("qwen3-32b", aiconfigurator+"Qwen--Qwen3-32B", 64, 5120, 64, 8, 128, 25600, 151936, false).context(40960),
		mixture("qwen3-30b-a3b", aiconfigurator+"Qwen--Qwen3-30B-A3B", 48, 2048, 32, 4, 128, 151936, MoE{Experts: 128, TopK: 8, Width: 768, Gated: true}).context(40960),
		mixture("qwen3-235b-a22b", aiconfigurator+"Qwen--Qwen3-235B-A22B", 94, 4096, 64, 4, 128, 151936, MoE{Experts: 128, TopK: 8, Width: 1536, Gated: true}).context(40960),
		mixture("qwen3-coder-480b-a35b", aiconfigurator+"Qwen--Qwen3-Coder-480B-A35B-Instruct", 62, 6144, 96, 8, 128, 151936, MoE{Experts: 160, TopK: 8, Width: 2560, Gated: true}).context(262144),

		llama("mistral-nemo-12b", blis+"mistral-nemo-instruct-2407", 40, 5120, 32, 8, 128, 14336, 131072, false),
		mixture("mixtral-8x7b", aiconfigurator+"mistralai--Mixtral-8x7B-v0.1", 32, 4096, 32, 8, 128, 32000, MoE{Experts: 8, TopK: 2, Width: 14336, Gated: true}).context(32768),
		mixture("mixtral-8x22b", aiconfigurator+"mistralai--Mixtral-8x22B-v0.1", 56, 6144, 48, 8, 128, 32000, MoE{Experts: 8, TopK: 2, Width: 16384, Gated: true}).context(65536),

		latentModel("deepseek-v3", aiconfigurator+"deepseek-ai--DeepSeek-V3", 3, 58, 128, 129280, 163840, MoE{Experts: 256, TopK: 8, Width: 2048, SharedWidth: 2048, Gated: true}, 1),
		latentModel("deepseek-r1", aiconfigurator+"deepseek-ai--DeepSeek-R1", 3, 58, 128, 129280, 163840, MoE{Experts: 256, TopK: 8, Width: 2048, SharedWidth: 2048, Gated: true}, 1),
		latentModel("kimi-k2", aiconfigurator+"moonshotai--Kimi-K2-Instruct", 1, 60, 64, 163840, 131072, MoE{Experts: 384, TopK: 8, Width: 2048, SharedWidth: 2048, Gated: true}, 0),

		gemma("gemma-3-4b", litgpt+"Gemma-3-4b-it", 29, 5, 2560, 8, 4, 256, 10240),
		gemma("gemma-3-12b", litgpt+"Gemma-3-12b-it", 40, 8, 3840, 16, 8, 256, 15360),
		gemma("gemma-3-27b", litgpt+"Gemma-3-27b-it", 52, 10, 5376, 32, 16, 128, 21504),

		gptOSS("gpt-oss-20b", aiconfigurator+"openai--gpt-oss-20b", 12, 32),
		gptOSS("gpt-oss-120b", aiconfigurator+"openai--gpt-oss-120b", 18, 128),

		nemotron("nemotron-3-nano-30b-a3b", aiconfigurator+"nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 2688, 32, 64,
			"MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "",
			MoE{Experts: 128, TopK: 6, Width: 1856, SharedWidth: 3712}),
		nemotron("nemotron-3-super-120b-a12b", aiconfigurator+"nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 4096, 32, 128,
			"MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME", "*E",
			MoE{Experts: 512, TopK: 22, Width: 2688, SharedWidth: 5376, Latent: 1024}),
		nemotron("nemotron-3-ultra-550b-a55b", aiconfigurator+"nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 8192, 64, 256,
			"MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "*E",
			MoE{Experts: 512, TopK: 22, Width: 5120, SharedWidth: 10240, Latent: 2048}),
	}
}

// FindModel returns the built-in description of that name.
func FindModel(name string) (*ModelSpec, error) {
	var names []string
	for _, m := range Models() {
		if m.Name == name {
			return &m, nil
		}
		names = append(names, m.Name)
	}
	return nil, fmt.Errorf("timed: no model %q is built in; there are %s", name, strings.Join(names, ", "))
}

// llama is the shape of Llama, Qwen and Mistral: equal layers of grouped-query
// attention and a gated feed-forward part.
func llama(name, source string, layers, hidden, heads, kv, dim, width, vocab int, tied bool) ModelSpec {
	return ModelSpec{
		Name: name, Source: source, Hidden: hidden, Vocab: vocab, Tied: tied, Context: 131072,
		Blocks: []Block{{
			Count:     layers,
			Attention: &Attention{Heads: heads, KVHeads: kv, HeadDim: dim},
			Dense:     &Dense{Width: width, Gated: true},
		}},
	}
}

func (s ModelSpec) context(tokens int) ModelSpec {
	s.Context = tokens
	return s
}

func (s ModelSpec) bias() ModelSpec {
	s.Blocks[0].Attention.Bias = true
	return s
}

// mixture is llama with experts in place of the feed-forward part.
func mixture(name, source string, layers, hidden, heads, kv, dim, vocab int, e MoE) ModelSpec {
	s := llama(name, source, layers, hidden, heads, kv, dim, 1, vocab, false)
	s.Blocks[0].Dense, s.Blocks[0].MoE = nil, &e
	return s
}

// latentModel is the shape of DeepSeek-V3: latent attention, the first layers
// dense, the others with experts.
func latentModel(name, source string, dense, sparse, heads, vocab, context int, e MoE, mtp int) ModelSpec {
	mla := &MLA{Heads: heads, QRank: 1536, KVRank: 512, RopeDim: 64, NopeDim: 128, ValueDim: 128}
	s := ModelSpec{
		Name: name, Source: source, Hidden: 7168, Vocab: vocab, Context: context,
		Blocks: []Block{
			{Count: dense, MLA: mla, Dense: &Dense{Width: 18432, Gated: true}},
			{Count: sparse, MLA: mla, MoE: &e},
		},
	}
	if mtp > 0 {
		s.MTP = []Block{{Count: mtp, MLA: mla, MoE: &e}}
	}
	return s
}

// gemma is the shape of Gemma 3's text models: five layers of six see a window.
func gemma(name, source string, windowed, full, hidden, heads, kv, dim, width int) ModelSpec {
	near := Attention{Heads: heads, KVHeads: kv, HeadDim: dim, Window: 1024}
	far := near
	far.Window = 0
	ff := &Dense{Width: width, Gated: true}
	return ModelSpec{
		Name: name, Source: source, Hidden: hidden, Vocab: 262144, Tied: true, Context: 131072,
		Blocks: []Block{{Count: windowed, Attention: &near, Dense: ff}, {Count: full, Attention: &far, Dense: ff}},
	}
}

// gptOSS is the shape of gpt-oss: every second layer sees a window.
func gptOSS(name, source string, half, expertCount int) ModelSpec {
	near := Attention{Heads: 64, KVHeads: 8, HeadDim: 64, Window: 128, Bias: true}
	far := near
	far.Window = 0
	e := &MoE{Experts: expertCount, TopK: 4, Width: 2880, Gated: true}
	return ModelSpec{
		Name: name, Source: source, Hidden: 2880, Vocab: 201088, Context: 131072,
		Blocks: []Block{{Count: half, Attention: &near, MoE: e}, {Count: half, Attention: &far, MoE: e}},
	}
}

// nemotron is the shape of Nemotron 3: each layer is one of Mamba-2 (M), experts
// (E) or attention (*), as the pattern says.
func nemotron(name, source string, hidden, heads, mambaHeads int, pattern, mtp string, e MoE) ModelSpec {
	blocks := func(pattern string) []Block {
		var b []Block
		if n := strings.Count(pattern, "M"); n > 0 {
			b = append(b, Block{Count: n, Mamba: &Mamba{Heads: mambaHeads, HeadDim: 64, State: 128, Groups: 8, Conv: 4}})
		}
		if n := strings.Count(pattern, "E"); n > 0 {
			b = append(b, Block{Count: n, MoE: &e})
		}
		if n := strings.Count(pattern, "*"); n > 0 {
			b = append(b, Block{Count: n, Attention: &Attention{Heads: heads, KVHeads: 2, HeadDim: 128}})
		}
		return b
	}
	return ModelSpec{
		Name: name, Source: source, Hidden: hidden, Vocab: 131072, Context: 262144,
		Blocks: blocks(pattern), MTP: blocks(mtp),
	}
}

// Params counts the weights from the shape: all, embeddings of input and output
// included, and those that one token uses, without embeddings. MTP layers are in
// neither. Both agree with what publishers say to about 1%.
func (s *ModelSpec) Params() (all, body int64) {
	l := newLoad(s.Blocks, s.Hidden, &Options{TP: 1})
	all = int64(l.params) + int64(s.Vocab)*int64(s.Hidden)
	if !s.Tied {
		all += int64(s.Vocab) * int64(s.Hidden)
	}
	return all, int64(l.active)
}

// String describes the model in a line.
func (s *ModelSpec) String() string {
	all, body := s.Params()
	g := s.Geometry(Options{})
	return fmt.Sprintf("%s: %.4g B weights, %.4g B per token without embeddings, %d bytes of attention state per token, %d in a snapshot of 4096 tokens",
		s.Name, float64(all)/1e9, float64(body)/1e9, g.PerToken(), g.Snapshot(4096))
}
