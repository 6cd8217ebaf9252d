package page

import (
	"bytes"
	_ "embed" // style, script and template
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"
)

// Page is one file.
type Page struct {
	Title    string
	Lead     string // one line below the title
	Facts    []Fact
	Sections []Section
}

// Fact is one large figure at the top.
type Fact struct {
	Label string
	Value string
	Note  string
	Tone  Tone
}

// Tone says whether a figure is good news. It is never shown by colour alone.
type Tone string

// Tones.
const (
	Plain Tone = ""
	Good  Tone = "good"
	Bad   Tone = "bad"
)

// Section is a part of the page.
type Section struct {
	Title  string
	Note   string
	Charts []Chart
	Tables []Table
}

// Kind is what a chart looks like.
type Kind string

// Kinds of charts.
const (
	Lines Kind = "lines" // each series a line
	Steps Kind = "steps" // each series a line of steps, as distributions are
	Areas Kind = "areas" // series stacked
	Bars  Kind = "bars"  // horizontal bars, one per name in Rows; the first series is the bar, others are marks on it
	Heat  Kind = "heat"  // a grid of Rows × Cols, one series per row
)

// Unit says how numbers of an axis are written.
type Unit string

// Units.
const (
	Number    Unit = ""
	Seconds   Unit = "s"
	Share     Unit = "%" // of values from 0 to 1
	Bytes     Unit = "B"
	PerSecond Unit = "/s"
)

// Axis describes one axis.
type Axis struct {
	Label  string `json:"label"`
	Unit   Unit   `json:"unit"`
	Log    bool   `json:"log,omitempty"`    // begins logarithmic; the reader can change it
	CanLog bool   `json:"canLog,omitempty"` // the reader can make it logarithmic
}

// Chart is drawn by the page's script.
type Chart struct {
	Kind  Kind   `json:"kind"`
	Title string `json:"title"`
	Note  string `json:"note,omitempty"` // one sentence for those who cannot see the chart, and below it
	Group string `json:"group,omitempty"`
	X     Axis   `json:"x"`
	Y     Axis   `json:"y"`
	Wide  bool   `json:"wide,omitempty"` // takes the whole width

	// Points of a series without X of its own are at Start, Start + Step, …
	Start float64 `json:"start"`
	Step  float64 `json:"step"`
	Join  bool    `json:"join,omitempty"` // lines go on over gaps

	Series []Series `json:"series"`
	Marks  []Mark   `json:"marks,omitempty"`

	Rows []string `json:"rows,omitempty"` // of Bars and Heat
	Cols []string `json:"cols,omitempty"` // of Heat
}

// Series is what one name in the legend stands for.
type Series struct {
	Name   string `json:"name"`
	X      Values `json:"xs,omitempty"`
	Y      Values `json:"ys"`
	Color  int    `json:"color"` // of the palette, from 0
	Dash   bool   `json:"dash,omitempty"`
	Dots   bool   `json:"dots,omitempty"` // mark the points
	Hidden bool   `json:"hidden,omitempty"`
}

// Mark is a limit, drawn across the chart.
type Mark struct {
	Axis  string  `json:"axis"` // "x" or "y"
	At    float64 `json:"at"`
	Label string  `json:"label"`
}

// Values are numbers of a series; NaN is a gap. The page has five digits of
// them.
type Values []float64

// MarshalJSON writes gaps as null.
func (v Values) MarshalJSON() ([]byte, error) {
	b := append(make([]byte, 0, 6*len(v)+2), '[')
	for i, x := range v {
		if i > 0 {
			b = append(b, ',')
		}
		if math.IsNaN(x) || math.IsInf(x, 0) {
			b = append(b, "null"...)
			continue
		}
		short, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 5, 64), 64)
		b = strconv.AppendFloat(b, short, 'g', -1, 64)
	}
	return append(b, ']'), nil
}

// Table is shown as it is; the reader can sort it by a column.
type Table struct {
	Title string
	Head  []string
	Rows  [][]Cell // the first cell names the row
}

// Cell is text, and the number that it is sorted by.
type Cell struct {
	Text string
	Sort float64
	Left bool // words rather than a number
	Tone Tone
}

// Text makes a cell of words.
func Text(s string) Cell { return Cell{Text: s, Left: true, Sort: math.NaN()} }

// Figure makes a cell of a number.
func Figure(text string, sort float64) Cell { return Cell{Text: text, Sort: sort} }

// SortKey returns the number as the script reads it, "" for words.
func (c Cell) SortKey() string {
	if math.IsNaN(c.Sort) {
		return ""
	}
	return strconv.FormatFloat(c.Sort, 'g', 9, 64)
}

//go:embed assets/page.css
var style string

//go:embed assets/plot.js
var plotScript string

//go:embed assets/chart.js
var chartScript string

//go:embed assets/page.js
var pageScript string

//go:embed assets/page.html
var layout string

var layoutTemplate = template.Must(template.New("page").Parse(layout))

// Write writes the file.
func (p *Page) Write(w io.Writer) error {
	charts := [][]Chart{}
	for i := range p.Sections {
		charts = append(charts, p.Sections[i].Charts)
	}
	// json escapes <, > and &, so that no text can end the element it stands in.
	data, err := json.Marshal(charts)
	if err != nil {
		return fmt.Errorf("page: write the charts of %q: %w", p.Title, err)
	}
	var b bytes.Buffer
	err = layoutTemplate.Execute(&b, struct {
		*Page
		Style  template.CSS
		Script template.JS
		Data   template.JS
	}{p, template.CSS(style), template.JS(plotScript + chartScript + pageScript), template.JS(data)})
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	_, err = w.Write(b.Bytes())
	return err
}
