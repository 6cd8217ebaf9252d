package gguf

import "fmt"

// TensorType is the element type of a tensor, with ggml's numbers.
type TensorType uint32

// Tensor types that this package writes or that readers commonly ask about.
const (
	F32  TensorType = 0
	F16  TensorType = 1
	Q4_0 TensorType = 2
	Q8_0 TensorType = 8
	I32  TensorType = 26
	BF16 TensorType = 30
)

// blockType describes how ggml stores a type: Bytes hold Elems elements.
type blockType struct {
	name  string
	elems uint64
	bytes uint64
}

// tensorTypes lists the types of ggml as of llama.cpp v0.5.0. Types that were
// removed from ggml (4, 5, 31–33, 36–38) are absent and therefore refused.
var tensorTypes = map[TensorType]blockType{
	0:  {"F32", 1, 4},
	1:  {"F16", 1, 2},
	2:  {"Q4_0", 32, 18},
	3:  {"Q4_1", 32, 20},
	6:  {"Q5_0", 32, 22},
	7:  {"Q5_1", 32, 24},
	8:  {"Q8_0", 32, 34},
	9:  {"Q8_1", 32, 36},
	10: {"Q2_K", 256, 84},
	11: {"Q3_K", 256, 110},
	12: {"Q4_K", 256, 144},
	13: {"Q5_K", 256, 176},
	14: {"Q6_K", 256, 210},
	15: {"Q8_K", 256, 292},
	16: {"IQ2_XXS", 256, 66},
	17: {"IQ2_XS", 256, 74},
	18: {"IQ3_XXS", 256, 98},
	19: {"IQ1_S", 256, 50},
	20: {"IQ4_NL", 32, 18},
	21: {"IQ3_S", 256, 110},
	22: {"IQ2_S", 256, 82},
	23: {"IQ4_XS", 256, 136},
	24: {"I8", 1, 1},
	25: {"I16", 1, 2},
	26: {"I32", 1, 4},
	27: {"I64", 1, 8},
	28: {"F64", 1, 8},
	29: {"IQ1_M", 256, 56},
	30: {"BF16", 1, 2},
	34: {"TQ1_0", 256, 54},
	35: {"TQ2_0", 256, 66},
	39: {"MXFP4", 32, 17},
}

// String returns ggml's name of the type, such as "F16".
func (t TensorType) String() string {
	if b, ok := tensorTypes[t]; ok {
		return b.name
	}
	return fmt.Sprintf("tensor type %d", uint32(t))
}

// Known reports whether this package knows how the type is stored.
func (t TensorType) Known() bool {
	_, ok := tensorTypes[t]
	return ok
}

// RowBytes returns the bytes of elems consecutive elements. It reports false
// when the type is unknown or elems is not a whole number of its blocks.
func (t TensorType) RowBytes(elems uint64) (uint64, bool) {
	b, ok := tensorTypes[t]
	if !ok || elems%b.elems != 0 {
		return 0, false
	}
	blocks := elems / b.elems
	if blocks > (1<<63)/b.bytes {
		return 0, false
	}
	return blocks * b.bytes, true
}
