package blob

import "github.com/tandem-llm/tandem/state"

// Magic begins every blob.
const Magic uint32 = 0xaf143cd8

// Sizes of the fixed parts, in bytes.
const (
	headerBytes    = 8  // magic, sequence id
	kvCountBytes   = 8  // n_stream, cells
	kvCellBytes    = 12 // position, n_seq_id, sequence id
	recCountBytes  = 4  // cells
	recCellBytes   = 8  // position, n_seq_id
	layoutBytes    = 8  // v_trans or s_trans, layers
	tensorHdrBytes = 12 // type, row
)

// Limits of what Learn accepts, far above any model and far below any sum that
// could overflow an int64: cells × layers × row.
const (
	maxLayers = 4096
	maxRow    = 1 << 30
)

// Type is a ggml tensor type.
type Type int32

// The types this package can check for finiteness; a Schema has no others.
const (
	F32  Type = 0
	F16  Type = 1
	Q8_0 Type = 8
	BF16 Type = 30
)

// Known reports whether t is one of the types above.
func (t Type) Known() bool { return t == F32 || t == F16 || t == Q8_0 || t == BF16 }

// String is the type's name, as llama.cpp writes it.
func (t Type) String() string {
	switch t {
	case F32:
		return "f32"
	case F16:
		return "f16"
	case Q8_0:
		return "q8_0"
	case BF16:
		return "bf16"
	}
	return "unknown"
}

// Memory is the memory type of a context. It decides which sections a blob has.
type Memory uint8

// The memory types of llama.cpp v0.5.0 that hand off.
const (
	Dense      Memory = iota + 1 // KV
	ISWA                         // KV base, KV window
	Recurrent                    // REC
	Hybrid                       // KV, REC
	HybridISWA                   // KV base, KV window, REC
)

// String names the memory type.
func (m Memory) String() string {
	switch m {
	case Dense:
		return "dense"
	case ISWA:
		return "iswa"
	case Recurrent:
		return "recurrent"
	case Hybrid:
		return "hybrid"
	case HybridISWA:
		return "hybrid-iswa"
	}
	return "unknown"
}

// Attention reports whether blobs have a base KV section, so that there are pages.
func (m Memory) Attention() bool { return m != Recurrent }

// Window reports whether blobs have a window KV section.
func (m Memory) Window() bool { return m == ISWA || m == HybridISWA }

// Recurrence reports whether blobs have a REC section.
func (m Memory) Recurrence() bool { return m == Recurrent || m == Hybrid || m == HybridISWA }

// Tensor is what one layer keeps per cell.
type Tensor struct {
	// Type is the element type.
	Type Type
	// Row is the number of bytes per cell.
	Row uint64
}

// KV is the layout of one KV section: the i-th layer of the section has keys
// K[i] and values V[i].
type KV struct {
	K, V []Tensor
}

// Schema is the layout of every blob of one context. It is immutable once
// learned and may be shared.
type Schema struct {
	// Memory decides the sections.
	Memory Memory
	// Base is the attention section, empty for Recurrent.
	Base KV
	// Window is the sliding-window section, empty without one.
	Window KV
	// WindowTokens is the model's window: a token attends to itself and to its
	// WindowTokens-1 predecessors.
	WindowTokens int
	// Trunk is the number of trunk layers the REC section states.
	Trunk uint32
	// R and S are the conv and SSM rows of the recurrent layers.
	R, S []Tensor
}

// bytes of a KV section with n cells.
func (k *KV) bytes(n int) int {
	if n == 0 {
		return kvCountBytes
	}
	b := kvCountBytes + n*kvCellBytes + layoutBytes + tensorHdrBytes*(len(k.K)+len(k.V))
	return b + n*k.perCell()
}

func (k *KV) perCell() int {
	b := 0
	for _, t := range k.K {
		b += int(t.Row)
	}
	for _, t := range k.V {
		b += int(t.Row)
	}
	return b
}

func (s *Schema) recBytes(cells int) int {
	b := recCountBytes + cells*recCellBytes + layoutBytes
	if cells == 0 {
		return b + tensorHdrBytes*(len(s.R)+len(s.S))
	}
	return b + rowBytes(s.R) + rowBytes(s.S)
}

// PageBytes is the exact size of a page of n tokens; 0 without attention.
func (s *Schema) PageBytes(n int) int {
	if n <= 0 || !s.Memory.Attention() {
		return 0
	}
	b := headerBytes + s.Base.bytes(n)
	if s.Memory.Window() {
		b += s.Window.bytes(0)
	}
	if s.Memory.Recurrence() {
		b += s.recBytes(0)
	}
	return b
}

// WindowCells is how many cells the window section may have after n tokens.
// The next token attends to its WindowTokens-1 predecessors, so llama.cpp
// always has those; the one before them it still writes, unless another
// sequence has been given its cell.
func (s *Schema) WindowCells(n int) (least, most int) {
	if !s.Memory.Window() {
		return 0, 0
	}
	return min(n, s.WindowTokens-1), min(n, s.WindowTokens)
}

// SnapshotBytes is the exact size of a snapshot with that many window cells; 0
// for Dense, whose pages are all its state.
func (s *Schema) SnapshotBytes(window int) int {
	if s.Memory == Dense {
		return 0
	}
	b := headerBytes
	if s.Memory.Window() {
		b += s.Window.bytes(window)
	}
	if s.Memory.Recurrence() {
		b += s.recBytes(1)
	}
	return b
}

// FullBytes is the exact size of the whole state of a sequence of n tokens, as
// llama.cpp writes it with flags 0, with that many window cells.
func (s *Schema) FullBytes(n, window int) int {
	b := headerBytes
	if s.Memory.Attention() {
		b += s.Base.bytes(n)
	}
	if s.Memory.Window() {
		b += s.Window.bytes(window)
	}
	if s.Memory.Recurrence() {
		b += s.recBytes(1)
	}
	return b
}

// Component is one component of a payload: all layers of one kind, with the
// framing that precedes them, at [Offset, Offset+Length).
type Component struct {
	Kind           state.Kind
	Offset, Length int
}

// Components lists the components of a snapshot with that many window cells, in
// payload order. They lie back to back and cover the payload: framing belongs
// to the component it precedes.
func (s *Schema) Components(window int) []Component {
	if s.Memory == Dense {
		return nil
	}
	var list []Component
	at, end := 0, headerBytes
	add := func(k state.Kind) {
		list = append(list, Component{k, at, end - at})
		at = end
	}
	if s.Memory.Window() {
		end += s.Window.bytes(window)
		add(state.WindowKV)
	}
	if s.Memory.Recurrence() {
		end += recCountBytes + recCellBytes + layoutBytes + rowBytes(s.R)
		add(state.Conv)
		end += rowBytes(s.S)
		add(state.Recurrent)
	}
	return list
}

// rowBytes is the bytes of one row of each tensor, headers included.
func rowBytes(list []Tensor) int {
	n := 0
	for _, t := range list {
		n += tensorHdrBytes + int(t.Row)
	}
	return n
}
