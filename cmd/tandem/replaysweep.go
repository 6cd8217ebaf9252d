package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tandem-llm/tandem/replay"
	replayfleet "github.com/tandem-llm/tandem/replay/fleet"
	"github.com/tandem-llm/tandem/replay/report"
	"github.com/tandem-llm/tandem/replay/sweep"
)

type replaySweepCmd struct {
	replayInput `embed:""`
	Over        []string `help:"Fields of the fleet and their values, as in pools.decode.count=1..8, links.default.gbps=1,10,100, or pools.p.count:pools.d.count=8 for every split; may be repeated." placeholder:"PATH=VALUES" sep:"none"`
	Find        string   `default:"" enum:",goodput" help:"goodput: for each cell, search the highest load that meets the SLO."`
	Load        string   `help:"Field that is the load; default: workload.rate, or speedup with a trace." placeholder:"PATH"`
	Low         float64  `default:"1" help:"Least load that a search tries."`
	High        float64  `default:"10000" help:"Most load that a search tries."`
	Tolerance   float64  `default:"0.02" help:"How close a search comes, relative to the load."`
	Jobs        int      `default:"0" help:"Runs at once; 0: one for each core."`
	Store       string   `help:"Keep finished runs in FILE, and do not make them again." placeholder:"FILE"`
	JSON        bool     `name:"json" help:"Print the results as JSON."`
	CSV         string   `name:"csv" help:"Write one line for each run." placeholder:"FILE"`
	HTML        string   `name:"html" help:"Write a page that compares the cells and needs nothing else." placeholder:"FILE"`
	SVG         string   `name:"svg" help:"Write goodput over load as a picture." placeholder:"FILE"`
}

// Run runs a grid.
func (c *replaySweepCmd) Run(a *app) (err error) {
	if _, err := c.fleet(a.config); err != nil { // what is wrong already need not run in every cell
		return err
	}
	s := sweep.Sweep{Load: c.Load, Parallel: c.Jobs, Run: c.cell(a.config)}
	if s.Base, err = c.document(a.config); err != nil {
		return err
	}
	for _, text := range c.Over {
		axis, err := sweep.ParseAxis(text)
		if err != nil {
			return usageError{fmt.Errorf("--over: %w", err)}
		}
		s.Axes = append(s.Axes, axis)
	}
	if c.Find != "" {
		path := c.Load
		if path == "" {
			if path = "workload.rate"; c.Trace != "" {
				path = "speedup"
			}
		}
		s.Find = &sweep.Find{Path: path, Low: c.Low, High: c.High, Tolerance: c.Tolerance}
	}
	if s.Inputs, err = c.inputs(); err != nil {
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
	if res == nil {
		return err
	}
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

// cell runs one cell of the grid.
func (c *replaySweepCmd) cell(path string) sweep.Run {
	return func(ctx context.Context, cell sweep.Cell) (*report.Result, error) {
		cfg, err := replayfleet.FromAny(cell.Config, readNear(path))
		if err != nil {
			return nil, err
		}
		if c.Seed != 0 {
			cfg.Seed = c.Seed
		}
		src, err := c.source(cfg)
		if err != nil {
			return nil, err
		}
		defer src.close()
		opt := c.options(path)
		opt.NoCharts = true
		return replay.Run(ctx, cfg, src, replay.Options{Report: opt})
	}
}

// inputs names what results depend on beside the fleet.
func (c *replaySweepCmd) inputs() (string, error) {
	in := c.replayInput
	in.Set = nil // they are in the document
	digest := sha256.New()
	if c.Trace == "-" {
		return "", errors.New("--trace: a sweep reads the trace again for every run: name a file")
	}
	if c.Trace != "" {
		f, err := os.Open(c.Trace)
		if err != nil {
			return "", fmt.Errorf("--trace: %w", err)
		}
		defer f.Close()
		if _, err := io.Copy(digest, f); err != nil {
			return "", fmt.Errorf("--trace: %w", err)
		}
		in.Trace = ""
	}
	return fmt.Sprintf("replay 1 %+v %x", in, digest.Sum(nil)), nil
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
