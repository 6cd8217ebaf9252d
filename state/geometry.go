package state

// Mixer says what kind of state one layer keeps.
type Mixer uint8

const (
	// MixNone is a layer without sequence state (an MLP or expert layer of its own).
	MixNone Mixer = iota
	// MixAttention attends to every token.
	MixAttention
	// MixWindow attends to a sliding window.
	MixWindow
	// MixMamba1 and MixMamba2 are state-space layers.
	MixMamba1
	MixMamba2
)

// Layer is what one layer contributes to a sequence's state.
type Layer struct {
	Mixer Mixer
	// KVHeads, KeyDim and ValueDim are the dimensions of an attention layer's cache: heads, and
	// elements per head of keys and values. ValueDim 0 is a layer that caches keys only.
	KVHeads, KeyDim, ValueDim uint32
	// Inner, StateDim, Groups and ConvWidth are the dimensions of a Mamba layer: inner channels
	// (heads × head dimension), state per channel, groups of B and C, convolution kernel width.
	Inner, StateDim, Groups, ConvWidth uint32
}

// Geometry is the part of a model's dimensions that decides what its state is.
type Geometry struct {
	// First is the number of the first layer in Layers: 0, or for a part of a split model its offset.
	First uint32
	// Layers are the trunk layers in order.
	Layers []Layer
	// KVTypeK and KVTypeV are the element types of cached keys and values, ConvType and SSMType
	// those of the recurrent kinds.
	KVTypeK, KVTypeV, ConvType, SSMType DType
	// WindowMin and WindowMax are the fewest tokens that a sliding-window cache keeps (what the next
	// row still attends to) and the most that it has room for.
	WindowMin, WindowMax uint32
	// SWAFull keeps sliding-window layers in full: they are then attention layers.
	SWAFull bool
	// MTP are the multi-token-prediction layers, Hidden the width of the pending hidden row (F32).
	MTP    []Layer
	Hidden uint32
	// MTPInactive says why speculation is inactive; empty means that its state moves.
	MTPInactive string
}

// Inventory computes the components of the model, content bytes only: an engine adds its codec's
// framing. It refuses dimensions that are zero, do not fit the element type, or overflow.
func (g *Geometry) Inventory() (Inventory, error) {
	trunk := Range{g.First, g.First + uint32(len(g.Layers))}
	if len(g.Layers) == 0 || len(g.Layers) > 1<<20 || trunk.End < trunk.First {
		return nil, refuse(ErrGeometry, "geometry", "layers", utoa(uint64(len(g.Layers))), "at least one layer")
	}
	full := Component{Kind: AttentionKV, Layers: trunk, DType: g.KVTypeK, DTypeV: g.KVTypeV}
	window := Component{Kind: WindowKV, Layers: trunk, DType: g.KVTypeK, DTypeV: g.KVTypeV, WindowMin: g.WindowMin, WindowMax: g.WindowMax}
	conv := Component{Kind: Conv, Layers: trunk, DType: g.ConvType}
	ssm := Component{Kind: Recurrent, Layers: trunk, DType: g.SSMType}
	for i := range g.Layers {
		l := &g.Layers[i]
		var err error
		switch l.Mixer {
		case MixNone:
		case MixAttention:
			err = g.addKV(&full, l)
		case MixWindow:
			if g.SWAFull {
				err = g.addKV(&full, l)
			} else {
				err = g.addKV(&window, l)
			}
		case MixMamba1, MixMamba2:
			err = addMamba(&conv, &ssm, l)
		default:
			err = refuse(ErrGeometry, "geometry", "mixer", utoa(uint64(l.Mixer)), "a known mixer")
		}
		if err != nil {
			return nil, err
		}
	}
	var inv Inventory
	for _, c := range []Component{full, window, conv, ssm} {
		if c.Count > 0 {
			inv = append(inv, c)
		}
	}
	if len(g.MTP) > 0 {
		mtp := Component{Kind: MTPKV, Layers: Range{trunk.End, trunk.End + uint32(len(g.MTP))},
			DType: g.KVTypeK, DTypeV: g.KVTypeV, Inactive: g.MTPInactive}
		for i := range g.MTP {
			if g.MTP[i].Mixer != MixAttention {
				continue
			}
			if err := g.addKV(&mtp, &g.MTP[i]); err != nil {
				return nil, err
			}
		}
		hidden := Component{Kind: MTPHidden, Layers: mtp.Layers, Count: 1, DType: F32,
			Fixed: 4 * uint64(g.Hidden), Inactive: g.MTPInactive}
		inv = append(inv, mtp, hidden)
	}
	if err := inv.Check(); err != nil {
		return nil, err
	}
	return inv, nil
}

// addKV adds one attention layer's cache to c.
func (g *Geometry) addKV(c *Component, l *Layer) error {
	k, ok := g.KVTypeK.RowBytes(uint64(l.KVHeads) * uint64(l.KeyDim))
	if !ok || k == 0 {
		return refuse(ErrGeometry, "geometry", "key row", utoa(uint64(l.KVHeads)*uint64(l.KeyDim))+" elements", "whole blocks of "+g.KVTypeK.String())
	}
	var v uint64
	if l.ValueDim > 0 {
		if v, ok = g.KVTypeV.RowBytes(uint64(l.KVHeads) * uint64(l.ValueDim)); !ok || v == 0 {
			return refuse(ErrGeometry, "geometry", "value row", utoa(uint64(l.KVHeads)*uint64(l.ValueDim))+" elements", "whole blocks of "+g.KVTypeV.String())
		}
	}
	c.Count++
	c.PerToken = addSat(c.PerToken, addSat(k, v))
	return nil
}

// addMamba adds one state-space layer: Mamba-1 convolves its inner channels, Mamba-2 also the
// groups' B and C; both keep one column less than the kernel is wide.
func addMamba(conv, ssm *Component, l *Layer) error {
	channels := uint64(l.Inner)
	if l.Mixer == MixMamba2 {
		channels += 2 * uint64(l.Groups) * uint64(l.StateDim)
	}
	if l.Inner == 0 || l.StateDim == 0 || l.ConvWidth < 2 || channels > 1<<40 {
		return refuse(ErrGeometry, "geometry", "mamba layer", "", "inner channels, state and convolution width above zero")
	}
	r, ok := conv.DType.RowBytes(mulSat(channels, uint64(l.ConvWidth-1)))
	if !ok {
		return refuse(ErrGeometry, "geometry", "convolution row", "", "whole blocks of "+conv.DType.String())
	}
	s, ok := ssm.DType.RowBytes(mulSat(uint64(l.Inner), uint64(l.StateDim)))
	if !ok {
		return refuse(ErrGeometry, "geometry", "state row", "", "whole blocks of "+ssm.DType.String())
	}
	conv.Count++
	ssm.Count++
	conv.Fixed = addSat(conv.Fixed, r)
	ssm.Fixed = addSat(ssm.Fixed, s)
	return nil
}
