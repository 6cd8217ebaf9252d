package tiny

import "math"

// The shape shared by all models. Small, so that 8,000-token prompts are quick
// on a laptop's CPU: attention is narrow because its cost grows with the square
// of the prompt.
const (
	embd    = 192
	heads   = 4
	headsKV = 2
	headDim = 32
	ffn     = 256
	window  = 512 // gemma3: tokens in the sliding window
)

// The residual stream's channels. Most carry random features. The others make
// answers useful for testing, in ways that random weights do not:
//
//   - The bias channel has the same value at every position. Matrices that read
//     the stream thus have a bias in their column 0, with which the output
//     projection rules out tokens that would make answers unreadable or end
//     them.
//   - The clock channel, in models with recurrent layers, rises from 0 within
//     the first hundred tokens. Later recurrent layers have a head that writes
//     only while it is low and forgets almost nothing: the beginning of a prompt
//     stays visible thousands of tokens later.
//   - The code channels hold a pattern of ±1 that tells the current token. The
//     recent channels hold a weighted mean of the patterns of the last few dozen
//     tokens, gathered by the first layer. The output projection votes against
//     both, so that answers do not fall into loops, which would look the same
//     whatever the state is.
const (
	biasChannel   = 0
	clockChannel  = 1
	randomFirst   = 2
	codeFirst     = 128
	codeChannels  = 32
	recentFirst   = codeFirst + codeChannels
	randomEnd     = codeFirst
	randomPerRow  = randomEnd - randomFirst
	residualBias  = 4 // of the bias channel, in units of a random feature
	residualPower = residualBias*residualBias + randomPerRow + codeChannels
)

// bias returns the weight with which the first layer's matrices read the bias
// channel to get x: the stream is normalised before it is read, and embeddings
// all have the same length.
func bias(x float64) float32 {
	return float32(x * math.Sqrt(residualPower/float64(embd)) / residualBias)
}

// codeScale is the magnitude of code channels as the first layer reads them.
var codeScale = math.Sqrt(float64(embd) / residualPower)

// code returns the pattern that tells a token: as many +1 as −1.
func (b *builder) code(token int) [codeChannels]float32 {
	var c [codeChannels]float32
	for i := range c {
		c[i] = float32(1 - 2*(i&1))
	}
	s := b.stream("code")
	*s += stream(uint64(token) * 0x632be59bd9b4e019)
	for i := len(c) - 1; i > 0; i-- {
		j := s.next() % uint64(i+1)
		c[i], c[j] = c[j], c[i]
	}
	return c
}

// reader is a matrix that reads the stream's random, code and recent channels.
func (b *builder) reader(name string, gain float64, out int) []float32 {
	v := b.matrix(name, gain, embd, out)
	for r := range out {
		v[r*embd+biasChannel], v[r*embd+clockChannel] = 0, 0
	}
	return v
}

// writer is a matrix that adds to the stream's random channels, n of them
// stacked.
func (b *builder) writer(name string, gain float64, in, n int) []float32 {
	v := b.matrix(name, gain, in, embd*n)
	for r := range embd * n {
		if c := r % embd; c < randomFirst || c >= randomEnd {
			clear(v[r*in : (r+1)*in])
		}
	}
	return v
}

// embedding writes token_embd; scale is the magnitude of a random feature.
func (b *builder) embedding(scale float64) {
	const name = "token_embd.weight"
	v := b.fill(name, embd*vocabSize, 1)
	for t := range vocabSize {
		row := v[t*embd : (t+1)*embd]
		unit(row[randomFirst:randomEnd], scale*math.Sqrt(randomPerRow))
		clear(row[recentFirst:])
		row[biasChannel], row[clockChannel] = float32(residualBias*scale), 0
		for i, c := range b.code(t) {
			row[codeFirst+i] = c * float32(scale)
		}
	}
	b.put(name, v, embd, vocabSize)
}

// head writes the output projection.
func (b *builder) head(voc *vocab) {
	const (
		gain        = 4    // standard deviation of logits
		muted       = -24  // bias against unspeakable tokens
		notCurrent  = 0.25 // against the current token
		notRecently = 0.55 // against recent ones
	)
	b.vector("output_norm.weight", embd, constant(1))
	const name = "output.weight"
	v := b.fill(name, embd*vocabSize, 1)
	for t := range vocabSize {
		row := v[t*embd : (t+1)*embd]
		unit(row[randomFirst:randomEnd], gain)
		row[biasChannel], row[clockChannel] = 0, 0
		for i, c := range b.code(t) {
			row[codeFirst+i] = -notCurrent * c
			row[recentFirst+i] = -notRecently * c
		}
		if !voc.speakable[t] {
			row[biasChannel] = muted
		}
	}
	b.put(name, v, embd, vocabSize)
}

// unit scales v to the given length.
func unit(v []float32, length float64) {
	var sum float64
	for _, x := range v {
		sum += float64(float64(x) * float64(x))
	}
	scale := float32(length / math.Sqrt(sum))
	for i := range v {
		v[i] *= scale
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

func (b *builder) norm(i int, name string) { b.vector(blk(i, name), embd, constant(1)) }

func (b *builder) feedForward(i int, gain float64) {
	b.put(blk(i, "ffn_gate.weight"), b.reader(blk(i, "ffn_gate.weight"), 1.5, ffn), embd, ffn)
	b.put(blk(i, "ffn_up.weight"), b.reader(blk(i, "ffn_up.weight"), 1, ffn), embd, ffn)
	b.put(blk(i, "ffn_down.weight"), b.writer(blk(i, "ffn_down.weight"), gain, ffn, 1), ffn, embd)
}
