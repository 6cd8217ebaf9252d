package gguf

import (
	"fmt"
	"math"
	"slices"
)

// File is the parsed head of a GGUF file. It is immutable and safe for
// concurrent use.
type File struct {
	// Version is the format version, 2 or 3.
	Version uint32
	// Pairs are the metadata pairs in file order. Keys are unique.
	Pairs []Pair
	// Tensors are the tensor descriptions in file order. Names are unique.
	Tensors []Tensor
	// Alignment is the alignment of tensor data in bytes, a power of two.
	Alignment uint64
	// DataOffset is where tensor data starts, in bytes from the file's start.
	DataOffset int64
	// Size is the size of the whole file in bytes.
	Size int64

	index map[string]int
	names map[string]int
}

// Pair is one metadata entry.
type Pair struct {
	Key   string
	Value Value
}

// Tensor describes one tensor. Its data is not read.
type Tensor struct {
	Name string
	Type TensorType
	// Dims are the sizes, the fastest varying first; one to four of them, none
	// zero.
	Dims []uint64
	// Offset is where the data starts, in bytes from [File.DataOffset].
	Offset uint64
	// Bytes is the length of the data.
	Bytes uint64
}

// Elements returns the number of elements.
func (t *Tensor) Elements() uint64 {
	n := uint64(1)
	for _, d := range t.Dims {
		n *= d
	}
	return n
}

// Value returns the metadata value of a key, and whether the key is present.
func (f *File) Value(key string) (Value, bool) {
	i, ok := f.index[key]
	if !ok {
		return Value{}, false
	}
	return f.Pairs[i].Value, true
}

// Has reports whether a metadata key is present.
func (f *File) Has(key string) bool {
	_, ok := f.index[key]
	return ok
}

// Tensor returns the description of a tensor, or nil.
func (f *File) Tensor(name string) *Tensor {
	i, ok := f.names[name]
	if !ok {
		return nil
	}
	return &f.Tensors[i]
}

func get[T any](f *File, key, want string, as func(Value) (T, bool)) (T, error) {
	v, ok := f.Value(key)
	if !ok {
		var zero T
		return zero, fmt.Errorf("gguf: %w: %q", ErrMissingKey, key)
	}
	x, ok := as(v)
	if !ok {
		return x, fmt.Errorf("gguf: key %q: %w: %s, want %s", key, ErrKeyType, v.describe(), want)
	}
	return x, nil
}

// Uint returns a value that is a non-negative integer of any width. The error is
// ErrMissingKey or ErrKeyType.
func (f *File) Uint(key string) (uint64, error) {
	return get(f, key, "a non-negative integer", Value.Uint)
}

// Float returns a value that is a number.
func (f *File) Float(key string) (float64, error) { return get(f, key, "a number", Value.Float) }

// Bool returns a truth value.
func (f *File) Bool(key string) (bool, error) { return get(f, key, "bool", Value.Bool) }

// Text returns a string.
func (f *File) Text(key string) (string, error) { return get(f, key, "string", Value.Text) }

// Strings returns an array of strings. The caller must not change it.
func (f *File) Strings(key string) ([]string, error) {
	return get(f, key, "an array of strings", Value.Strings)
}

// Uints returns an array of non-negative integers or of truth values (0 and 1)
// of any width.
func (f *File) Uints(key string) ([]uint64, error) {
	return get(f, key, "an array of non-negative integers", Value.Uints)
}

// Value is one metadata value. The zero value is a uint8 zero.
type Value struct {
	typ  Type
	elem Type     // of an array
	bits uint64   // of a number or bool
	text string   // of a string
	strs []string // of an array of strings
	raw  []byte   // of an array of numbers, little endian
}

// Type returns the value's type.
func (v Value) Type() Type { return v.typ }

// Elem returns the type of an array's elements, and whether v is an array.
func (v Value) Elem() (Type, bool) { return v.elem, v.typ == TypeArray }

// Len returns the number of an array's elements, and 0 for other values.
func (v Value) Len() int {
	if v.typ != TypeArray {
		return 0
	}
	if v.elem == TypeString {
		return len(v.strs)
	}
	return len(v.raw) / v.elem.size()
}

func (v Value) describe() string {
	if v.typ == TypeArray {
		return fmt.Sprintf("an array of %d %s", v.Len(), v.elem)
	}
	return v.typ.String()
}

func signExtend(t Type, bits uint64) int64 {
	shift := 64 - 8*t.size()
	return int64(bits<<shift) >> shift
}

// uintOf reads integer bits of type t, and reports false for negative numbers
// and other types.
func uintOf(t Type, bits uint64) (uint64, bool) {
	switch t {
	case TypeUint8, TypeUint16, TypeUint32, TypeUint64:
		return bits, true
	case TypeInt8, TypeInt16, TypeInt32, TypeInt64:
		n := signExtend(t, bits)
		return uint64(n), n >= 0
	}
	return 0, false
}

// Uint returns a non-negative integer.
func (v Value) Uint() (uint64, bool) { return uintOf(v.typ, v.bits) }

// Float returns a number of any type.
func (v Value) Float() (float64, bool) {
	switch v.typ {
	case TypeFloat32:
		return float64(math.Float32frombits(uint32(v.bits))), true
	case TypeFloat64:
		return math.Float64frombits(v.bits), true
	case TypeUint8, TypeUint16, TypeUint32, TypeUint64:
		return float64(v.bits), true
	case TypeInt8, TypeInt16, TypeInt32, TypeInt64:
		return float64(signExtend(v.typ, v.bits)), true
	}
	return 0, false
}

// Bool returns a truth value.
func (v Value) Bool() (bool, bool) { return v.bits != 0, v.typ == TypeBool }

// Text returns a string.
func (v Value) Text() (string, bool) { return v.text, v.typ == TypeString }

// Strings returns an array of strings, shared with v.
func (v Value) Strings() ([]string, bool) {
	return v.strs, v.typ == TypeArray && v.elem == TypeString
}

// Uints returns a new slice of an array's elements when they are all
// non-negative integers or truth values.
func (v Value) Uints() ([]uint64, bool) {
	if v.typ != TypeArray || v.elem == TypeString {
		return nil, false
	}
	n := v.elem.size()
	out := make([]uint64, 0, len(v.raw)/n)
	for c := range slices.Chunk(v.raw, n) {
		bits := littleEndian(c)
		x, ok := uintOf(v.elem, bits)
		if v.elem == TypeBool {
			x, ok = bits, true
		}
		if !ok {
			return nil, false
		}
		out = append(out, x)
	}
	return out, true
}

// Append appends the value's encoding as it stands in a file, type included, to
// b. Equal encodings are equal values.
func (v Value) Append(b []byte) []byte {
	b = appendLE(b, uint64(v.typ), 4)
	switch v.typ {
	case TypeString:
		return appendString(b, v.text)
	case TypeArray:
		b = appendLE(b, uint64(v.elem), 4)
		b = appendLE(b, uint64(v.Len()), 8)
		for _, s := range v.strs {
			b = appendString(b, s)
		}
		return append(b, v.raw...)
	}
	return appendLE(b, v.bits, v.typ.size())
}

func littleEndian(b []byte) uint64 {
	var x uint64
	for i, c := range b {
		x |= uint64(c) << (8 * i)
	}
	return x
}

func appendLE(b []byte, x uint64, n int) []byte {
	for i := range n {
		b = append(b, byte(x>>(8*i)))
	}
	return b
}
