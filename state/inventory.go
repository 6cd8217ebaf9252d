package state

// Component is one component of a model's continuation state: what it is, which layers hold it,
// and how many bytes it takes.
type Component struct {
	Kind Kind
	// Layers is the range of model layers among which the component's layers lie; for a part of a
	// split model, the part's layers. Count is how many of them hold it.
	Layers Range
	Count  uint32
	// DType is the element type (of keys, for attention kinds), DTypeV that of values.
	DType, DTypeV DType
	// PerToken is the bytes per token over all Count layers, and Fixed the bytes that do not depend
	// on tokens. A kind has one of the two.
	PerToken, Fixed uint64
	// WindowMin and WindowMax bound a WindowKV component: after N tokens, at least min(N, WindowMin)
	// and at most min(N, WindowMax) of the last ones are present. Zero for other kinds.
	WindowMin, WindowMax uint32
	// FrameFixed and FramePerToken are the bytes that the engine's codec adds around the
	// component's content: per page or snapshot, and per token in it. Headers of a blob that belong
	// to no component count to the component that follows them (or to the last one), because the
	// components of a snapshot lie back to back and cover it whole.
	FrameFixed, FramePerToken uint64
	// Inactive says why a component that the model has does not move; empty means that it does.
	Inactive string
}

// Bytes returns the exact payload bytes of the component when tokens of its tokens are present,
// framing included. The result saturates at the largest uint64 instead of overflowing.
func (c *Component) Bytes(tokens uint32) uint64 {
	return addSat(addSat(c.Fixed, c.FrameFixed), mulSat(addSat(c.PerToken, c.FramePerToken), uint64(tokens)))
}

// Active reports whether the component moves with a handoff.
func (c *Component) Active() bool { return c.Inactive == "" }

// Inventory lists the components that a model has, each kind once, in the order in which a snapshot
// holds those that it holds. The parts of a split model have an inventory each. Treat it as read-only once
// shared.
type Inventory []Component

// Find returns the component of the kind, or nil. The pointer aliases the inventory.
func (inv Inventory) Find(k Kind) *Component {
	for i := range inv {
		if inv[i].Kind == k {
			return &inv[i]
		}
	}
	return nil
}

// Paged reports whether the model has active components that leave in pages.
func (inv Inventory) Paged() bool {
	for i := range inv {
		if inv[i].Active() && inv[i].Kind.Paged() {
			return true
		}
	}
	return false
}

// Snapshot reports whether the model has active components that leave with the snapshot.
func (inv Inventory) Snapshot() bool {
	for i := range inv {
		if inv[i].inSnapshot() {
			return true
		}
	}
	return false
}

func (c *Component) inSnapshot() bool { return c.Active() && c.Kind.Bytes() && !c.Kind.Paged() }

// TokenBytes returns the bytes that one more token adds in pages, framing excluded.
func (inv Inventory) TokenBytes() uint64 {
	var n uint64
	for i := range inv {
		if inv[i].Active() && inv[i].Kind.Paged() {
			n = addSat(n, inv[i].PerToken)
		}
	}
	return n
}

// FixedBytes returns the bytes that do not depend on the number of tokens, framing excluded.
func (inv Inventory) FixedBytes() uint64 {
	var n uint64
	for i := range inv {
		if inv[i].Active() {
			n = addSat(n, inv[i].Fixed)
		}
	}
	return n
}

// SnapshotBytes returns the least and the most payload bytes that a snapshot after tokens tokens
// may have, framing included; they differ only for models with a sliding window.
func (inv Inventory) SnapshotBytes(tokens uint32) (least, most uint64) {
	for i := range inv {
		c := &inv[i]
		if !c.inSnapshot() {
			continue
		}
		lo, hi := c.held(tokens)
		least = addSat(least, c.Bytes(lo))
		most = addSat(most, c.Bytes(hi))
	}
	return least, most
}

// snapshotLayers returns the smallest range that holds the layers of all components of a snapshot;
// it is empty without any.
func (inv Inventory) snapshotLayers() Range {
	var r Range
	for i := range inv {
		if c := &inv[i]; c.inSnapshot() {
			if r.Len() == 0 {
				r = c.Layers
			}
			r = Range{min(r.First, c.Layers.First), max(r.End, c.Layers.End)}
		}
	}
	return r
}

// held returns how many tokens a component of a snapshot may hold after tokens tokens.
func (c *Component) held(tokens uint32) (least, most uint32) {
	if c.PerToken == 0 && c.FramePerToken == 0 {
		return 0, 0
	}
	return min(tokens, c.WindowMin), min(tokens, c.WindowMax)
}

// fits reports whether a component of a snapshot after tokens tokens can have n bytes.
func (c *Component) fits(tokens uint32, n uint64) bool {
	lo, hi := c.held(tokens)
	if n < c.Bytes(lo) || n > c.Bytes(hi) {
		return false
	}
	per := addSat(c.PerToken, c.FramePerToken)
	return per == 0 || (n-c.Bytes(0))%per == 0
}

// Check reports an inventory that contradicts itself: unknown kinds, empty layer ranges, both or
// neither of PerToken and Fixed, a window on another kind than WindowKV.
func (inv Inventory) Check() error {
	for i := range inv {
		c := &inv[i]
		name := c.Kind.String()
		switch {
		case !c.Kind.Bytes():
			return refuse(ErrGeometry, "inventory", name, "no bytes", "a kind that is bytes in a unit")
		case c.Layers.Len() == 0:
			return refuse(ErrGeometry, "inventory", name+".layers", c.Layers.String(), "a range that is not empty")
		case c.Active() && (c.PerToken == 0) == (c.Fixed == 0):
			return refuse(ErrGeometry, "inventory", name, "", "bytes per token or fixed bytes, not both")
		case c.Kind.Paged() && c.Fixed != 0:
			return refuse(ErrGeometry, "inventory", name, "fixed bytes", "bytes per token")
		case (c.Kind == WindowKV) != (c.WindowMax != 0):
			return refuse(ErrGeometry, "inventory", name+".window_max", utoa(uint64(c.WindowMax)), "a window for window_kv only")
		case c.WindowMin > c.WindowMax:
			return refuse(ErrGeometry, "inventory", name+".window_min", utoa(uint64(c.WindowMin)), "at most "+utoa(uint64(c.WindowMax)))
		case !c.DType.known() || !c.DTypeV.known():
			return refuse(ErrGeometry, "inventory", name+".dtype", c.DType.String(), "a known type")
		}
		if inv.Find(c.Kind) != c {
			return refuse(ErrGeometry, "inventory", name, "repeated", "once")
		}
	}
	return nil
}

func addSat(a, b uint64) uint64 {
	if s := a + b; s >= a {
		return s
	}
	return ^uint64(0)
}

func mulSat(a, b uint64) uint64 {
	if a == 0 || b <= ^uint64(0)/a {
		return a * b
	}
	return ^uint64(0)
}
