package tiny

// The shape of recurrent (Mamba-2) layers.
const (
	dConv   = 4
	dInner  = 256
	dState  = 32
	ssmHead = 8
	groups  = ssmHead // every head has its own B and C, and is normalised alone
	convDim = dInner + 2*groups*dState

	perHead = dInner / ssmHead

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
	16: {-2.0162906, -0.5}, 32: {-2.3814955, -0.35355339}, 64: {-2.7411760, -0.25},
	125: {-3.0848600, -0.17888544}, 250: {-3.4380246, -0.12649111},
	1000: {-4.1391087, -0.063245553}, 4000: {-4.8362165, -0.031622777},
}

// average holds memories that are plain weighted means over so many tokens.
var average = map[int]memory{8: {-2.0162906, -1}, 40: {-3.6763535, -1}, 100: {-4.6001660, -1}}

// early remembers what it reads while the clock is low: its step falls from 0.1
// at the first token to less than 0.01 when the clock has risen.
var early = memory{0, -0.005}

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
	for h, tokens := range [ssmHead]int{16, 32, 64, 1000, 125, 250, 1000, 4000} {
		l.memory[h], l.skip[h] = remember[tokens], 0.15
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

// ssm writes a recurrent layer other than the first: random, with memories of
// 16 to 4,000 tokens, and one of the prompt's beginning.
func (b *builder) ssm(i int, gain float64) {
	const h = 3
	l := b.recurrentLayer(i, gain)
	l.memory[h] = early
	l.in[(rowDt+h)*embd+clockChannel] = -5
	b.putRecurrent(i, l)
}

// recentSSM writes the first recurrent layer. Some of its heads have B and C that
// are nearly constant, which makes them means over the last tokens: of the code,
// over 8 and 40 tokens, for the recent channels, and of a constant, over 100
// tokens, for the clock.
func (b *builder) recentSSM(i int, gain float64) {
	const (
		near, far, clock = 0, 1, 2 // heads
		lanes            = 8       // elements of B and C that are constant
		level            = 0.6     // of those, before the convolution
		blur             = 0.2     // of the others
		small            = 0.4     // input for which silu is nearly linear
		tick             = 0.12    // the clock's constant input
		gate             = 2
		strength         = 0.7
	)
	l := b.recurrentLayer(i, gain)
	for h, tokens := range [...]int{near: 8, far: 40, clock: 100} {
		l.memory[h], l.skip[h] = average[tokens], 0
		clear(l.in[(rowDt+h)*embd : (rowDt+h+1)*embd])
		for n := range dState {
			for _, row := range []int{rowB, rowC} {
				in := l.straight(row + h*dState + n)
				scale(in, blur)
				if n < lanes {
					in[biasChannel] = bias(level)
				}
			}
		}
		for c := h * perHead; c < (h+1)*perHead; c++ {
			j := c % perHead
			z := l.in[(rowZ+c)*embd : (rowZ+c+1)*embd]
			clear(z)
			z[biasChannel] = bias(gate)
			x := l.straight(rowX + c)
			clear(x)
			if h == clock && j < perHead/2 {
				x[biasChannel] = bias(tick)
				l.out[clockChannel*dInner+c] = 2.0 / perHead
				continue
			}
			x[codeFirst+j] = float32(small / codeScale)
			if h != clock {
				l.out[(recentFirst+j)*dInner+c] = strength
			}
		}
	}
	// What the clock is measured against: the code passes unchanged in strength.
	l.skip[clock] = 0.2
	b.putRecurrent(i, l)
}

// straight makes the convolution pass the given row of ssm_in unchanged, and
// returns the row.
func (l *recurrent) straight(row int) []float32 {
	c := row - rowX
	copy(l.taps[c*dConv:(c+1)*dConv], []float32{0, 0, 0, 1})
	l.shift[c] = 0
	return l.in[row*embd : (row+1)*embd]
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
	for i, gain := range [layers]float64{1: 1.2, 2: 1.4, 3: 1.6} {
		if i > 0 {
			b.ssm(i, gain)
		}
	}
	b.head(voc)
}
