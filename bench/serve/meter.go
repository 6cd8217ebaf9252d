package serve

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/tandem-llm/tandem/bench"
)

// meter gathers one run. Its memory depends on nothing that a server does: kinds
// of failures are few, latencies go into histograms.
type meter struct {
	slo SLO

	mu         sync.Mutex
	start, end time.Time // of the first request sent, of the last answer
	ttft, tpot *latency
	itl, e2e   *latency
	lag        *latency // between the intended arrival and the attempt to send
	ok         int
	good       int // met the SLO
	prompt     int // tokens of prompts, of whole answers
	cached     int // of these from a cache
	output     int
	later      int // output tokens after each answer's first
	unmetered  int // answers without usage
	doubtful   int // answers with more events than tokens
	again      int // answers to requests that had to be sent twice
	failures   map[string]int
	first      *failure
	prefill    phase // time with a prompt at the server and no token yet
	decode     phase // time with a stream between its first and its last token
}

func newMeter(slo SLO) *meter {
	return &meter{slo: slo, ttft: newLatency(), tpot: newLatency(), itl: newLatency(), e2e: newLatency(), lag: newLatency(), failures: map[string]int{}}
}

// phase measures how long at least one stream was in a state.
type phase struct {
	n     int
	since time.Time
	total time.Duration
}

func (p *phase) enter(at time.Time) {
	if p.n == 0 {
		p.since = at
	}
	p.n++
}

func (p *phase) leave(at time.Time) {
	if p.n--; p.n == 0 {
		p.total += at.Sub(p.since)
	}
}

// stream is the watch of one request.
type stream struct {
	m           *meter
	intended    time.Time
	first, last time.Time // of events with text
}

// begin notes that a request is sent now, having been due at intended.
func (m *meter) begin(intended time.Time) *stream {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.start.IsZero() {
		m.start = now
	}
	m.prefill.enter(now)
	return &stream{m: m, intended: intended}
}

func (s *stream) text(at time.Time) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.first.IsZero() {
		s.first = at
		s.m.prefill.leave(at)
		s.m.decode.enter(at)
	} else {
		s.m.itl.record(at.Sub(s.last))
	}
	s.last = at
}

// finish ends the stream; one of a and f is nil.
func (s *stream) finish(a *answer, f *failure) {
	now := time.Now()
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.first.IsZero() {
		m.prefill.leave(now)
	} else if f != nil {
		m.decode.leave(now)
	} else {
		m.decode.leave(s.last)
	}
	m.end = now
	if f != nil {
		m.failures[f.kind]++
		if m.first == nil {
			m.first = f
		}
		return
	}
	m.ok++
	m.prompt += a.prompt
	m.cached += a.cached
	m.output += a.output
	if !a.metered {
		m.unmetered++
	}
	if a.events > a.output {
		m.doubtful++
	}
	if a.again {
		m.again++
	}
	ttft, tpot := s.first.Sub(s.intended), time.Duration(0)
	m.ttft.record(ttft)
	m.e2e.record(a.end.Sub(s.intended))
	if a.output > 1 {
		m.later += a.output - 1
		tpot = s.last.Sub(s.first) / time.Duration(a.output-1)
		m.tpot.record(tpot)
	}
	if (m.slo.TTFT == 0 || ttft <= m.slo.TTFT) && (m.slo.TPOT == 0 || tpot <= m.slo.TPOT) {
		m.good++
	}
}

// Names of figures that have bars.
const (
	figureDecode  = "decode"
	figurePrefill = "prefill"
)

// figures are the run's, when all streams have finished. Rates count whole answers only, over all the time
// that was spent.
func (m *meter) figures(open bool) []bench.Figure {
	m.mu.Lock()
	defer m.mu.Unlock()
	took := m.end.Sub(m.start)
	rate := func(n int, over time.Duration) float64 {
		if n == 0 {
			return math.NaN()
		}
		return float64(n) / over.Seconds()
	}
	mean := func(n int) float64 { return float64(n) / float64(m.ok) }
	out := []bench.Figure{
		{Name: figureDecode, Unit: "tokens/s", Value: rate(m.later, m.decode.total)},
		{Name: figurePrefill, Unit: "tokens/s", Value: rate(m.prompt-m.cached, m.prefill.total)},
		{Name: "output", Unit: "tokens/s", Value: rate(m.output, took)},
		{Name: "requests", Unit: "1/s", Value: rate(m.ok, took)},
	}
	add := func(name string, l *latency, quantiles ...float64) {
		for _, q := range quantiles {
			out = append(out, bench.Figure{Name: name + " " + quantileName(q), Unit: "ms", Value: l.quantile(q)})
		}
	}
	add("TTFT", m.ttft, 50, 90, 99)
	add("TPOT", m.tpot, 50, 90, 99)
	add("ITL", m.itl, 50, 90, 99, 100)
	add("E2E", m.e2e, 50, 90, 99)
	if m.slo != (SLO{}) {
		out = append(out,
			bench.Figure{Name: "goodput", Unit: "1/s", Value: float64(m.good) / took.Seconds()},
			bench.Figure{Name: "share within SLO", Unit: "", Value: float64(m.good) / float64(m.ok+m.failed())})
	}
	out = append(out,
		bench.Figure{Name: "prompt tokens per request", Value: mean(m.prompt)},
		bench.Figure{Name: "cached prompt tokens per request", Value: mean(m.cached)},
		bench.Figure{Name: "output tokens per request", Value: mean(m.output)},
		bench.Figure{Name: "answers without usage", Value: float64(m.unmetered)},
		bench.Figure{Name: "answers with more events than tokens", Value: float64(m.doubtful)},
		bench.Figure{Name: "requests sent again", Value: float64(m.again)},
	)
	if open {
		add("late sending", m.lag, 50, 99)
	}
	out = append(out, bench.Figure{Name: "failures", Value: float64(m.failed())})
	kinds := make([]string, 0, len(m.failures))
	for k := range m.failures {
		kinds = append(kinds, k)
	}
	slices.SortFunc(kinds, strings.Compare)
	for _, k := range kinds {
		out = append(out, bench.Figure{Name: "failures: " + k, Value: float64(m.failures[k])})
	}
	return out
}

func (m *meter) failed() int {
	n := 0
	for _, k := range m.failures {
		n += k
	}
	return n
}

func quantileName(q float64) string {
	switch q {
	case 50:
		return "p50"
	case 90:
		return "p90"
	case 99:
		return "p99"
	}
	return "max"
}

// latency is a histogram of 1 µs to an hour with three significant digits.
type latency struct{ h *hdrhistogram.Histogram }

const longest = time.Hour

func newLatency() *latency {
	return &latency{hdrhistogram.New(1, longest.Microseconds(), 3)}
}

func (l *latency) record(d time.Duration) {
	_ = l.h.RecordValue(min(max(d, 0), longest).Microseconds()) // within its range
}

// quantile is in milliseconds, NaN of nothing.
func (l *latency) quantile(q float64) float64 {
	if l.h.TotalCount() == 0 {
		return math.NaN()
	}
	return float64(l.h.ValueAtPercentile(q)) / 1000
}
