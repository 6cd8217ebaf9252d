package llama

import (
	"log/slog"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/tandem-llm/tandem/engine/llama/blob"
	"github.com/tandem-llm/tandem/state"
)

// maxSequences is the number of sequence ids llama.cpp has room for. Using one
// beyond it stops the process.
const maxSequences = 256

// extraSequences are the ids an engine keeps for itself: the scratch sequence.
const extraSequences = 1

// Options say what to open and how large. Zero fields take the stated default.
type Options struct {
	// Lib is the directory of the shared libraries, as engine/install finds it.
	Lib string
	// Model is the path of the GGUF file.
	Model string
	// Slots is the number of sequences, 4 by default, at most 255. For models
	// with recurrent state every slot costs a whole state.
	Slots int
	// Cells is the number of attention cells all sequences share, 8192 by
	// default. llama.cpp rounds it up to a multiple of 256.
	Cells int
	// BatchTokens is the largest batch, 512 by default; at most Cells.
	BatchTokens int
	// UBatch is the number of rows computed at once, 512 by default; at most
	// BatchTokens. Chunk boundaries at multiples of it keep results of chunked
	// prefill independent of it.
	UBatch int
	// Threads is the number of computing threads; by default one for each core.
	Threads int
	// KVType is the element type of attention state: state.F16 (the default),
	// state.BF16 or state.Q8_0.
	KVType state.DType
	// GPULayers is the number of layers to put on GPUs. 0 keeps everything,
	// also single operations, on the CPU.
	GPULayers int
	// CheckOneIn bounds what looking for NaN and infinity in imported state
	// costs: 1, the default, looks at every number, n at one n-th of them. A
	// single hidden one can damage neighbours, so more than 1 is for peers that
	// are trusted to compute; their bytes have digests anyway.
	CheckOneIn int
	// CheckWeights lets llama.cpp look for invalid numbers in all weights while
	// loading, which reads the whole file.
	CheckWeights bool
	// Log gets llama.cpp's warnings and errors, bounded and, once the engine is
	// open, with all digits masked. nil discards them.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.Slots, 4)
	def(&o.Cells, 8192)
	def(&o.BatchTokens, min(512, o.Cells))
	def(&o.UBatch, min(512, o.BatchTokens))
	def(&o.CheckOneIn, int(blob.Everything))
	if o.KVType == state.DTypeNone {
		o.KVType = state.F16
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// minUBatch keeps away from the sizes with which hybrid models abort.
const minUBatch = 8

func (o *Options) check() error {
	switch {
	case o.Slots < 1 || o.Slots > maxSequences-extraSequences:
		return badOption("Slots", "%d, need 1 to %d", o.Slots, maxSequences-extraSequences)
	case o.Cells < 1 || o.Cells > 1<<30:
		return badOption("Cells", "%d, need 1 to %d", o.Cells, 1<<30)
	case o.BatchTokens < minUBatch || o.BatchTokens > o.Cells:
		return badOption("BatchTokens", "%d, need %d to Cells (%d)", o.BatchTokens, minUBatch, o.Cells)
	case o.UBatch < minUBatch || o.UBatch > o.BatchTokens:
		return badOption("UBatch", "%d, need %d to BatchTokens (%d)", o.UBatch, minUBatch, o.BatchTokens)
	case o.Threads < 0 || o.Threads > 512:
		return badOption("Threads", "%d, need 0 (one for each core) to 512", o.Threads)
	case o.CheckOneIn < 1 || o.CheckOneIn > 1024:
		return badOption("CheckOneIn", "%d, need 1 (every number) to 1024", o.CheckOneIn)
	case o.GPULayers < 0:
		return badOption("GPULayers", "%d, need 0 or more", o.GPULayers)
	}
	if _, ok := cacheTypes[o.KVType]; !ok {
		return badOption("KVType", "%v, need f16, bf16 or q8_0", o.KVType)
	}
	return nil
}

var cacheTypes = map[state.DType]llama.GGMLType{
	state.F16:  llama.GGMLTypeF16,
	state.BF16: llama.GGMLTypeBF16,
	state.Q8_0: llama.GGMLTypeQ8_0,
}
