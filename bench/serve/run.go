package serve

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/bench"
)

// Config is what [Run] measures.
type Config struct {
	Targets []Target // one, or two that are compared: the first's figures over the second's
	Load    Load
	Plan    bench.Plan
	Bar     float64 // least ratio of decode and prefill tokens/s; 0: no bar
}

// Run drives the targets in turn. The report is nil only if nothing could be
// begun; with an error it has what was measured before, and is marked as
// incomplete. A failed request is a figure of the report and no error, unless all
// of a run failed.
func Run(ctx context.Context, cfg Config) (*bench.Report, error) {
	load, err := cfg.Load.fill()
	if err != nil {
		return nil, err
	}
	if n := len(cfg.Targets); n < 1 || n > 2 {
		return nil, fmt.Errorf("%d endpoints: use one or two", n)
	}
	report := bench.NewReport("serve")
	var sides []bench.Side
	failed := make([]*failure, len(cfg.Targets)) // the first of each target
	for i, t := range names(cfg.Targets) {
		c, err := newClient(ctx, t, load)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Name, err)
		}
		defer c.http.CloseIdleConnections()
		report.Set(t.Name, fmt.Sprintf("%s%s, model %s", c.target.URL, c.path, printable(c.model)))
		run := uint64(0)
		sides = append(sides, bench.Side{Name: t.Name, Run: func(ctx context.Context) ([]bench.Figure, error) {
			run++
			m, err := c.drive(ctx, load, run)
			if m.first != nil && failed[i] == nil && ctx.Err() == nil {
				failed[i] = m.first
			}
			if err != nil {
				return nil, err
			}
			return m.figures(load.Rate > 0), nil
		}})
	}
	describe(report, load, cfg.Plan)
	runs, err := bench.Alternate(ctx, cfg.Plan, sides...)
	report.Turns, report.Results = runs.Turns(), runs.Results()
	if len(sides) == 2 && cfg.Bar > 0 && load.Rate == 0 {
		judge(report.Results, load, cfg.Bar)
	}
	for i, f := range failed {
		if f != nil {
			report.Notes = append(report.Notes, fmt.Sprintf("%s: the first failure was a %v", sides[i].Name, f))
		}
	}
	report.Finish(err == nil)
	return report, err
}

// judge sets the bar on what the load is made to measure: the prefill rate where
// an answer is one token, else the decode rate.
func judge(results []bench.Result, load Load, bar float64) {
	name := figureDecode
	if load.Output.high == 1 {
		name = figurePrefill
	}
	for i := range results {
		if results[i].Name == name {
			results[i].Judge(bench.AtLeast(bench.OnRatio, bar))
		}
	}
}

// names gives every target a name of its own.
func names(targets []Target) []Target {
	out := append([]Target(nil), targets...)
	for i := range out {
		if out[i].Name == "" {
			out[i].Name = out[i].URL
			if u, err := url.Parse(out[i].URL); err == nil && u.Host != "" {
				out[i].Name = u.Host
			}
		}
	}
	if len(out) == 2 && out[0].Name == out[1].Name {
		out[0].Name += " (1)"
		out[1].Name += " (2)"
	}
	return out
}

func describe(r *bench.Report, l Load, p bench.Plan) {
	r.Set("load", l.describe())
	unit := "words"
	if l.Vocab > 0 {
		unit = fmt.Sprintf("token ids below %d", l.Vocab)
	}
	r.Set("prompts", fmt.Sprintf("%s %s", l.Prompt, unit))
	r.Set("answers", fmt.Sprintf("%s tokens, ignore_eos %t", l.Output, l.IgnoreEOS))
	bound := fmt.Sprintf("%d requests", l.Requests)
	if l.Duration > 0 {
		bound += fmt.Sprintf(" or %s", l.Duration)
	}
	r.Set("runs", fmt.Sprintf("%d of %s after %d warm-up, seed %d", p.Runs, bound, p.Warmup, l.Seed))
	if l.SLO != (SLO{}) {
		r.Set("SLO", fmt.Sprintf("TTFT %s, TPOT %s", l.SLO.TTFT, l.SLO.TPOT))
	}
}

// drive is one run. It returns when every request that it began has ended.
func (c *client) drive(ctx context.Context, load Load, run uint64) (*meter, error) {
	// While the other target had its turn the server may have closed connections that are idle here, and
	// the next request on one of them would look like a failure.
	c.http.CloseIdleConnections()
	m := newMeter(load.SLO)
	ask := func(r request, intended time.Time) {
		s := m.begin(intended)
		a, err := c.ask(ctx, r, s)
		var f *failure
		if err != nil && !errors.As(err, &f) {
			f = &failure{kindConnect, err.Error()} // interrupted; the run does not count
		}
		s.finish(a, f)
	}
	if load.Rate > 0 {
		c.openLoop(ctx, load, run, m, ask)
	} else {
		c.closedLoop(ctx, load, run, ask)
	}
	if ctx.Err() != nil {
		return m, ctx.Err()
	}
	if m.ok == 0 {
		if m.first == nil {
			return m, errors.New("no request was due within the run's duration: raise it")
		}
		return m, fmt.Errorf("no request succeeded: %w", m.first)
	}
	return m, nil
}

// closedLoop keeps a number of streams going: each asks again when it has its answer.
func (c *client) closedLoop(ctx context.Context, load Load, run uint64, ask func(request, time.Time)) {
	var (
		mu    sync.Mutex
		next  = newPrompts(load, c.model, run)
		left  = load.Requests
		start = time.Now()
	)
	take := func() (request, bool) {
		mu.Lock()
		defer mu.Unlock()
		if left == 0 || ctx.Err() != nil || load.Duration > 0 && time.Since(start) >= load.Duration {
			return request{}, false
		}
		left--
		return next.next(), true
	}
	var streams sync.WaitGroup
	for range min(load.Concurrency, load.Requests) {
		streams.Go(func() {
			for r, ok := take(); ok; r, ok = take() {
				ask(r, time.Now())
			}
		})
	}
	streams.Wait()
}

// openLoop sends requests when they are due, whatever became of those before. If
// too many are in flight the next ones wait here, and their latency counts from
// when they were due.
func (c *client) openLoop(ctx context.Context, load Load, run uint64, m *meter, ask func(request, time.Time)) {
	next := newPrompts(load, c.model, run)
	gap := load.gaps(rand.New(rand.NewPCG(^load.Seed, run)))
	places := make(chan struct{}, load.MaxInFlight)
	var flying sync.WaitGroup
	defer flying.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	start, due := time.Now(), time.Duration(0)
	for range load.Requests {
		due += gap()
		if load.Duration > 0 && due > load.Duration {
			return
		}
		r := next.next()
		intended := start.Add(due)
		timer.Reset(time.Until(intended))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		m.late(time.Since(intended))
		flying.Go(func() {
			defer func() { <-places }()
			ask(r, intended)
		})
	}
}

func (m *meter) late(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lag.record(d)
}
