// Package gguf reads and writes GGUF files, the single-file model format of
// llama.cpp.
//
// A GGUF file is a header, a list of typed metadata key/value pairs, a list of
// tensor descriptions, and the tensors' bytes, everything little endian:
//
//	"GGUF" | u32 version | u64 tensors | u64 pairs
//	pairs:   string key | u32 type | value
//	tensors: string name | u32 dims | u64 × dims | u32 type | u64 offset
//	padding to general.alignment (32 when the key is absent)
//	data:    each tensor at its offset from here
//
// [Open] parses everything but the tensors' bytes. The file is treated as
// hostile: every count and length is checked against what is left of the file
// and against [Limits] before memory is allocated for it, and a malformed file
// is refused with an [*Error] that says what is wrong, at which key or tensor
// and at which byte. Tensor data is never read, only checked to lie inside the
// file, aligned and without overlap.
//
// [Writer] builds version 3 files. It writes to a temporary file and renames:
// llama.cpp maps model files into memory, and rewriting a mapped file in place
// would change or kill every process that has it open.
package gguf

import "fmt"

// Version is the format version that [Writer] writes.
const Version = 3

// DefaultAlignment is the alignment of tensor data, in bytes, of a file that
// does not carry [KeyAlignment].
const DefaultAlignment = 32

// KeyAlignment is the metadata key (uint32) that sets the alignment of tensor
// data.
const KeyAlignment = "general.alignment"

const magic = "GGUF"

// Type is the type of a metadata value.
type Type uint32

// Metadata value types, with the numbers of the format.
const (
	TypeUint8   Type = 0
	TypeInt8    Type = 1
	TypeUint16  Type = 2
	TypeInt16   Type = 3
	TypeUint32  Type = 4
	TypeInt32   Type = 5
	TypeFloat32 Type = 6
	TypeBool    Type = 7
	TypeString  Type = 8
	TypeArray   Type = 9
	TypeUint64  Type = 10
	TypeInt64   Type = 11
	TypeFloat64 Type = 12
)

var typeNames = [...]string{
	"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32",
	"bool", "string", "array", "uint64", "int64", "float64",
}

// String returns the type's name, such as "uint32".
func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("type(%d)", uint32(t))
}

// size returns the encoded size in bytes of a scalar of type t, and 0 for
// strings, arrays and unknown types.
func (t Type) size() int {
	switch t {
	case TypeUint8, TypeInt8, TypeBool:
		return 1
	case TypeUint16, TypeInt16:
		return 2
	case TypeUint32, TypeInt32, TypeFloat32:
		return 4
	case TypeUint64, TypeInt64, TypeFloat64:
		return 8
	}
	return 0
}
