// Package wide makes GGUF models with seeded random weights and state, or cost,
// of the size that real models have: what benchmarks use. The models of package
// tiny keep a few hundred bytes per token and compute a step in microseconds, so
// rates measured with them are those of the overhead alone.
//
//	Attention  llama   a wide cache on a narrow residual stream: 64 KiB per token by
//	                   default, more with more layers or heads
//	Recurrent  mamba2  50 MiB of recurrent and convolution state per sequence
//	Dense      llama   200 million parameters, a third of them vocabulary: a step costs
//	                   what a step of a small real model costs
//
// Make a [Model] with [Attention], [Recurrent] or [Dense], write it with
// [Model.Write] or keep it in the user's cache with [Model.Cached]. The same model
// and seed give the same bytes. Their answers mean nothing and may repeat one
// token for ever; nothing here is for judging whether state arrived.
package wide

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/tandem-llm/tandem/gguf"
)

// Recipe numbers the way in which the models are made. It grows whenever the
// bytes of any of them change, and is part of cached file names.
const Recipe = 1

// DefaultSeed is the seed of the models that [Model.Cached] makes.
const DefaultSeed = 1

// ContextLength is the context length in tokens that every model declares.
const ContextLength = 1 << 17

// Bounds of Attention.
const (
	MaxLayers  = 128
	MaxKVHeads = 64
)

// Model is one that can be made.
type Model struct {
	name  string
	build func(*builder)

	// PageBytes is about how many bytes of attention state in f16 a token has: keys
	// and values, without what the engine's format adds. 0 without attention.
	TokenBytes int
	// StateBytes is about how many bytes a sequence has beside that.
	StateBytes int
}

// Name names the model and its parameters, as in a file name.
func (m Model) Name() string { return m.name }

// Attention is a llama whose tokens keep layers × kvHeads × 512 bytes. 16 layers
// of 8 heads have 64 KiB, 32 of 16 have 256 KiB. Computing costs what attending to
// that much costs; the rest of the model is small.
func Attention(layers, kvHeads int) (Model, error) {
	if layers < 1 || layers > MaxLayers || kvHeads < 1 || kvHeads > MaxKVHeads {
		return Model{}, fmt.Errorf("wide: %d layers of %d heads: use 1 to %d and 1 to %d", layers, kvHeads, MaxLayers, MaxKVHeads)
	}
	return Model{
		name:       fmt.Sprintf("attention-%dx%d", layers, kvHeads),
		build:      func(b *builder) { b.attention(layers, kvHeads) },
		TokenBytes: layers * kvHeads * headDim * 2 * 2,
	}, nil
}

// Recurrent is a mamba2 of 24 layers with 50 MiB of state.
func Recurrent() Model {
	return Model{name: "recurrent", build: (*builder).recurrent, StateBytes: ssmLayers * 4 * (ssmInner*ssmState + (ssmConv-1)*ssmChannels)}
}

// Dense is a llama of 12 layers, 1024 wide, with a vocabulary of 32,000 tokens and
// 12 KiB of attention state per token.
func Dense() Model {
	return Model{name: "dense", build: (*builder).dense, TokenBytes: denseLayers * denseKVHeads * denseHeadDim * 2 * 2}
}

// Write makes the model with the given seed and writes it to path, by way of a
// temporary file beside it.
func (m Model) Write(path string, seed uint64) error {
	b := &builder{r: rand.New(rand.NewPCG(seed, 0x77696465))}
	m.build(b)
	if err := b.w.WriteFile(path); err != nil {
		return fmt.Errorf("wide: %w", err)
	}
	return nil
}

// Cached returns the path of the model with [DefaultSeed], in the tandem/models
// directory of the user's cache directory. It makes the file when it is absent,
// which takes seconds; a file that is there is whole, because it came there by
// renaming. Several processes may call it at once: each writes its own temporary
// file and the last rename wins, with equal bytes.
func (m Model) Cached() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("wide: find the cache directory: %w", err)
	}
	dir := filepath.Join(cache, "tandem", "models")
	path := filepath.Join(dir, fmt.Sprintf("wide-%s-r%d-s%d.gguf", m.name, Recipe, DefaultSeed))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("wide: make the cache directory: %w", err)
	}
	return path, m.Write(path, DefaultSeed)
}

// builder writes one model.
type builder struct {
	w gguf.Writer
	r *rand.Rand
}
