// Package profile measures a live engine and fits the coefficients by which
// engine/timed says how long its steps take.
//
// [Run] takes an engine through grids of prompt chunks (new tokens on top of past
// ones) and of decode steps (sequences with so many tokens each), and moves pages
// and snapshots out of it and in again. Each point is measured several times and
// counts with its median, so that a busy moment of the machine does not. Fit finds
// coefficients that are not negative, by least squares of relative errors; a fit
// that does not describe the points is an error and not a file.
//
// Nothing of an engine but its shape and its times is in a report. Prompts are
// random tokens.
package profile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/state"
)

// Config is what to measure.
type Config struct {
	// New and Past are the tokens of chunks and what they come on top of; Batch and
	// Context are numbers of sequences and tokens of each. All ascend strictly.
	New, Past, Batch, Context []int
	// Runs is how often each point is measured, after one time that does not count;
	// Steps is how many decode steps make one time.
	Runs, Steps int
	// Longest bounds the sequences that Defaults chooses; 0: what the engine holds.
	Longest int
	// Form is what the timing model is: Fitted, which is the default, or Table.
	Form string
	// MaxError is the largest median of relative errors that a fit may have.
	MaxError float64
	// Seed makes the tokens.
	Seed uint64
	// Say gets lines of progress; may be nil.
	Say func(string)
	// Now is the clock; nil is the machine's.
	Now func() time.Duration
}

// The forms of a timing model.
const (
	// Fitted are coefficients, which go on beyond what was measured.
	Fitted = "fitted"
	// Table are the measured times themselves. It also describes an engine whose
	// times are no simple law, as that of small chunks on some machines.
	Table = "table"
)

// Defaults fills what is 0 with what suits an engine of that size.
func (c *Config) Defaults(info engine.Info) {
	grid := func(g *[]int, most int, values ...int) {
		if len(*g) > 0 {
			return
		}
		for _, v := range values {
			if v <= most {
				*g = append(*g, v)
			}
		}
	}
	room := info.ContextTokens
	if c.Longest > 0 {
		room = min(room, c.Longest)
	}
	grid(&c.New, min(info.BatchTokens, room/4), 1, 8, 32, 128, 256, 512, 1024, 2048)
	grid(&c.Past, room/2, 0, 256, 512, 1024, 2048, 4096, 8192, 16384)
	grid(&c.Batch, min(info.Slots, info.BatchTokens), 1, 2, 4, 8, 16, 32, 64)
	if c.Runs == 0 {
		c.Runs = 5
	}
	if c.Steps == 0 {
		c.Steps = 8
	}
	if len(c.Batch) > 0 {
		grid(&c.Context, min(room/2, info.Cells/(2*c.Batch[len(c.Batch)-1])), 32, 256, 512, 1024, 2048, 4096, 8192)
	}
	if c.Form == "" {
		c.Form = Fitted
	}
	if c.MaxError == 0 {
		c.MaxError = 0.15
	}
	if c.Now == nil {
		start := time.Now()
		c.Now = func() time.Duration { return time.Since(start) }
	}
	if c.Say == nil {
		c.Say = func(string) {}
	}
}

// ErrConfig says that the grids do not suit the engine.
var ErrConfig = errors.New("profile: cannot measure that")

func (c *Config) check(info engine.Info) error {
	for _, g := range []struct {
		name        string
		at          []int
		least, most int
	}{
		{"new", c.New, 1, info.BatchTokens}, {"past", c.Past, 0, info.ContextTokens},
		{"batch", c.Batch, 1, min(info.Slots, info.BatchTokens)}, {"context", c.Context, 1, info.ContextTokens},
	} {
		if len(g.at) < 2 {
			return fmt.Errorf("%w: %s has %d values, and a slope needs two; the engine has room for %d tokens in a sequence, %d in a batch, %d sequences",
				ErrConfig, g.name, len(g.at), info.ContextTokens, info.BatchTokens, info.Slots)
		}
		for i, v := range g.at {
			if v < g.least || v > g.most || i > 0 && v <= g.at[i-1] {
				return fmt.Errorf("%w: values of %s ascend, from %d to %d", ErrConfig, g.name, g.least, g.most)
			}
		}
	}
	longest := last(c.Past)
	for _, n := range c.New {
		longest += n
	}
	grown := last(c.Context) + len(c.Context)*c.Steps
	if longest > min(info.ContextTokens, info.Cells) || grown > info.ContextTokens || grown*last(c.Batch) > info.Cells {
		return fmt.Errorf("%w: it takes sequences of %d tokens, and %d of %d; the engine has room for %d in a sequence and %d in all",
			ErrConfig, longest, last(c.Batch), grown, info.ContextTokens, info.Cells)
	}
	if c.Form != Fitted && c.Form != Table {
		return fmt.Errorf("%w: the form is %q, and must be %q or %q", ErrConfig, c.Form, Fitted, Table)
	}
	if c.Runs < 1 || c.Runs > 1000 || c.Steps < 1 || c.Steps > 1000 {
		return fmt.Errorf("%w: %d runs of %d steps; both are from 1 to 1000", ErrConfig, c.Runs, c.Steps)
	}
	return nil
}

func last(v []int) int { return v[len(v)-1] }

// The kinds of points.
const (
	Prefill        = "prefill"
	Decode         = "decode"
	Export         = "export"
	Import         = "import"
	ExportSnapshot = "export snapshot"
	ImportSnapshot = "import snapshot"
)

// A Point is one thing that was measured several times.
type Point struct {
	Kind string `json:"kind"`
	// New tokens on top of Past, for Prefill.
	New  int `json:"new,omitempty"`
	Past int `json:"past,omitempty"`
	// Batch sequences that hold Context tokens all together, for Decode: the mean
	// over the steps of a measurement.
	Batch   int     `json:"batch,omitempty"`
	Context float64 `json:"context,omitempty"`
	// Bytes that moved: of a page, or of a snapshot.
	Bytes int `json:"bytes,omitempty"`
	// Time in milliseconds, and how far runs are apart.
	MS bench.Summary `json:"ms"`
	// FitMS is what the coefficients say; 0 without a fit.
	FitMS float64 `json:"fit_ms,omitempty"`
}

// name is what a point is called in lines and tables.
func (p *Point) name() string {
	switch p.Kind {
	case Prefill:
		return fmt.Sprintf("prefill %d on %d", p.New, p.Past)
	case Decode:
		return fmt.Sprintf("decode %d of %.0f tokens", p.Batch, p.Context/float64(p.Batch))
	}
	return fmt.Sprintf("%s of %d bytes", p.Kind, p.Bytes)
}

// Report is everything that was measured. The names of its JSON fields do not
// change.
type Report struct {
	Engine       string        `json:"engine"`
	Architecture string        `json:"architecture"`
	Model        string        `json:"model"`
	Backend      string        `json:"backend"`
	Threads      int           `json:"threads"`
	KVType       string        `json:"kv_type"`
	Machine      bench.Machine `json:"machine"`
	Points       []Point       `json:"points"`
	Fits         []Fit         `json:"fits"`
	// Timing is the model for replay; nil if a fit was refused.
	Timing *timed.Spec `json:"timing,omitempty"`
}

// Run measures the engine, which must be empty and is left empty. A report comes
// with an error too, of what was measured until then; an error that is ErrFit says
// that all was measured and the coefficients do not describe it.
func Run(ctx context.Context, e engine.Engine, c Config) (*Report, error) {
	info := e.Info()
	c.Defaults(info)
	if err := c.check(info); err != nil {
		return nil, err
	}
	host := bench.NewReport("profile")
	r := &Report{
		Engine: info.Build, Architecture: info.Architecture, Model: info.Model, Backend: info.Backend,
		Threads: info.Threads, KVType: info.KVType,
	}
	m := &measurer{Config: c, e: e, info: info, report: r, tokens: newTokens(c.Seed, e.Vocab())}
	err := m.all(ctx)
	for slot := range info.Slots {
		err = errors.Join(err, e.Drop(int32(slot)))
	}
	host.Finish(err == nil)
	r.Machine = host.Machine
	if err != nil {
		return r, err
	}
	return r, r.conclude(&c, geometry(info.Inventory))
}

// geometry is the size of state as the engine lays it out.
func geometry(inv state.Inventory) timed.Geometry {
	var g timed.Geometry
	for i := range inv {
		k := &inv[i]
		if !k.Active() {
			continue
		}
		switch k.Kind {
		case state.AttentionKV:
			g.AttentionPerToken += int64(k.PerToken)
		case state.WindowKV:
			g.WindowPerToken += int64(k.PerToken)
			g.WindowTokens = max(g.WindowTokens, int64(k.WindowMax))
		case state.Recurrent:
			g.Recurrent += int64(k.Fixed)
		case state.Conv:
			g.Conv += int64(k.Fixed)
		case state.MTPKV:
			g.MTPPerToken += int64(k.PerToken)
		}
	}
	return g
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%s (%s) with %s, %d threads, %s, on %s\n\n", r.Model, r.Architecture, r.Engine, r.Threads, r.Backend, r.Machine.CPU)
	fmt.Fprintf(w, "%-32s %12s %12s %12s %12s %8s\n", "", "median ms", "quartiles", "", "fit ms", "error")
	for i := range r.Points {
		p := &r.Points[i]
		fit, off := "", ""
		if p.FitMS > 0 {
			fit, off = fmt.Sprintf("%.4g", p.FitMS), fmt.Sprintf("%+.1f%%", 100*(p.FitMS/p.MS.Median-1))
		}
		fmt.Fprintf(w, "%-32s %12.4g %12.4g %12.4g %12s %8s\n", p.name(), p.MS.Median, p.MS.Q1, p.MS.Q3, fit, off)
	}
	for _, f := range r.Fits {
		fmt.Fprintf(w, "\n%s: error %.1f%% in the median, %.1f%% at most, over %d points\n", f.Kind, 100*f.MedianError, 100*f.WorstError, f.Points)
		for _, c := range f.Coefficients {
			if _, err := fmt.Fprintf(w, "  %-28s %.6g\n", c.Name, c.Value); err != nil {
				return err
			}
		}
	}
	return nil
}

// add records the runs of one point.
func (r *Report) add(p Point, runs []float64) *Point {
	p.MS = bench.Summarize(runs)
	r.Points = append(r.Points, p)
	return &r.Points[len(r.Points)-1]
}

// of returns the points of a kind.
func (r *Report) of(kind string) []*Point {
	var points []*Point
	for i := range r.Points {
		if r.Points[i].Kind == kind {
			points = append(points, &r.Points[i])
		}
	}
	return slices.Clip(points)
}
