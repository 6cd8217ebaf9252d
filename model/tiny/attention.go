package tiny

import "math"

// sharp is the gain of queries and keys: scores have a standard deviation of
// about its square, so that a head picks few tokens even among thousands. Soft
// attention over a long prompt would be an average in which no token matters.
const sharp = 1.7

// rotary says which two elements of a head's query or key rotate together.
type rotary int

const (
	adjacent rotary = iota // 2i and 2i+1
	halves                 // i and i + headDim/2
)

// first returns the first element of pair i.
func (r rotary) first(i int) int {
	if r == adjacent {
		return 2 * i
	}
	return i
}

func (b *builder) attentionKeys(a string) {
	b.w.Uint32(a+".attention.head_count", heads)
	b.w.Uint32(a+".attention.key_length", headDim)
	b.w.Uint32(a+".attention.value_length", headDim)
}

// projections are the four matrices of an attention layer.
type projections struct{ q, k, v, out []float32 }

func (b *builder) projections(i int, gain float64) projections {
	return projections{
		q:   b.reader(blk(i, "attn_q.weight"), sharp, heads*headDim),
		k:   b.reader(blk(i, "attn_k.weight"), sharp, headsKV*headDim),
		v:   b.reader(blk(i, "attn_v.weight"), 1, headsKV*headDim),
		out: b.writer(blk(i, "attn_output.weight"), gain, heads*headDim, 1),
	}
}

func (b *builder) putProjections(i int, p projections) {
	b.put(blk(i, "attn_q.weight"), p.q, embd, heads*headDim)
	b.put(blk(i, "attn_k.weight"), p.k, embd, headsKV*headDim)
	b.put(blk(i, "attn_v.weight"), p.v, embd, headsKV*headDim)
	b.put(blk(i, "attn_output.weight"), p.out, heads*headDim, embd)
}

// attention writes an attention layer of random weights.
func (b *builder) attention(i int, gain float64) { b.putProjections(i, b.projections(i, gain)) }

// recentAttention writes the first layer of a model whose only memory is
// attention. The two heads of the first key/value head see keys and queries that
// are nearly the same at every position, so that rotary encoding alone decides
// where they look: at the last ten tokens or so, and at the last fifty. Their
// values are the tokens' codes, which go to the recent channels with the given
// strength. A score is a sum
// of cosines of the distance; those of many frequencies agree only near zero.
func (b *builder) recentAttention(i int, gain float64, strength float32, rot rotary) {
	const (
		pairFirst, pairEnd = 4, 12 // rotating by 0.1 to 0.0018 per token
		farFirst           = 6
		near, far          = 3.4, 5.0 // query elements of the two heads
		blur               = 0.4 / sharp
	)
	p := b.projections(i, gain)
	scale(p.q[:2*headDim*embd], blur)
	scale(p.k[:headDim*embd], blur)
	for pair := pairFirst; pair < pairEnd; pair++ {
		d := rot.first(pair)
		p.k[d*embd+biasChannel] = bias(near)
		p.q[d*embd+biasChannel] = bias(near)
		if pair >= farFirst {
			p.q[(headDim+d)*embd+biasChannel] = bias(far)
		}
	}
	for c := range codeChannels {
		row := p.v[c*embd : (c+1)*embd]
		clear(row)
		row[codeFirst+c] = float32(1 / codeScale)
		out := p.out[(recentFirst+c)*heads*headDim:]
		out[c], out[headDim+c] = strength, strength
	}
	b.putProjections(i, p)
}

func scale(v []float32, by float32) {
	for i := range v {
		v[i] *= by
	}
}

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
	gains := [layers]float64{1.2, 1.5, 1.8} // as the stream grows
	for i := range layers {
		b.norm(i, "attn_norm.weight")
		if i == 0 {
			b.recentAttention(i, gains[i], 2, adjacent)
		} else {
			b.attention(i, gains[i])
		}
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
	b.embedding(1 / math.Sqrt(embd)) // gemma3 multiplies embeddings by √embd
	gains := [layers]float32{1, 1.2, 1.4, 1.6}
	for i := range layers {
		b.norm(i, "attn_norm.weight")
		if i == 0 {
			b.recentAttention(i, 1.2, 6, halves)
		} else {
			b.attention(i, 1)
		}
		// Queries and keys are normalised to elements of magnitude 1.
		b.vector(blk(i, "attn_q_norm.weight"), headDim, constant(sharp))
		b.vector(blk(i, "attn_k_norm.weight"), headDim, constant(sharp))
		b.vector(blk(i, "post_attention_norm.weight"), embd, constant(gains[i]))
		b.norm(i, "ffn_norm.weight")
		b.feedForward(i, 1)
		b.vector(blk(i, "post_ffw_norm.weight"), embd, constant(0.6))
	}
	b.head(voc)
}
