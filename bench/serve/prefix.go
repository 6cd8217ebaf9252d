package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem/bench"
)

// Prefix is what [RunPrefix] measures: prompts that begin as an earlier one, against
// prompts that are new, one at a time.
type Prefix struct {
	Target Target
	Plan   bench.Plan
	Prompt int     // tokens of each prompt
	Shared int     // of them, those that a prompt has in common with the one before
	Vocab  int     // token ids are below it
	Pairs  int     // of prompts in a run
	Bar    float64 // most that the ratio of times may exceed the ratio of computed tokens by, as a factor; 0: no bar

	Timeout time.Duration // of one request, default 5 min
	Seed    uint64
}

// Names of what is measured.
const (
	figureTTFT     = "TTFT"
	figureComputed = "computed tokens"
	figureOver     = "TTFT ratio / ratio of computed tokens"
)

// errNoCache is why there is nothing to measure.
var errNoCache = errors.New("the endpoint computed a prompt again whose beginning it had: start it with its prefix cache (tandem: --prefix-cache), and share a page or more")

// RunPrefix asks for one token after each prompt: first new ones, then ones that share
// their beginning with these. Its ratios are those of the times to the first token and of
// the tokens that were computed, as the endpoint's usage counts; the bar is on the one
// over the other. The report is as that of [Run].
func RunPrefix(ctx context.Context, p Prefix) (*bench.Report, error) {
	load := Load{
		Concurrency: 1, Requests: 1, Prompt: Fixed(p.Prompt), Output: Fixed(1), Vocab: p.Vocab, IgnoreEOS: true, Timeout: p.Timeout, Seed: p.Seed,
	}
	load, err := load.fill()
	switch {
	case err != nil:
		return nil, err
	case p.Vocab < 2 || p.Pairs < 1 || p.Shared < 1 || p.Shared >= p.Prompt:
		return nil, fmt.Errorf("%d pairs of prompts of %d tokens below %d that share %d: they share some and not all, and differ", p.Pairs, p.Prompt, p.Vocab, p.Shared)
	}
	report := bench.NewReport("prefix")
	t := names([]Target{p.Target})[0]
	c, err := newClient(ctx, t, load)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.Name, err)
	}
	defer c.http.CloseIdleConnections()
	report.Set(t.Name, fmt.Sprintf("%s%s, model %s", c.target.URL, c.path, printable(c.model)))
	report.Set("prompts", fmt.Sprintf("%d token ids below %d, %d of them shared", p.Prompt, p.Vocab, p.Shared))
	report.Set("runs", fmt.Sprintf("%d of %d pairs after %d warm-up, seed %d", p.Plan.Runs, p.Pairs, p.Plan.Warmup, p.Seed))
	d := &prefixes{c: c, cfg: p, prompts: newPrompts(load, c.model, 0)}
	// The ratio is of the first side to the second, so the first one takes up what the
	// second one left in the turn before.
	runs, err := bench.Alternate(ctx, p.Plan, bench.Side{Name: "hit", Run: d.hit}, bench.Side{Name: "cold", Run: d.cold})
	report.Turns, report.Results = runs.Turns(), over(runs.Results(), p.Bar)
	report.Finish(err == nil)
	return report, err
}

// over adds how much the ratio of times exceeds that of computed tokens.
func over(results []bench.Result, bar float64) []bench.Result {
	if len(results) < 2 || results[0].Ratio == nil || results[1].Ratio == nil {
		return results
	}
	values := slices.Clone(results[0].Ratio.Values)
	for i, computed := range results[1].Ratio.Values {
		values[i] /= computed
	}
	r := bench.Result{Name: figureOver, Series: []bench.Series{bench.NewSeries("hit / cold", values)}}
	if bar > 0 {
		r.Judge(bench.AtMost(bench.OnValue, bar))
	}
	return append(results, r)
}

// prefixes are the prompts of one measurement, in order.
type prefixes struct {
	c       *client
	cfg     Prefix
	prompts *prompts
	last    [][]int // of the last run of cold prompts
}

// first is when the first text came.
type first struct{ at time.Time }

func (f *first) text(at time.Time) {
	if f.at.IsZero() {
		f.at = at
	}
}

// cold asks new prompts.
func (d *prefixes) cold(ctx context.Context) ([]bench.Figure, error) {
	d.last = d.last[:0]
	for range d.cfg.Pairs {
		d.last = append(d.last, d.prompts.ids(d.cfg.Prompt))
	}
	return d.ask(ctx, d.last, false)
}

// hit asks prompts that begin as those of the last cold run.
func (d *prefixes) hit(ctx context.Context) ([]bench.Figure, error) {
	if len(d.last) == 0 { // the first turn
		if _, err := d.cold(ctx); err != nil {
			return nil, err
		}
	}
	all := make([][]int, len(d.last))
	for i, old := range d.last {
		rest := d.prompts.ids(d.cfg.Prompt - d.cfg.Shared)
		rest[0] = (old[d.cfg.Shared] + 1) % d.cfg.Vocab // no more than that is shared
		all[i] = append(slices.Clone(old[:d.cfg.Shared]), rest...)
	}
	return d.ask(ctx, all, true)
}

// ask asks prompts one after the other; the figures are means.
func (d *prefixes) ask(ctx context.Context, all [][]int, hit bool) ([]bench.Figure, error) {
	var took time.Duration
	computed := 0
	for _, ids := range all {
		var came first
		began := time.Now()
		a, err := d.c.ask(ctx, d.prompts.request(body{Prompt: ids}, 1), &came)
		switch {
		case err != nil:
			return nil, err
		case hit && a.cached == 0:
			return nil, errNoCache
		}
		took += came.at.Sub(began)
		computed += a.prompt - a.cached
	}
	n := float64(len(all))
	return []bench.Figure{
		{Name: figureTTFT, Unit: "ms", Value: float64(took) / n / float64(time.Millisecond)},
		{Name: figureComputed, Unit: "tokens", Value: positive(float64(computed) / n)},
	}, nil
}

// positive is a figure that was measured, or none.
func positive(v float64) float64 {
	if v <= 0 {
		return math.NaN()
	}
	return v
}
