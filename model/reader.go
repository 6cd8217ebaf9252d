package model

import (
	"errors"
	"fmt"

	"github.com/tandem-llm/tandem/gguf"
)

// reader reads typed metadata. The first error sticks, and later reads return
// zero values, so that a list of reads is checked once at its end.
type reader struct {
	f    *gguf.File
	path string
	arch string
	err  error
}

// key returns the full name of an architecture's own key.
func (r *reader) key(name string) string { return r.arch + "." + name }

func (r *reader) fail(key, format string, args ...any) {
	if r.err == nil {
		r.err = &InvalidError{Path: r.path, Key: key, Detail: fmt.Sprintf(format, args...)}
	}
}

func (r *reader) wrap(err error) {
	if r.err == nil && err != nil {
		r.err = &InvalidError{Path: r.path, Err: err}
	}
}

func read[T any](r *reader, v T, err error) T {
	r.wrap(err)
	if err != nil {
		var zero T
		return zero
	}
	return v
}

func readOr[T any](r *reader, v T, err error, absent T) T {
	if errors.Is(err, gguf.ErrMissingKey) {
		return absent
	}
	return read(r, v, err)
}

func (r *reader) text(key string) string {
	v, err := r.f.Text(key)
	return read(r, v, err)
}

func (r *reader) textOr(key, absent string) string {
	v, err := r.f.Text(key)
	return readOr(r, v, err, absent)
}

func (r *reader) floatOr(key string, absent float64) float64 {
	v, err := r.f.Float(key)
	return readOr(r, v, err, absent)
}

// bounded checks that v is between least and most.
func (r *reader) bounded(key string, v, least, most uint64) uint64 {
	if r.err == nil && (v < least || v > most) {
		r.fail(key, "%d, want %d to %d", v, least, most)
	}
	if r.err != nil {
		return least
	}
	return v
}

// uint reads a required integer between least and most.
func (r *reader) uint(key string, least, most uint64) uint64 {
	v, err := r.f.Uint(key)
	return r.bounded(key, read(r, v, err), least, most)
}

// uintOr reads an optional integer of at most most.
func (r *reader) uintOr(key string, absent, most uint64) uint64 {
	v, err := r.f.Uint(key)
	if errors.Is(err, gguf.ErrMissingKey) {
		return absent
	}
	return r.bounded(key, read(r, v, err), 0, most)
}

// perLayer reads an optional integer that is given once, or once per layer for n
// layers, as llama.cpp does. It returns nil when the key is absent.
func (r *reader) perLayer(key string, n int, most uint64) []uint32 {
	v, ok := r.f.Value(key)
	if !ok || r.err != nil {
		return nil
	}
	out := make([]uint32, n)
	if _, isArray := v.Elem(); !isArray {
		x := uint32(r.uintOr(key, 0, most))
		for i := range out {
			out[i] = x
		}
		return out
	}
	vs, err := r.f.Uints(key)
	vs = read(r, vs, err)
	if r.err != nil {
		return nil
	}
	if len(vs) != n {
		r.fail(key, "%d values for %d layers", len(vs), n)
		return nil
	}
	for i, x := range vs {
		out[i] = uint32(r.bounded(key, x, 0, most))
	}
	return out
}
