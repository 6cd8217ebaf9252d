package bench

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"
)

// Figure is one number that a run measured.
type Figure struct {
	Name  string // the same in every turn and on every side
	Unit  string
	Value float64 // NaN: this run could not measure it
}

// Side is one of the things that are compared.
type Side struct {
	Name string
	// Run measures once. It must return soon after ctx ends, and what it returns
	// together with an error does not count.
	Run func(ctx context.Context) ([]Figure, error)
}

// Plan says how often sides run.
type Plan struct {
	Warmup int          // turns that do not count
	Runs   int          // turns that count, at least 1
	Say    func(string) // gets a line of progress per run; may be nil
	// Pause comes before each run: what ran last may still be busy. The threads of an
	// engine look for more work for a tenth of a second, and take the cores from the
	// next side meanwhile.
	Pause time.Duration
}

// Runs are the figures of completed turns: in each, every side ran once.
type Runs struct {
	sides []string
	turns [][][]Figure // by turn, by side
}

// Alternate runs the sides in turn until the plan is done, ctx ends or a side
// fails. It always returns the turns that were completed and count; the error is
// ctx's own when that has ended.
func Alternate(ctx context.Context, plan Plan, sides ...Side) (*Runs, error) {
	r := &Runs{}
	for _, s := range sides {
		r.sides = append(r.sides, s.Name)
	}
	for turn := -plan.Warmup; turn < plan.Runs; turn++ {
		one := make([][]Figure, len(sides))
		for i, s := range sides {
			rest(ctx, plan.Pause)
			start := time.Now()
			figures, err := s.Run(ctx)
			if ctx.Err() != nil {
				return r, ctx.Err()
			}
			if err != nil {
				return r, fmt.Errorf("%s: %w", s.Name, err)
			}
			one[i] = figures
			if plan.Say != nil {
				plan.Say(progress(turn, plan.Runs, s.Name, time.Since(start), figures))
			}
		}
		if turn >= 0 {
			r.turns = append(r.turns, one)
		}
	}
	return r, nil
}

// rest waits for d, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func progress(turn, runs int, side string, took time.Duration, figures []Figure) string {
	label := "warm-up"
	if turn >= 0 {
		label = fmt.Sprintf("run %d of %d", turn+1, runs)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s took %s", label, side, took.Round(time.Millisecond))
	const shown = 3 // a line, not a report
	for i, f := range figures {
		if i == shown {
			break
		}
		fmt.Fprintf(&b, ", %s %s %s", f.Name, number(f.Value), f.Unit)
	}
	return b.String()
}

// Turns returns how many turns were completed.
func (r *Runs) Turns() int { return len(r.turns) }

// Results returns one result per figure, in the order in which they first
// appeared. With two sides or more it has the ratio of the first to the second,
// unless it is a count: a figure without unit.
func (r *Runs) Results() []Result {
	var names []Figure
	seen := map[string]bool{}
	for _, t := range r.turns {
		for _, side := range t {
			for _, f := range side {
				if !seen[f.Name] {
					seen[f.Name] = true
					names = append(names, f)
				}
			}
		}
	}
	out := make([]Result, len(names))
	for i, f := range names {
		out[i] = r.result(f.Name, f.Unit)
	}
	return out
}

func (r *Runs) result(name, unit string) Result {
	res := Result{Name: name, Unit: unit, Series: []Series{}}
	for i, s := range r.sides {
		series := NewSeries(s, r.values(name, i))
		if series.N > 0 {
			res.Series = append(res.Series, series)
		}
	}
	if len(r.sides) > 1 && unit != "" {
		a, b := r.values(name, 0), r.values(name, 1)
		ratios := make([]float64, len(a))
		for i := range a {
			ratios[i] = a[i] / b[i] // NaN and infinities are left out
		}
		if ratio := NewSeries(r.sides[0]+" / "+r.sides[1], ratios); ratio.N > 0 {
			res.Ratio = &ratio
		}
	}
	return res
}

// values returns one side's figure by turn, NaN where it is missing.
func (r *Runs) values(name string, side int) []float64 {
	out := make([]float64, len(r.turns))
	for i, t := range r.turns {
		out[i] = math.NaN()
		for _, f := range t[side] {
			if f.Name == name {
				out[i] = f.Value
			}
		}
	}
	return out
}
