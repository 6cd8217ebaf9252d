package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/replay"
	replayfleet "github.com/tandem-llm/tandem/replay/fleet"
	"github.com/tandem-llm/tandem/replay/report"
	"github.com/tandem-llm/tandem/replay/sweep"
	"github.com/tandem-llm/tandem/workload"
	"go.yaml.in/yaml/v3"
)

type replaySweepCmd struct {
	replayInput `embed:""`
	Over        []string `help:"Fields of the fleet and their values, as in pools.decode.count=1..8, links.default.gbps=1,10,100, or pools.p.count:pools.d.count=8 for every split; may be repeated (docs/replay-sweep.md)." placeholder:"PATH=VALUES" sep:"none"`
	With        []string `help:"Compare another fleet with that of --config; may be repeated." placeholder:"FILE" sep:"none"`
	Find        string   `default:"" enum:",goodput" help:"goodput: for each cell, search the highest load that meets the SLO."`
	Load        string   `help:"Field that is the load; default: workload.rate, or speedup with a trace." placeholder:"PATH"`
	Low         float64  `default:"0" help:"Least load that a search tries; 0: a sixteenth of what the fleet's file says."`
	High        float64  `default:"0" help:"Most load that a search tries; 0: 64 times what the fleet's file says."`
	Tolerance   float64  `default:"0.02" help:"How close a search comes, relative to the load."`
	Jobs        int      `default:"0" help:"Runs at once; 0: one for each core."`
	Store       string   `help:"Keep finished runs in FILE, and do not make them again." placeholder:"FILE"`
	Title       string   `help:"Title of the page and the picture."`
	JSON        bool     `name:"json" help:"Print the results as JSON."`
	CSV         string   `name:"csv" help:"Write one line for each run." placeholder:"FILE"`
	HTML        string   `name:"html" help:"Write a page that compares the cells and needs nothing else." placeholder:"FILE"`
	SVG         string   `name:"svg" help:"Write goodput over load as a picture." placeholder:"FILE"`
}

// Run runs a grid. What came out until then is also written when it is
// interrupted.
func (c *replaySweepCmd) Run(a *app) (err error) {
	s, err := c.sweep(a.config)
	if err != nil {
		return usageError{err}
	}
	if c.Store != "" {
		if s.Store, err = sweep.OpenStore(c.Store); err != nil {
			return usageError{fmt.Errorf("--store: %w", err)}
		}
		defer func() { err = errors.Join(err, s.Store.Close()) }()
	}
	s.Progress = progressOn(a.stderr)
	res, err := s.Do(a.ctx)
	if isTerminal(a.stderr) {
		fmt.Fprintln(a.stderr)
	}
	switch {
	case errors.Is(err, sweep.ErrAxis), errors.Is(err, sweep.ErrFind), errors.Is(err, sweep.ErrPath):
		return usageError{err}
	case res == nil || len(res.Cells) == 0:
		return err
	}
	res.Title = c.Title
	for _, out := range []struct {
		flag, path string
		write      func(io.Writer) error
	}{{"--csv", c.CSV, res.CSV}, {"--html", c.HTML, res.HTML}, {"--svg", c.SVG, res.SVG}} {
		if out.path != "" {
			if werr := writeFile(out.path, out.write); werr != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", out.flag, werr))
			}
		}
	}
	show := res.Table
	if c.JSON {
		show = res.JSON
	}
	if err = errors.Join(err, show(a.stdout)); err == nil && res.Failed() > 0 {
		err = fmt.Errorf("%d of %d cells failed", res.Failed(), len(res.Cells))
	}
	return err
}

// sweep is what the flags ask for.
func (c *replaySweepCmd) sweep(config string) (*sweep.Sweep, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	digest := sha256.New()
	if err := c.sumTrace(digest); err != nil {
		return nil, err
	}
	s := &sweep.Sweep{Load: c.Load, Parallel: c.Jobs}
	if s.Load == "" {
		if s.Load = "workload.rate"; c.Trace != "" {
			s.Load = "speedup"
		}
	}
	paths := map[string]string{} // of fleets, by their names
	var taken []bool
	if len(c.With) > 0 {
		taken = make([]bool, len(c.Set))
	}
	var bases []sweep.Base
	for _, path := range append([]string{config}, c.With...) {
		doc, err := c.folded(path, digest, taken)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
		if paths[name] != "" {
			name = path
		}
		paths[name] = path
		bases = append(bases, sweep.Base{Name: name, Config: doc})
	}
	for i, some := range taken {
		if !some {
			return nil, fmt.Errorf("--set %s: none of the fleets has that field", c.Set[i])
		}
	}
	s.Base, s.Name, s.With = bases[0].Config, bases[0].Name, bases[1:]
	for _, text := range c.Over {
		axis, err := sweep.ParseAxis(text)
		if err != nil {
			return nil, fmt.Errorf("--over: %w", err)
		}
		s.Axes = append(s.Axes, axis)
	}
	if c.SVG != "" && c.Find == "" && !slices.ContainsFunc(s.Axes, func(a sweep.Axis) bool { return slices.Contains(a.Paths, s.Load) }) {
		return nil, fmt.Errorf("--svg: %w", sweep.ErrNoLoad) // before minutes of runs
	}
	if c.Find != "" {
		load := 1.0
		if v, err := strconv.ParseFloat(sweep.Get(s.Base, s.Load), 64); err == nil && v > 0 {
			load = v
		}
		s.Find = &sweep.Find{Path: s.Load, Low: cmp.Or(c.Low, load/16), High: cmp.Or(c.High, load*64), Tolerance: c.Tolerance}
	}
	in := c.replayInput
	in.Trace, in.Set = "", nil // their content counts
	s.Inputs = fmt.Sprintf("tandem %s, %+v, %x", version(), in, digest.Sum(nil))
	s.Run = func(ctx context.Context, cell sweep.Cell) (*report.Result, error) {
		path := config
		if len(c.With) > 0 {
			path = paths[cell.Settings[0].Value]
		}
		return c.cell(ctx, path, cell)
	}
	return s, nil
}

// folded reads the description of a fleet and brings into it what flags say of
// fields that a sweep may change. Files that the fleet names go into the digest. What
// is wrong already is an error here, and need not run in every cell.
func (c *replaySweepCmd) folded(path string, digest io.Writer, taken []bool) (any, error) {
	if path == "" {
		return nil, errNoFleet
	}
	doc, err := c.document(path, taken)
	if err != nil {
		return nil, err
	}
	if c.Workload != "" {
		spec, err := workload.ParseSpec(c.Workload)
		if err != nil {
			return nil, fmt.Errorf("--workload: %w", err)
		}
		text, err := yaml.Marshal(spec)
		if err != nil {
			return nil, fmt.Errorf("--workload: %w", err)
		}
		var fields any
		if err := yaml.Unmarshal(text, &fields); err != nil {
			return nil, fmt.Errorf("--workload: %w", err)
		}
		doc.(map[string]any)["workload"] = fields
	}
	if c.Speedup > 0 {
		doc.(map[string]any)["speedup"] = c.Speedup
	}
	if _, err = replayfleet.FromAny(doc, func(name string) ([]byte, error) {
		raw, err := readNear(path)(name)
		fmt.Fprintf(digest, "%q %d\n%s", name, len(raw), raw)
		return raw, err
	}); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return doc, nil
}

// cell runs one cell of the grid.
func (c *replaySweepCmd) cell(ctx context.Context, path string, cell sweep.Cell) (*report.Result, error) {
	cfg, err := replayfleet.FromAny(cell.Config, readNear(path))
	if err != nil {
		return nil, err
	}
	in := c.replayInput
	in.Workload, in.Speedup = "", 0 // the description has them
	if in.Seed != 0 {
		cfg.Seed = in.Seed
	}
	src, err := in.source(cfg)
	if err != nil {
		return nil, err
	}
	defer src.close()
	opt := c.options(path)
	opt.NoCharts = true
	return replay.Run(ctx, cfg, src, replay.Options{Report: opt})
}

// sumTrace adds the content of the trace to the digest.
func (c *replaySweepCmd) sumTrace(digest io.Writer) error {
	switch c.Trace {
	case "":
		return nil
	case "-":
		return errors.New("--trace: a sweep reads the trace again for every run: name a file")
	}
	f, err := os.Open(c.Trace)
	if err != nil {
		return fmt.Errorf("--trace: %w", err)
	}
	defer f.Close()
	if _, err := io.Copy(digest, f); err != nil {
		return fmt.Errorf("--trace: %w", err)
	}
	return nil
}

// progressOn shows how far a sweep is: in place on a terminal, else a line now and then.
func progressOn(w io.Writer) func(sweep.Progress) {
	terminal := isTerminal(w)
	every := 10 * time.Second
	if terminal {
		every = 200 * time.Millisecond
	}
	last := time.Now()
	return func(p sweep.Progress) {
		if time.Since(last) < every && p.Done < p.Cells {
			return
		}
		last = time.Now()
		if terminal {
			fmt.Fprintf(w, "\r\x1b[K%s", p)
		} else {
			fmt.Fprintln(w, p)
		}
	}
}
