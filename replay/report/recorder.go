package report

import (
	"bufio"
	"io"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
)

// SLO is what a request must reach to count as good. 0 means no limit. A
// request is good when it completed within all limits; one that was refused or
// failed is not.
type SLO struct {
	TTFT timed.Time
	TTST timed.Time
	TPOT timed.Time // requests with one token have none, and hold it
	E2E  timed.Time

	// Attainment is the share of measured requests that must be good for the run as
	// a whole to meet the SLO, DistServe's 0.9 when it is 0.
	Attainment float64
}

// DefaultAttainment is the share of good requests that defines goodput in
// DistServe (OSDI '24).
const DefaultAttainment = 0.9

// Setting is one thing about how the run was made, shown in the order given.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Options of a run. The zero value measures everything and keeps charts.
type Options struct {
	Title    string
	Settings []Setting
	SLO      SLO

	// Only requests that arrive in [From, To) are measured; To 0 is no end. The rest
	// is replayed and counted as outside. Memory, utilisation, gaps, counts and
	// everything over time cover the whole run.
	From, To timed.Time

	// Accelerators of the fleet, for figures per accelerator. 0: there are none.
	Accelerators int

	// Exact is how many requests are measured exactly, 2,097,152 when it is 0. With
	// more, percentiles come from histograms with buckets of 0.1 %.
	Exact int

	// Points bounds the points over time of each chart, from 16 to 4096 and even; 0
	// is 1024. A run ends with at least half of them.
	Points int

	// NoCharts leaves the charts' data out of the result.
	NoCharts bool

	// PerRequest gets one line of JSON per request, in the order of the calls; nil:
	// none. It is buffered; Finish flushes it and returns its first error.
	PerRequest io.Writer
}

const (
	exactDefault  = 1 << 21
	pointsDefault = 1024
	pointsLeast   = 16
	pointsMost    = 4096

	// Bits of resolution of histograms: 0.1 % for latencies and gaps, 0.4 % for the
	// phases of handoffs.
	fineBits   = 10
	coarseBits = 8
)

// Recorder collects what happens in one run. Make one with New. All times given
// to it are at least 0, all counts too.
type Recorder struct {
	opts     Options
	grid     grid
	pools    []*Pool
	requests Requests
	byPolicy [handoff.SourceFirst + 1]int64
	cache    Cache
	good     goodRequests
	first    timed.Time // arrival of measured requests, the earliest
	newest   timed.Time // the latest
	last     timed.Time // their end, the latest

	ttft, ttst, tpot, e2e dist
	arrivals              [][]float32 // of the values in ttft, in seconds, in chunks like them
	gaps                  dist
	handoffs              handoffs
	flow                  flow

	counts map[countKey]*int64

	lines *bufio.Writer
	line  []byte
	err   error // first error of lines
}

// goodRequests counts measured requests within limits.
type goodRequests struct {
	ttft, ttst, tpot, e2e, all int64
	outputTokens               int64
}

// flow is what requests do over time, on the grid.
type flow struct {
	at       []flowPoint
	waiting  levels // between arrival and first token
	decoding levels // after it
	tokens   levels // output
}

type flowPoint struct {
	arrived, completed, good int64
	ttft                     float64 // sum over the completed requests that arrived here
	ttfts                    int64
}

type countKey struct{ name, reason string }

// New begins a run at time 0.
func New(opts Options) *Recorder {
	if opts.SLO.Attainment == 0 {
		opts.SLO.Attainment = DefaultAttainment
	}
	if opts.Exact == 0 {
		opts.Exact = exactDefault
	}
	if opts.Points == 0 {
		opts.Points = pointsDefault
	}
	r := &Recorder{
		opts:   opts,
		grid:   grid{width: firstWidth, points: min(max(opts.Points, pointsLeast), pointsMost) &^ 1},
		counts: map[countKey]*int64{},
		gaps:   dist{hist: newHistogram(fineBits)},
	}
	r.flow = flow{
		at: make([]flowPoint, r.grid.points), waiting: newLevels(&r.grid),
		decoding: newLevels(&r.grid), tokens: newLevels(&r.grid),
	}
	r.grid.folders = append(r.grid.folders, func() {
		fold(r.flow.at, func(into, from *flowPoint) {
			into.arrived += from.arrived
			into.completed += from.completed
			into.good += from.good
			into.ttft += from.ttft
			into.ttfts += from.ttfts
		})
	})
	if opts.PerRequest != nil {
		r.lines = bufio.NewWriterSize(opts.PerRequest, 1<<16)
	}
	return r
}

// Request records a request that ended. It keeps nothing of q.
func (r *Recorder) Request(q *Request) {
	done := q.Status == handoff.StatusCompleted && q.Output > 0
	good := r.measure(q, done)
	r.over(q, done, good)
	if r.lines != nil && r.err == nil {
		r.line = q.appendJSON(r.line[:0], good)
		_, r.err = r.lines.Write(r.line)
	}
}

// measure adds what does not depend on when things happened, and returns
// whether the request is good.
func (r *Recorder) measure(q *Request, done bool) (good bool) {
	ttft, e2e := q.First-q.Arrival, q.End-q.Arrival
	slo := &r.opts.SLO
	within := func(t, limit timed.Time) bool { return done && (limit == 0 || t <= limit) }
	inTTFT, inE2E := within(ttft, slo.TTFT), within(e2e, slo.E2E)
	inTTST, inTPOT := done, done
	if q.Output >= 2 {
		inTTST, inTPOT = within(q.TTST(), slo.TTST), within(q.TPOT(), slo.TPOT)
	}
	good = inTTFT && inE2E && inTTST && inTPOT
	if q.Arrival < r.opts.From || r.opts.To > 0 && q.Arrival >= r.opts.To {
		r.requests.Outside++
		return good
	}

	n := &r.requests
	if n.Measured == 0 || q.Arrival < r.first {
		r.first = q.Arrival
	}
	r.newest = max(r.newest, q.Arrival)
	r.last = max(r.last, q.End)
	n.Measured++
	switch q.Status {
	case handoff.StatusCompleted:
		n.Completed++
	case handoff.StatusCancelled:
		n.Cancelled++
	case handoff.StatusTimeout:
		n.TimedOut++
	case handoff.StatusRefused:
		n.Refused++
	default:
		n.Failed++
	}
	n.InputTokens += int64(q.Input)
	n.OutputTokens += int64(q.Output)
	n.Retries += int64(q.Retries)
	n.Preemptions += int64(q.Preempted)
	n.Retried += one(q.Retries > 0)
	n.Preempted += one(q.Preempted > 0)
	if int(q.Policy) < len(r.byPolicy) {
		r.byPolicy[q.Policy]++
	}
	r.cache.SourceTokens += int64(q.CachedSource)
	r.cache.SourceRequests += one(q.CachedSource > 0)

	g := &r.good
	g.ttft += one(inTTFT)
	g.ttst += one(inTTST)
	g.tpot += one(inTPOT)
	g.e2e += one(inE2E)
	if good {
		g.all++
		g.outputTokens += int64(q.Output)
	}
	if done {
		r.latencies(q, ttft, e2e)
	}
	if q.HandedOff {
		r.cache.DestinationTokens += int64(q.CachedDestination)
		r.handoffs.add(q)
	}
	return good
}

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// latencies keeps those of one completed request.
func (r *Recorder) latencies(q *Request, ttft, e2e timed.Time) {
	if r.ttft.n == uint64(r.opts.Exact) && r.ttft.hist.counts == nil {
		for _, d := range []*dist{&r.ttft, &r.ttst, &r.tpot, &r.e2e} {
			d.sketch(fineBits)
		}
		r.arrivals = nil
	}
	r.ttft.keep(uint64(ttft))
	r.e2e.keep(uint64(e2e))
	if q.Output >= 2 {
		r.ttst.keep(uint64(q.TTST()))
		r.tpot.keep(uint64(q.TPOT()))
	}
	if r.ttft.hist.counts != nil {
		return
	}
	last := len(r.arrivals) - 1
	if last < 0 || len(r.arrivals[last]) == chunkLen {
		r.arrivals = append(r.arrivals, make([]float32, 0, chunkLen))
		last++
	}
	r.arrivals[last] = append(r.arrivals[last], float32(q.Arrival.Seconds()))
}

// over adds what the request did over time.
func (r *Recorder) over(q *Request, done, good bool) {
	g, f := &r.grid, &r.flow
	g.cover(q.End)
	first := q.End
	if q.Output > 0 {
		first = q.First
	}
	i, j, k := g.index(q.Arrival), g.index(first), g.index(q.End)
	at := &f.at[i]
	at.arrived++
	if done {
		at.ttft += float64(first - q.Arrival)
		at.ttfts++
		f.at[k].completed++
		f.at[k].good += one(good)
	}
	f.waiting.add(g, q.Arrival, first, i, j, 1)
	if q.Output == 0 {
		return
	}
	f.tokens.part[j]++
	if rest := q.Output - 1; rest > 0 && q.End > first {
		f.decoding.add(g, first, q.End, j, k, 1)
		f.tokens.add(g, first, q.End, j, k, float64(rest)/float64(q.End-first))
	} else {
		f.tokens.part[j] += float64(rest)
	}
}

// Gaps records that n tokens came step after the token before, each. A request
// with k tokens has k-1 gaps.
func (r *Recorder) Gaps(step timed.Time, n int) {
	if n <= 0 {
		return
	}
	v := uint64(step)
	r.gaps.note(v, uint64(n))
	r.gaps.sum.addMul(v, uint64(n))
	r.gaps.hist.add(v, v, uint64(n))
}

// GapRun records n gaps from shortest to longest, total in sum. Both ends must
// lie in one bucket: longest ≤ GapLimit(shortest).
func (r *Recorder) GapRun(shortest, longest timed.Time, n int, total timed.Time) {
	if n <= 0 {
		return
	}
	r.gaps.note(uint64(shortest), uint64(n))
	r.gaps.note(uint64(longest), 0)
	r.gaps.sum.add(uint64(total))
	r.gaps.hist.add(uint64(shortest), uint64(longest), uint64(n))
}

// GapLimit returns the longest gap that counts in the same bucket as gap.
// Buckets are 0.1 % wide.
func GapLimit(gap timed.Time) timed.Time {
	_, next := bounds(bucket(uint64(gap), fineBits), fineBits)
	return timed.Time(next - 1)
}

// Count adds n to what is counted under name and reason, such as
// ("route.prefill", "longest prefix") or ("refused", "never fits").
func (r *Recorder) Count(name, reason string, n int) {
	c := r.counts[countKey{name, reason}]
	if c == nil {
		c = new(int64)
		r.counts[countKey{name, reason}] = c
	}
	*c += int64(n)
}
