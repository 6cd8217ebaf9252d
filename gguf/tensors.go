package gguf

import "fmt"

// tensor reads one tensor description.
func (p *parser) tensor(i uint64) {
	p.where = fmt.Sprintf("tensor %d", i)
	t := Tensor{Name: p.text("name", maxTensorName)}
	if p.err != nil {
		return
	}
	p.where = "tensor " + quote(t.Name)
	if _, dup := p.f.names[t.Name]; dup {
		p.fail(ErrMalformed, "the name appears twice")
		return
	}
	if !p.charge(200) {
		return
	}
	n := p.number(4)
	if p.err == nil && (n < 1 || n > maxDims) {
		p.fail(ErrMalformed, "%d dimensions, want 1 to %d", n, maxDims)
	}
	if p.err != nil {
		return
	}
	t.Dims = make([]uint64, n)
	for i := range t.Dims {
		t.Dims[i] = p.number(8)
	}
	t.Type = TensorType(p.number(4))
	t.Offset = p.number(8)
	if p.err != nil {
		return
	}
	if !t.Type.Known() {
		p.fail(ErrTensorType, "%d", uint32(t.Type))
		return
	}
	bytes, ok := tensorBytes(t.Type, t.Dims)
	if !ok {
		p.fail(ErrMalformed, "shape %v is not possible for %s", t.Dims, t.Type)
		return
	}
	t.Bytes = bytes
	p.f.names[t.Name] = len(p.f.Tensors)
	p.f.Tensors = append(p.f.Tensors, t)
}

// tensorBytes returns the size of a tensor's data, and false when a dimension
// is zero, a row is not a whole number of blocks, or the product overflows.
func tensorBytes(t TensorType, dims []uint64) (uint64, bool) {
	const most = 1 << 62
	n, ok := t.RowBytes(dims[0])
	if !ok || n == 0 || n > most {
		return 0, false
	}
	for _, d := range dims[1:] {
		if d == 0 || n > most/d {
			return 0, false
		}
		n *= d
	}
	return n, true
}

// layout checks where tensors lie: back to back in file order, each padded to
// the alignment, as llama.cpp requires, so that none overlap, and all of them
// inside the file.
func (p *parser) layout() {
	if p.err != nil {
		return
	}
	start := align(p.at, p.f.Alignment)
	p.f.DataOffset = int64(start)
	next := uint64(0)
	for i := range p.f.Tensors {
		t := &p.f.Tensors[i]
		p.where = "tensor " + quote(t.Name)
		switch {
		case t.Offset%p.f.Alignment != 0:
			p.fail(ErrMalformed, "offset %d is not a multiple of the alignment %d", t.Offset, p.f.Alignment)
		case t.Offset < next:
			p.fail(ErrMalformed, "offset %d overlaps the tensor before it, which needs bytes up to %d", t.Offset, next)
		case t.Offset > next:
			p.fail(ErrMalformed, "offset %d leaves a gap, tensors must follow each other: expected %d", t.Offset, next)
		case start > p.size || t.Bytes > p.size-start || t.Offset > p.size-start-t.Bytes:
			p.fail(ErrTruncated, "its data ends at byte %d of the file, which has %d: download or copy it again", start+t.Offset+t.Bytes, p.size)
		}
		if p.err != nil {
			return
		}
		next = align(t.Offset+t.Bytes, p.f.Alignment)
	}
}
