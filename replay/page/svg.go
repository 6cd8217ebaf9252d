package page

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
)

// Size of a picture and of what surrounds its plot, in pixels.
const (
	svgWidth, svgHeight      = 860, 440
	svgLeft, svgRight        = 76, 24
	svgTop, svgBottom        = 64, 58
	svgLegendRow, svgLetters = 22, 7.4 // height of a row of the legend, width of a letter
)

// svgPalette is the palette of the pages, on white.
var svgPalette = [...]string{"#0072b2", "#d55e00", "#009e73", "#b8579a", "#b87900", "#3a9bd9", "#6b7079", "#444a52"}

// SVG writes a chart of Lines as a picture for documents. It brings its own
// white ground, so that it can be read on a page of any colour, and needs no
// script, font or style from outside.
func (c *Chart) SVG(w io.Writer) error {
	if c.Kind != Lines {
		return fmt.Errorf("page: %s: only charts of lines can be written as a picture", c.Title)
	}
	x, y := c.extent()
	rows := c.legend()
	more := float64(len(rows)-1) * svgLegendRow
	if c.Note != "" {
		more += svgLegendRow
	}
	top, height := svgTop+more, svgHeight+more
	bottom := height - svgBottom
	px := func(v float64) float64 { return svgLeft + (svgWidth-svgLeft-svgRight)*(v-x[0])/(x[1]-x[0]) }
	py := func(v float64) float64 { return bottom - (bottom-top)*(v-y[0])/(y[1]-y[0]) }

	var b bytes.Buffer
	f := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	text := func(x, y float64, anchor, class, s string) {
		f(`<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`, px2(x), px2(y), anchor, class, html.EscapeString(s))
	}
	f(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %s" width="%d" height="%s" role="img" aria-label="%s">`, svgWidth, px2(height), svgWidth, px2(height), html.EscapeString(c.Title+". "+c.Note))
	f(`<style>text{font:14px system-ui,"Segoe UI",Helvetica,Arial,sans-serif;fill:#3c444d}.t{font-size:17px;font-weight:600;fill:#14181d}.l{fill:#14181d}</style>`)
	f(`<rect x="0.5" y="0.5" width="%d" height="%s" rx="10" fill="#ffffff" stroke="#c9d0d8"/>`, svgWidth-1, px2(height-1))
	text(20, 30, "start", "t", c.Title)
	base := 52.0
	if c.Note != "" {
		text(20, base, "start", "n", c.Note)
		base += svgLegendRow
	}

	for _, v := range roundNumbers(y[0], y[1], 6) {
		f(`<path d="M%d %sH%d" stroke="#e3e7ec"/>`, svgLeft, px2(py(v)), svgWidth-svgRight)
		text(svgLeft-10, py(v)+5, "end", "n", label(v, c.Y.Unit))
	}
	for _, v := range roundNumbers(x[0], x[1], 9) {
		f(`<path d="M%s %sv5" stroke="#8b949e"/>`, px2(px(v)), px2(bottom))
		text(px(v), bottom+21, "middle", "n", label(v, c.X.Unit))
	}
	f(`<path d="M%d %sH%d" stroke="#8b949e"/>`, svgLeft, px2(bottom), svgWidth-svgRight)
	text(svgWidth-svgRight, bottom+45, "end", "n", c.X.Label)
	text(svgLeft, bottom+45, "start", "n", "↑ "+c.Y.Label)

	for i := range c.Series {
		c.svgSeries(f, i, px, py)
	}
	for _, m := range c.Marks {
		if m.Axis == "x" {
			f(`<path d="M%s %sV%s" stroke="#14181d" stroke-dasharray="6 4"/>`, px2(px(m.At)), px2(top), px2(bottom))
			text(px(m.At)+6, top+12, "start", "l", m.Label)
			continue
		}
		f(`<path d="M%d %sH%d" stroke="#14181d" stroke-dasharray="6 4"/>`, svgLeft, px2(py(m.At)), svgWidth-svgRight)
		text(svgWidth-svgRight-4, py(m.At)-6, "end", "l", m.Label)
	}
	for _, row := range rows {
		at := 20.0
		for _, i := range row {
			f(`<path d="M%s %sh24" %s/>`, px2(at), px2(base-5), c.stroke(i))
			text(at+31, base, "start", "l", c.Series[i].Name)
			at += legendWidth(c.Series[i].Name)
		}
		base += svgLegendRow
	}
	f(`</svg>`)
	_, err := w.Write(b.Bytes())
	return err
}

func (c *Chart) svgSeries(f func(format string, args ...any), i int, px, py func(v float64) float64) {
	s := &c.Series[i]
	var d, dots strings.Builder
	pen := "M"
	for k, y := range s.Y {
		if math.IsNaN(y) {
			pen = "M"
			continue
		}
		x, yy := px2(px(c.at(s, k))), px2(py(y))
		d.WriteString(pen + x + " " + yy)
		pen = "L"
		if s.Dots {
			fmt.Fprintf(&dots, `<circle cx="%s" cy="%s" r="3.5"/>`, x, yy)
		}
	}
	if d.Len() == 0 {
		return
	}
	f(`<path d="%s" fill="none" stroke-linejoin="round" %s/>`, d.String(), c.stroke(i))
	if s.Dots {
		f(`<g fill="%s">%s</g>`, svgPalette[s.Color%len(svgPalette)], dots.String())
	}
}

func (c *Chart) stroke(i int) string {
	s := &c.Series[i]
	text := fmt.Sprintf(`stroke="%s" stroke-width="2.5"`, svgPalette[s.Color%len(svgPalette)])
	if s.Dash {
		text += ` stroke-dasharray="7 5"`
	}
	return text
}

// at is the x of a series' point.
func (c *Chart) at(s *Series, k int) float64 {
	if s.X != nil {
		return s.X[k]
	}
	return c.Start + c.Step*float64(k)
}

// extent is what the axes show. Both begin at 0 unless something is below.
func (c *Chart) extent() (x, y [2]float64) {
	note := func(e *[2]float64, v float64) {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			e[0], e[1] = min(e[0], v), max(e[1], v)
		}
	}
	for i := range c.Series {
		s := &c.Series[i]
		for k, v := range s.Y {
			note(&x, c.at(s, k))
			note(&y, v)
		}
	}
	for _, m := range c.Marks {
		if m.Axis == "x" {
			note(&x, m.At)
		} else {
			note(&y, m.At)
		}
	}
	for _, e := range []*[2]float64{&x, &y} {
		if e[0] == e[1] {
			e[1] = e[0] + 1
		}
	}
	y[1] += (y[1] - y[0]) * 0.04
	if c.Y.Unit == Share {
		y[1] = max(1, y[1]/1.04)
	}
	return x, y
}

// legend divides the names into rows that fit.
func (c *Chart) legend() [][]int {
	rows := [][]int{nil}
	width := 20.0
	for i := range c.Series {
		w := legendWidth(c.Series[i].Name)
		last := len(rows) - 1
		if width+w > svgWidth-10 && len(rows[last]) > 0 {
			rows = append(rows, nil)
			last++
			width = 20
		}
		rows[last] = append(rows[last], i)
		width += w
	}
	return rows
}

func legendWidth(name string) float64 { return 31 + svgLetters*float64(len([]rune(name))) + 18 }

// px2 writes a place with two decimals at most.
func px2(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }

// roundNumbers returns about count round numbers from low to high.
func roundNumbers(low, high float64, count int) []float64 {
	rough := (high - low) / float64(count)
	power := math.Pow(10, math.Floor(math.Log10(rough)))
	step := 10 * power
	for _, m := range []float64{1, 2, 2.5, 5} {
		if m*power >= rough*0.999 {
			step = m * power
			break
		}
	}
	var out []float64
	for i := math.Ceil(low/step - 1e-9); i*step <= high+step*1e-9; i++ {
		out = append(out, i*step+0) // no -0
	}
	return out
}

func label(v float64, unit Unit) string {
	digits := func(v float64) string {
		short, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
		return strconv.FormatFloat(short, 'f', -1, 64)
	}
	switch unit {
	case Share:
		return digits(100*v) + "%"
	case Number, PerSecond:
		return digits(v) + string(unit)
	}
	return digits(v) + " " + string(unit)
}
