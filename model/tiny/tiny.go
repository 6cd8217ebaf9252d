// Package tiny makes small GGUF models with seeded random weights: what tests
// use, and what Tandem serves on a machine that has no model yet. Their text is
// random.
//
// There is one model per kind of memory that llama.cpp keeps for a sequence:
//
//	Llama         llama           attention
//	Gemma3        gemma3          attention, every other layer in a sliding window
//	Mamba2        mamba2          recurrent and convolution state, no attention
//	NemotronHMoE  nemotron_h_moe  recurrent, attention and mixture-of-experts
//	                              layers, and one multi-token-prediction block
//
// [Write] makes a model's file, [Cached] keeps one copy of each in the user's
// cache directory. The same architecture, seed and [Recipe] give the same bytes
// on every machine.
//
// The models exist to make lost state visible: a component that is missing,
// stale or from another sequence must change the answer. The weights are
// therefore not plain noise. Answers depend on the whole prompt and not only on
// its end, do not fall into loops, and do not end early; see recipe.go for how.
package tiny

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-llm/tandem/gguf"
	"github.com/zeebo/blake3"
)

// Recipe numbers the way in which weights and metadata are made. It grows
// whenever the bytes of any model change, and is part of cached file names.
const Recipe = 3

// DefaultSeed is the seed of the models that [Cached] makes.
const DefaultSeed = 1

// ContextLength is the context length in tokens that every model declares.
const ContextLength = 131072

// Arch is a model architecture, by the name that GGUF files use.
type Arch string

// The architectures that this package can make.
const (
	Llama        Arch = "llama"
	Gemma3       Arch = "gemma3"
	Mamba2       Arch = "mamba2"
	NemotronHMoE Arch = "nemotron_h_moe"
)

// Archs returns every architecture that this package can make.
func Archs() []Arch { return []Arch{Llama, Gemma3, Mamba2, NemotronHMoE} }

// ErrUnknownArch reports an architecture that this package cannot make.
var ErrUnknownArch = errors.New("unknown architecture")

func unknown(arch Arch) error {
	names := make([]string, 0, 4)
	for _, a := range Archs() {
		names = append(names, string(a))
	}
	return fmt.Errorf("tiny: %w %q: use one of %s", ErrUnknownArch, arch, strings.Join(names, ", "))
}

// Write makes the model of the given architecture and seed and writes it to
// path, by way of a temporary file beside it.
func Write(path string, arch Arch, seed uint64) error {
	w, err := build(arch, seed)
	if err != nil {
		return err
	}
	return w.WriteFile(path)
}

func build(arch Arch, seed uint64) (*gguf.Writer, error) {
	b := &builder{seed: seed}
	switch arch {
	case Llama:
		b.llama()
	case Gemma3:
		b.gemma3()
	case Mamba2:
		b.mamba2()
	case NemotronHMoE:
		b.nemotron()
	default:
		return nil, unknown(arch)
	}
	return &b.w, nil
}

// digests are the BLAKE3 digests of the models that [Cached] makes. They tell a
// whole cached file from a damaged one, and a test holds [Write] to them.
var digests = map[Arch]string{
	Llama:        "a7b8baabdb7edb3f6458e3da4591332663c7125ddf2bf111166d475973ab74ff",
	Gemma3:       "02b40538d08030ce9e9e0c28ebfe875f57b55845022b51d7e78ec5f505172a55",
	Mamba2:       "788cc3c43acd69dcc11b5baf5305fb93c3d07ed51fad2e56059b496bcf0a6191",
	NemotronHMoE: "8160db6e67af397fa60e081bcc53ded04b1f45aa90d754e08905e45ee1caf836",
}

// Cached returns the path of the model of the given architecture with
// [DefaultSeed], in the tandem/models directory of the user's cache directory.
// It makes the file when it is absent or damaged. Several processes may call it
// at once: each writes its own temporary file and the last rename wins, with
// equal bytes.
func Cached(arch Arch) (string, error) {
	want, ok := digests[arch]
	if !ok {
		return "", unknown(arch)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("tiny: find the cache directory: %w", err)
	}
	dir := filepath.Join(cache, "tandem", "models")
	path := filepath.Join(dir, fmt.Sprintf("tiny-%s-r%d-s%d.gguf", arch, Recipe, DefaultSeed))
	if got, err := fileDigest(path); err == nil && got == want {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("tiny: make the cache directory: %w", err)
	}
	if err := Write(path, arch, DefaultSeed); err != nil {
		return "", err
	}
	return path, nil
}

func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := blake3.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
