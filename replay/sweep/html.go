package sweep

import (
	"cmp"
	"fmt"
	"io"
	"math"

	"github.com/tandem-llm/tandem/replay/page"
	"github.com/tandem-llm/tandem/replay/report"
)

// Most rows of the page's table, bars, and points of a curve: the page stays below
// a megabyte.
const (
	mostRows   = 500
	mostBars   = 40
	mostPoints = 200
)

// HTML writes a page that compares the cells and needs nothing else.
func (r *Results) HTML(w io.Writer) error {
	p := page.Page{Title: cmp.Or(r.Title, "Replay sweep"), Lead: r.lead(), Facts: r.facts()}
	if curves := r.curves(); r.Load != "" && len(curves) > 0 {
		s := page.Section{Title: "Over load", Note: "Goodput is requests per second that met the SLO. Of many configurations those with the most goodput are drawn; names in the legend turn on more."}
		attained := r.loadChart(curves, "SLO attainment", page.Axis{Label: "requests within the SLO", Unit: page.Share}, attainmentOf)
		if a := r.attainment(); a > 0 {
			attained.Marks = []page.Mark{{Axis: "y", At: a, Label: "needed"}}
		}
		s.Charts = []page.Chart{
			r.loadChart(curves, "Goodput", page.Axis{Label: "requests/s within the SLO", Unit: page.PerSecond}, goodputOf),
			attained,
			r.loadChart(curves, "TTFT p90", page.Axis{Unit: page.Seconds, CanLog: true, Log: true}, func(r *report.Result) float64 { return took(&r.Latency.TTFT, r.Latency.TTFT.P90) }),
			r.loadChart(curves, "TPOT p90", page.Axis{Unit: page.Seconds, CanLog: true, Log: true}, func(r *report.Result) float64 { return took(&r.Latency.TPOT, r.Latency.TPOT.P90) }),
		}
		p.Sections = append(p.Sections, s)
	}
	if heats := r.heats(); heats != nil {
		p.Sections = append(p.Sections, page.Section{Title: "Over two fields", Note: "The darker, the more goodput; the best is bold. Of several loads the best that meets the SLO counts.", Charts: heats})
	}
	if bars := r.bars(); bars != nil {
		p.Sections = append(p.Sections, page.Section{Title: "Cells", Charts: []page.Chart{*bars}})
	}
	p.Sections = append(p.Sections, page.Section{Title: "Figures", Tables: []page.Table{r.pageTable()}})
	return p.Write(w)
}

func (r *Results) lead() string {
	text := fmt.Sprintf("%d cells", len(r.Cells))
	if n := r.Failed(); n > 0 {
		text += fmt.Sprintf(", %d of them failed", n)
	}
	for i := range r.Cells {
		if res := r.Cells[i].Result; res != nil {
			return text + ". SLO: " + res.Goodput.SLO.String() + "."
		}
	}
	return text + "."
}

func (r *Results) attainment() float64 {
	for i := range r.Cells {
		if res := r.Cells[i].Result; res != nil {
			return float64(res.Goodput.SLO.Attainment)
		}
	}
	return 0
}

// best returns the cell with the highest figure of those that meet their SLO:
// more requests than that may be good at a higher load, but too few of them all.
func (r *Results) best(of func(r *report.Result) float64) *CellResult {
	var best *CellResult
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Result != nil && c.Result.Goodput.Met && (best == nil || of(c.Result) > of(best.Result)) {
			best = c
		}
	}
	return best
}

func (r *Results) facts() []page.Fact {
	var facts []page.Fact
	c := r.best(goodputOf)
	switch {
	case c != nil:
		facts = append(facts, page.Fact{Label: "Highest goodput that meets the SLO", Value: number(goodputOf(c.Result), 4) + " req/s", Note: r.name(c)})
	case len(r.Cells) > r.Failed():
		facts = append(facts, page.Fact{Label: "Highest goodput that meets the SLO", Value: "none", Note: "No cell meets the SLO", Tone: page.Bad})
	}
	per := func(r *report.Result) float64 { return float64(r.Goodput.PerAccelerator) }
	if c := r.best(per); c != nil && per(c.Result) > 0 {
		facts = append(facts, page.Fact{Label: "Highest per accelerator", Value: number(per(c.Result), 4) + " req/s", Note: r.name(c)})
	}
	return facts
}

// bars compares the goodput of cells without a load.
func (r *Results) bars() *page.Chart {
	if r.Load != "" && r.Find == nil || len(r.Cells) > mostBars || len(r.Cells) < 2 {
		return nil
	}
	chart := &page.Chart{Kind: page.Bars, Title: "Goodput", Wide: true, X: page.Axis{Unit: page.PerSecond}}
	s := page.Series{Name: "requests/s within the SLO"}
	for i := range r.Cells {
		c := &r.Cells[i]
		chart.Rows = append(chart.Rows, r.name(c))
		v := math.NaN()
		if c.Result != nil {
			v = goodputOf(c.Result)
		}
		s.Y = append(s.Y, v)
	}
	chart.Series = []page.Series{s}
	return chart
}

func (r *Results) pageTable() page.Table {
	t := page.Table{Head: shorten(r.paths())}
	if len(t.Head) == 0 && r.Find == nil {
		t.Head = []string{"cell"}
	}
	if r.Find != nil {
		t.Head = append(t.Head, shorten([]string{r.Find.Path})[0], "found")
	}
	for _, m := range metrics {
		if m.title != "" {
			t.Head = append(t.Head, m.title)
		}
	}
	rows := r.rows(true)
	if len(rows) > mostRows {
		rows = r.rows(false)
		t.Title = "One row for each cell; the CSV has all runs of the search"
	}
	if len(rows) > mostRows {
		rows = rows[:mostRows]
		t.Title = fmt.Sprintf("The first %d runs; the CSV has all", mostRows)
	}
	for _, row := range rows {
		var line []page.Cell
		for _, s := range row.cell.Settings {
			line = append(line, value(s.Value))
		}
		if len(row.cell.Settings) == 0 && r.Find == nil {
			line = append(line, page.Text("0"))
		}
		if r.Find != nil {
			found := ""
			if row.best {
				found = string(row.cell.Found)
			}
			line = append(line, value(row.load), page.Text(found))
		}
		if row.result == nil {
			line = append(line, page.Cell{Text: row.cell.Error, Left: true, Sort: math.NaN(), Tone: page.Bad})
			t.Rows = append(t.Rows, line)
			continue
		}
		for _, m := range metrics {
			if m.title == "" {
				continue
			}
			v := m.of(row.result)
			cell := page.Figure(m.show(v), v)
			if m.name == "attainment" {
				cell.Tone = page.Bad
				if row.result.Goodput.Met {
					cell.Tone = page.Good
				}
			}
			line = append(line, cell)
		}
		t.Rows = append(t.Rows, line)
	}
	return t
}

// value makes a cell of a setting's value.
func value(s string) page.Cell {
	switch v := scalar(s).(type) {
	case int64:
		return page.Figure(s, float64(v))
	case float64:
		return page.Figure(s, v)
	}
	return page.Text(s)
}
