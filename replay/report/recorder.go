package report

import (
	"io"

	"github.com/tandem-llm/tandem/engine/timed"
)

// SLO is what a request must reach to count as good. 0 means no limit. A
// request is good when it completed within all limits; one that was refused or
// failed is not.
type SLO struct {
	TTFT timed.Time
	TTST timed.Time
	TPOT timed.Time // holds for requests with one token: they have none
	E2E  timed.Time

	// Attainment is the share of measured requests that must be good for the run as
	// a whole to meet the SLO, DistServe's 0.9 when it is 0.
	Attainment float64
}

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
	// is replayed and counted as outside. Memory, utilisation and gaps cover the
	// whole run.
	From, To timed.Time

	// Accelerators of the fleet, for figures per accelerator. 0: there are none.
	Accelerators int

	// Exact is how many requests are measured exactly, 2,097,152 when it is 0. With
	// more, percentiles come from histograms with buckets of 0.1 %.
	Exact int

	// Points bounds the points over time of each chart, from 16 to 4096; 0 is 1024.
	Points int

	// NoCharts leaves the charts' data out of the result.
	NoCharts bool

	// PerRequest gets one line of JSON per request, in the order of the calls; nil:
	// none. It is buffered; Finish flushes it and returns its first error.
	PerRequest io.Writer
}

// Recorder collects what happens in one run. Make one with New.
type Recorder struct {
	opts  Options
	pools []*Pool
}

// New begins a run at time 0.
func New(opts Options) *Recorder { return &Recorder{opts: opts} }

// Request records a request that ended.
func (r *Recorder) Request(q *Request) {}

// Gaps records that n tokens came step after the token before, each. A request
// with k tokens has k-1 gaps.
func (r *Recorder) Gaps(step timed.Time, n int) {}

// GapRun records n gaps from shortest to longest, total in sum. Both ends must
// lie in one bucket: longest ≤ GapLimit(shortest).
func (r *Recorder) GapRun(shortest, longest timed.Time, n int, total timed.Time) {}

// GapLimit returns the longest gap that counts in the same bucket as gap.
// Buckets are 0.1 % wide.
func GapLimit(gap timed.Time) timed.Time { return gap }

// Count adds n to what is counted under name and reason, such as
// ("route.prefill", "longest prefix") or ("refused", "never fits").
func (r *Recorder) Count(name, reason string, n int) {}

// Finish ends the run at that time, which must not be before any other that was
// recorded, and returns its report. The error is that of Options.PerRequest; the
// result is valid all the same. The recorder is of no use afterwards.
func (r *Recorder) Finish(at timed.Time) (*Result, error) { return &Result{}, nil }
