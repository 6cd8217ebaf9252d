package timed

import "fmt"

// maxSize bounds every size in a description, so that no product of them leaves
// what a float64 counts exactly enough.
const maxSize = 1 << 24

// Check says what is wrong with a description.
func (s *ModelSpec) Check() error {
	if s.Hidden < 1 || s.Hidden > maxSize || s.Vocab < 1 || s.Vocab > maxSize || s.Context < 0 {
		return fmt.Errorf("timed: model %q: hidden and vocab are from 1 to %d, context is not negative", s.Name, maxSize)
	}
	if len(s.Blocks) == 0 || len(s.Blocks) > 64 || len(s.MTP) > 8 {
		return fmt.Errorf("timed: model %q: needs 1 to 64 groups of layers, and at most 8 of MTP layers", s.Name)
	}
	for i, b := range append(s.Blocks[:len(s.Blocks):len(s.Blocks)], s.MTP...) {
		if err := b.check(); err != nil {
			return fmt.Errorf("timed: model %q, group %d of layers: %w", s.Name, i, err)
		}
	}
	return nil
}

func (b *Block) check() error {
	sizes := map[string]int{"count": b.Count}
	mixers, feeds := 0, 0
	if a := b.Attention; a != nil {
		mixers++
		sizes["heads"], sizes["kv_heads"], sizes["head_dim"] = a.Heads, a.KVHeads, a.HeadDim
		if a.Window < 0 || a.Window > maxSize {
			return fmt.Errorf("window is %d", a.Window)
		}
	}
	if a := b.MLA; a != nil {
		mixers++
		sizes["heads"], sizes["kv_rank"], sizes["rope_dim"] = a.Heads, a.KVRank, a.RopeDim
		sizes["nope_dim"], sizes["value_dim"] = a.NopeDim, a.ValueDim
		if a.QRank < 0 || a.QRank > maxSize {
			return fmt.Errorf("q_rank is %d", a.QRank)
		}
	}
	if s := b.Mamba; s != nil {
		mixers++
		sizes["heads"], sizes["head_dim"], sizes["state"] = s.Heads, s.HeadDim, s.State
		sizes["groups"], sizes["conv"] = s.Groups, s.Conv
	}
	if d := b.Dense; d != nil {
		feeds++
		sizes["width"] = d.Width
	}
	if e := b.MoE; e != nil {
		feeds++
		sizes["experts"], sizes["top_k"], sizes["width"] = e.Experts, e.TopK, e.Width
		if e.TopK > e.Experts || e.Experts > 1<<12 {
			return fmt.Errorf("top_k is %d of %d experts, which are at most 4096", e.TopK, e.Experts)
		}
		if e.SharedWidth < 0 || e.SharedWidth > maxSize || e.Latent < 0 || e.Latent > maxSize {
			return fmt.Errorf("shared_width is %d, latent is %d", e.SharedWidth, e.Latent)
		}
	}
	if mixers > 1 || feeds > 1 || mixers+feeds == 0 {
		return fmt.Errorf("has %d mixers and %d feed-forward parts; a layer has at most one of each, and one at least", mixers, feeds)
	}
	for _, name := range []string{"count", "heads", "kv_heads", "head_dim", "kv_rank", "rope_dim", "nope_dim", "value_dim", "state", "groups", "conv", "width", "experts", "top_k"} {
		if v, ok := sizes[name]; ok && (v < 1 || v > maxSize) {
			return fmt.Errorf("%s is %d", name, v)
		}
	}
	return nil
}

// Check says what is wrong with a description.
func (h *HardwareSpec) Check() error {
	for _, f := range []struct {
		name  string
		value float64
		least float64
	}{
		{"bf16_tflops", h.BF16TFLOPS, 1e-6}, {"gbps", h.GBps, 1e-6}, {"memory_gb", h.MemoryGB, 1e-6},
		{"fp8_tflops", h.FP8TFLOPS, 0}, {"fp4_tflops", h.FP4TFLOPS, 0}, {"link_gbps", h.LinkGBps, 0},
	} {
		if !(f.value >= f.least && f.value <= 1e9) {
			return fmt.Errorf("timed: hardware %q: %s is %g", h.Name, f.name, f.value)
		}
	}
	return nil
}

// fill replaces what is not set and checks the rest.
func (o *Options) fill(hw *HardwareSpec) error {
	def := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	if o.TP == 0 {
		o.TP = 1
	}
	def(&o.WeightBits, 16)
	def(&o.KVBits, 16)
	def(&o.RecurrentBits, 32)
	def(&o.ConvBits, 16)
	def(&o.PrefillMFU, hw.PrefillMFU)
	def(&o.DecodeMFU, hw.DecodeMFU)
	def(&o.MBU, hw.MBU)
	def(&o.LinkGBps, hw.LinkGBps)
	if o.TP < 1 || o.TP > 1024 {
		return fmt.Errorf("timed: tp is %d, and must be from 1 to 1024", o.TP)
	}
	for _, f := range []struct {
		name        string
		value       float64
		least, most float64
	}{
		{"weight_bits", o.WeightBits, 0.5, 64}, {"kv_bits", o.KVBits, 0.5, 64},
		{"recurrent_bits", o.RecurrentBits, 0.5, 64}, {"conv_bits", o.ConvBits, 0.5, 64},
		{"prefill_mfu", o.PrefillMFU, 1e-4, 1}, {"decode_mfu", o.DecodeMFU, 1e-4, 1}, {"mbu", o.MBU, 1e-4, 1},
		{"link_gbps", o.LinkGBps, 0, 1e9},
		{"step_us", o.StepUS, 0, 1e9}, {"layer_us", o.LayerUS, 0, 1e9}, {"all_reduce_us", o.AllReduceUS, 0, 1e9},
	} {
		if !(f.value >= f.least && f.value <= f.most) {
			return fmt.Errorf("timed: %s is %g, and must be from %g to %g", f.name, f.value, f.least, f.most)
		}
	}
	return nil
}

// peak is the hardware's peak rate for the options, in 10^12 operations a second,
// which is operations a picosecond.
func (o *Options) peak(hw *HardwareSpec) (float64, error) {
	var peak float64
	switch o.Compute {
	case "", "bf16":
		peak = hw.BF16TFLOPS
	case "fp8":
		peak = hw.FP8TFLOPS
	case "fp4":
		peak = hw.FP4TFLOPS
	default:
		return 0, fmt.Errorf(`timed: compute is %q, and must be "bf16", "fp8" or "fp4"`, o.Compute)
	}
	if peak == 0 {
		return 0, fmt.Errorf("timed: %s has no peak rate for %s", hw.Name, o.Compute)
	}
	return peak, nil
}
