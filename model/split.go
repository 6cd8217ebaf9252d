package model

import (
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem/gguf"
)

// maxParts is more than any model has; llama.cpp names parts with five digits.
const maxParts = 1024

// openParts reads the head of the file at path, and when it is the first part of
// a split model those of all parts. llama.cpp finds the others by name, as this
// does: NAME-00001-of-0000N.gguf.
func openParts(path string) ([]string, []*gguf.File, error) {
	first, err := gguf.Open(path, gguf.Limits{})
	if err != nil {
		return nil, nil, err
	}
	r := &reader{f: first, path: path}
	count := r.uintOr("split.count", 1, maxParts)
	no := r.uintOr("split.no", 0, maxParts)
	if r.err == nil && no != 0 {
		r.fail("split.no", "this is part %d of %d: give the path of the first part", no+1, count)
	}
	if r.err != nil {
		return nil, nil, r.err
	}
	files, heads := []string{path}, []*gguf.File{first}
	if count <= 1 {
		return files, heads, nil
	}
	prefix, ok := strings.CutSuffix(path, fmt.Sprintf("-%05d-of-%05d.gguf", 1, count))
	if !ok {
		r.fail("split.count", "the first of %d parts must be named NAME-00001-of-%05d.gguf", count, count)
		return nil, nil, r.err
	}
	tensors := len(first.Tensors)
	for i := uint64(1); i < count; i++ {
		part := fmt.Sprintf("%s-%05d-of-%05d.gguf", prefix, i+1, count)
		head, err := gguf.Open(part, gguf.Limits{})
		if err != nil {
			return nil, nil, fmt.Errorf("model: part %d of %d: %w", i+1, count, err)
		}
		p := &reader{f: head, path: part}
		if got := p.uint("split.no", 0, maxParts); p.err == nil && got != i {
			p.fail("split.no", "%d, want %d", got, i)
		}
		if p.err != nil {
			return nil, nil, p.err
		}
		files, heads = append(files, part), append(heads, head)
		tensors += len(head.Tensors)
	}
	if want := r.uintOr("split.tensors.count", uint64(tensors), 1<<31); r.err == nil && want != uint64(tensors) {
		r.fail("split.tensors.count", "%d, the parts hold %d", want, tensors)
	}
	if r.err != nil {
		return nil, nil, r.err
	}
	return files, heads, nil
}
