package blob

import "github.com/tandem-llm/tandem/state"

// Part names the tensor of a layer.
type Part uint8

// The tensors a layer may have.
const (
	Key  Part = iota + 1 // K rows
	Val                  // V rows
	Conv                 // conv rows
	SSM                  // SSM rows
)

// String is the short name of the part.
func (p Part) String() string {
	switch p {
	case Key:
		return "k"
	case Val:
		return "v"
	case Conv:
		return "conv"
	case SSM:
		return "ssm"
	}
	return "unknown"
}

// Region is the numbers of one tensor of one layer: they lie at
// [Offset, Offset+Length) of a payload.
type Region struct {
	Kind           state.Kind
	Part           Part
	Layer          int // index within the section
	Type           Type
	Offset, Length int
}

// PageRegions lists where the numbers of a page of n tokens lie, in payload
// order, for inspection and for tests that change them one by one.
func (s *Schema) PageRegions(n int) []Region {
	if n <= 0 || !s.Memory.Attention() {
		return nil
	}
	list, _ := kvRegions(nil, state.AttentionKV, &s.Base, headerBytes, n)
	return list
}

// SnapshotRegions lists where the numbers of a snapshot with that many window
// cells lie, in payload order.
func (s *Schema) SnapshotRegions(window int) []Region {
	if s.Memory == Dense {
		return nil
	}
	var list []Region
	at := headerBytes
	if s.Memory.Window() {
		list, at = kvRegions(list, state.WindowKV, &s.Window, at, window)
	}
	if s.Memory.Recurrence() {
		at += recCountBytes + recCellBytes + layoutBytes
		list, at = regions(list, state.Conv, Conv, s.R, at, 1)
		list, _ = regions(list, state.Recurrent, SSM, s.S, at, 1)
	}
	return list
}

func kvRegions(list []Region, kind state.Kind, kv *KV, at, n int) ([]Region, int) {
	if n == 0 {
		return list, at + kvCountBytes
	}
	at += kvCountBytes + n*kvCellBytes + layoutBytes
	list, at = regions(list, kind, Key, kv.K, at, n)
	return regions(list, kind, Val, kv.V, at, n)
}

func regions(list []Region, kind state.Kind, part Part, tensors []Tensor, at, cells int) ([]Region, int) {
	for i, t := range tensors {
		at += tensorHdrBytes
		size := cells * int(t.Row)
		list = append(list, Region{kind, part, i, t.Type, at, size})
		at += size
	}
	return list, at
}
