package blob

import (
	"encoding/binary"

	"github.com/tandem-llm/tandem/state"
)

// Shape is what must be known of a context to read its blobs for the first time.
type Shape struct {
	Memory Memory
	// Window is the model's window in tokens, 0 when it has none.
	Window int
	// NoValues is set when no attention layer keeps values: latent attention
	// caches one shared row, as the key.
	NoValues bool
}

// Learn reads the schema of a context from full, the whole blob (flags 0) of a
// sequence of at least one token of that context, fresh from llama.cpp.
//
// It accepts only layouts this package can check completely, and errors name
// what it found: a transposed V, cells with extra fields, tensor types without
// a finiteness check, or bytes left over, which mean that the memory type is
// another one.
func Learn(shape Shape, full []byte) (*Schema, error) {
	m := shape.Memory
	r := reader{b: full, noValues: shape.NoValues}
	s := &Schema{Memory: m}
	if r.u32() != Magic {
		return nil, fault(state.KindNone, -1, "bad magic")
	}
	r.u32() // sequence id
	var err error
	if m.Attention() {
		if s.Base, err = r.learnKV(state.AttentionKV); err != nil {
			return nil, err
		}
	}
	if m.Window() {
		if shape.Window < 2 {
			return nil, fault(state.WindowKV, -1, "a window of %d tokens", shape.Window)
		}
		s.WindowTokens = shape.Window
		if s.Window, err = r.learnKV(state.WindowKV); err != nil {
			return nil, err
		}
	}
	if m.Recurrence() {
		if err = r.learnREC(s); err != nil {
			return nil, err
		}
	}
	if r.short {
		return nil, fault(state.KindNone, -1, "truncated")
	}
	if len(r.b) != 0 {
		return nil, fault(state.KindNone, -1, "%d bytes after the last section: not a %v memory", len(r.b), m)
	}
	return s, nil
}

// reader takes little endian values off the front of b. After the first short
// read everything is zero and short is set.
type reader struct {
	b        []byte
	short    bool
	noValues bool
}

func (r *reader) take(n uint64) []byte {
	if r.short || n > uint64(len(r.b)) {
		r.short = true
		return nil
	}
	p := r.b[:n]
	r.b = r.b[n:]
	return p
}

func (r *reader) u32() uint32 {
	if p := r.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if p := r.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (r *reader) learnKV(kind state.Kind) (KV, error) {
	if n := r.u32(); n != 1 {
		return KV{}, fault(kind, -1, "n_stream is %d, a unified cache has 1", n)
	}
	cells := uint64(r.u32())
	if cells == 0 {
		return KV{}, fault(kind, -1, "no cells to learn from")
	}
	meta := r.take(cells * kvCellBytes) // cells < 2^32, no overflow
	for i := 0; i < len(meta); i += kvCellBytes {
		if n := binary.LittleEndian.Uint32(meta[i+4:]); n != 1 {
			return KV{}, fault(kind, -1, "cell with n_seq_id %d: cells with extra fields are not supported", n)
		}
	}
	if t := r.u32(); t != 0 {
		return KV{}, fault(kind, -1, "V is transposed: flash attention is off")
	}
	layers := r.u32()
	if layers == 0 || layers > maxLayers {
		return KV{}, fault(kind, -1, "%d layers", layers)
	}
	k, err := r.learnTensors(kind, layers, cells)
	if err != nil {
		return KV{}, err
	}
	if r.noValues {
		return KV{K: k}, nil
	}
	v, err := r.learnTensors(kind, layers, cells)
	return KV{K: k, V: v}, err
}

func (r *reader) learnREC(s *Schema) error {
	kind := state.Recurrent
	if n := r.u32(); n != 1 {
		return fault(kind, -1, "%d cells, expected 1", n)
	}
	r.u32() // position
	if n := r.u32(); n != 0 {
		return fault(kind, -1, "n_seq_id is %d, expected 0", n)
	}
	if n := r.u32(); n != 0 {
		return fault(kind, -1, "s_trans is %d, expected 0", n)
	}
	s.Trunk = r.u32()
	if s.Trunk == 0 || s.Trunk > maxLayers {
		return fault(kind, -1, "%d trunk layers", s.Trunk)
	}
	// The section does not state how many layers are recurrent. REC is the last
	// section, so everything up to the end is R rows and as many S rows.
	var all []Tensor
	for len(r.b) > 0 && !r.short && len(all) <= 2*int(s.Trunk) {
		t, err := r.learnTensors(kind, 1, 1)
		if err != nil {
			return err
		}
		all = append(all, t...)
	}
	half := len(all) / 2
	if half == 0 || 2*half != len(all) || half > int(s.Trunk) {
		return fault(kind, -1, "%d rows for %d trunk layers: models with further recurrent rows are not supported", len(all), s.Trunk)
	}
	s.R, s.S = all[:half:half], all[half:]
	return nil
}

func (r *reader) learnTensors(kind state.Kind, layers uint32, cells uint64) ([]Tensor, error) {
	// layers is bounded by maxLayers, so what is allocated is too.
	list := make([]Tensor, 0, layers)
	for i := range int(layers) {
		t := Tensor{Type: Type(int32(r.u32())), Row: r.u64()}
		switch {
		case r.short:
			return nil, fault(kind, i, "truncated")
		case !t.Type.Known():
			return nil, fault(kind, i, "tensor type %d: only f32, f16, bf16 and q8_0 state can be checked", int32(t.Type))
		case t.Row == 0 || t.Row > maxRow || t.Row%t.Type.grain() != 0:
			return nil, fault(kind, i, "row of %d bytes", t.Row)
		}
		r.take(cells * t.Row) // < 2^62
		if r.short {
			return nil, fault(kind, i, "truncated")
		}
		list = append(list, t)
	}
	return list, nil
}

// grain is the bytes that rows of a type come in.
func (t Type) grain() uint64 {
	switch t {
	case F32:
		return 4
	case Q8_0:
		return q8Block
	}
	return 2
}
