package timed

import "math"

// A load is what some layers ask of one device: operations over all ways of
// tensor parallelism, bytes of one way.
type load struct {
	token   float64   // FLOP per token: weights and recurrence
	pair    float64   // FLOP per token and token of context it sees, full attention
	windows []window  // the same of sliding-window layers
	latent  []latent  // the same of multi-head latent attention
	weights float64   // bytes of weights that every step reads
	experts []experts // bytes of weights that steps read by chance
	read    float64   // bytes read per token of context of a sequence
	write   float64   // bytes written per new token
	state   float64   // bytes of fixed-size state of a sequence
	reduces float64   // all-reduces of tensor parallelism in a step
	layers  float64
	params  float64 // weights in all, and those that one token uses
	active  float64
}

type window struct {
	width      int64
	pair, read float64
}

// latent is one group of MLA layers. Decodes work on compressed rows ("absorbed");
// prompts either do the same, or expand the past once and work on plain heads,
// whichever is less.
type latent struct {
	absorbed float64 // FLOP per token and token of context, on compressed rows
	plain    float64 // the same on expanded rows
	expand   float64 // FLOP to expand one row
}

// experts is one group of mixture-of-experts layers. Of n experts, each token
// goes to k, so that a batch of B tokens touches n·(1−((n−k)/n)^B) in the mean.
// (Uniform routing, as inference-sim does it, sim/latency/roofline.go.)
type experts struct {
	all     float64   // bytes of all experts
	touched []float64 // by tokens, the part that is touched; the last for all larger
}

// newLoad adds up layers under the options.
func newLoad(blocks []Block, hidden int, o *Options) load {
	h, tp := float64(hidden), float64(o.TP)
	weight, kv := o.WeightBits/8, o.KVBits/8
	var l load
	for _, b := range blocks {
		n := float64(b.Count)
		l.layers += n
		// Each sublayer has a norm of its own.
		dense := 0.0
		switch {
		case b.Attention != nil:
			a := b.Attention
			q, keys := float64(a.Heads*a.HeadDim), float64(a.KVHeads*a.HeadDim)
			dense += 2*h*q + 2*h*keys + h
			if a.Bias {
				dense += q + 2*keys
			}
			pair := n * 4 * q
			read := n * 2 * keys * kv / math.Min(tp, float64(a.KVHeads))
			if a.Window > 0 {
				l.windows = append(l.windows, window{width: int64(a.Window), pair: pair, read: read})
			} else {
				l.pair += pair
				l.read += read
			}
			l.write += read
			l.reduces += n
		case b.MLA != nil:
			a := b.MLA
			heads, row := float64(a.Heads), float64(a.KVRank+a.RopeDim)
			qk, v, rank := float64(a.NopeDim+a.RopeDim), float64(a.ValueDim), float64(a.KVRank)
			if a.QRank > 0 {
				dense += float64(a.QRank) * (h + 1 + heads*qk)
			} else {
				dense += h * heads * qk
			}
			expand := rank * heads * (float64(a.NopeDim) + v)
			dense += h*row + rank + expand + heads*v*h + h
			l.latent = append(l.latent, latent{
				absorbed: n * 2 * heads * (row + rank),
				plain:    n * 2 * heads * (qk + v),
				expand:   n * 2 * expand,
			})
			// The row serves all heads, so every way keeps all of it.
			l.read += float64(n * row * kv)
			l.write += float64(n * row * kv)
			l.reduces += n
		case b.Mamba != nil:
			s := b.Mamba
			inner, bc := float64(s.Heads*s.HeadDim), float64(2*s.Groups*s.State)
			dense += h*(2*inner+bc+float64(s.Heads)) + (inner+bc)*float64(s.Conv+1) + 3*float64(s.Heads) + inner + inner*h + h
			l.token += n * 6 * inner * float64(s.State)
			l.state += n * (float64(inner*float64(s.State)*o.RecurrentBits/8) + float64((inner+bc)*float64(s.Conv-1)*o.ConvBits/8)) / tp
			l.reduces += n
		}
		switch {
		case b.Dense != nil:
			dense += matrices(b.Dense.Gated)*h*float64(b.Dense.Width) + h
			l.reduces += n
		case b.MoE != nil:
			e := b.MoE
			width := h
			if e.Latent > 0 {
				width = float64(e.Latent)
				dense += 2 * h * width
			}
			dense += h*float64(e.Experts) + matrices(e.Gated)*h*float64(e.SharedWidth) + h
			one := matrices(e.Gated) * width * float64(e.Width)
			l.params += n * one * float64(e.Experts)
			l.active += n * one * float64(e.TopK)
			l.experts = append(l.experts, experts{
				all:     n * one * float64(e.Experts) * weight / tp,
				touched: touched(e.Experts, e.TopK),
			})
			l.reduces += n
		}
		l.params += n * dense
		l.active += n * dense
		l.weights += n * dense * weight / tp
	}
	l.token += 2 * l.active
	return l
}

func matrices(gated bool) float64 {
	if gated {
		return 3
	}
	return 2
}

// touched lists the part of the experts that a batch of so many tokens touches,
// up to where it is all of them but a millionth. The powers are products, so that
// they have the same bits on every machine.
func touched(n, k int) []float64 {
	none, one := 1.0, float64(n-k)/float64(n)
	part := []float64{0}
	for none > 1e-6 {
		none = float64(none * one) // not fused with what follows
		part = append(part, 1-none)
	}
	return append(part, 1)
}

// weightBytes is the weights that a step over so many tokens reads.
func (l *load) weightBytes(tokens int) float64 {
	w := l.weights
	for i := range l.experts {
		e := &l.experts[i]
		w += float64(e.all * e.touched[min(tokens, len(e.touched)-1)])
	}
	return w
}

// decode is what rows rows of seqs sequences cost that hold context tokens all
// together: operations and bytes, without weights. Each row sees its sequence's
// context and half of what the rows add. Windows are as if all sequences had the
// same length.
func (l *load) decode(rows, seqs, context float64) (flop, bytes float64) {
	each := rows / seqs
	seen := float64(each*context) + rows/2
	flop = float64(rows*l.token) + float64(l.pair*seen)
	bytes = float64(l.read*context) + float64(l.write*rows) + float64(2*l.state*seqs)
	for i := range l.latent {
		flop += float64(l.latent[i].absorbed * seen)
	}
	for i := range l.windows {
		w := &l.windows[i]
		kept := min(context, float64(seqs*float64(w.width)))
		flop += float64(w.pair * (float64(each*kept) + rows/2))
		bytes += float64(w.read * kept)
	}
	return flop, bytes
}

// prompt is what a chunk costs, without weights.
func (l *load) prompt(c Chunk) (flop, bytes float64) {
	t, s := float64(c.New), float64(c.Past)
	pairs := float64(s*t) + float64(t*t/2)
	flop = float64(t*l.token) + float64(l.pair*pairs)
	bytes = float64(l.read*s) + float64(l.write*t) + 2*l.state
	for i := range l.latent {
		a := &l.latent[i]
		flop += min(float64(a.absorbed*pairs), float64(a.plain*pairs)+float64(a.expand*s))
	}
	for i := range l.windows {
		w := &l.windows[i]
		width := float64(w.width)
		flop += float64(w.pair * (seenBy(s+t, width) - seenBy(s, width)))
		bytes += float64(w.read * min(s, width))
	}
	return flop, bytes
}

// seenBy is how many tokens the first x tokens of a sequence see in a window, all
// together: the integral of min(u, w) from 0 to x.
func seenBy(x, w float64) float64 {
	if x <= w {
		return x * x / 2
	}
	return float64(w*x) - float64(w*w/2)
}
