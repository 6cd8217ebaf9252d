package tiny

import (
	"fmt"
	"hash/fnv"
	"math"

	"github.com/tandem-llm/tandem/gguf"
	"github.com/tandem-llm/tandem/internal/splitmix"
)

// builder writes one model. Each tensor draws from a random stream of its own,
// keyed by seed and tensor name, so that adding a tensor changes no other.
//
// Everything that reaches the file is computed with integers, square roots and
// single multiplications, which round the same way everywhere: a compiler may
// fuse x*y+z on some machines, and math.Exp differs between them.
type builder struct {
	w    gguf.Writer
	seed uint64
}

// stream is the SplitMix64 generator.
type stream uint64

func (b *builder) stream(name string) *stream {
	h := fnv.New64a()
	h.Write([]byte(name))
	s := stream(h.Sum64())
	s = stream(s.next() ^ b.seed)
	s.next()
	return &s
}

func (s *stream) next() uint64 {
	*s += splitmix.Step
	return splitmix.Mix(uint64(*s))
}

// normal returns a number of mean 0 and variance 1 whose distribution is close
// to normal within ±3.46: a sum of four uniform ones.
func (s *stream) normal() float32 {
	const std = 37837.227 // of the sum of four uniform integers below 65536
	z := s.next()
	sum := int64(z&0xffff) + int64(z>>16&0xffff) + int64(z>>32&0xffff) + int64(z>>48)
	return float32(2*sum-4*65535) * float32(0.5/std)
}

// fill returns n values of mean 0 and the given standard deviation.
func (b *builder) fill(name string, n int, std float64) []float32 {
	s, scale := b.stream(name), float32(std)
	v := make([]float32, n)
	for i := range v {
		v[i] = s.normal() * scale
	}
	return v
}

func dims(ds ...int) []uint64 {
	r := make([]uint64, len(ds))
	for i, d := range ds {
		r[i] = uint64(d)
	}
	return r
}

// matrix returns the values of a matrix (or of a stack of them, one per
// expert) that takes inputs of unit variance to outputs of standard deviation
// gain.
func (b *builder) matrix(name string, gain float64, in, out int) []float32 {
	return b.fill(name, in*out, gain/math.Sqrt(float64(in)))
}

// put writes a matrix. Single precision, because llama.cpp rounds activations to
// the precision of the weights before it multiplies: in half precision a
// difference in the last bit, as between a batch of one row and one of two, grows
// to a thousandth, and answers beside neighbours soon differ from solo ones.
func (b *builder) put(name string, v []float32, shape ...int) {
	b.w.Float32Tensor(name, dims(shape...), v)
}

// vector writes n values f(i) in single precision.
func (b *builder) vector(name string, n int, f func(i int) float32, shape ...int) {
	v := make([]float32, n)
	for i := range v {
		v[i] = f(i)
	}
	if len(shape) == 0 {
		shape = []int{n}
	}
	b.w.Float32Tensor(name, dims(shape...), v)
}

func constant(x float32) func(int) float32 { return func(int) float32 { return x } }

func blk(i int, name string) string { return fmt.Sprintf("blk.%d.%s", i, name) }
