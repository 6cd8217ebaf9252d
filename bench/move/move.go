package move

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/model/wide"
	"github.com/tandem-llm/tandem/pair"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// Part is one thing that Run measures.
type Part string

// The parts.
const (
	Pages    Part = "pages"
	Snapshot Part = "snapshot"
	Transfer Part = "transfer"
	Stream   Part = "stream"
)

// Parts returns all parts in the order in which Run does them.
func Parts() []Part { return []Part{Pages, Snapshot, Transfer, Stream} }

// Config is what [Run] measures.
type Config struct {
	Parts []Part
	Lib   string // directory of llama.cpp's libraries
	Model string // file for Transfer and Stream; empty: a wide model for each

	TransferBytes int64 // least state to move in Transfer
	StreamTokens  int   // length of the prompt in Stream
	PageTokens    int   // of a chunk and page in Stream; also of Transfer's pages if these would be larger than 16 MiB otherwise
	Threads       int   // that compute in this process; the other one has one
	Lane          wire.LaneMode
	Window        int64 // credit of one handoff; 0: the data plane's default

	// Against is another way to move the same sequence, which takes turns with Transfer; may be nil.
	Against *Against

	Plan bench.Plan
	Pair pair.Options // how to start the other process
}

// Against moves a prompt's state in another way.
type Against struct {
	Name string
	// Prefill computes the prompt where the state is to come from, once.
	Prefill func(ctx context.Context, prompt []int32) error
	// Move moves the state once, and says how long that took until it can be decoded, how large it was,
	// and what else there is to say.
	Move func(context.Context) (took time.Duration, bytes int64, more []bench.Figure, err error)
}

// Bars of BENCH: see docs/bench.md.
const (
	copyBar    = 1.6  // time of a page against a copy of the same bytes
	checkBar   = 0.10 // share of validation in an import
	slowBar    = 1.05 // time of a streamed prefill against one that is not
	tailBar    = 1.25 // uncovered tail against what cannot be avoided
	againstBar = 0.25 // time of a transfer against the other way
	earlyBar   = 0.90 // share of bytes that left before the prefill ended
	snapTries  = 4    // snapshots per turn
)

// Run measures the parts. The report is nil only if nothing could be begun; with
// an error it has what was measured before, and is marked as incomplete.
func Run(ctx context.Context, cfg Config) (*bench.Report, error) {
	for _, p := range cfg.Parts {
		if !slices.Contains(Parts(), p) {
			return nil, fmt.Errorf("unknown part %q: use %v", p, Parts())
		}
	}
	switch {
	case len(cfg.Parts) == 0:
		return nil, fmt.Errorf("nothing to measure: use %v", Parts())
	case cfg.PageTokens < 1 || cfg.StreamTokens < 1 || cfg.TransferBytes < 1 || cfg.Threads < 1:
		return nil, fmt.Errorf("sizes and threads must be at least 1")
	}
	r := &runner{Config: cfg, report: bench.NewReport("handoff")}
	r.report.Set("threads", fmt.Sprintf("%d here, 1 in the other process", cfg.Threads))
	var err error
	for _, p := range Parts() {
		if !slices.Contains(cfg.Parts, p) {
			continue
		}
		switch p {
		case Pages:
			err = r.pages(ctx)
		case Snapshot:
			err = r.snapshot(ctx)
		case Transfer:
			err = r.transfer(ctx)
		case Stream:
			err = r.stream(ctx)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", p, err)
			break
		}
	}
	r.report.Finish(err == nil)
	return r.report, err
}

type runner struct {
	Config
	report *bench.Report
}

func (r *runner) say(format string, args ...any) {
	if r.Plan.Say != nil {
		r.Plan.Say(fmt.Sprintf(format, args...))
	}
}

// plan is the plan with lines of progress that name the part.
func (r *runner) plan(p Part) bench.Plan {
	plan := r.Plan
	plan.Say = func(line string) { r.say("%s: %s", p, line) }
	return plan
}

// add appends results with their bars, by the names of figures.
func (r *runner) add(runs *bench.Runs, bars map[string]*bench.Bar) {
	r.report.Turns += runs.Turns()
	for _, res := range runs.Results() {
		res.Judge(bars[res.Name])
		r.report.Results = append(r.report.Results, res)
	}
}

// seeded returns the path of a wide model, making it if it is not in the cache.
func (r *runner) seeded(m wide.Model) (string, error) {
	r.say("model %s", m.Name())
	return m.Cached()
}

// open opens an engine of two slots in this process.
func (r *runner) open(path string, cells, threads int) (*llama.Engine, pair.EngineOptions, error) {
	o := pair.EngineOptions{Lib: r.Lib, Model: path, Slots: 2, Cells: cells, Threads: threads}
	e, err := pair.OpenEngine(o)
	if err != nil {
		return nil, o, err
	}
	if reason := e.Info().ColocatedOnly; reason != "" {
		e.Close()
		return nil, o, fmt.Errorf("this model's state cannot move: %s", reason)
	}
	return e, o, nil
}

// prefill computes a prompt in slot 0, saying how far it is.
func (r *runner) prefill(ctx context.Context, h *pair.Host, tokens, chunk int) ([]int32, error) {
	prompt := pair.Prompt(h.Engine.Vocab(), tokens, 1)
	said := time.Now()
	_, err := h.Prefill(prompt, chunk, func(done int) error {
		if time.Since(said) > 5*time.Second {
			said = time.Now()
			r.say("prefill: %d of %d tokens", done, tokens)
		}
		return ctx.Err()
	})
	return prompt, err
}

// tokensFor is the number of tokens whose state has at least the given size, a
// multiple of unit.
func tokensFor(path string, bytes int64, unit int) (tokens int, perToken int64, err error) {
	m, err := model.Inspect(path)
	if err != nil {
		return 0, 0, err
	}
	per, ok := m.TokenBytes(state.F16)
	if !ok || per == 0 {
		return 0, 0, fmt.Errorf("a token of this model adds nothing to its state: name one with attention")
	}
	n := (bytes - int64(m.FixedBytes()) + int64(per) - 1) / int64(per)
	n = max((n+int64(unit)-1)/int64(unit)*int64(unit), int64(unit))
	if n > int64(m.Context) {
		return 0, 0, fmt.Errorf("%d bytes of state are %d tokens, the model is made for %d: move fewer", bytes, n, m.Context)
	}
	return int(n), int64(per), nil
}

// cost is the time and the allocations of something done n times.
type cost struct {
	took   time.Duration
	allocs uint64
	n      int
}

// do runs f n times and adds up what it costs. Nothing else may run in this process.
func (c *cost) do(n int, f func() error) error {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	err := f()
	c.took += time.Since(start)
	runtime.ReadMemStats(&after)
	c.allocs += after.Mallocs - before.Mallocs
	c.n += n
	return err
}

// ms is the mean time of one in milliseconds.
func (c *cost) ms() float64 { return float64(c.took.Nanoseconds()) / float64(c.n) / 1e6 }

// perOne is the whole number of allocations of one: what is allocated once for
// many, or by the runtime beside it, is not one's.
func (c *cost) perOne() float64 { return math.Floor(float64(c.allocs) / float64(c.n)) }
