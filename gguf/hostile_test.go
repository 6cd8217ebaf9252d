package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// raw builds files that Writer would not.
type raw []byte

func (b raw) u32(v uint32) raw { return binary.LittleEndian.AppendUint32(b, v) }
func (b raw) u64(v uint64) raw { return binary.LittleEndian.AppendUint64(b, v) }
func (b raw) str(s string) raw { return appendString(b, s) }
func (b raw) pad(n int) raw    { return append(b, make([]byte, n)...) }

func header(version uint32, tensors, pairs uint64) raw {
	return raw(magic).u32(version).u64(tensors).u64(pairs)
}

// tensorHead is a tensor description, F32 of one dimension.
func (b raw) tensor(name string, dim uint64, t TensorType, offset uint64) raw {
	return b.str(name).u32(1).u64(dim).u32(uint32(t)).u64(offset)
}

func TestHostileFiles(t *testing.T) {
	const huge = 1 << 63
	for _, c := range []struct {
		name   string
		file   raw
		reason error
		says   string
	}{
		{"empty", nil, ErrTruncated, "header at byte 0"},
		{"three bytes", raw("GGU"), ErrTruncated, "header"},
		{"another format", raw("PK\x03\x04").pad(64), ErrMagic, `50 4b 03 04, want "GGUF"`},
		{"version 1", header(1, 0, 0), ErrVersion, "1, this build reads 2 and 3"},
		{"version 4", header(4, 0, 0), ErrVersion, "4"},
		{"version 0", header(0, 0, 0), ErrVersion, "0"},
		{"big endian", header(3<<24, 0, 0), ErrBigEndian, ""},
		{"2⁶³ tensors", header(3, huge, 0).pad(99), ErrTruncated, "9223372036854775808 tensors"},
		{"2⁶³ pairs", header(3, 0, huge).pad(99), ErrTruncated, "9223372036854775808 metadata pairs"},
		{"all ones", header(3, ^uint64(0), ^uint64(0)).pad(99), ErrTruncated, "tensors"},
		{"key of 2⁶³ bytes", header(3, 0, 1).u64(huge).pad(99), ErrTruncated, "metadata pair 0"},
		{"string of 2⁶³ bytes", header(3, 0, 1).str("k").u32(8).u64(huge).pad(99), ErrTruncated, `key "k"`},
		{"string one byte beyond the end", header(3, 0, 1).str("k").u32(8).u64(5).pad(4), ErrTruncated, "string of 5 bytes declared, 4 left"},
		{"array of 2⁶³ numbers", header(3, 0, 1).str("k").u32(9).u32(4).u64(huge).pad(99), ErrTruncated, "9223372036854775808 elements"},
		{"array whose size overflows", header(3, 0, 1).str("k").u32(9).u32(10).u64(1<<61 + 1).pad(99), ErrTruncated, "elements"},
		{"array of 2⁶³ strings", header(3, 0, 1).str("k").u32(9).u32(8).u64(huge).pad(99), ErrTruncated, "strings"},
		{"array of arrays", header(3, 0, 1).str("k").u32(9).u32(9).u64(1).pad(99), ErrMalformed, "an array of array"},
		{"array of an unknown type", header(3, 0, 1).str("k").u32(9).u32(99).u64(1).pad(99), ErrMalformed, "type(99)"},
		{"unknown type", header(3, 0, 1).str("k").u32(13).pad(99), ErrMalformed, "type(13) does not exist"},
		{"bool of 2", append(header(3, 0, 1).str("k").u32(7), 2, 0, 0), ErrMalformed, "bool of value 2"},
		{"array with a bool of 2", append(header(3, 0, 1).str("k").u32(9).u32(7).u64(2), 1, 2), ErrMalformed, "bool of value 2"},
		{"key twice", header(3, 0, 2).str("k").u32(4).u32(1).str("k").u32(4).u32(1), ErrMalformed, `key "k" at byte`},
		{"alignment 0", header(3, 0, 1).str(KeyAlignment).u32(4).u32(0), ErrMalformed, "power of two"},
		{"alignment 24", header(3, 0, 1).str(KeyAlignment).u32(4).u32(24), ErrMalformed, "24, want a power of two"},
		{"alignment 2³¹", header(3, 0, 1).str(KeyAlignment).u32(4).u32(1 << 31), ErrMalformed, "power of two"},
		{"alignment as text", header(3, 0, 1).str(KeyAlignment).u32(8).str("32"), ErrMalformed, "string, want uint32"},
		{"tensor name of 64 bytes", header(3, 1, 0).tensor(strings.Repeat("n", 64), 1, F32, 0).pad(64), ErrLimit, "name of 64 bytes"},
		{"tensor twice", header(3, 2, 0).tensor("t", 1, F32, 0).tensor("t", 1, F32, 32).pad(99), ErrMalformed, "appears twice"},
		{"no dimension", header(3, 1, 0).str("t").u32(0).u32(0).u64(0).pad(64), ErrMalformed, "0 dimensions"},
		{"2³² − 1 dimensions", header(3, 1, 0).str("t").u32(1<<32 - 1).pad(64), ErrMalformed, "4294967295 dimensions"},
		{"dimension 0", header(3, 1, 0).tensor("t", 0, F32, 0).pad(64), ErrMalformed, "shape [0]"},
		{"dimension 2⁶³", header(3, 1, 0).tensor("t", huge, F32, 0).pad(64), ErrMalformed, "shape"},
		{"shape whose size overflows", header(3, 1, 0).str("t").u32(4).u64(1 << 20).u64(1 << 20).u64(1 << 20).u64(1 << 20).u32(0).u64(0).pad(64), ErrMalformed, "shape"},
		{"part of a block", header(3, 1, 0).tensor("t", 31, Q8_0, 0).pad(64), ErrMalformed, "not possible for Q8_0"},
		{"unknown tensor type", header(3, 1, 0).tensor("t", 32, 4, 0).pad(64), ErrTensorType, "4"},
		{"offset not aligned", header(3, 1, 0).tensor("t", 1, F32, 4).pad(64), ErrMalformed, "not a multiple of the alignment 32"},
		{"offset 2⁶³", header(3, 1, 0).tensor("t", 1, F32, huge).pad(64), ErrMalformed, "gap"},
		{"gap", header(3, 1, 0).tensor("t", 1, F32, 32).pad(99), ErrMalformed, "expected 0"},
		{"overlap", header(3, 2, 0).tensor("a", 16, F32, 0).tensor("b", 1, F32, 32).pad(256), ErrMalformed, `tensor "b" at byte`},
		{"same place", header(3, 2, 0).tensor("a", 1, F32, 0).tensor("b", 1, F32, 0).pad(99), ErrMalformed, "overlaps"},
		{"data beyond the end", header(3, 1, 0).tensor("t", 100, F32, 0).pad(64), ErrTruncated, "download or copy it again"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := parse(c.file, Limits{})
			if f != nil || !errors.Is(err, c.reason) {
				t.Fatalf("file %v, error %v, want %v", f != nil, err, c.reason)
			}
			var typed *Error
			if !errors.As(err, &typed) {
				t.Fatalf("error of type %T", err)
			}
			if !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "gguf: ") {
				t.Errorf("error %q does not say %q", err, c.says)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	b := encode(t, sample())
	for name, lim := range map[string]Limits{
		"pairs": {Pairs: 3}, "tensors": {Tensors: 2}, "name": {Name: 2}, "string": {String: 2}, "memory": {Memory: 500},
	} {
		if _, err := parse(b, lim); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v, want ErrLimit", name, err)
		}
	}
}

// A file cut anywhere is refused, and never as anything but too short.
func TestTruncatedAnywhere(t *testing.T) {
	b := encode(t, sample())
	f, err := parse(b, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	last := f.Tensors[len(f.Tensors)-1]
	needed := int(f.DataOffset) + int(last.Offset+last.Bytes)
	for n := range b {
		_, err := parse(b[:n], Limits{})
		if n >= needed {
			if err != nil {
				t.Errorf("without %d bytes of final padding: %v", len(b)-n, err)
			}
			continue
		}
		if !errors.Is(err, ErrTruncated) {
			t.Errorf("cut to %d of %d bytes: %v, want ErrTruncated", n, len(b), err)
		}
		// The same when the file shrinks while it is read.
		if n < int(f.DataOffset)-DefaultAlignment {
			if _, err := Read(bytes.NewReader(b[:n]), int64(len(b)), Limits{}); !errors.Is(err, ErrTruncated) {
				t.Errorf("cut to %d bytes behind the size's back: %v", n, err)
			}
		}
	}
}

// Reading takes memory in proportion to the limits, whatever a file declares and
// however long it is.
func TestMemoryIsBounded(t *testing.T) {
	const limit = 1 << 20
	long := func(head raw) *bytes.Reader { return bytes.NewReader(append(head, make([]byte, 16<<20)...)) }
	for name, head := range map[string]raw{
		"string":           header(3, 0, 1).str("k").u32(8).u64(12 << 20),
		"array of numbers": header(3, 0, 1).str("k").u32(9).u32(10).u64(1 << 20),
		"array of strings": header(3, 0, 1).str("k").u32(9).u32(8).u64(1 << 20),
		"pairs":            header(3, 0, 1<<16),
	} {
		r := long(head)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Read(r, r.Size(), Limits{Memory: limit})
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 8*limit {
			t.Errorf("%s: %d bytes were allocated for a limit of %d", name, used, limit)
		}
	}
}

// Names from a file are quoted and cut: an error is one line of bounded length.
func TestErrorsAreOneLine(t *testing.T) {
	b := header(3, 0, 1).str(strings.Repeat("line\nbreak\x1b[31m", 100)).u32(99).pad(64)
	_, err := parse(b, Limits{})
	if s := fmt.Sprint(err); err == nil || strings.ContainsAny(s, "\n\x1b") || len(s) > 400 {
		t.Errorf("error %q", s)
	}
}

// FuzzRead looks for panics, hangs, and files that are accepted although a
// tensor lies outside them.
func FuzzRead(f *testing.F) {
	f.Add(encode(f, sample()))
	f.Add([]byte(header(3, 1, 1).str("k").u32(9).u32(8).u64(1).str("v").tensor("t", 8, F32, 0).pad(128)))
	f.Add([]byte(header(2, 0, 2).str(KeyAlignment).u32(4).u32(64).str("b").u32(9).u32(7).u64(1).pad(9)))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := parse(b, Limits{Memory: 1 << 20})
		if err != nil {
			var typed *Error
			if !errors.As(err, &typed) {
				t.Fatalf("untyped error %v", err)
			}
			if typed.Offset < 0 || typed.Offset > int64(len(b)) {
				t.Fatalf("offset %d in %d bytes", typed.Offset, len(b))
			}
			return
		}
		next := uint64(0)
		for _, tensor := range file.Tensors {
			end := uint64(file.DataOffset) + tensor.Offset + tensor.Bytes
			if end > uint64(len(b)) || tensor.Offset < next || tensor.Bytes == 0 {
				t.Fatalf("tensor %+v in %d bytes, data at %d", tensor, len(b), file.DataOffset)
			}
			next = tensor.Offset + tensor.Bytes
		}
		for _, p := range file.Pairs {
			if v, ok := file.Value(p.Key); !ok || !bytes.Equal(v.Append(nil), p.Value.Append(nil)) {
				t.Fatalf("key %q is not found", p.Key)
			}
			p.Value.Uint()
			p.Value.Float()
			p.Value.Uints()
		}
	})
}
