package tiny

// The shape of recurrent (Mamba-2) layers.
const (
	dConv   = 4
	dInner  = 256
	dState  = 64
	ssmHead = 8
	groups  = 2
	convDim = dInner + 2*groups*dState

	perHead  = dInner / ssmHead
	perGroup = ssmHead / groups

	// Rows of ssm_in: gate, then the convolved x, B and C, then a step per head.
	rowZ  = 0
	rowX  = dInner
	rowB  = rowX + dInner
	rowC  = rowB + groups*dState
	rowDt = rowC + groups*dState
	ssmIn = rowDt + ssmHead
)

// memory is one head's rate of forgetting: state decays by exp(step·a) per token
// and input enters with weight step.
type memory struct {
	bias float32 // softplus⁻¹ of the step
	a    float32
}

// remember holds memories of about so many tokens, with steps such that their
// outputs are equally strong on random input once they are full.
var remember = map[int]memory{
	3: {-1.0946459, -1.1547005}, 10: {-1.7643414, -0.63245553},
	30: {-2.3477551, -0.36514837}, 100: {-2.9706281, -0.2},
	300: {-3.5305699, -0.11547005}, 1000: {-4.1391087, -0.063245553},
	3000: {-4.6917631, -0.036514837},
}

// average holds memories that are plain weighted means over so many tokens.
var average = map[int]memory{
	8: {-2.0162906, -1}, 40: {-3.6763535, -1},
	100: {-4.6001660, -1}, 300: {-5.7021153, -1},
}

// early remembers what it reads while the clock is low: the step is 0.13 at the
// first token, 0.005 when the clock has risen.
var early = memory{-2, -0.005}

// silu has zero mean on normal input of variance 1 that is shifted by this much.
// Without the shift the means of x, B and C would drown the tokens of a long
// prompt in a constant.
const centred = -0.5

func (b *builder) ssmKeys(a string) {
	b.w.Uint32(a+".ssm.conv_kernel", dConv)
	b.w.Uint32(a+".ssm.inner_size", dInner)
	b.w.Uint32(a+".ssm.state_size", dState)
	b.w.Uint32(a+".ssm.time_step_rank", ssmHead)
	b.w.Uint32(a+".ssm.group_count", groups)
}

// recurrent are the weights of one Mamba-2 layer.
type recurrent struct {
	in, taps, shift, out []float32
	memory               [ssmHead]memory
	skip                 [ssmHead]float32
}

// recurrentLayer returns a layer of random weights.
func (b *builder) recurrentLayer(i int, gain float64) *recurrent {
	l := &recurrent{
		in:    b.reader(blk(i, "ssm_in.weight"), 1, ssmIn),
		taps:  b.matrix(blk(i, "ssm_conv1d.weight"), 1, dConv, convDim),
		shift: make([]float32, convDim),
		out:   b.writer(blk(i, "ssm_out.weight"), gain, dInner, 1),
	}
	for c := range convDim {
		unit(l.taps[c*dConv:(c+1)*dConv], 1)
		l.shift[c] = centred
	}
	for h, tokens := range [ssmHead]int{3, 30, 300, 3000, 10, 100, 1000, 1000} {
		l.memory[h] = remember[tokens]
		l.skip[h] = 0.3
	}
	return l
}

func (b *builder) putRecurrent(i int, l *recurrent) {
	b.norm(i, "attn_norm.weight")
	b.put(blk(i, "ssm_in.weight"), l.in, embd, ssmIn)
	b.vector(blk(i, "ssm_conv1d.weight"), len(l.taps), func(k int) float32 { return l.taps[k] }, dConv, convDim)
	b.vector(blk(i, "ssm_conv1d.bias"), convDim, func(k int) float32 { return l.shift[k] })
	b.vector(blk(i, "ssm_dt.bias"), ssmHead, func(h int) float32 { return l.memory[h].bias })
	b.vector(blk(i, "ssm_a"), ssmHead, func(h int) float32 { return l.memory[h].a }, 1, ssmHead)
	b.vector(blk(i, "ssm_d"), ssmHead, func(h int) float32 { return l.skip[h] }, 1, ssmHead)
	b.vector(blk(i, "ssm_norm.weight"), dInner, constant(1), dInner/groups, groups)
	b.put(blk(i, "ssm_out.weight"), l.out, dInner, embd)
}

// ssm writes a recurrent layer other than the first: random, with memories of 3
// to 3,000 tokens, and one of the prompt's beginning.
func (b *builder) ssm(i int, gain float64) {
	l := b.recurrentLayer(i, gain)
	const h = ssmHead - 1
	l.memory[h] = early
	l.in[(rowDt+h)*embd+clockChannel] = -2.5
	b.putRecurrent(i, l)
}

// recentSSM writes the first recurrent layer. The heads of its first group share
// B and C that are nearly constant, which makes them means over the last tokens:
// of the code (over 8 and 40 tokens) for the recent channels, of random features,
// and of a constant (over 100) for the clock.
func (b *builder) recentSSM(i int, gain float64) {
	const (
		lanes    = 8   // elements of B and C that are constant
		level    = 0.6 // of those, before the convolution
		blur     = 0.2 // of the others
		small    = 0.4 // inputs for which silu is nearly linear
		tick     = 0.1 // the clock's constant input
		gate     = 2
		strength = 0.7
	)
	l := b.recurrentLayer(i, gain)
	plain := func(row int, gain float32, biased float64) {
		c := row - rowX
		copy(l.taps[c*dConv:(c+1)*dConv], []float32{0, 0, 0, 1})
		l.shift[c] = 0
		in := l.in[row*embd : (row+1)*embd]
		scale(in, gain)
		in[biasChannel] = bias(biased)
	}
	for n := range dState {
		if n < lanes {
			plain(rowB+n, 0.02, level)
			plain(rowC+n, 0.02, level)
		} else {
			plain(rowB+n, blur, 0)
			plain(rowC+n, blur, 0)
		}
	}
	const codeNear, codeFar, mean, clock = 0, 1, 2, 3
	for h, tokens := range [...]int{codeNear: 8, codeFar: 40, mean: 300, clock: 100} {
		l.memory[h], l.skip[h] = average[tokens], 0
		clear(l.in[(rowDt+h)*embd : (rowDt+h+1)*embd])
		for j := range perHead {
			c := h*perHead + j
			x := l.in[(rowX+c)*embd : (rowX+c+1)*embd]
			z := l.in[(rowZ+c)*embd : (rowZ+c+1)*embd]
			if h == mean {
				plain(rowX+c, small, 0)
				continue
			}
			plain(rowX+c, 0, 0)
			clear(z)
			z[biasChannel] = bias(gate)
			if h == clock {
				x[biasChannel] = bias(tick)
				l.out[clockChannel*dInner+c] = 1.0 / perHead
				continue
			}
			x[codeFirst+j] = float32(small / codeScale)
			l.out[(recentFirst+j)*dInner+c] = strength
		}
	}
	b.putRecurrent(i, l)
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
	b.recentSSM(0, 1)
	for i := 1; i < layers; i++ {
		b.ssm(i, 1+0.2*float64(i))
	}
	b.head(voc)
}
