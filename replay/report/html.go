package report

import (
	"fmt"
	"io"
	"math"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/replay/page"
)

// HTML writes the report as one page that needs nothing else, of less than one
// megabyte.
func (r *Result) HTML(w io.Writer) error {
	title := r.Title
	if title == "" {
		title = "Replay"
	}
	p := page.Page{Title: title, Lead: r.lead(), Facts: r.facts()}
	if r.Charts != nil {
		p.Sections = r.Charts.thin().sections(r)
	}
	p.Sections = append(p.Sections, r.tables()...)
	return p.Write(w)
}

func (r *Result) lead() string {
	return fmt.Sprintf("%s requests over %s of virtual time. SLO: %s.", count(r.Requests.Measured), FormatSeconds(r.Period), r.Goodput.SLO)
}

func (r *Result) facts() []page.Fact {
	g := &r.Goodput
	tone, met := page.Bad, "below the SLO's "+FormatShare(g.SLO.Attainment)
	if g.Met {
		tone, met = page.Good, "SLO met"
	}
	note := "within the SLO"
	if g.Accelerators > 0 {
		note = short(g.PerAccelerator) + "/s per accelerator"
	}
	stranded := Number(0)
	for i := range r.Pools {
		stranded += r.Pools[i].StrandedByteSeconds
	}
	facts := []page.Fact{
		{Label: "Goodput", Value: short(g.Requests) + " req/s", Note: note},
		{Label: "SLO attainment", Value: FormatShare(g.Attainment), Note: met, Tone: tone},
		r.Latency.TTFT.fact("TTFT p50"),
		r.Latency.TPOT.fact("TPOT p50"),
		{Label: "Output", Value: short(r.Throughput.OutputTokens) + " tok/s", Note: short(r.Throughput.Requests) + " requests/s completed"},
		{Label: "Prefix cache", Value: FormatShare(r.Cache.SourceShare), Note: "of prompt tokens found"},
	}
	if r.Handoffs.N > 0 {
		facts = append(facts,
			page.Fact{Label: "Uncovered tail p50", Value: FormatSeconds(r.Handoffs.Tail.P50), Note: FormatShare(r.Handoffs.Hidden) + " of transfer time hidden"},
			page.Fact{Label: "Stranded memory", Value: FormatBytes(stranded) + "·s", Note: "pinned or reserved, not computing"})
	}
	return facts
}

// fact is a latency's median, "none" where nothing was measured.
func (l *Latency) fact(label string) page.Fact {
	if l.N == 0 {
		return page.Fact{Label: label, Value: "none", Note: "no request has one"}
	}
	return page.Fact{Label: label, Value: FormatSeconds(l.P50), Note: "p99 " + FormatSeconds(l.P99)}
}

// most values of all charts over time, so that the page stays small.
const mostValues = 80_000

// thin returns charts with neighbours in time merged until they are few enough.
func (c *Charts) thin() *Charts {
	series := 9 + 9*len(c.Pools)
	by := 1
	for series*len(c.Arrivals)/by > mostValues {
		by *= 2
	}
	if by == 1 {
		return c
	}
	mean := func(v []Number) []Number {
		return merge(v, by, func(part []Number) (x Number) {
			for _, p := range part {
				x += p / Number(len(part))
			}
			return round(float64(x))
		})
	}
	most := func(v []Number) []Number {
		return merge(v, by, func(part []Number) (x Number) {
			for _, p := range part {
				x = max(x, p)
			}
			return x
		})
	}
	out := *c
	out.Width *= Seconds(by)
	for _, v := range []*[]Number{&out.Arrivals, &out.Completed, &out.Good, &out.Output, &out.Waiting, &out.Decoding} {
		*v = mean(*v)
	}
	for _, v := range []*[]Number{&out.TTFT50, &out.TTFT90, &out.TTFT99} {
		*v = most(*v)
	}
	out.Pools = append([]PoolChart{}, c.Pools...)
	for i := range out.Pools {
		p := &out.Pools[i]
		for _, v := range []*[]Number{&p.Active, &p.Pinned, &p.Reserved, &p.Cached, &p.Free, &p.Prefill, &p.Decode, &p.Mixed, &p.Transfer} {
			*v = mean(*v)
		}
	}
	return &out
}

func merge(v []Number, by int, one func(part []Number) Number) []Number {
	out := make([]Number, 0, len(v)/by+1)
	for i := 0; i < len(v); i += by {
		out = append(out, one(v[i:min(i+by, len(v))]))
	}
	return out
}

func (c *Charts) sections(r *Result) []page.Section {
	overTime := page.Section{
		Title: "Over time",
		Note:  fmt.Sprintf("Each point is the mean of %s. Zooming one chart zooms all of them.", FormatSeconds(c.Width)),
		Charts: []page.Chart{
			c.time("Requests", "/s", page.Lines, line("arrive", c.Arrivals, 0), line("complete", c.Completed, 1), line("complete within the SLO", c.Good, 2)),
			c.time("Requests in the system", page.Number, page.Areas, line("before their first token", c.Waiting, 1), line("after it", c.Decoding, 0)),
			c.ttft(r),
			c.time("Output tokens", "/s", page.Lines, line("tokens", c.Output, 0)),
		},
	}
	overTime.Charts[1].Note = "The first band is the queue: requests that wait for a worker or whose prompt is being computed."
	memory := page.Section{Title: "Memory", Note: "Shares of a pool's blocks. Pinned blocks hold finished prompts for a reader, reserved ones wait for state to come: both are memory that computes nothing (stranded)."}
	busy := page.Section{Title: "Utilisation", Note: "Shares of the time of a pool's workers."}
	for i := range c.Pools {
		p := &c.Pools[i]
		memory.Charts = append(memory.Charts, c.time(p.Name+": memory", page.Share, page.Areas,
			line("active", p.Active, 0), line("pinned", p.Pinned, 1), line("reserved", p.Reserved, 4), line("cached", p.Cached, 5), line("free", p.Free, 7)))
		busy.Charts = append(busy.Charts, c.time(p.Name+": busy", page.Share, page.Areas,
			line("prefill", p.Prefill, 1), line("mixed", p.Mixed, 4), line("decode", p.Decode, 0), line("transfer", p.Transfer, 3)))
	}
	sections := []page.Section{overTime, {Title: "Latency", Note: "The share of requests (ITL: of tokens) that took no longer. Dashed: the SLO's limit.", Charts: c.distributions(r)}}
	if r.Handoffs.N > 0 {
		sections = append(sections, page.Section{Title: "Handoffs", Charts: []page.Chart{r.Handoffs.chart()}})
	}
	if len(c.Pools) > 0 {
		sections = append(sections, memory, busy)
	}
	return sections
}

func line(name string, v []Number, color int) page.Series {
	return page.Series{Name: name, Y: values(v), Color: color}
}

func values(v []Number) page.Values {
	out := make(page.Values, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}

// time is a chart over time.
func (c *Charts) time(title string, unit page.Unit, kind page.Kind, series ...page.Series) page.Chart {
	return page.Chart{
		Kind: kind, Title: title, Group: "time", Step: timed.Time(c.Width).Seconds(),
		X: page.Axis{Label: "virtual time", Unit: page.Seconds}, Y: page.Axis{Unit: unit}, Series: series,
	}
}

func (c *Charts) ttft(r *Result) page.Chart {
	names := []string{"p50", "p90", "p99"}
	if !r.Latency.TTFT.Exact {
		names = []string{"mean"}
	}
	var series []page.Series
	for i, name := range names {
		s := line(name, [][]Number{c.TTFT50, c.TTFT90, c.TTFT99}[i], []int{0, 4, 1}[i])
		s.Dash = i == 1
		for k, x := range s.Y {
			if x == 0 {
				s.Y[k] = math.NaN() // nobody arrived
			}
		}
		series = append(series, s)
	}
	chart := c.time("TTFT by time of arrival", page.Seconds, page.Lines, series...)
	chart.Y.CanLog = true
	chart.Join = true
	if limit := r.Goodput.SLO.TTFT; limit > 0 {
		chart.Marks = []page.Mark{{Axis: "y", At: timed.Time(limit).Seconds(), Label: "SLO " + FormatSeconds(limit)}}
	}
	return chart
}

// distributions draws one chart for each latency that has values.
func (c *Charts) distributions(r *Result) []page.Chart {
	limits := map[string]Seconds{"TTFT": r.Goodput.SLO.TTFT, "TTST": r.Goodput.SLO.TTST, "TPOT": r.Goodput.SLO.TPOT, "E2E": r.Goodput.SLO.E2E}
	var charts []page.Chart
	for _, l := range r.Latency.named() {
		cdf := l.cdf(c)
		if cdf == nil {
			continue
		}
		s := page.Series{Name: l.name, Color: 0}
		least := math.Inf(1)
		for i, v := range cdf.Values {
			x := timed.Time(v).Seconds()
			s.X = append(s.X, x)
			s.Y = append(s.Y, float64(cdf.Shares[i]))
			least = min(least, x)
		}
		chart := page.Chart{
			Kind: page.Steps, Title: l.name, X: page.Axis{Label: l.name, Unit: page.Seconds, CanLog: least > 0}, Y: page.Axis{Unit: page.Share},
			Series: []page.Series{s},
			Note:   fmt.Sprintf("p50 %s, p90 %s, p99 %s, largest %s.", FormatSeconds(l.of.P50), FormatSeconds(l.of.P90), FormatSeconds(l.of.P99), FormatSeconds(l.of.Max)),
		}
		// A long tail leaves nothing to see of the rest on a linear axis.
		chart.X.Log = least > 0 && float64(l.of.Max) > 50*float64(l.of.P50)
		if limit := limits[l.name]; limit > 0 {
			chart.Marks = []page.Mark{{Axis: "x", At: timed.Time(limit).Seconds(), Label: "SLO " + FormatSeconds(limit)}}
		}
		charts = append(charts, chart)
	}
	return charts
}

func (h *Handoffs) chart() page.Chart {
	mean, p50, p99 := page.Series{Name: "mean"}, page.Series{Name: "p50", Color: 2}, page.Series{Name: "p99", Color: 1}
	for _, l := range h.phases() {
		mean.Y = append(mean.Y, timed.Time(l.Mean).Seconds())
		p50.Y = append(p50.Y, timed.Time(l.P50).Seconds())
		p99.Y = append(p99.Y, timed.Time(l.P99).Seconds())
	}
	return page.Chart{
		Kind: page.Bars, Title: "Where the time of a handoff goes", Wide: true, Rows: phaseNames[:],
		X: page.Axis{Unit: page.Seconds}, Series: []page.Series{mean, p50, p99},
		Note: fmt.Sprintf("Phases overlap, so they add up to no total. Of all transfer time %s passed while the prompt was still being computed; the uncovered tail is what is left for the client to wait for.", FormatShare(h.Hidden)),
	}
}
