package sweep

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem/replay/report"
)

// Find searches for the goodput of a cell: the highest load at which a run
// still meets its SLO (report.Goodput.Met).
//
// It doubles the load from Low until a run fails, and then halves the interval
// on a logarithmic scale until its ends are within Tolerance. The load that it
// finds meets the SLO, and one at most Tolerance above it does not. That is the
// highest one if attainment falls with load. It need not: batches that happen to
// fit, or prefixes that stay cached, can make a somewhat higher load meet the SLO
// again, and a search does not see that. The runs of a search are in its result,
// to be looked at.
type Find struct {
	Path      string  `json:"path"` // of the field that is the load; more must be more load
	Low       float64 `json:"low"`  // above 0
	High      float64 `json:"high"` // the search goes no further
	Tolerance float64 `json:"tolerance"`
}

// ErrFind is returned for a search that cannot be made.
var ErrFind = errors.New("sweep: impossible search")

func (f *Find) check(axes []Axis) error {
	if _, err := parsePath(f.Path); err != nil {
		return err
	}
	if !(f.Low > 0 && f.High >= f.Low && !math.IsInf(f.High, 0)) || !(f.Tolerance >= 0.001 && f.Tolerance < 1) {
		return fmt.Errorf("%w: from %v to %v within %v: the load must be above 0, the tolerance from 0.001 to 1", ErrFind, f.Low, f.High, f.Tolerance)
	}
	for _, a := range axes {
		if slices.Contains(a.Paths, f.Path) {
			return fmt.Errorf("%w: %s is on an axis already", ErrFind, f.Path)
		}
	}
	return nil
}

// search fills in what it finds. run makes a run with settings beside the
// cell's.
func (f *Find) search(run func(more ...Setting) (*report.Result, error), out *CellResult) error {
	meets := func(load float64) (bool, error) {
		text := number(load, 4)
		r, err := run(Setting{f.Path, text})
		if err != nil {
			return false, fmt.Errorf("at %s = %s: %w", f.Path, text, err)
		}
		out.Probes = append(out.Probes, Probe{text, r})
		if r.Goodput.Met {
			out.Load, out.Result = text, r
		}
		return r.Goodput.Met, nil
	}
	defer func() {
		slices.SortStableFunc(out.Probes, func(a, b Probe) int { return compareValues(a.Load, b.Load) })
	}()

	low := rounded(f.Low)
	high := low
	for {
		met, err := meets(high)
		if err != nil {
			return err
		}
		if !met {
			break
		}
		if high >= f.High {
			out.Found = AtLeast
			return nil
		}
		low, high = high, min(2*high, f.High)
	}
	if out.Result == nil {
		out.Found, out.Load, out.Result = Below, out.Probes[0].Load, out.Probes[0].Result
		return nil
	}
	for high/low > 1+f.Tolerance {
		middle := rounded(math.Sqrt(low * high))
		if middle <= low || middle >= high {
			break // loads have four digits
		}
		met, err := meets(middle)
		if err != nil {
			return err
		}
		if met {
			low = middle
		} else {
			high = middle
		}
	}
	out.Found = Exactly
	return nil
}

// rounded is the load that a run gets.
func rounded(load float64) float64 {
	v := scalar(number(load, 4))
	switch n := v.(type) {
	case int64:
		return float64(n)
	case float64:
		return n
	}
	return load
}
