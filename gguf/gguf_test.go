package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sample is a small file with a value of every type that Writer knows.
func sample() *Writer {
	w := &Writer{}
	w.String("general.architecture", "llama")
	w.Uint32("u32", 7)
	w.Uint64("u64", 1<<40)
	w.Float32("f32", 0.5)
	w.Bool("yes", true)
	w.Strings("words", []string{"a", "", "ccc"})
	w.Int32s("ints", []int32{-1, 2})
	w.Uint32s("uints", []uint32{3, 4, 5})
	w.Float32Tensor("a", []uint64{3, 2}, []float32{1, 2, 3, 4, 5, 6})
	w.Float16Tensor("b", []uint64{2}, []float32{1, -2})
	w.Tensor("c", Q8_0, []uint64{32, 2}, make([]byte, 68))
	return w
}

func encode(t testing.TB, w *Writer) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := w.WriteTo(&b)
	if err != nil {
		t.Fatal(err)
	}
	if n != int64(b.Len()) {
		t.Fatalf("WriteTo says %d bytes, wrote %d", n, b.Len())
	}
	return b.Bytes()
}

func parse(b []byte, lim Limits) (*File, error) {
	return Read(bytes.NewReader(b), int64(len(b)), lim)
}

func TestRoundTrip(t *testing.T) {
	b := encode(t, sample())
	f, err := parse(b, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	type facts struct {
		Arch         string
		U32, U64     uint64
		F32          float64
		Yes          bool
		Words        []string
		Uints        []uint64
		Align        uint64
		Tensors      []Tensor
		Version      uint32
		IntsAreUints bool
	}
	var got facts
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	got.Arch, err = f.Text("general.architecture")
	must(err)
	got.U32, err = f.Uint("u32")
	must(err)
	got.U64, err = f.Uint("u64")
	must(err)
	got.F32, err = f.Float("f32")
	must(err)
	got.Yes, err = f.Bool("yes")
	must(err)
	got.Words, err = f.Strings("words")
	must(err)
	got.Uints, err = f.Uints("uints")
	must(err)
	_, err = f.Uints("ints")
	got.IntsAreUints = err == nil
	got.Align, got.Tensors, got.Version = f.Alignment, f.Tensors, f.Version
	want := facts{
		Arch: "llama", U32: 7, U64: 1 << 40, F32: 0.5, Yes: true,
		Words: []string{"a", "", "ccc"}, Uints: []uint64{3, 4, 5}, Align: 32, Version: 3,
		Tensors: []Tensor{
			{"a", F32, []uint64{3, 2}, 0, 24},
			{"b", F16, []uint64{2}, 32, 4},
			{"c", Q8_0, []uint64{32, 2}, 64, 68},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got := f.Tensor("c").Elements(); got != 64 {
		t.Errorf("tensor c has %d elements, want 64", got)
	}
	data := b[f.DataOffset:]
	if got := math.Float32frombits(binary.LittleEndian.Uint32(data[20:])); got != 6 {
		t.Errorf("the last element of a is %v, want 6", got)
	}
	if got := binary.LittleEndian.Uint16(data[34:]); got != 0xc000 {
		t.Errorf("the last element of b is %#x, want half-precision −2", got)
	}
}

// Value.Append must give back what stands in the file, so that digests of values
// are digests of the file's own bytes.
func TestAppendReencodes(t *testing.T) {
	w := sample()
	f, err := parse(encode(t, w), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range f.Pairs {
		want := append(binary.LittleEndian.AppendUint32(nil, uint32(w.pairs[i].typ)), w.pairs[i].value...)
		if got := p.Value.Append(nil); !bytes.Equal(got, want) {
			t.Errorf("%s: % x, want % x", p.Key, got, want)
		}
	}
}

func TestTypedAccess(t *testing.T) {
	f, err := parse(encode(t, sample()), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Uint("nothing"); !errors.Is(err, ErrMissingKey) || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("missing key: %v", err)
	}
	for _, key := range []string{"general.architecture", "f32", "yes", "words"} {
		if _, err := f.Uint(key); !errors.Is(err, ErrKeyType) || !strings.Contains(err.Error(), key) {
			t.Errorf("Uint of %s: %v", key, err)
		}
	}
	if _, err := f.Strings("ints"); !errors.Is(err, ErrKeyType) {
		t.Errorf("Strings of ints: %v", err)
	}
	if _, err := f.Text("words"); !errors.Is(err, ErrKeyType) {
		t.Errorf("Text of words: %v", err)
	}
}

func TestWriterRefuses(t *testing.T) {
	for name, add := range map[string]func(w *Writer){
		"key twice": func(w *Writer) { w.Bool("k", true); w.Bool("k", true) },
		"tensor twice": func(w *Writer) {
			w.Tensor("t", F32, []uint64{1}, make([]byte, 4))
			w.Tensor("t", F32, []uint64{1}, make([]byte, 4))
		},
		"data too short":  func(w *Writer) { w.Tensor("t", F32, []uint64{2}, make([]byte, 4)) },
		"part of a block": func(w *Writer) { w.Tensor("t", Q8_0, []uint64{33}, make([]byte, 34)) },
	} {
		w := &Writer{}
		add(w)
		if _, err := w.WriteTo(&bytes.Buffer{}); err == nil {
			t.Errorf("%s: written", name)
		}
		path := filepath.Join(t.TempDir(), "f.gguf")
		if err := w.WriteFile(path); err == nil {
			t.Errorf("%s: file written", name)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: left a file behind", name)
		}
	}
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.gguf")
	if err := sample().WriteFile(path); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Limits{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path+".missing", Limits{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := Open(t.TempDir(), Limits{}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("directory: %v", err)
	}
	if err := os.WriteFile(path, []byte("hello world"), 0o644); err != nil {
		t.Fatal(err)
	}
	var bad *Error
	if _, err := Open(path, Limits{}); !errors.As(err, &bad) || bad.Path != path || !errors.Is(err, ErrMagic) {
		t.Errorf("text file: %v", err)
	}
}

func TestFloat16(t *testing.T) {
	for f, want := range map[float32]uint16{
		0: 0, 1: 0x3c00, -2: 0xc000, 65504: 0x7bff, 65519: 0x7bff, 65520: 0x7c00, 1e9: 0x7c00,
		float32(math.Inf(-1)): 0xfc00,
		5.9604645e-8:          0x0001, // the least subnormal
		2.9802322e-8:          0x0000, // half of it: to even
		2.9802326e-8:          0x0001, // a little more
		6.1035156e-5:          0x0400, // the least normal
		6.0975552e-5:          0x03ff, // the greatest subnormal
		6.103e-5:              0x0400, // rounds up into the normals
		1 + 1.0/2048:          0x3c00, // halfway: to even
		1 + 3.0/2048:          0x3c02,
		2 - 1.0/4096:          0x4000, // a carry into the exponent
	} {
		if got := Float16(f); got != want {
			t.Errorf("Float16(%g) = %#04x, want %#04x", f, got, want)
		}
	}
	if got := Float16(float32(math.NaN())); got&0x7c00 != 0x7c00 || got&0x3ff == 0 {
		t.Errorf("Float16(NaN) = %#04x", got)
	}
}
