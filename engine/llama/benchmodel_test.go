package llama

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem/gguf"
)

// The models of package tiny keep a few hundred bytes per token. The benchmarks
// need state of the size that real models have, with weights that compute
// quickly: wide caches on a narrow residual stream.
const (
	benchEmbd   = 64
	benchVocab  = 320
	benchKVHead = 8
	benchHead   = 128
	benchInner  = 4096
	benchState  = 128
	benchGroups = 8
)

// writeWideAttention writes a llama of 16 layers with 64 KiB of cache per token.
func writeWideAttention(t testing.TB) string {
	const layers = 16
	w := &gguf.Writer{}
	benchCommon(w, "llama", layers)
	w.Uint32("llama.attention.head_count", benchKVHead)
	w.Uint32("llama.attention.head_count_kv", benchKVHead)
	w.Uint32("llama.attention.key_length", benchHead)
	w.Uint32("llama.attention.value_length", benchHead)
	w.Uint32("llama.rope.dimension_count", benchHead)
	w.Float32("llama.rope.freq_base", 10000)
	w.Float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range layers {
		p := fmt.Sprintf("blk.%d.", i)
		wide := benchKVHead * benchHead
		ones(w, p+"attn_norm.weight", benchEmbd)
		noise(w, r, p+"attn_q.weight", benchEmbd, wide)
		noise(w, r, p+"attn_k.weight", benchEmbd, wide)
		noise(w, r, p+"attn_v.weight", benchEmbd, wide)
		noise(w, r, p+"attn_output.weight", wide, benchEmbd)
		ones(w, p+"ffn_norm.weight", benchEmbd)
		noise(w, r, p+"ffn_gate.weight", benchEmbd, benchEmbd)
		noise(w, r, p+"ffn_up.weight", benchEmbd, benchEmbd)
		noise(w, r, p+"ffn_down.weight", benchEmbd, benchEmbd)
	}
	return benchWrite(t, w, r, "wide-attention.gguf")
}

// writeWideRecurrent writes a mamba2 of 24 layers with 50 MiB of state.
func writeWideRecurrent(t testing.TB) string {
	const layers, heads, conv = 24, 64, 4
	const channels = benchInner + 2*benchGroups*benchState
	w := &gguf.Writer{}
	benchCommon(w, "mamba2", layers)
	w.Uint32("mamba2.attention.head_count", 0)
	w.Float32("mamba2.attention.layer_norm_rms_epsilon", 1e-5)
	w.Uint32("mamba2.ssm.conv_kernel", conv)
	w.Uint32("mamba2.ssm.inner_size", benchInner)
	w.Uint32("mamba2.ssm.state_size", benchState)
	w.Uint32("mamba2.ssm.time_step_rank", heads)
	w.Uint32("mamba2.ssm.group_count", benchGroups)
	r := rand.New(rand.NewPCG(2, 2))
	for i := range layers {
		p := fmt.Sprintf("blk.%d.", i)
		ones(w, p+"attn_norm.weight", benchEmbd)
		noise(w, r, p+"ssm_in.weight", benchEmbd, benchInner+channels+heads)
		w.Float32Tensor(p+"ssm_conv1d.weight", []uint64{conv, channels}, uniform(r, conv*channels, 0.5))
		w.Float32Tensor(p+"ssm_conv1d.bias", []uint64{channels}, make([]float32, channels))
		w.Float32Tensor(p+"ssm_dt.bias", []uint64{heads}, uniform(r, heads, 0.1))
		a := uniform(r, heads, 0.5)
		for j := range a {
			a[j] -= 1 // decay
		}
		w.Float32Tensor(p+"ssm_a", []uint64{1, heads}, a)
		w.Float32Tensor(p+"ssm_d", []uint64{1, heads}, uniform(r, heads, 0.5))
		w.Float32Tensor(p+"ssm_norm.weight", []uint64{benchInner / benchGroups, benchGroups}, constant(benchInner, 1))
		noise(w, r, p+"ssm_out.weight", benchInner, benchEmbd)
	}
	return benchWrite(t, w, r, "wide-recurrent.gguf")
}

func benchCommon(w *gguf.Writer, arch string, layers int) {
	w.String("general.architecture", arch)
	w.String("general.name", "benchmark")
	w.Uint32(arch+".context_length", 1<<17)
	w.Uint32(arch+".embedding_length", benchEmbd)
	w.Uint32(arch+".block_count", uint32(layers))
	w.Uint32(arch+".feed_forward_length", benchEmbd)
	w.Uint32(arch+".vocab_size", benchVocab)
	tokens, types := make([]string, benchVocab), make([]int32, benchVocab)
	for i := range tokens {
		tokens[i], types[i] = fmt.Sprintf("t%d", i), 1
	}
	types[benchVocab-1] = 3
	w.String("tokenizer.ggml.model", "gpt2")
	w.String("tokenizer.ggml.pre", "gpt-2")
	w.Strings("tokenizer.ggml.tokens", tokens)
	w.Int32s("tokenizer.ggml.token_type", types)
	w.Strings("tokenizer.ggml.merges", []string{"t 1"})
	w.Uint32("tokenizer.ggml.eos_token_id", benchVocab-1)
}

func benchWrite(t testing.TB, w *gguf.Writer, r *rand.Rand, name string) string {
	t.Helper()
	noise(w, r, "token_embd.weight", benchEmbd, benchVocab)
	ones(w, "output_norm.weight", benchEmbd)
	noise(w, r, "output.weight", benchEmbd, benchVocab)
	path := filepath.Join(t.TempDir(), name)
	if err := w.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func noise(w *gguf.Writer, r *rand.Rand, name string, in, out int) {
	w.Float16Tensor(name, []uint64{uint64(in), uint64(out)}, uniform(r, in*out, 0.2))
}

func ones(w *gguf.Writer, name string, n int) {
	w.Float32Tensor(name, []uint64{uint64(n)}, constant(n, 1))
}

func constant(n int, v float32) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = v
	}
	return out
}

func uniform(r *rand.Rand, n int, amplitude float32) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = (2*r.Float32() - 1) * amplitude
	}
	return out
}
