package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/profile"
)

type profileCmd struct {
	// Those of a worker that change what a step takes.
	Slots      int    `default:"4" help:"Sequences the engine holds at once: the largest batch of decodes."`
	Context    int    `default:"8192" help:"Longest sequence to measure; the model may hold fewer."`
	Cells      int    `default:"0" help:"Attention cells all sequences share; 0: slots times context."`
	PageTokens int    `default:"512" help:"Tokens of the largest chunk, computed at once."`
	Threads    int    `default:"0" help:"Threads that compute; 0: the number of cores."`
	KVType     string `name:"kv-type" default:"f16" enum:"f16,bf16,q8_0" help:"Element type of attention state: f16, bf16 or q8_0."`
	GPULayers  int    `name:"gpu-layers" default:"-1" help:"Layers to put on an accelerator; -1: all, where there is one."`

	Model    string  `help:"GGUF file to measure; for a split model its first part. Default: the small model that 'up' serves." placeholder:"FILE" type:"existingfile"`
	Out      string  `help:"Where to write the timing model; default: only print what was measured." placeholder:"FILE"`
	JSON     bool    `name:"json" help:"Print the report as JSON."`
	New      []int   `help:"Tokens of prompt chunks to measure; default: up to a page." placeholder:"N"`
	Past     []int   `help:"Tokens that they come on top of; default: up to half of --context." placeholder:"N"`
	Batch    []int   `help:"Sequences of decode steps; default: up to --slots." placeholder:"N"`
	Held     []int   `help:"Tokens that each of them holds; default: as far as there is room." placeholder:"N"`
	Runs     int     `default:"5" help:"How often each point is measured; its median counts."`
	Form     string  `default:"fitted" enum:"fitted,table" help:"What to write: fitted coefficients, which go on beyond what was measured, or the measured times as a table."`
	MaxError float64 `default:"0.15" help:"Largest median of the fit's relative errors that is accepted."`
	Seed     uint64  `default:"1" help:"Seed of the random prompts."`
}

func (c *profileCmd) Run(a *app) error {
	f := engineFlags{
		Slots: c.Slots, Context: c.Context, Cells: c.Cells, PageTokens: c.PageTokens, Threads: c.Threads, KVType: c.KVType, GPULayers: c.GPULayers,
	}
	if err := errors.Join(f.check(), between("context", c.Context, 64, most), between("runs", c.Runs, 1, 1000), between("max-error", c.MaxError, 1e-6, 1e6)); err != nil {
		return err
	}
	if c.Out != "" { // before minutes of measuring
		if _, err := os.Stat(filepath.Dir(c.Out)); err != nil {
			return usageError{fmt.Errorf("--out: %w", err)}
		}
	}
	file := c.Model
	if file == "" {
		var err error
		if file, err = tiny.Cached(tiny.NemotronHMoE); err != nil {
			return err
		}
	}
	m, err := model.Inspect(file)
	if err != nil {
		return err
	}
	if err := m.Serve(); err != nil {
		return err
	}
	if m.Context > 0 {
		f.Context = min(f.Context, m.Context)
	}
	e, err := f.open(a.ctx, a, m, f.Slots, slog.New(slog.NewTextHandler(a.stderr, nil)))
	if err != nil {
		return err
	}
	report, err := profile.Run(a.ctx, e, profile.Config{
		New: c.New, Past: c.Past, Batch: c.Batch, Context: c.Held, Longest: f.Context, Runs: c.Runs, Form: c.Form, MaxError: c.MaxError, Seed: c.Seed,
		Say: func(line string) { fmt.Fprintln(a.stderr, line) },
	})
	err = errors.Join(err, e.Close())
	if errors.Is(err, profile.ErrConfig) {
		return usageError{err}
	}
	if report == nil {
		return err
	}
	if c.JSON {
		out := json.NewEncoder(a.stdout)
		out.SetIndent("", "  ")
		err = errors.Join(err, out.Encode(report))
	} else {
		err = errors.Join(err, report.WriteTable(a.stdout))
	}
	if err == nil && c.Out != "" {
		err = writeTiming(c.Out, report.Timing)
	}
	return err
}

// writeTiming replaces a file only when all of the new one is there.
func writeTiming(path string, spec *timed.Spec) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tandem-profile-*")
	if err != nil {
		return usageError{fmt.Errorf("--out: %w", err)}
	}
	err = errors.Join(spec.Write(f), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("--out: %w", err)
	}
	return nil
}
