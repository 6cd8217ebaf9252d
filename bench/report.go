package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"text/tabwriter"
)

// Bar is what a figure has to reach.
type Bar struct {
	On    string  `json:"on"` // "ratio", or "value": the first series
	Op    string  `json:"op"` // ">=" or "<="
	Limit float64 `json:"limit"`
}

// Where a bar is.
const (
	OnRatio = "ratio"
	OnValue = "value"
)

// AtLeast and AtMost make bars.
func AtLeast(on string, limit float64) *Bar { return &Bar{On: on, Op: ">=", Limit: limit} }

// AtMost makes a bar that the figure must not exceed.
func AtMost(on string, limit float64) *Bar { return &Bar{On: on, Op: "<=", Limit: limit} }

// Result is one figure of all sides.
type Result struct {
	Name   string   `json:"name"`
	Unit   string   `json:"unit"`
	Series []Series `json:"series"`          // one per side that has the figure
	Ratio  *Series  `json:"ratio,omitempty"` // of the first side to the second, by turn
	Bar    *Bar     `json:"bar,omitempty"`
	Held   *bool    `json:"held"` // whether the median reaches the bar; null: there is no bar, or nothing it could judge
	Note   string   `json:"note,omitempty"`
}

// Judge sets the bar and whether it is held.
func (r *Result) Judge(bar *Bar) {
	r.Bar, r.Held = bar, nil
	if bar == nil {
		return
	}
	s := r.Ratio
	if bar.On == OnValue && len(r.Series) > 0 {
		s = &r.Series[0]
	}
	if s == nil || s.N == 0 {
		return
	}
	held := s.Median >= bar.Limit
	if bar.Op == "<=" {
		held = s.Median <= bar.Limit
	}
	r.Held = &held
}

// Setting is one thing about how it was measured.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Report is everything one command measured. The names of its JSON fields do not
// change; new ones may come.
type Report struct {
	Command  string    `json:"command"`
	Settings []Setting `json:"settings,omitempty"`
	Machine  Machine   `json:"machine"`
	Complete bool      `json:"complete"` // false: it was interrupted, or failed on the way
	Turns    int       `json:"turns"`    // completed ones, where turns were taken
	Results  []Result  `json:"results"`
	Notes    []string  `json:"notes,omitempty"`
}

// NewReport begins a report: it looks at the machine and its load.
func NewReport(command string) *Report {
	return &Report{Command: command, Machine: readMachine(), Results: []Result{}}
}

// Finish looks at the load again. complete says whether all was measured that
// should have been.
func (r *Report) Finish(complete bool) {
	r.Machine.LoadAfter = readLoad()
	r.Complete = complete
}

// Set adds a setting.
func (r *Report) Set(name string, value any) {
	r.Settings = append(r.Settings, Setting{name, fmt.Sprint(value)})
}

// Missed returns the names of the results whose bar is not held.
func (r *Report) Missed() []string {
	var out []string
	for _, res := range r.Results {
		if res.Held != nil && !*res.Held {
			out = append(out, res.Name)
		}
	}
	return out
}

// WriteJSON writes the report as one indented JSON document.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	p := &printer{w: w}
	p.line("tandem bench %s", r.Command)
	r.Machine.write(p)
	for _, s := range r.Settings {
		p.line("%s: %s", s.Name, s.Value)
	}
	if !r.Complete {
		p.line("INCOMPLETE: these are the %d turns before it was stopped", r.Turns)
	}
	p.line("")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	tp := &printer{w: t}
	tp.line("figure\tside\tmin\tquartile\tmedian\tquartile\tmax\truns\tbar")
	for _, res := range r.Results {
		name := res.Name
		if res.Unit != "" {
			name += ", " + res.Unit
		}
		for _, s := range res.Series {
			tp.line("%s\t%s\t%s\t%s", name, s.Name, spread(s.Summary), res.verdict(OnValue, s.Name))
			name = ""
		}
		if res.Ratio != nil {
			tp.line("%s\t%s\t%s\t%s", name, res.Ratio.Name, spread(res.Ratio.Summary), res.verdict(OnRatio, ""))
		}
		if len(res.Series) == 0 && res.Bar != nil { // other figures without values are in JSON only
			tp.line("%s\t\t\t\t\t\t\t0\t%s", name, res.verdict(res.Bar.On, ""))
		}
	}
	if tp.err == nil {
		tp.err = t.Flush()
	}
	if tp.err != nil {
		return tp.err
	}
	for _, res := range r.Results {
		if res.Note != "" {
			p.line("%s: %s", res.Name, res.Note)
		}
	}
	for _, n := range r.Notes {
		p.line("%s", n)
	}
	if m := r.Missed(); len(m) > 0 {
		p.line("%d of the bars are missed", len(m))
	}
	return p.err
}

// verdict is the bar's column in the row of a side, or of the ratio.
func (r *Result) verdict(row, side string) string {
	if r.Bar == nil || r.Bar.On != row {
		return ""
	}
	if row == OnValue && len(r.Series) > 1 && side != r.Series[0].Name {
		return ""
	}
	word := "not applicable"
	if r.Held != nil {
		word = "MISSED"
		if *r.Held {
			word = "held"
		}
	}
	return fmt.Sprintf("%s %s: %s", r.Bar.Op, number(r.Bar.Limit), word)
}

func spread(s Summary) string {
	if s.N == 0 {
		return "\t\t\t\t\t0"
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%d", number(s.Min), number(s.Q1), number(s.Median), number(s.Q3), number(s.Max), s.N)
}

// number writes four digits that matter, never an exponent.
func number(v float64) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	digits := 3 - int(math.Floor(math.Log10(math.Abs(v))))
	out := strconv.FormatFloat(v, 'f', min(max(digits, 0), 9), 64)
	if digits > 0 {
		if f, err := strconv.ParseFloat(out, 64); err == nil {
			out = strconv.FormatFloat(f, 'f', -1, 64)
		}
	}
	return out
}

// printer remembers the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}
