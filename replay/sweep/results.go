package sweep

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/replay/report"
)

// Schema names the format of Results' JSON.
const Schema = "tandem-replay-sweep/1"

// Results are those of a sweep, in the order of the grid: the last axis changes
// fastest.
type Results struct {
	Schema string       `json:"schema"`
	Title  string       `json:"title"`
	Axes   []Axis       `json:"axes"`
	Find   *Find        `json:"find,omitempty"`
	Load   string       `json:"load,omitempty"` // path of the field that is the load
	Cells  []CellResult `json:"cells"`
}

// CellResult is one cell's.
type CellResult struct {
	Index    int       `json:"index"`
	Settings []Setting `json:"settings"`

	// Of a search: what it found, at which load, and all its runs in the order of
	// their load. Result is the run at Load.
	Found  Found   `json:"found,omitempty"`
	Load   string  `json:"load,omitempty"`
	Probes []Probe `json:"probes,omitempty"`

	Result *report.Result `json:"result"`
	Error  string         `json:"error,omitempty"`
}

// Found is what a search found.
type Found string

// What a search can find.
const (
	Exactly Found = "exactly"  // Load meets the SLO, and a little more does not
	AtLeast Found = "at-least" // the highest load that was allowed still meets it
	Below   Found = "below"    // not even the lowest load meets it
)

// Probe is one run of a search.
type Probe struct {
	Load   string         `json:"load"`
	Result *report.Result `json:"result"`
}

// Failed is how many cells have an error instead of a result.
func (r *Results) Failed() int {
	n := 0
	for i := range r.Cells {
		if r.Cells[i].Error != "" {
			n++
		}
	}
	return n
}

// JSON writes everything.
func (r *Results) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// metric is a figure of a result that sweeps compare.
type metric struct {
	name  string // as in CSV
	title string // for people; "" only in CSV
	kind  kind
	of    func(r *report.Result) float64 // NaN where there is none
}

type kind int

const (
	plain kind = iota
	share
	secondsKind
	bytesKind
)

// took is a figure of l, which has none where nothing was measured.
func took(l *report.Latency, s report.Seconds) float64 {
	if l.N == 0 {
		return math.NaN()
	}
	return timed.Time(s).Seconds()
}

var metrics = []metric{
	{"goodput_requests_per_s", "goodput, req/s", plain, func(r *report.Result) float64 { return float64(r.Goodput.Requests) }},
	{"goodput_requests_per_s_per_accelerator", "per accelerator", plain, func(r *report.Result) float64 { return float64(r.Goodput.PerAccelerator) }},
	{"attainment", "attained", share, func(r *report.Result) float64 { return float64(r.Goodput.Attainment) }},
	{"offered_requests_per_s", "offered, req/s", plain, func(r *report.Result) float64 { return float64(r.Throughput.Offered) }},
	{"requests", "", plain, func(r *report.Result) float64 { return float64(r.Requests.Measured) }},
	{"completed", "", plain, func(r *report.Result) float64 { return float64(r.Requests.Completed) }},
	{"refused", "", plain, func(r *report.Result) float64 { return float64(r.Requests.Refused) }},
	{"failed", "", plain, func(r *report.Result) float64 { return float64(r.Requests.Failed) }},
	{"preemptions", "", plain, func(r *report.Result) float64 { return float64(r.Requests.Preemptions) }},
	{"requests_per_s", "", plain, func(r *report.Result) float64 { return float64(r.Throughput.Requests) }},
	{"output_tokens_per_s", "out tok/s", plain, func(r *report.Result) float64 { return float64(r.Throughput.OutputTokens) }},
	{"ttft_p50_s", "TTFT p50", secondsKind, func(r *report.Result) float64 { return took(&r.Latency.TTFT, r.Latency.TTFT.P50) }},
	{"ttft_p90_s", "TTFT p90", secondsKind, func(r *report.Result) float64 { return took(&r.Latency.TTFT, r.Latency.TTFT.P90) }},
	{"ttft_p99_s", "TTFT p99", secondsKind, func(r *report.Result) float64 { return took(&r.Latency.TTFT, r.Latency.TTFT.P99) }},
	{"ttst_p90_s", "", secondsKind, func(r *report.Result) float64 { return took(&r.Latency.TTST, r.Latency.TTST.P90) }},
	{"tpot_p50_s", "TPOT p50", secondsKind, func(r *report.Result) float64 { return took(&r.Latency.TPOT, r.Latency.TPOT.P50) }},
	{"tpot_p90_s", "TPOT p90", secondsKind, func(r *report.Result) float64 { return took(&r.Latency.TPOT, r.Latency.TPOT.P90) }},
	{"tpot_p99_s", "TPOT p99", secondsKind, func(r *report.Result) float64 { return took(&r.Latency.TPOT, r.Latency.TPOT.P99) }},
	{"itl_p99_s", "", secondsKind, func(r *report.Result) float64 { return took(&r.Latency.ITL, r.Latency.ITL.P99) }},
	{"e2e_p50_s", "", secondsKind, func(r *report.Result) float64 { return took(&r.Latency.E2E, r.Latency.E2E.P50) }},
	{"e2e_p99_s", "", secondsKind, func(r *report.Result) float64 { return took(&r.Latency.E2E, r.Latency.E2E.P99) }},
	{"cache_share", "cache", share, func(r *report.Result) float64 { return float64(r.Cache.SourceShare) }},
	{"handoffs", "", plain, func(r *report.Result) float64 { return float64(r.Handoffs.N) }},
	{"tail_p50_s", "tail p50", secondsKind, func(r *report.Result) float64 { return took(&r.Handoffs.Tail, r.Handoffs.Tail.P50) }},
	{"tail_p99_s", "", secondsKind, func(r *report.Result) float64 { return took(&r.Handoffs.Tail, r.Handoffs.Tail.P99) }},
	{"hidden_share", "", share, func(r *report.Result) float64 {
		if r.Handoffs.N == 0 {
			return math.NaN()
		}
		return float64(r.Handoffs.Hidden)
	}},
	{"stranded_byte_s", "stranded, B·s", bytesKind, func(r *report.Result) float64 {
		sum := 0.0
		for i := range r.Pools {
			sum += float64(r.Pools[i].StrandedByteSeconds)
		}
		return sum
	}},
	{"most_busy", "most busy", share, func(r *report.Result) float64 {
		most := 0.0
		for i := range r.Pools {
			most = max(most, float64(r.Pools[i].MostBusy))
		}
		return most
	}},
}

// show writes a value for people.
func (m *metric) show(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	switch m.kind {
	case share:
		return report.FormatShare(report.Number(v))
	case secondsKind:
		return report.FormatSeconds(report.Seconds(timed.OfSeconds(v)))
	case bytesKind:
		return report.FormatBytes(report.Number(v)) + "·s"
	}
	return number(v, 4)
}

// paths are the columns before the figures.
func (r *Results) paths() []string {
	var paths []string
	for _, a := range r.Axes {
		paths = append(paths, a.Paths...)
	}
	return paths
}

// row is a run as tables have it: all of a search, or one for each cell.
type row struct {
	cell   *CellResult
	load   string
	result *report.Result
	best   bool // what the search found
}

func (r *Results) rows(probes bool) []row {
	var rows []row
	for i := range r.Cells {
		c := &r.Cells[i]
		if !probes || len(c.Probes) == 0 {
			rows = append(rows, row{c, c.Load, c.Result, true})
			continue
		}
		for _, p := range c.Probes {
			rows = append(rows, row{c, p.Load, p.Result, p.Load == c.Load})
		}
	}
	return rows
}

// CSV writes one line for each run, those of a search included: the settings,
// the load and what a search found there, the figures, and the error.
func (r *Results) CSV(w io.Writer) error {
	c := csv.NewWriter(w)
	head := append([]string{"cell"}, r.paths()...)
	if r.Find != nil {
		head = append(head, r.Find.Path, "found")
	}
	for _, m := range metrics {
		head = append(head, m.name)
	}
	c.Write(append(head, "met", "error"))
	for _, row := range r.rows(true) {
		line := []string{strconv.Itoa(row.cell.Index)}
		for _, s := range row.cell.Settings {
			line = append(line, s.Value)
		}
		if r.Find != nil {
			found := ""
			if row.best {
				found = string(row.cell.Found)
			}
			line = append(line, row.load, found)
		}
		for _, m := range metrics {
			if row.result == nil {
				line = append(line, "")
				continue
			}
			v := m.of(row.result)
			if math.IsNaN(v) {
				line = append(line, "")
				continue
			}
			line = append(line, number(v, 9))
		}
		met := ""
		if row.result != nil {
			met = strconv.FormatBool(row.result.Goodput.Met)
		}
		c.Write(append(line, met, row.cell.Error))
	}
	c.Flush()
	return c.Error()
}

// Table writes the cells for a terminal.
func (r *Results) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := shorten(r.paths())
	if r.Find != nil {
		head = append(head, shorten([]string{r.Find.Path})[0])
	}
	for _, m := range metrics {
		if m.title != "" {
			head = append(head, m.title)
		}
	}
	fmt.Fprintln(t, strings.Join(head, "\t"))
	for _, row := range r.rows(false) {
		var line []string
		for _, s := range row.cell.Settings {
			line = append(line, s.Value)
		}
		if r.Find != nil {
			line = append(line, row.cell.loadText())
		}
		if row.result == nil {
			line = append(line, row.cell.Error)
		} else {
			for _, m := range metrics {
				if m.title != "" {
					line = append(line, m.show(m.of(row.result)))
				}
			}
		}
		fmt.Fprintln(t, strings.Join(line, "\t"))
	}
	return t.Flush()
}

// loadText is the load that a search found.
func (c *CellResult) loadText() string {
	switch c.Found {
	case AtLeast:
		return "≥ " + c.Load
	case Below:
		return "< " + c.Load
	}
	return c.Load
}

// shorten leaves as many parts of each path, from its end, as tell all of them
// apart.
func shorten(paths []string) []string {
	out := make([]string, len(paths))
	for i, p := range paths {
		parts := strings.Split(p, ".")
		for n := 1; n <= len(parts); n++ {
			out[i] = strings.Join(parts[len(parts)-n:], ".")
			same := 0
			for _, q := range paths {
				if q == out[i] || strings.HasSuffix(q, "."+out[i]) {
					same++
				}
			}
			if same == 1 {
				break
			}
		}
	}
	return out
}

// compareValues orders values: as numbers where both are, else as text.
func compareValues(a, b string) int {
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	if errX == nil && errY == nil {
		return cmp.Compare(x, y)
	}
	return cmp.Compare(a, b)
}
