package report

import (
	"strconv"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/replay/page"
)

// tables are the figures of the terminal's table, for the page.
func (r *Result) tables() []page.Section {
	n := &r.Requests
	requests := page.Table{Title: "Requests", Head: []string{"", "number"}}
	for _, x := range []part{
		{n.Measured, "measured"}, {n.Completed, "completed"}, {r.Goodput.Good, "completed within the SLO"}, {n.Cancelled, "cancelled"},
		{n.TimedOut, "timed out"}, {n.Refused, "refused"}, {n.Failed, "failed"}, {n.Retried, "retried"}, {n.Preempted, "preempted"},
		{n.Outside, "outside of the measured time"}, {n.InputTokens, "input tokens"}, {n.OutputTokens, "output tokens"},
	} {
		if x.n > 0 || x.name == "completed" {
			requests.Rows = append(requests.Rows, []page.Cell{page.Text(x.name), page.Figure(count(x.n), float64(x.n))})
		}
	}
	latency := page.Table{Title: "Latency", Head: latencyHead("")}
	for _, l := range r.Latency.named() {
		latency.Rows = append(latency.Rows, latencyRow(l.name, l.of))
	}
	tables := []page.Table{requests, latency}
	if r.Handoffs.N > 0 {
		handoffs := page.Table{Title: "Phases of handoffs", Head: latencyHead("")}
		for i, l := range r.Handoffs.phases() {
			handoffs.Rows = append(handoffs.Rows, latencyRow(phaseNames[i], l))
		}
		tables = append(tables, handoffs)
	}
	if len(r.Pools) > 0 {
		tables = append(tables, r.poolTable())
	}
	sections := []page.Section{{Title: "Figures", Tables: tables}}
	if len(r.Counts) > 0 {
		counts := page.Table{Head: []string{"what", "reason", "times"}}
		for _, c := range r.Counts {
			counts.Rows = append(counts.Rows, []page.Cell{page.Text(c.Name), page.Text(c.Reason), page.Figure(count(c.N), float64(c.N))})
		}
		sections = append(sections, page.Section{Title: "Decisions and events", Tables: []page.Table{counts}})
	}
	if len(r.Settings) > 0 {
		settings := page.Table{Head: []string{"setting", "value"}}
		for _, s := range r.Settings {
			settings.Rows = append(settings.Rows, []page.Cell{page.Text(s.Name), page.Text(s.Value)})
		}
		sections = append(sections, page.Section{Title: "Settings", Tables: []page.Table{settings}})
	}
	return sections
}

func latencyHead(first string) []string {
	return []string{first, "number", "mean", "min", "p50", "p75", "p90", "p95", "p99", "p99.9", "max"}
}

func latencyRow(name string, l *Latency) []page.Cell {
	row := []page.Cell{page.Text(name), page.Figure(count(l.N), float64(l.N))}
	for _, t := range []Seconds{l.Mean, l.Min, l.P50, l.P75, l.P90, l.P95, l.P99, l.P999, l.Max} {
		if l.N == 0 {
			row = append(row, page.Figure("", -1))
			continue
		}
		row = append(row, page.Figure(FormatSeconds(t), timed.Time(t).Seconds()))
	}
	return row
}

func (r *Result) poolTable() page.Table {
	t := page.Table{Title: "Pools", Head: []string{"pool", "workers", "busy", "prefill", "decode", "mixed", "transfer", "least busy", "most busy", "down",
		"active", "pinned", "reserved", "cached", "free", "peak used", "stranded"}}
	for i := range r.Pools {
		p := &r.Pools[i]
		row := []page.Cell{page.Text(p.Name), page.Figure(strconv.Itoa(p.Workers), float64(p.Workers))}
		for _, share := range []Number{p.Busy, p.Prefill, p.Decode, p.Mixed, p.Transfer, p.LeastBusy, p.MostBusy, p.Down,
			p.Active, p.Pinned, p.Reserved, p.Cached, p.Free, ratio(float64(p.PeakUsed), float64(p.Blocks))} {
			row = append(row, page.Figure(FormatShare(share), float64(share)))
		}
		t.Rows = append(t.Rows, append(row, page.Figure(FormatBytes(p.StrandedByteSeconds)+"·s", float64(p.StrandedByteSeconds))))
	}
	return t
}
