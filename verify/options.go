package verify

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"

	"github.com/tandem-llm/tandem/pair"
	"github.com/tandem-llm/tandem/wire"
)

// ErrOptions: the options ask for what cannot be done.
var ErrOptions = errors.New("verify")

// Options say what to verify. Zero fields take the stated defaults.
type Options struct {
	// Lib is the directory of the engine's libraries, Model the GGUF file.
	Lib, Model string
	// Lengths are prompt lengths in tokens [1024, 8192, 32768, 65536; quick: 512]. Which cells a length gets
	// follows from its size: see Tiers.
	Lengths []int
	// MaxTokens bounds prompt lengths; 0 is no bound but memory and the model's context.
	MaxTokens int
	// Steps is how many tokens each side decodes [32; quick: 8].
	Steps int
	// KVTypes are the element types of attention state [f16, bf16, q8_0].
	KVTypes []string
	// Lanes carry the bulk bytes [tls, quic, and local where there is shared memory].
	Lanes []wire.LaneMode
	// Threads is the number of computing threads of either side [one for each core].
	Threads int
	// GPULayers is as in engine/llama.
	GPULayers int
	// Quick asks for the small matrix that continuous integration runs.
	Quick bool
	// Match runs only the cells whose names it matches, as a regular expression; empty runs all.
	Match string
	// Seed makes prompts and orders [1].
	Seed uint64
	// Version is this program's, for the report.
	Version string
	// Pair says how to start the other process.
	Pair pair.Options
	// Progress, if set, is called before and after every cell, on the goroutine of Run.
	Progress func(Progress)

	match *regexp.Regexp
	// damage is what a test does to import cells, blind what it keeps the gate from looking at.
	damage func(*runner, Params) *pair.Damage
	blind  bool
}

// Progress is where a run is.
type Progress struct {
	// Result is the cell; while it runs, its Status is empty.
	Result *Result
	// Done of Total cells that run are over; Weight of Weights is the same in units of expected time.
	Done, Total     int
	Weight, Weights float64
	// Note is something to tell that is no cell: a cap, or what is being prepared. Result is nil then.
	Note string
}

// Tiers: up to which length, in tokens, a prompt gets the full product of all parameters, pairwise
// covering cells, or one cold cell on each lane. Beyond, hybrid models get one cold cell.
const (
	fullUpTo     = 2048
	pairwiseUpTo = 16384
	coldUpTo     = 49152
)

func (o Options) withDefaults() (Options, error) {
	if len(o.Lengths) == 0 {
		o.Lengths = []int{1024, 8192, 32768, 65536}
		if o.Quick {
			o.Lengths = []int{512}
		}
	}
	o.Lengths = slices.Clone(o.Lengths)
	slices.Sort(o.Lengths)
	o.Lengths = slices.Compact(o.Lengths)
	if o.Steps == 0 {
		o.Steps = 32
		if o.Quick {
			o.Steps = 8
		}
	}
	if len(o.KVTypes) == 0 {
		o.KVTypes = []string{"f16", "bf16", "q8_0"}
	}
	if len(o.Lanes) == 0 {
		o.Lanes = []wire.LaneMode{wire.LaneTLS, wire.LaneQUIC}
		if runtime.GOOS == "linux" {
			o.Lanes = append(o.Lanes, wire.LaneLocal)
		}
	}
	if o.Threads == 0 {
		o.Threads = runtime.NumCPU()
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	for _, n := range o.Lengths {
		if n < 16 || n > 1<<20 {
			return o, fmt.Errorf("%w: prompts of %d tokens; give lengths from 16 to %d", ErrOptions, n, 1<<20)
		}
	}
	for _, kv := range o.KVTypes {
		if !slices.Contains([]string{"f16", "bf16", "q8_0"}, kv) {
			return o, fmt.Errorf("%w: KV type %q; use f16, bf16 or q8_0", ErrOptions, kv)
		}
	}
	for _, l := range o.Lanes {
		if l != wire.LaneTLS && l != wire.LaneQUIC && l != wire.LaneLocal {
			return o, fmt.Errorf("%w: lane %q; use tls, quic or local", ErrOptions, l)
		}
	}
	if o.Steps < 1 || o.Steps > 4096 || o.Threads < 1 || o.Threads > 512 {
		return o, fmt.Errorf("%w: %d steps with %d threads; give 1 to 4096 steps and 1 to 512 threads", ErrOptions, o.Steps, o.Threads)
	}
	var err error
	if o.match, err = regexp.Compile(o.Match); err != nil {
		return o, fmt.Errorf("%w: the pattern for cells: %v", ErrOptions, err)
	}
	return o, nil
}

// otherThreads is another number of threads than the source's, as the Threads placement uses.
func (o *Options) otherThreads() int {
	if o.Threads == 1 {
		return 2
	}
	return o.Threads / 2
}

// chunks and pages of a length. Pages of 500 tokens end where no chunk does.
func (o *Options) sizes() (chunks, pages []int) {
	if o.Quick {
		return []int{64, 256}, []int{64, 100, 256}
	}
	return []int{128, 512}, []int{128, 500, 512}
}
