package tiny

import "math"

// The shape shared by all models. Small, so that 8,000-token prompts are quick
// on a laptop's CPU: attention is narrow because its cost grows with the square
// of the prompt.
const (
	embd    = 256
	heads   = 4
	headsKV = 2
	headDim = 32
	ffn     = 256
	window  = 512 // gemma3: tokens in the sliding window

	dConv   = 4
	dInner  = 256
	dState  = 64
	ssmHead = 8
	groups  = 2
	convDim = dInner + 2*groups*dState

	experts     = 8
	expertsUsed = 2
	expertFFN   = 64
	sharedFFN   = 64
)

// Channel 0 of the residual stream carries the same value at every position:
// every embedding has it and nothing writes to it. Matrices that read the
// stream can therefore have a bias, in their column 0.
const (
	biasChannel = 0
	biasLevel   = 4
)

// reader is a matrix that reads the residual stream, without bias.
func (b *builder) reader(name string, gain float64, out int) []float32 {
	v := b.matrix(name, gain, embd, out)
	for r := range out {
		v[r*embd+biasChannel] = 0
	}
	return v
}

// writer is a matrix that adds to the residual stream, n of them stacked.
func (b *builder) writer(name string, gain float64, in, n int) []float32 {
	v := b.matrix(name, gain, in, embd*n)
	for k := range n {
		row := v[(k*embd+biasChannel)*in:]
		for i := range in {
			row[i] = 0
		}
	}
	return v
}

// embedding writes token_embd, with elements of standard deviation std.
func (b *builder) embedding(std float64) {
	v := b.fill("token_embd.weight", embd*vocabSize, std)
	for t := range vocabSize {
		v[t*embd+biasChannel] = float32(biasLevel * std)
	}
	b.put("token_embd.weight", v, embd, vocabSize)
}

// head writes the output projection. Tokens that answers must not contain get a
// strongly negative bias: what comes out is text, and does not end early.
func (b *builder) head(voc *vocab) {
	b.vector("output_norm.weight", embd, constant(1))
	const gain = 4
	v := b.reader("output.weight", gain, vocabSize)
	for t := range vocabSize {
		row := v[t*embd : (t+1)*embd]
		unit(row, gain)
		if !voc.speakable[t] {
			row[biasChannel] = -16
		}
	}
	b.put("output.weight", v, embd, vocabSize)
}

// unit scales row to the given length, so that no token is favoured by a longer
// one.
func unit(row []float32, length float64) {
	var sum float64
	for _, x := range row {
		sum += float64(float64(x) * float64(x))
	}
	scale := float32(length / math.Sqrt(sum))
	for i := range row {
		row[i] *= scale
	}
}

func (b *builder) general(arch Arch, layers int) {
	a := string(arch)
	b.w.String("general.architecture", a)
	b.w.String("general.type", "model")
	b.w.String("general.name", "Tandem tiny "+a+" (random weights)")
	b.w.Uint32(a+".context_length", ContextLength)
	b.w.Uint32(a+".embedding_length", embd)
	b.w.Uint32(a+".block_count", uint32(layers))
	b.w.Uint32(a+".vocab_size", vocabSize)
}

func (b *builder) attentionKeys(a string) {
	b.w.Uint32(a+".attention.head_count", heads)
	b.w.Uint32(a+".attention.key_length", headDim)
	b.w.Uint32(a+".attention.value_length", headDim)
}

func (b *builder) attention(i int, res float64) {
	put := func(name string, v []float32, in, out int) { b.put(blk(i, name), v, in, out) }
	put("attn_q.weight", b.reader(blk(i, "attn_q.weight"), 1.5, heads*headDim), embd, heads*headDim)
	put("attn_k.weight", b.reader(blk(i, "attn_k.weight"), 1.5, headsKV*headDim), embd, headsKV*headDim)
	put("attn_v.weight", b.reader(blk(i, "attn_v.weight"), 1, headsKV*headDim), embd, headsKV*headDim)
	put("attn_output.weight", b.writer(blk(i, "attn_output.weight"), res, heads*headDim, 1), heads*headDim, embd)
}

func (b *builder) feedForward(i int, res float64) {
	b.put(blk(i, "ffn_gate.weight"), b.reader(blk(i, "ffn_gate.weight"), 1.5, ffn), embd, ffn)
	b.put(blk(i, "ffn_up.weight"), b.reader(blk(i, "ffn_up.weight"), 1.5, ffn), embd, ffn)
	b.put(blk(i, "ffn_down.weight"), b.writer(blk(i, "ffn_down.weight"), res, ffn, 1), ffn, embd)
}

func (b *builder) norm(i int, name string) { b.vector(blk(i, name), embd, constant(1)) }

func (b *builder) llama() {
	const a, layers = "llama", 3
	b.general(Llama, layers)
	b.w.Uint32(a+".feed_forward_length", ffn)
	b.attentionKeys(a)
	b.w.Uint32(a+".attention.head_count_kv", headsKV)
	b.w.Uint32(a+".rope.dimension_count", headDim)
	b.w.Float32(a+".rope.freq_base", 10000)
	b.w.Float32(a+".attention.layer_norm_rms_epsilon", 1e-5)
	voc := b.tokenizer()
	b.embedding(1)
	for i := range layers {
		b.norm(i, "attn_norm.weight")
		b.attention(i, 1.5)
		b.norm(i, "ffn_norm.weight")
		b.feedForward(i, 1)
	}
	b.head(voc)
}

func (b *builder) gemma3() {
	const a, layers = "gemma3", 4
	b.general(Gemma3, layers)
	b.w.Uint32(a+".feed_forward_length", ffn)
	b.attentionKeys(a)
	b.w.Uint32(a+".attention.head_count_kv", headsKV)
	b.w.Uint32(a+".attention.sliding_window", window)
	b.w.Uint32(a+".attention.sliding_window_pattern", 2)
	b.w.Float32(a+".attention.layer_norm_rms_epsilon", 1e-6)
	b.w.Float32(a+".rope.freq_base", 1000000)
	voc := b.tokenizer()
	b.embedding(1.0 / 16) // gemma3 multiplies embeddings by √embd = 16
	for i := range layers {
		b.norm(i, "attn_norm.weight")
		b.attention(i, 1.5)
		b.vector(blk(i, "attn_q_norm.weight"), headDim, constant(1))
		b.vector(blk(i, "attn_k_norm.weight"), headDim, constant(1))
		b.postNorm(i, "post_attention_norm.weight", 1)
		b.norm(i, "ffn_norm.weight")
		b.feedForward(i, 1)
		b.postNorm(i, "post_ffw_norm.weight", 1)
	}
	b.head(voc)
}

func (b *builder) postNorm(i int, name string, gain float32) {
	b.vector(blk(i, name), embd, constant(gain))
}

func (b *builder) ssmKeys(a string) {
	b.w.Uint32(a+".ssm.conv_kernel", dConv)
	b.w.Uint32(a+".ssm.inner_size", dInner)
	b.w.Uint32(a+".ssm.state_size", dState)
	b.w.Uint32(a+".ssm.time_step_rank", ssmHead)
	b.w.Uint32(a+".ssm.group_count", groups)
}

func (b *builder) ssm(i int, res float64) {
	b.norm(i, "attn_norm.weight")
	out := dInner + convDim + ssmHead
	b.put(blk(i, "ssm_in.weight"), b.reader(blk(i, "ssm_in.weight"), 1, out), embd, out)
	conv := b.matrix(blk(i, "ssm_conv1d.weight"), 1, dConv, convDim)
	b.vector(blk(i, "ssm_conv1d.weight"), len(conv), func(k int) float32 { return conv[k] }, dConv, convDim)
	b.vector(blk(i, "ssm_conv1d.bias"), convDim, constant(0))
	b.vector(blk(i, "ssm_dt.bias"), ssmHead, constant(-3))
	b.vector(blk(i, "ssm_a"), ssmHead, constant(-0.1), 1, ssmHead)
	b.vector(blk(i, "ssm_d"), ssmHead, constant(1), 1, ssmHead)
	b.vector(blk(i, "ssm_norm.weight"), dInner, constant(1), dInner/groups, groups)
	b.put(blk(i, "ssm_out.weight"), b.writer(blk(i, "ssm_out.weight"), res, dInner, 1), dInner, embd)
}

func (b *builder) mamba2() {
	const a, layers = "mamba2", 4
	b.general(Mamba2, layers)
	b.w.Uint32(a+".feed_forward_length", 0)
	b.w.Uint32(a+".attention.head_count", 0)
	b.w.Float32(a+".attention.layer_norm_rms_epsilon", 1e-5)
	b.ssmKeys(a)
	voc := b.tokenizer()
	b.embedding(1)
	for i := range layers {
		b.ssm(i, 1.5)
	}
	b.head(voc)
}
