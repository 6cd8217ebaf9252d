package model

import (
	"fmt"

	"github.com/tandem-llm/tandem/state"
)

// Config is the part of an engine's configuration that decides how large a
// model's state is.
type Config struct {
	// KVTypeK and KVTypeV are the element types of cached keys and values.
	KVTypeK, KVTypeV state.DType
	// SWAFull keeps sliding-window layers in full: they are then attention
	// layers.
	SWAFull bool
	// WindowCells is the most tokens of one sequence that the engine's
	// sliding-window cache has room for; 0 means the window itself.
	WindowCells int
}

// DefaultConfig caches keys and values in half precision.
var DefaultConfig = Config{KVTypeK: state.F16, KVTypeV: state.F16}

// Inventory returns the components that a handoff of the model moves, content
// bytes only: an engine adds its codec's framing. Multi-token-prediction
// components are listed and inactive. It fails for models whose family is
// unknown and for element types that do not fit the model's dimensions.
func (m *Model) Inventory(c Config) (state.Inventory, error) {
	if len(m.Layers) == 0 {
		return nil, &UnsupportedError{m.Architecture, m.Refusal, m.Colocated}
	}
	trunk := state.Range{First: 0, End: uint32(len(m.Layers))}
	attention := state.Component{Kind: state.AttentionKV, Layers: trunk, DType: c.KVTypeK, DTypeV: c.KVTypeV}
	window := state.Component{Kind: state.WindowKV, Layers: trunk, DType: c.KVTypeK, DTypeV: c.KVTypeV}
	if m.Window > 0 {
		// The next token attends to Window positions, its own among them.
		window.WindowMin, window.WindowMax = uint32(m.Window-1), uint32(max(m.Window, c.WindowCells))
	}
	conv := state.Component{Kind: state.Conv, Layers: trunk, DType: state.F32}
	recurrent := state.Component{Kind: state.Recurrent, Layers: trunk, DType: state.F32}
	for i, l := range m.Layers {
		kv := &attention
		if l.Windowed && !c.SWAFull {
			kv = &window
		}
		if err := addKV(kv, c, l); err != nil {
			return nil, fmt.Errorf("model: layer %d: %w", i, err)
		}
		addFixed(&conv, l.Conv)
		addFixed(&recurrent, l.Recurrent)
	}
	var inv state.Inventory
	for _, c := range []state.Component{attention, window, conv, recurrent} {
		if c.Count > 0 {
			inv = append(inv, c)
		}
	}
	if m.MTP.Present {
		mtp, err := m.mtpInventory(c, trunk.End)
		if err != nil {
			return nil, err
		}
		inv = append(inv, mtp...)
	}
	if err := inv.Check(); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return inv, nil
}

func (m *Model) mtpInventory(c Config, first uint32) (state.Inventory, error) {
	layers := state.Range{First: first, End: first + uint32(len(m.MTP.Blocks))}
	kv := state.Component{Kind: state.MTPKV, Layers: layers, DType: c.KVTypeK, DTypeV: c.KVTypeV, Inactive: m.MTP.Inactive}
	for i, l := range m.MTP.Blocks {
		if err := addKV(&kv, c, l); err != nil {
			return nil, fmt.Errorf("model: speculation block %d: %w", i, err)
		}
	}
	hidden := state.Component{Kind: state.MTPHidden, Layers: layers, Count: 1, DType: state.F32, Inactive: m.MTP.Inactive}
	hidden.Fixed = 4 * uint64(m.Embedding)
	return state.Inventory{kv, hidden}, nil
}

func addKV(c *state.Component, cfg Config, l Layer) error {
	if l.Key == 0 {
		return nil
	}
	k, ok := cfg.KVTypeK.RowBytes(uint64(l.Key))
	if !ok {
		return fmt.Errorf("a key row of %d elements does not fit %s", l.Key, cfg.KVTypeK)
	}
	v, ok := cfg.KVTypeV.RowBytes(uint64(l.Value))
	if !ok {
		return fmt.Errorf("a value row of %d elements does not fit %s", l.Value, cfg.KVTypeV)
	}
	c.Count++
	c.PerToken += k + v
	return nil
}

func addFixed(c *state.Component, elements uint64) {
	if elements > 0 {
		c.Count++
		c.Fixed += 4 * elements
	}
}

// TokenBytes returns the bytes that one more token adds to a sequence's state
// with caches of the given type, sliding windows included while they fill up. It
// reports false when the type does not fit or the model is not supported.
func (m *Model) TokenBytes(t state.DType) (uint64, bool) {
	inv, err := m.Inventory(Config{KVTypeK: t, KVTypeV: t})
	if err != nil {
		return 0, false
	}
	n := inv.TokenBytes()
	if w := inv.Find(state.WindowKV); w != nil {
		n += w.PerToken
	}
	return n, true
}

// FixedBytes returns the bytes of state that do not depend on the number of
// tokens.
func (m *Model) FixedBytes() uint64 {
	inv, err := m.Inventory(DefaultConfig)
	if err != nil {
		return 0
	}
	return inv.FixedBytes()
}
