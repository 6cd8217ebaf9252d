package gguf

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
)

// Writer collects metadata and tensors and writes them as one GGUF file, in
// the order in which they were added. The zero value is ready to use. Methods
// that add do not fail; the first mistake (a key or name given twice, data
// that does not fit its shape) is reported when the file is written. A Writer
// is not safe for concurrent use.
type Writer struct {
	pairs   []pair
	tensors []writerTensor
	names   map[string]bool
	err     error
}

type pair struct {
	key   string
	typ   Type
	value []byte // encoded, without the type
}

type writerTensor struct {
	name string
	typ  TensorType
	dims []uint64
	data []byte
}

func (w *Writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("gguf: "+format, args...)
	}
}

// claim records that name is used, in one of the two name spaces.
func (w *Writer) claim(space, name string) {
	if w.names == nil {
		w.names = make(map[string]bool)
	}
	if w.names[space+name] {
		w.fail("%s %q is written twice", space, name)
	}
	w.names[space+name] = true
}

func (w *Writer) add(key string, t Type, value []byte) {
	w.claim("key", key)
	w.pairs = append(w.pairs, pair{key, t, value})
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

// Uint32 adds an unsigned integer.
func (w *Writer) Uint32(key string, v uint32) {
	w.add(key, TypeUint32, binary.LittleEndian.AppendUint32(nil, v))
}

// Uint64 adds a 64-bit unsigned integer.
func (w *Writer) Uint64(key string, v uint64) {
	w.add(key, TypeUint64, binary.LittleEndian.AppendUint64(nil, v))
}

// Float32 adds a number.
func (w *Writer) Float32(key string, v float32) {
	w.add(key, TypeFloat32, binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)))
}

// Bool adds a truth value.
func (w *Writer) Bool(key string, v bool) {
	b := byte(0)
	if v {
		b = 1
	}
	w.add(key, TypeBool, []byte{b})
}

// String adds a string.
func (w *Writer) String(key, v string) {
	w.add(key, TypeString, appendString(nil, v))
}

func arrayHeader(t Type, n int) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(t))
	return binary.LittleEndian.AppendUint64(b, uint64(n))
}

// Strings adds an array of strings.
func (w *Writer) Strings(key string, vs []string) {
	b := arrayHeader(TypeString, len(vs))
	for _, v := range vs {
		b = appendString(b, v)
	}
	w.add(key, TypeArray, b)
}

// Int32s adds an array of integers.
func (w *Writer) Int32s(key string, vs []int32) {
	b := arrayHeader(TypeInt32, len(vs))
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	w.add(key, TypeArray, b)
}

// Uint32s adds an array of unsigned integers.
func (w *Writer) Uint32s(key string, vs []uint32) {
	b := arrayHeader(TypeUint32, len(vs))
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	w.add(key, TypeArray, b)
}

// Tensor adds a tensor. dims lists the sizes, the fastest varying first (for a
// matrix: input width, then output width); data holds the elements in that
// order, encoded as t says, and is kept, not copied.
func (w *Writer) Tensor(name string, t TensorType, dims []uint64, data []byte) {
	w.claim("tensor", name)
	want := uint64(1)
	for i, d := range dims {
		if i == 0 {
			row, ok := t.RowBytes(d)
			if !ok {
				w.fail("tensor %q: %d elements do not make a row of %s", name, d, t)
			}
			want = row
			continue
		}
		want *= d
	}
	if want != uint64(len(data)) {
		w.fail("tensor %q: %d bytes of data for a shape of %d", name, len(data), want)
	}
	w.tensors = append(w.tensors, writerTensor{name, t, dims, data})
}

// Float32Tensor adds a tensor of type F32.
func (w *Writer) Float32Tensor(name string, dims []uint64, v []float32) {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	w.Tensor(name, F32, dims, b)
}

// Float16Tensor adds a tensor of type F16, rounding each value to nearest even.
func (w *Writer) Float16Tensor(name string, dims []uint64, v []float32) {
	b := make([]byte, 0, 2*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint16(b, Float16(x))
	}
	w.Tensor(name, F16, dims, b)
}

// WriteTo writes the file to dst and returns how many bytes it wrote. It
// implements [io.WriterTo].
func (w *Writer) WriteTo(dst io.Writer) (int64, error) {
	if w.err != nil {
		return 0, w.err
	}
	head := append([]byte(nil), magic...)
	head = binary.LittleEndian.AppendUint32(head, Version)
	head = binary.LittleEndian.AppendUint64(head, uint64(len(w.tensors)))
	head = binary.LittleEndian.AppendUint64(head, uint64(len(w.pairs)))
	for _, p := range w.pairs {
		head = appendString(head, p.key)
		head = binary.LittleEndian.AppendUint32(head, uint32(p.typ))
		head = append(head, p.value...)
	}
	offset := uint64(0)
	for _, t := range w.tensors {
		head = appendString(head, t.name)
		head = binary.LittleEndian.AppendUint32(head, uint32(len(t.dims)))
		for _, d := range t.dims {
			head = binary.LittleEndian.AppendUint64(head, d)
		}
		head = binary.LittleEndian.AppendUint32(head, uint32(t.typ))
		head = binary.LittleEndian.AppendUint64(head, offset)
		offset += align(uint64(len(t.data)), DefaultAlignment)
	}
	var written int64
	put := func(b []byte) error {
		n, err := dst.Write(b)
		written += int64(n)
		if err == nil {
			pad := align(uint64(written), DefaultAlignment) - uint64(written)
			n, err = dst.Write(make([]byte, pad))
			written += int64(n)
		}
		return err
	}
	if err := put(head); err != nil {
		return written, fmt.Errorf("gguf: write header: %w", err)
	}
	for _, t := range w.tensors {
		if err := put(t.data); err != nil {
			return written, fmt.Errorf("gguf: write tensor %q: %w", t.name, err)
		}
	}
	return written, nil
}

// WriteFile writes the file to path: to a temporary file beside it first,
// flushed to disk, then renamed, so that path is at every moment absent, the
// old file or the whole new one, and processes that have the old one mapped
// keep it.
func (w *Writer) WriteFile(path string) (err error) {
	if w.err != nil {
		return w.err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("gguf: create a file beside %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	buf := bufio.NewWriterSize(f, 1<<20)
	if _, err = w.WriteTo(buf); err != nil {
		return err
	}
	if err = buf.Flush(); err != nil {
		return fmt.Errorf("gguf: write %s: %w", path, err)
	}
	if err = f.Chmod(0o644); err != nil {
		return fmt.Errorf("gguf: write %s: %w", path, err)
	}
	if err = f.Sync(); err != nil {
		return fmt.Errorf("gguf: write %s: %w", path, err)
	}
	if err = f.Close(); err != nil {
		return fmt.Errorf("gguf: write %s: %w", path, err)
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("gguf: write %s: %w", path, err)
	}
	return nil
}

func align(n, a uint64) uint64 { return (n + a - 1) / a * a }
