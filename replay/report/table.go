package report

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Table writes the report for a terminal, 100 columns wide where names are
// short.
func (r *Result) Table(w io.Writer) error {
	t := newTables()
	if r.Title != "" {
		t.text("%s\n", r.Title)
	}
	for _, s := range r.Settings {
		t.row(s.Name, s.Value)
	}
	t.end()

	n := &r.Requests
	t.row("requests", fmt.Sprintf("%s measured, %s completed%s", count(n.Measured), count(n.Completed), other(
		part{n.Cancelled, "cancelled"}, part{n.TimedOut, "timed out"}, part{n.Refused, "refused"}, part{n.Failed, "failed"},
		part{n.Outside, "outside of the measured time"}, part{n.Retried, "retried"}, part{n.Preempted, "preempted"})))
	t.row("period", fmt.Sprintf("%s, virtual time %s", FormatSeconds(r.Period), FormatSeconds(r.End)))
	t.row("throughput", fmt.Sprintf("%s of %s requests/s offered, %s tokens/s in, %s tokens/s out",
		short(r.Throughput.Requests), short(r.Throughput.Offered), short(r.Throughput.InputTokens), short(r.Throughput.OutputTokens)))
	t.row("SLO", r.Goodput.SLO.String())
	t.row("goodput", r.Goodput.describe())
	if r.Requests.InputTokens > 0 {
		t.row("prefix cache", fmt.Sprintf("%s of prompt tokens found at the source, %s at destinations", FormatShare(r.Cache.SourceShare), FormatShare(r.Cache.DestinationShare)))
	}
	t.end()

	t.header("latency", "mean", "p50", "p90", "p95", "p99", "p99.9", "max")
	for _, l := range r.Latency.named() {
		t.latency(l.name, l.of)
	}
	t.end()
	if r.Handoffs.N > 0 {
		t.row("handoffs", fmt.Sprintf("%s, %s moved, %s tokens not sent, %s of the transfer time hidden by prefill",
			count(r.Handoffs.N), FormatBytes(Number(r.Handoffs.Bytes)), count(r.Handoffs.SkippedTokens), FormatShare(r.Handoffs.Hidden)))
		t.end()
		t.header("handoff", "mean", "p50", "p90", "p95", "p99", "p99.9", "max")
		for i, l := range r.Handoffs.phases() {
			t.latency(phaseNames[i], l)
		}
		t.end()
	}
	if len(r.Pools) > 0 {
		t.header("pool", "workers", "busy", "prefill", "decode", "mixed", "active", "pinned", "reserved", "cached", "free", "stranded")
		for i := range r.Pools {
			p := &r.Pools[i]
			t.row(p.Name, strconv.Itoa(p.Workers), FormatShare(p.Busy), FormatShare(p.Prefill), FormatShare(p.Decode), FormatShare(p.Mixed),
				FormatShare(p.Active), FormatShare(p.Pinned), FormatShare(p.Reserved), FormatShare(p.Cached), FormatShare(p.Free), FormatBytes(p.StrandedByteSeconds)+"·s")
		}
		t.end()
	}
	if len(r.Counts) > 0 {
		t.header("decisions and events", "reason", "times")
		for _, c := range r.Counts {
			t.row(c.Name, c.Reason, count(c.N))
		}
		t.end()
	}
	_, err := w.Write(bytes.TrimRight(t.out.Bytes(), "\n"))
	if err == nil {
		_, err = io.WriteString(w, "\n")
	}
	return err
}

var phaseNames = [phases]string{"reserve", "queue", "prefill", "export", "wire", "import", "commit", "overlapped", "uncovered tail"}

type namedLatency struct {
	name string
	of   *Latency
	cdf  func(c *Charts) *CDF
}

// named returns the distributions in the order they are shown.
func (l *Latencies) named() []namedLatency {
	return []namedLatency{
		{"TTFT", &l.TTFT, func(c *Charts) *CDF { return c.TTFT }},
		{"TTST", &l.TTST, func(c *Charts) *CDF { return c.TTST }},
		{"TPOT", &l.TPOT, func(c *Charts) *CDF { return c.TPOT }},
		{"ITL", &l.ITL, func(c *Charts) *CDF { return c.ITL }},
		{"E2E", &l.E2E, func(c *Charts) *CDF { return c.E2E }},
	}
}

// String names the limits.
func (s SLOResult) String() string {
	var parts []string
	for _, l := range []struct {
		name  string
		limit Seconds
	}{{"TTFT", s.TTFT}, {"TTST", s.TTST}, {"TPOT", s.TPOT}, {"E2E", s.E2E}} {
		if l.limit > 0 {
			parts = append(parts, l.name+" ≤ "+FormatSeconds(l.limit))
		}
	}
	if parts == nil {
		parts = []string{"completed"}
	}
	return fmt.Sprintf("%s, for %s of requests", strings.Join(parts, ", "), FormatShare(s.Attainment))
}

func (g *Goodput) describe() string {
	met := "SLO not met"
	if g.Met {
		met = "SLO met"
	}
	text := fmt.Sprintf("%s requests/s, %s tokens/s out, %s attained (%s)", short(g.Requests), short(g.OutputTokens), FormatShare(g.Attainment), met)
	if g.Accelerators > 0 {
		text += fmt.Sprintf(", %s requests/s per accelerator", short(g.PerAccelerator))
	}
	return text
}

type part struct {
	n    int64
	name string
}

// other lists what is not zero.
func other(parts ...part) string {
	var text strings.Builder
	for _, p := range parts {
		if p.n > 0 {
			fmt.Fprintf(&text, ", %s %s", count(p.n), p.name)
		}
	}
	return text.String()
}

// tables writes aligned tables one after the other.
type tables struct {
	out bytes.Buffer
	tab *tabwriter.Writer
}

func newTables() *tables {
	t := &tables{}
	t.tab = tabwriter.NewWriter(&t.out, 0, 0, 2, ' ', 0)
	return t
}

func (t *tables) text(format string, args ...any) { fmt.Fprintf(&t.out, format, args...) }

func (t *tables) row(cells ...string) { fmt.Fprintln(t.tab, strings.Join(cells, "\t")) }

func (t *tables) header(cells ...string) { t.row(cells...) }

func (t *tables) latency(name string, l *Latency) {
	if l.N == 0 {
		t.row(name, "none")
		return
	}
	t.row(name, FormatSeconds(l.Mean), FormatSeconds(l.P50), FormatSeconds(l.P90), FormatSeconds(l.P95), FormatSeconds(l.P99), FormatSeconds(l.P999), FormatSeconds(l.Max))
}

// end ends a table with an empty line.
func (t *tables) end() {
	t.tab.Flush()
	if t.out.Len() > 0 {
		t.out.WriteByte('\n')
	}
}
