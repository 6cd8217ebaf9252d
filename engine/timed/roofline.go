package timed

import (
	"fmt"
	"slices"
)

// New makes a model from a description of a model and of the hardware it runs
// on. A step takes as long as its arithmetic or as its memory traffic, whichever
// is longer, and what does not overlap with them:
//
//	T = max( F/(MFU·peak·tp), bytes/(MBU·bandwidth) ) + all-reduces + layers·LayerUS + StepUS
//	F = Σ [ 2·P·t + 4·L·H·dh·(s·t + t²/2) + 6·Lm·inner·N·t ] + 2·V·h per row of logits
//	bytes = W/tp + KV read + KV written + 2·recurrent state per sequence
//
// for t new tokens on top of s; a decode is t = 1. Weights are read once a step,
// of experts those that the step's tokens touch. docs/timing.md derives it and
// lists what is left out.
func New(model *ModelSpec, hw *HardwareSpec, o Options) (*Model, error) {
	if err := o.fill(hw); err != nil {
		return nil, err
	}
	if err := model.Check(); err != nil {
		return nil, err
	}
	if err := hw.Check(); err != nil {
		return nil, err
	}
	if o.TP > 1 && o.LinkGBps == 0 {
		return nil, fmt.Errorf("timed: %s has no link for %d tensor-parallel ways; set link_gbps", hw.Name, o.TP)
	}
	mtp := o.Speculation != nil && o.Speculation.Kind == MTP
	if mtp && len(model.MTP) == 0 {
		return nil, fmt.Errorf("timed: %s has no multi-token-prediction layers; use suffix speculation", model.Name)
	}
	peak, err := o.peak(hw)
	if err != nil {
		return nil, err
	}
	r := &roofline{
		trunk:      newLoad(model.Blocks, model.Hidden, &o),
		decodeFLOP: 1 / (peak * o.DecodeMFU * float64(o.TP)),
		promptFLOP: 1 / (peak * o.PrefillMFU * float64(o.TP)),
		byteTime:   1e3 / (hw.GBps * o.MBU),
	}
	head := float64(model.Vocab) * float64(model.Hidden)
	r.headFLOP = 2 * head
	r.headBytes = head * o.WeightBits / 8 / float64(o.TP)
	reduces, layers := r.trunk.reduces, r.trunk.layers
	if mtp {
		l := newLoad(model.MTP, model.Hidden, &o)
		r.mtp, r.passes = &l, float64(o.Speculation.Draft)
		// One pass over the prompt beside the trunk's.
		reduces, layers = reduces+l.reduces, layers+l.layers
	}
	if o.TP > 1 {
		// A ring sends 2·(tp−1)/tp of each row of activations, two bytes an element.
		r.reduceToken = reduces * float64(model.Hidden) * 2 * 2 * float64(o.TP-1) / float64(o.TP) / o.LinkGBps * 1e3
		r.fixed = reduces * o.AllReduceUS * float64(Microsecond)
	}
	r.fixed += float64(layers*o.LayerUS*float64(Microsecond)) + float64(o.StepUS*float64(Microsecond))

	o.Geometry = model.Geometry(o)
	for _, rate := range []*float64{&o.Moves.ExportBytesPerSecond, &o.Moves.ImportBytesPerSecond, &o.Moves.ConvertBytesPerSecond} {
		if *rate == 0 {
			*rate = hw.GBps * 1e9 * o.MBU
		}
	}
	m, err := build(fmt.Sprintf("%s on %d × %s", model.Name, o.TP, hw.Name), r, o.Common)
	if err != nil {
		return nil, err
	}
	m.memory = hw.MemoryGB * 1e9
	m.resident = r.weightsAll(model, &o)
	m.perToken = r.trunk.read
	if r.mtp != nil {
		m.perToken += r.mtp.read
	}
	return m, nil
}

// A roofline's times are picoseconds. Products that are added are converted to
// float64 first: that keeps compilers from fusing the two, and so the results the
// same on every machine.
type roofline struct {
	trunk load
	mtp   *load // multi-token-prediction layers, nil if not in use

	passes      float64 // of the MTP layers in a step that drafts
	headFLOP    float64 // per row of logits
	headBytes   float64
	decodeFLOP  float64 // time per operation
	promptFLOP  float64
	byteTime    float64 // time per byte
	reduceToken float64 // all-reduces, per token
	fixed       float64
}

func (*roofline) same() bool { return false }

// weightsAll is the weights that one device holds, in bytes.
func (r *roofline) weightsAll(model *ModelSpec, o *Options) float64 {
	params := r.trunk.params + float64(model.Vocab*model.Hidden)
	if !model.Tied {
		params += float64(model.Vocab * model.Hidden)
	}
	if r.mtp != nil {
		params += r.mtp.params
	}
	return params * o.WeightBits / 8 / float64(o.TP)
}

// decodeAt is the time of a decode step's arithmetic and of its memory traffic.
func (r *roofline) decodeAt(decodes int, context float64) (compute, memory float64) {
	n := float64(decodes)
	flop, bytes := r.trunk.decode(n, n, context)
	flop += float64(n * r.headFLOP)
	bytes += r.trunk.weightBytes(decodes) + r.headBytes
	return float64(flop * r.decodeFLOP), float64(bytes * r.byteTime)
}

// curve is the larger of two functions that are linear between the contexts at
// which windows are full.
func (r *roofline) curve(decodes int) (curve, error) {
	knots := []int64{0}
	for _, w := range r.trunk.windows {
		if k := w.width * int64(decodes); k < maxContext {
			knots = append(knots, k)
		}
	}
	slices.Sort(knots)
	knots = append(slices.Compact(knots), maxContext)
	rest := float64(float64(decodes)*r.reduceToken) + r.fixed
	c := make(curve, 0, 2*len(knots))
	for i, from := range knots[:len(knots)-1] {
		width := float64(knots[i+1] - from)
		c0, m0 := r.decodeAt(decodes, float64(from))
		c1, m1 := r.decodeAt(decodes, float64(knots[i+1]))
		compute := line{c0 + rest, (c1 - c0) / width}
		memory := line{m0 + rest, (m1 - m0) / width}
		high, low := compute, memory
		if m0 > c0 {
			high, low = memory, compute
		}
		c = append(c, high.seg(from, 0))
		if low.slope > high.slope {
			if x := (high.base - low.base) / (low.slope - high.slope); x < width-1 {
				if cross := int64(x) + 1; cross > 0 {
					c = append(c, low.seg(from, cross))
				}
			}
		}
	}
	return c.seal()
}

type line struct{ base, slope float64 }

// seg is the piece of a line, given from, that starts after tokens later.
func (l line) seg(from, after int64) seg {
	return seg{
		from:  from + after,
		base:  whole(l.base + float64(l.slope*float64(after))),
		slope: whole(l.slope),
	}
}

// whole rounds, and keeps what is too large for a curve recognizable as such.
func whole(ps float64) int64 { return int64(Picoseconds(ps)) }

func (r *roofline) mixed(b *Batch) float64 {
	var compute, memory float64
	tokens := b.Decodes + b.Drafts
	logits := float64(tokens)
	if b.Decodes > 0 {
		flop, bytes := r.trunk.decode(float64(tokens), float64(b.Decodes), float64(b.Context))
		compute = float64((flop + float64(logits*r.headFLOP)) * r.decodeFLOP)
		memory = bytes
	}
	for _, c := range b.Chunks {
		flop, bytes := r.trunk.prompt(c)
		flop += r.headFLOP
		memory += bytes
		if r.mtp != nil {
			f, m := r.mtp.prompt(c)
			flop, memory = flop+f, memory+m
		}
		compute += float64(flop * r.promptFLOP)
		tokens += c.New
	}
	memory += r.trunk.weightBytes(tokens) + r.headBytes
	if r.mtp != nil && len(b.Chunks) > 0 {
		memory += r.mtp.weightBytes(tokens - b.Decodes - b.Drafts)
	}
	if r.mtp != nil && b.Drafts > 0 && b.Decodes > 0 {
		// Each pass drafts one token for each sequence: its weights and the head's
		// are read again, and all the context.
		n := float64(b.Decodes)
		flop, bytes := r.mtp.decode(n, n, float64(b.Context))
		flop += float64(n * r.headFLOP)
		compute += float64(float64(r.passes*flop) * r.decodeFLOP)
		memory += float64(r.passes * (bytes + r.mtp.weightBytes(b.Decodes) + r.headBytes))
	}
	return max(compute, float64(memory*r.byteTime)) + float64(float64(tokens)*r.reduceToken) + r.fixed
}
