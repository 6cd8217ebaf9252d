package blob

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"github.com/tandem-llm/tandem/state"
)

// schemas has one small schema of each memory type, with every tensor type.
var schemas = map[string]*Schema{
	"dense": {Memory: Dense, Base: KV{
		K: []Tensor{{F16, 8}, {F16, 24}}, V: []Tensor{{F16, 8}, {F16, 8}},
	}},
	"dense-q8": {Memory: Dense, Base: KV{
		K: []Tensor{{Q8_0, 68}}, V: []Tensor{{Q8_0, 34}},
	}},
	"latent": {Memory: Dense, Base: KV{K: []Tensor{{F16, 8}, {F16, 8}}}},
	"iswa": {
		Memory: ISWA, WindowTokens: 4,
		Base:   KV{K: []Tensor{{BF16, 6}}, V: []Tensor{{BF16, 6}}},
		Window: KV{K: []Tensor{{BF16, 6}, {BF16, 6}}, V: []Tensor{{BF16, 10}, {BF16, 6}}},
	},
	"recurrent": {
		Memory: Recurrent, Trunk: 3,
		R: []Tensor{{F32, 12}, {F32, 12}, {F32, 12}}, S: []Tensor{{F32, 64}, {F32, 64}, {F32, 64}},
	},
	"hybrid": {
		Memory: Hybrid, Trunk: 5,
		Base: KV{K: []Tensor{{F32, 8}}, V: []Tensor{{F32, 8}}},
		R:    []Tensor{{F32, 12}, {F32, 12}}, S: []Tensor{{F32, 16}, {F32, 16}},
	},
	"hybrid-iswa": {
		Memory: HybridISWA, Trunk: 4, WindowTokens: 3,
		Base:   KV{K: []Tensor{{F16, 4}}, V: []Tensor{{F16, 4}}},
		Window: KV{K: []Tensor{{F16, 4}}, V: []Tensor{{F16, 4}}},
		R:      []Tensor{{F16, 4}}, S: []Tensor{{F32, 16}},
	},
}

func schemaNames() []string {
	var names []string
	for n := range schemas {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// writer makes blobs the way llama.cpp does. value gives the bytes of one row:
// they depend on what the row is, not on where it lies.
type writer struct {
	b   []byte
	seq int32
}

func (w *writer) u32(v uint32) { w.b = binary.LittleEndian.AppendUint32(w.b, v) }
func (w *writer) u64(v uint64) { w.b = binary.LittleEndian.AppendUint64(w.b, v) }

func row(t Tensor, kind state.Kind, part byte, layer int, pos int32) []byte {
	r := rand.New(rand.NewPCG(uint64(kind)<<40|uint64(part)<<32|uint64(layer), uint64(pos)))
	b := make([]byte, t.Row)
	for i := range b {
		b[i] = byte(r.IntN(0x3c)) // finite in every type
	}
	return b
}

func (w *writer) kv(kind state.Kind, kv *KV, cells []int32) {
	w.u32(1)
	w.u32(uint32(len(cells)))
	if len(cells) == 0 {
		return
	}
	for _, p := range cells {
		w.u32(uint32(p))
		w.u32(1)
		w.u32(uint32(w.seq))
	}
	w.u32(0)
	w.u32(uint32(len(kv.K)))
	for part, list := range [][]Tensor{kv.K, kv.V} {
		for i, t := range list {
			w.u32(uint32(t.Type))
			w.u64(t.Row)
			for _, p := range cells {
				w.b = append(w.b, row(t, kind, byte(part), i, p)...)
			}
		}
	}
}

func (w *writer) rec(s *Schema, cells []int32) {
	w.u32(uint32(len(cells)))
	for _, p := range cells {
		w.u32(uint32(p))
		w.u32(0)
	}
	w.u32(0)
	w.u32(s.Trunk)
	for part, list := range [][]Tensor{s.R, s.S} {
		for i, t := range list {
			w.u32(uint32(t.Type))
			w.u64(t.Row)
			for _, p := range cells {
				w.b = append(w.b, row(t, state.Recurrent, byte(part), i, p)...)
			}
		}
	}
}

func span(first, end int) []int32 {
	var p []int32
	for i := first; i < end; i++ {
		p = append(p, int32(i))
	}
	return p
}

// page as llama.cpp writes it for slot seq; order permutes the cells.
func page(s *Schema, seq int32, cells []int32) []byte {
	w := &writer{seq: seq}
	w.u32(Magic)
	w.u32(uint32(seq))
	w.kv(state.AttentionKV, &s.Base, cells)
	if s.Memory.Window() {
		w.kv(state.WindowKV, &s.Window, nil)
	}
	if s.Memory.Recurrence() {
		w.rec(s, nil)
	}
	return w.b
}

func snapshot(s *Schema, seq int32, tokens int, window []int32) []byte {
	w := &writer{seq: seq}
	w.u32(Magic)
	w.u32(uint32(seq))
	if s.Memory.Window() {
		w.kv(state.WindowKV, &s.Window, window)
	}
	if s.Memory.Recurrence() {
		w.rec(s, []int32{int32(tokens - 1)})
	}
	return w.b
}

func full(s *Schema, seq int32, cells, window []int32) []byte {
	w := &writer{seq: seq}
	w.u32(Magic)
	w.u32(uint32(seq))
	if s.Memory.Attention() {
		w.kv(state.AttentionKV, &s.Base, cells)
	}
	if s.Memory.Window() {
		w.kv(state.WindowKV, &s.Window, window)
	}
	if s.Memory.Recurrence() {
		w.rec(s, []int32{int32(len(cells) - 1)})
	}
	return w.b
}

func shuffled(r *rand.Rand, p []int32) []int32 {
	p = slices.Clone(p)
	r.Shuffle(len(p), func(i, j int) { p[i], p[j] = p[j], p[i] })
	return p
}
