package gguf

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Limits bounds what a file may make the reader do. Zero fields take the values
// of [DefaultLimits].
type Limits struct {
	// Pairs and Tensors bound the counts of metadata pairs and tensors.
	Pairs, Tensors uint64
	// Name bounds the length in bytes of a metadata key.
	Name uint64
	// String bounds the length in bytes of one string value.
	String uint64
	// Memory bounds the bytes that the parsed head may occupy, approximately.
	Memory uint64
}

// DefaultLimits are far above what models need: the largest vocabularies in use
// take about 30 MiB.
var DefaultLimits = Limits{
	Pairs:   1 << 16,
	Tensors: 1 << 18,
	Name:    1 << 12,
	String:  1 << 24,
	Memory:  1 << 28,
}

func (l Limits) withDefaults() Limits {
	for _, f := range []struct{ p, d *uint64 }{
		{&l.Pairs, &DefaultLimits.Pairs},
		{&l.Tensors, &DefaultLimits.Tensors},
		{&l.Name, &DefaultLimits.Name},
		{&l.String, &DefaultLimits.String},
		{&l.Memory, &DefaultLimits.Memory},
	} {
		if *f.p == 0 {
			*f.p = *f.d
		}
	}
	return l
}

// maxTensorName is GGML_MAX_NAME − 1: ggml keeps names in 64 bytes with a zero
// at the end.
const maxTensorName = 63

// maxDims is GGML_MAX_DIMS.
const maxDims = 4

// maxAlignment is where this package stops believing an alignment.
const maxAlignment = 1 << 24

// Open parses the head of the file at path. Errors are [*Error], or those of the
// file system wrapped with advice.
func Open(path string, lim Limits) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("gguf: open model: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("gguf: open model: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("gguf: open model: %w", &fs.PathError{Op: "read", Path: path, Err: errNotRegular})
	}
	file, err := Read(f, info.Size(), lim)
	var bad *Error
	if errors.As(err, &bad) {
		bad.Path = path
	}
	return file, err
}

var errNotRegular = errors.New("not a regular file: give the path of a .gguf file")

// Read parses the head of a GGUF file of size bytes from r.
func Read(r io.Reader, size int64, lim Limits) (*File, error) {
	p := &parser{
		r:    bufio.NewReaderSize(r, 1<<16),
		size: uint64(max(size, 0)),
		lim:  lim.withDefaults(),
		f: &File{
			Size:      size,
			Alignment: DefaultAlignment,
			index:     make(map[string]int),
			names:     make(map[string]int),
		},
	}
	p.memory = p.lim.Memory
	p.file()
	if p.err != nil {
		return nil, p.err
	}
	return p.f, nil
}

// parser reads a file front to back. The first error sticks: later reads return
// zeros, so that code after a read stays plain and is checked once.
type parser struct {
	r      *bufio.Reader
	at     uint64 // bytes consumed
	size   uint64 // of the whole file
	memory uint64 // bytes of Limits.Memory that are left
	lim    Limits
	where  string
	f      *File
	err    error
}

func (p *parser) fail(reason error, format string, args ...any) {
	if p.err == nil {
		p.err = &Error{Where: p.where, Offset: int64(p.at), Reason: reason, Detail: fmt.Sprintf(format, args...)}
	}
}

func (p *parser) left() uint64 { return p.size - p.at }

// charge takes n bytes from the memory budget before they are allocated.
func (p *parser) charge(n uint64) bool {
	if p.err != nil {
		return false
	}
	if n > p.memory {
		p.fail(ErrLimit, "the header needs more than %d bytes of memory", p.lim.Memory)
		return false
	}
	p.memory -= n
	return true
}

// take reads n bytes into a new slice. The caller has bounded n by a limit.
func (p *parser) take(n uint64) []byte {
	if p.err != nil {
		return nil
	}
	if n > p.left() {
		p.fail(ErrTruncated, "%d bytes declared, %d left in the file", n, p.left())
		return nil
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(p.r, b); err != nil {
		p.ioError(err)
		return nil
	}
	p.at += n
	return b
}

func (p *parser) ioError(err error) {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		p.fail(ErrTruncated, "the file ends before its declared size of %d bytes", p.size)
		return
	}
	p.fail(err, "read failed")
}

// number reads an n-byte little-endian number, n ≤ 8.
func (p *parser) number(n int) uint64 {
	if p.err != nil {
		return 0
	}
	if uint64(n) > p.left() {
		p.fail(ErrTruncated, "%d bytes expected, %d left in the file", n, p.left())
		return 0
	}
	var b [8]byte
	if _, err := io.ReadFull(p.r, b[:n]); err != nil {
		p.ioError(err)
		return 0
	}
	p.at += uint64(n)
	return littleEndian(b[:n])
}

// text reads a string of at most limit bytes.
func (p *parser) text(what string, limit uint64) string {
	n := p.number(8)
	if p.err != nil {
		return ""
	}
	if n > p.left() {
		p.fail(ErrTruncated, "%s of %d bytes declared, %d left in the file", what, n, p.left())
		return ""
	}
	if n > limit {
		p.fail(ErrLimit, "%s of %d bytes, at most %d are accepted", what, n, limit)
		return ""
	}
	if !p.charge(n + 16) {
		return ""
	}
	return string(p.take(n))
}

// count reads a count of things that take at least minBytes each.
func (p *parser) count(what string, limit, minBytes uint64) uint64 {
	n := p.number(8)
	if p.err != nil {
		return 0
	}
	if n > p.left()/minBytes {
		p.fail(ErrTruncated, "%d %s declared, the file has room for %d", n, what, p.left()/minBytes)
		return 0
	}
	if n > limit {
		p.fail(ErrLimit, "%d %s, at most %d are accepted", n, what, limit)
		return 0
	}
	return n
}

func (p *parser) file() {
	p.where = "header"
	if got := p.take(4); p.err == nil && string(got) != magic {
		p.at = 0
		p.fail(ErrMagic, "it starts with % x, want %q", got, magic)
	}
	p.f.Version = uint32(p.number(4))
	switch v := p.f.Version; {
	case p.err != nil:
		return
	case v&0xffff == 0 && v != 0:
		p.fail(ErrBigEndian, "convert it for little-endian machines")
	case v != 2 && v != 3:
		p.fail(ErrVersion, "%d, this build reads 2 and 3", v)
	}
	// The tensor count comes first, but pairs lie between it and the tensors.
	tensors := p.count("tensors", p.lim.Tensors, 8+4+4+8)
	pairs := p.count("metadata pairs", p.lim.Pairs, 8+4+1)
	for i := range pairs {
		if p.pair(i); p.err != nil {
			return
		}
	}
	p.alignment()
	for i := range tensors {
		if p.tensor(i); p.err != nil {
			return
		}
	}
	p.layout()
}

func (p *parser) pair(i uint64) {
	p.where = fmt.Sprintf("metadata pair %d", i)
	key := p.text("key", p.lim.Name)
	if p.err != nil {
		return
	}
	p.where = "key " + quote(key)
	if _, dup := p.f.index[key]; dup {
		p.fail(ErrMalformed, "the key appears twice")
		return
	}
	if !p.charge(160 + uint64(len(key))) {
		return
	}
	v := p.value(Type(p.number(4)))
	p.f.index[key] = len(p.f.Pairs)
	p.f.Pairs = append(p.f.Pairs, Pair{key, v})
}

func (p *parser) value(t Type) Value {
	v := Value{typ: t}
	switch n := t.size(); {
	case p.err != nil:
	case n > 0:
		v.bits = p.number(n)
		if t == TypeBool && v.bits > 1 {
			p.fail(ErrMalformed, "a bool of value %d", v.bits)
		}
	case t == TypeString:
		v.text = p.text("string", p.lim.String)
	case t == TypeArray:
		p.array(&v)
	default:
		p.fail(ErrMalformed, "value %s does not exist", t)
	}
	return v
}

func (p *parser) array(v *Value) {
	v.elem = Type(p.number(4))
	if p.err != nil {
		return
	}
	if v.elem == TypeString {
		n := p.count("strings", p.lim.Memory, 8)
		for range n {
			s := p.text("string", p.lim.String)
			if p.err != nil {
				return
			}
			v.strs = append(v.strs, s)
		}
		return
	}
	size := uint64(v.elem.size())
	if size == 0 {
		p.fail(ErrMalformed, "an array of %s", v.elem)
		return
	}
	n := p.count("elements", p.lim.Memory, size)
	if !p.charge(n * size) {
		return
	}
	v.raw = p.take(n * size)
	if v.elem != TypeBool {
		return
	}
	for _, b := range v.raw {
		if b > 1 {
			p.fail(ErrMalformed, "a bool of value %d", b)
			return
		}
	}
}

func (p *parser) alignment() {
	v, ok := p.f.Value(KeyAlignment)
	if !ok || p.err != nil {
		return
	}
	p.where = "key " + quote(KeyAlignment)
	a, ok := v.Uint()
	if !ok || v.typ != TypeUint32 {
		p.fail(ErrMalformed, "%s, want uint32", v.describe())
		return
	}
	if a == 0 || a&(a-1) != 0 || a > maxAlignment {
		p.fail(ErrMalformed, "%d, want a power of two up to %d", a, maxAlignment)
		return
	}
	p.f.Alignment = a
}
