package sweep

import (
	"cmp"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem/replay/page"
	"github.com/tandem-llm/tandem/replay/report"
)

// curve is what became of one configuration under several loads.
type curve struct {
	name   string
	points []curvePoint // in the order of the rate
	best   float64      // highest goodput
}

type curvePoint struct {
	rate   float64 // requests per second that arrive: a load such as a speed-up says little to a reader
	result *report.Result
}

// curves returns a curve for each configuration, if there is a load.
func (r *Results) curves() []curve {
	var out []curve
	index := map[string]int{}
	add := func(name, load string, res *report.Result) {
		if load == "" || res == nil {
			return
		}
		i, ok := index[name]
		if !ok {
			i = len(out)
			index[name] = i
			out = append(out, curve{name: name})
		}
		out[i].points = append(out[i].points, curvePoint{float64(res.Throughput.Offered), res})
		out[i].best = max(out[i].best, float64(res.Goodput.Requests))
	}
	for _, row := range r.rows(true) {
		load := row.load // on an axis, or of a search
		for _, s := range row.cell.Settings {
			if s.Path == r.Load {
				load = s.Value
			}
		}
		add(r.name(row.cell), load, row.result)
	}
	for i := range out {
		slices.SortStableFunc(out[i].points, func(a, b curvePoint) int { return cmp.Compare(a.rate, b.rate) })
	}
	return out
}

// name says what is particular about a cell, load aside: values of fields that
// the sweep changes.
func (r *Results) name(c *CellResult) string {
	paths := r.paths()
	short := shorten(paths)
	var parts []string
	for i, s := range c.Settings {
		if s.Path == r.Load || !r.varies(s.Path) {
			continue
		}
		if _, err := strconv.ParseFloat(s.Value, 64); err != nil && s.Value != "true" && s.Value != "false" {
			parts = append(parts, s.Value) // a word speaks for itself
			continue
		}
		parts = append(parts, short[i]+" "+s.Value)
	}
	if parts == nil {
		return cmp.Or(r.Title, "replay")
	}
	return strings.Join(parts, ", ")
}

// varies says whether a path has more than one value.
func (r *Results) varies(path string) bool {
	for _, a := range r.Axes {
		for i, p := range a.Paths {
			if p != path {
				continue
			}
			for _, v := range a.Values {
				if v[i] != a.Values[0][i] {
					return true
				}
			}
		}
	}
	return false
}

// Most curves of a chart, and those that it shows at first: as many as there are
// colours for lines. The reader can turn on the others.
const (
	mostCurves  = 28
	shownCurves = 7
)

// loadChart draws a figure of the curves with the highest goodput over the load.
func (r *Results) loadChart(curves []curve, title string, y page.Axis, of func(r *report.Result) float64) page.Chart {
	chart := page.Chart{Kind: page.Lines, Title: title, Group: "load", X: page.Axis{Label: "requests offered", Unit: page.PerSecond}, Y: y}
	order := make([]int, len(curves))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(curves[b].best, curves[a].best) })
	shown := order[:min(len(order), shownCurves)]
	rest := order[len(shown):min(len(order), mostCurves)]
	slices.Sort(shown) // the order of the grid
	slices.Sort(rest)
	for n, i := range append(shown[:len(shown):len(shown)], rest...) {
		c := &curves[i]
		s := page.Series{Name: c.name, Color: n % shownCurves, Dash: n/shownCurves%2 == 1, Dots: true, Hidden: n >= shownCurves}
		by := (len(c.points)-1)/mostPoints + 1
		for k := 0; k < len(c.points); k += by {
			p := &c.points[k]
			s.X = append(s.X, p.rate)
			s.Y = append(s.Y, of(p.result))
		}
		chart.Series = append(chart.Series, s)
	}
	return chart
}

func goodputOf(r *report.Result) float64    { return float64(r.Goodput.Requests) }
func attainmentOf(r *report.Result) float64 { return float64(r.Goodput.Attainment) }

// ErrNoLoad is returned where a picture needs results over a load, and the sweep
// has none: it neither searched nor names Load.
var ErrNoLoad = errors.New("sweep: no axis is the load; search for goodput, or name the path of the load")

// SVG writes goodput over load as a picture for documents, one line for each
// configuration; at most seven, those with the highest goodput.
func (r *Results) SVG(w io.Writer) error {
	curves := r.curves()
	if r.Load == "" || len(curves) == 0 {
		return ErrNoLoad
	}
	title := "Goodput against the rate of requests"
	if r.Title != "" {
		title = r.Title
	}
	chart := r.loadChart(curves, title, page.Axis{Label: "requests within the SLO", Unit: page.PerSecond}, goodputOf)
	chart.Note = "Within the SLO: " + curves[0].points[0].result.Goodput.SLO.String()
	chart.Series = slices.DeleteFunc(chart.Series, func(s page.Series) bool { return s.Hidden })
	return chart.SVG(w)
}

// heats draws a map for each pair of values that the other fields take, if two
// fields beside the load have several numbers.
func (r *Results) heats() []page.Chart {
	var axes []string
	for _, p := range r.paths() {
		if p != r.Load && r.varies(p) && r.numeric(p) {
			axes = append(axes, p)
		}
	}
	if len(axes) < 2 {
		return nil
	}
	down, across := axes[0], axes[1]
	rows, cols := r.valuesOf(down), r.valuesOf(across)
	if len(rows) > 40 || len(cols) > 40 {
		return nil
	}
	var charts []page.Chart
	index := map[string]int{}
	names := shorten(r.paths())
	short := func(path string) string { return names[slices.Index(r.paths(), path)] }
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Result == nil {
			continue
		}
		var at [2]int
		var others []string
		for _, s := range c.Settings {
			switch {
			case s.Path == down:
				at[0] = slices.Index(rows, s.Value)
			case s.Path == across:
				at[1] = slices.Index(cols, s.Value)
			case s.Path != r.Load && r.varies(s.Path):
				others = append(others, short(s.Path)+" "+s.Value)
			}
		}
		name := strings.Join(others, ", ")
		k, ok := index[name]
		if !ok {
			if len(charts) == 12 {
				continue
			}
			k = len(charts)
			index[name] = k
			title := "Goodput, requests/s"
			if name != "" {
				title += ": " + name
			}
			chart := page.Chart{Kind: page.Heat, Title: title, Rows: rows, Cols: cols, X: page.Axis{Label: short(across) + " →"}, Y: page.Axis{Label: "↓ " + short(down)}}
			for _, row := range rows {
				s := page.Series{Name: row, Y: make(page.Values, len(cols))}
				for i := range s.Y {
					s.Y[i] = math.NaN()
				}
				chart.Series = append(chart.Series, s)
			}
			charts = append(charts, chart)
		}
		// Of several loads the best that meets the SLO counts.
		to := &charts[k].Series[at[0]].Y[at[1]]
		if v := goodputOf(c.Result); (r.Load == "" || c.Result.Goodput.Met) && !(*to >= v) {
			*to = v
		}
	}
	return charts
}

func (r *Results) numeric(path string) bool {
	for _, v := range r.valuesOf(path) {
		if _, err := strconv.ParseFloat(v, 64); err != nil {
			return false
		}
	}
	return true
}

// valuesOf returns the different values of a path, ascending.
func (r *Results) valuesOf(path string) []string {
	var out []string
	for _, a := range r.Axes {
		if i := slices.Index(a.Paths, path); i >= 0 {
			for _, v := range a.Values {
				out = append(out, v[i])
			}
		}
	}
	slices.SortStableFunc(out, compareValues)
	return slices.Compact(out)
}
