package profile

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem/engine/timed"
)

// ErrFit says that coefficients do not describe what was measured.
var ErrFit = errors.New("profile: the fit is refused")

// A Fit are the coefficients of one kind of points.
type Fit struct {
	Kind         string        `json:"kind"`
	Coefficients []Coefficient `json:"coefficients"`
	Points       int           `json:"points"`
	// MedianError and WorstError are of |fit/measured − 1|.
	MedianError float64 `json:"median_error"`
	WorstError  float64 `json:"worst_error"`
}

// A Coefficient is one factor, in milliseconds per what its name says.
type Coefficient struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// A law is what the points of a kind are fitted to: a sum of terms.
type law struct {
	kind  string
	names []string
	terms func(p *Point) []float64
}

// The laws are those of timed.Fitted.
var laws = []law{
	{Prefill, []string{"step", "token", "past token", "pair of tokens"}, func(p *Point) []float64 {
		t, s := float64(p.New), float64(p.Past)
		return []float64{1, t, s, s*t + t*t/2}
	}},
	{Decode, []string{"step", "sequence", "token of context", "sequence and token"}, func(p *Point) []float64 {
		return []float64{1, float64(p.Batch), p.Context, float64(p.Batch) * p.Context}
	}},
	{Export, []string{"export", "byte"}, perByte},
	{Import, []string{"import", "byte"}, perByte},
	{ExportSnapshot, []string{"export", "byte"}, perByte},
	{ImportSnapshot, []string{"import", "byte"}, perByte},
}

func perByte(p *Point) []float64 { return []float64{1, float64(p.Bytes)} }

// conclude makes the timing model: finds coefficients, and refuses those of steps
// that do not describe the points unless the points themselves are asked for.
// Moves are always two coefficients: an overhead and a rate.
func (r *Report) conclude(c *Config, g timed.Geometry) error {
	r.Fits, r.Timing = nil, nil
	found := map[string][]float64{}
	var refused error
	for _, l := range laws {
		points := r.of(l.kind)
		if len(points) == 0 {
			continue // a model that stays where it is, or has no pages
		}
		v, f, err := l.fit(points)
		if err != nil {
			return fmt.Errorf("%s: %w", l.kind, err)
		}
		r.Fits = append(r.Fits, f)
		found[l.kind] = v
		if (l.kind == Prefill || l.kind == Decode) && c.Form == Fitted && !(f.MedianError <= c.MaxError) {
			refused = errors.Join(refused, fmt.Errorf("%w: %s is off by %.0f%% in the median, and %.0f%% is the most",
				ErrFit, l.kind, 100*f.MedianError, 100*c.MaxError))
		}
	}
	if refused != nil {
		return fmt.Errorf("%w\nThe machine may be busy: measure again with more --runs on an idle one. If the same points are far off each time, the engine follows no simple law: --form=table keeps the measured times, --max-error allows more", refused)
	}
	spec := &timed.Spec{Note: fmt.Sprintf("tandem profile of %s (%s) with %s, %d threads, %s, on %s",
		r.Model, r.Architecture, r.Engine, r.Threads, r.Backend, r.Machine.CPU)}
	spec.Geometry = g
	// Far beyond the largest batch that was measured nothing is known, and a slope may
	// be more than a model can count.
	spec.MaxDecodes = min(max(64, 4*last(c.Batch)), timed.DefaultMaxDecodes)
	spec.Moves = moves(found)
	if c.Form == Table {
		spec.Table = r.table(c)
	} else {
		p, d := found[Prefill], found[Decode]
		spec.Fitted = &timed.Fitted{
			StepMS: p[0], TokenMS: p[1], PastMS: p[2], PairMS: p[3],
			Decode: []timed.DecodeFit{{StepMS: d[0], SequenceMS: d[1], ContextMS: d[2], PairMS: d[3]}},
		}
	}
	// This is what replay will read: it must be acceptable now.
	if _, err := spec.Build(); err != nil {
		return fmt.Errorf("%w: %w", ErrFit, err)
	}
	r.Timing = spec
	return nil
}

// moves are the costs of pages or, for models without, of snapshots.
func moves(found map[string][]float64) timed.Moves {
	var mv timed.Moves
	for _, kind := range []string{ExportSnapshot, Export} {
		if v := found[kind]; v != nil {
			mv.ExportMS, mv.ExportBytesPerSecond = v[0], rate(v[1])
		}
	}
	for _, kind := range []string{ImportSnapshot, Import} {
		if v := found[kind]; v != nil {
			mv.ImportMS, mv.ImportBytesPerSecond = v[0], rate(v[1])
		}
	}
	return mv
}

// table puts the medians on the grids. Where a sequence had grown a little beyond
// a line of its grid, the line's time is between those of its neighbours.
func (r *Report) table(c *Config) *timed.Table {
	t := &timed.Table{New: c.New, Past: c.Past, Batch: c.Batch, Context: c.Context}
	prefill, decode := r.of(Prefill), r.of(Decode)
	for _, n := range c.New {
		var x, y []float64
		for _, p := range prefill {
			if p.New == n {
				x, y = append(x, float64(p.Past)), append(y, p.MS.Median)
			}
		}
		t.PrefillMS = append(t.PrefillMS, between(x, y, c.Past))
	}
	for _, b := range c.Batch {
		var x, y []float64
		for _, p := range decode {
			if p.Batch == b {
				x, y = append(x, p.Context/float64(b)), append(y, p.MS.Median)
			}
		}
		t.DecodeMS = append(t.DecodeMS, between(x, y, c.Context))
	}
	return t
}

// between reads a curve through points with ascending x at the lines of a grid;
// before the first point it is flat.
func between(x, y []float64, lines []int) []float64 {
	out := make([]float64, len(lines))
	i := 0
	for k, line := range lines {
		at := float64(line)
		for i+1 < len(x) && x[i+1] <= at {
			i++
		}
		out[k] = y[i]
		if at > x[i] && i+1 < len(x) {
			out[k] += (y[i+1] - y[i]) * (at - x[i]) / (x[i+1] - x[i])
		}
	}
	return out
}

// rate turns milliseconds per byte to bytes per second, 0 for no cost.
func rate(ms float64) float64 {
	if ms <= 1e-15 {
		return 0
	}
	return 1e3 / ms
}

func (l *law) fit(points []*Point) ([]float64, Fit, error) {
	rows, y := make([][]float64, len(points)), make([]float64, len(points))
	for i, p := range points {
		rows[i], y[i] = l.terms(p), p.MS.Median
	}
	c, err := leastSquares(rows, y)
	if err != nil {
		return nil, Fit{}, err
	}
	f := Fit{Kind: l.kind, Points: len(points)}
	var off []float64
	for i, p := range points {
		p.FitMS = dot(rows[i], c)
		off = append(off, math.Abs(p.FitMS/p.MS.Median-1))
	}
	slices.Sort(off)
	f.MedianError, f.WorstError = off[len(off)/2], off[len(off)-1]
	for i, name := range l.names {
		f.Coefficients = append(f.Coefficients, Coefficient{Name: "ms per " + name, Value: c[i]})
	}
	return c, f, nil
}

// leastSquares returns the coefficients c ≥ 0 that make the sum of squares of
// (row·c − y)/y least. There are at most five, so all choices of those that are
// above zero are tried: the best one whose unconstrained solution is not negative
// is the constrained optimum. The normal equations of columns scaled to one are
// well enough conditioned for that.
func leastSquares(rows [][]float64, y []float64) ([]float64, error) {
	n := len(rows[0])
	scaled := make([][]float64, len(rows))
	norm := make([]float64, n)
	for i, row := range rows {
		if !(y[i] > 0) {
			return nil, fmt.Errorf("%w: a point took no time; it is too small for the clock", ErrFit)
		}
		scaled[i] = make([]float64, n)
		for j, x := range row {
			scaled[i][j] = x / y[i]
			norm[j] = math.Hypot(norm[j], scaled[i][j])
		}
	}
	for _, row := range scaled {
		for j := range row {
			if norm[j] > 0 {
				row[j] /= norm[j]
			}
		}
	}
	var best []float64
	least := math.Inf(1)
	for mask := 1; mask < 1<<n; mask++ {
		c, ok := solve(scaled, mask)
		if !ok || slices.Min(c) < 0 {
			continue
		}
		var sum float64
		for _, row := range scaled {
			d := dot(row, c) - 1
			sum += d * d
		}
		if sum < least {
			best, least = c, sum
		}
	}
	if best == nil {
		return nil, fmt.Errorf("%w: the points do not tell the coefficients apart; measure more different ones", ErrFit)
	}
	for j := range best {
		if norm[j] > 0 {
			best[j] /= norm[j]
		}
	}
	return best, nil
}

func dot(a, b []float64) float64 {
	var sum float64
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// solve is the least-squares solution of rows·c = 1 with the coefficients that mask
// names, the others 0; false if the columns are not independent.
func solve(rows [][]float64, mask int) ([]float64, bool) {
	n := len(rows[0])
	var at []int
	for j := range n {
		if mask&(1<<j) != 0 {
			at = append(at, j)
		}
	}
	// Normal equations, augmented by the right side.
	a := make([][]float64, len(at))
	for i := range a {
		a[i] = make([]float64, len(at)+1)
		for _, row := range rows {
			for k := range at {
				a[i][k] += row[at[i]] * row[at[k]]
			}
			a[i][len(at)] += row[at[i]]
		}
	}
	for i := range a { // elimination with the largest pivot
		p := i
		for k := i + 1; k < len(a); k++ {
			if math.Abs(a[k][i]) > math.Abs(a[p][i]) {
				p = k
			}
		}
		a[i], a[p] = a[p], a[i]
		if math.Abs(a[i][i]) < 1e-12 {
			return nil, false
		}
		for k := range a {
			if k == i {
				continue
			}
			f := a[k][i] / a[i][i]
			for j := i; j <= len(at); j++ {
				a[k][j] -= f * a[i][j]
			}
		}
	}
	c := make([]float64, n)
	for i, j := range at {
		c[j] = a[i][len(at)] / a[i][i]
	}
	return c, true
}
