package wide

import "fmt"

// Shapes. Half precision everywhere: less to read for the same cost of state.
const (
	narrow  = 64 // width of the residual stream of Attention and Recurrent
	headDim = 128

	ssmLayers   = 24
	ssmInner    = 4096
	ssmState    = 128
	ssmGroups   = 8
	ssmHeads    = 64
	ssmConv     = 4
	ssmChannels = ssmInner + 2*ssmGroups*ssmState

	denseLayers  = 12
	denseEmbd    = 1024
	denseHeads   = 16
	denseKVHeads = 4
	denseHeadDim = 64
	denseFFN     = 2816

	smallVocab = 512
	denseVocab = 32000
)

// llama is the shape of a llama.
type llama struct {
	layers, embd, heads, kvHeads, headDim, ffn, vocab int
}

func (b *builder) attention(layers, kvHeads int) {
	b.llama(llama{layers: layers, embd: narrow, heads: kvHeads, kvHeads: kvHeads, headDim: headDim, ffn: narrow, vocab: smallVocab})
}

func (b *builder) dense() {
	b.llama(llama{layers: denseLayers, embd: denseEmbd, heads: denseHeads, kvHeads: denseKVHeads, headDim: denseHeadDim, ffn: denseFFN, vocab: denseVocab})
}

func (b *builder) llama(s llama) {
	b.common("llama", s.layers, s.embd, s.ffn, s.vocab)
	b.w.Uint32("llama.attention.head_count", uint32(s.heads))
	b.w.Uint32("llama.attention.head_count_kv", uint32(s.kvHeads))
	b.w.Uint32("llama.attention.key_length", uint32(s.headDim))
	b.w.Uint32("llama.attention.value_length", uint32(s.headDim))
	b.w.Uint32("llama.rope.dimension_count", uint32(s.headDim))
	b.w.Float32("llama.rope.freq_base", 10000)
	b.w.Float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
	for i := range s.layers {
		p := fmt.Sprintf("blk.%d.", i)
		b.ones(p+"attn_norm.weight", s.embd)
		b.noise(p+"attn_q.weight", s.embd, s.heads*s.headDim)
		b.noise(p+"attn_k.weight", s.embd, s.kvHeads*s.headDim)
		b.noise(p+"attn_v.weight", s.embd, s.kvHeads*s.headDim)
		b.noise(p+"attn_output.weight", s.heads*s.headDim, s.embd)
		b.ones(p+"ffn_norm.weight", s.embd)
		b.noise(p+"ffn_gate.weight", s.embd, s.ffn)
		b.noise(p+"ffn_up.weight", s.embd, s.ffn)
		b.noise(p+"ffn_down.weight", s.ffn, s.embd)
	}
	b.ends(s.embd, s.vocab)
}

func (b *builder) recurrent() {
	b.common("mamba2", ssmLayers, narrow, narrow, smallVocab)
	b.w.Uint32("mamba2.attention.head_count", 0)
	b.w.Float32("mamba2.attention.layer_norm_rms_epsilon", 1e-5)
	b.w.Uint32("mamba2.ssm.conv_kernel", ssmConv)
	b.w.Uint32("mamba2.ssm.inner_size", ssmInner)
	b.w.Uint32("mamba2.ssm.state_size", ssmState)
	b.w.Uint32("mamba2.ssm.time_step_rank", ssmHeads)
	b.w.Uint32("mamba2.ssm.group_count", ssmGroups)
	for i := range ssmLayers {
		p := fmt.Sprintf("blk.%d.", i)
		b.ones(p+"attn_norm.weight", narrow)
		b.noise(p+"ssm_in.weight", narrow, ssmInner+ssmChannels+ssmHeads)
		b.w.Float32Tensor(p+"ssm_conv1d.weight", []uint64{ssmConv, ssmChannels}, b.uniform(ssmConv*ssmChannels, 0.5))
		b.w.Float32Tensor(p+"ssm_conv1d.bias", []uint64{ssmChannels}, make([]float32, ssmChannels))
		b.w.Float32Tensor(p+"ssm_dt.bias", []uint64{ssmHeads}, b.uniform(ssmHeads, 0.1))
		a := b.uniform(ssmHeads, 0.5)
		for j := range a {
			a[j]-- // negative: state decays
		}
		b.w.Float32Tensor(p+"ssm_a", []uint64{1, ssmHeads}, a)
		b.w.Float32Tensor(p+"ssm_d", []uint64{1, ssmHeads}, b.uniform(ssmHeads, 0.5))
		b.w.Float32Tensor(p+"ssm_norm.weight", []uint64{ssmInner / ssmGroups, ssmGroups}, constant(ssmInner))
		b.noise(p+"ssm_out.weight", ssmInner, narrow)
	}
	b.ends(narrow, smallVocab)
}

// common writes metadata and a byte-level vocabulary: 256 bytes, so that any text
// can be a prompt, then words that only answers use, and an end token.
func (b *builder) common(arch string, layers, embd, ffn, vocab int) {
	b.w.String("general.architecture", arch)
	b.w.String("general.name", "Tandem benchmark "+arch+" (random weights)")
	b.w.Uint32(arch+".context_length", ContextLength)
	b.w.Uint32(arch+".embedding_length", uint32(embd))
	b.w.Uint32(arch+".block_count", uint32(layers))
	b.w.Uint32(arch+".feed_forward_length", uint32(ffn))
	b.w.Uint32(arch+".vocab_size", uint32(vocab))
	tokens, types := make([]string, vocab), make([]int32, vocab)
	const normal, control = 1, 3
	for i := range tokens {
		tokens[i], types[i] = fmt.Sprintf("\u0120w%d", i), normal // Ġ is the space of byte-level vocabularies
		if i < 256 {
			tokens[i] = string(byteRune(byte(i)))
		}
	}
	tokens[vocab-1], types[vocab-1] = "<|end|>", control
	b.w.String("tokenizer.ggml.model", "gpt2")
	b.w.String("tokenizer.ggml.pre", "gpt-2")
	b.w.Strings("tokenizer.ggml.tokens", tokens)
	b.w.Int32s("tokenizer.ggml.token_type", types)
	b.w.Strings("tokenizer.ggml.merges", []string{"t h"})
	b.w.Uint32("tokenizer.ggml.bos_token_id", uint32(vocab-1))
	b.w.Uint32("tokenizer.ggml.eos_token_id", uint32(vocab-1))
	b.w.Bool("tokenizer.ggml.add_bos_token", false)
}

// byteRune is the character that stands for a byte in a byte-level vocabulary of
// the GPT-2 kind: itself where it can be printed, else one from 256 on.
func byteRune(c byte) rune {
	printable := func(c int) bool { return c >= '!' && c <= '~' || c >= 0xa1 && c <= 0xac || c >= 0xae }
	if printable(int(c)) {
		return rune(c)
	}
	next := rune(256)
	for i := range int(c) {
		if !printable(i) {
			next++
		}
	}
	return next
}

func (b *builder) ends(embd, vocab int) {
	b.noise("token_embd.weight", embd, vocab)
	b.ones("output_norm.weight", embd)
	b.noise("output.weight", embd, vocab)
}

// noise writes a matrix whose outputs have about the size of its inputs, but no
// smaller weights than half precision has digits for.
func (b *builder) noise(name string, in, out int) {
	b.w.Float16Tensor(name, []uint64{uint64(in), uint64(out)}, b.uniform(in*out, 0.2))
}

func (b *builder) ones(name string, n int) {
	b.w.Float32Tensor(name, []uint64{uint64(n)}, constant(n))
}

func constant(n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = 1
	}
	return out
}

func (b *builder) uniform(n int, amplitude float32) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = (2*b.r.Float32() - 1) * amplitude
	}
	return out
}
