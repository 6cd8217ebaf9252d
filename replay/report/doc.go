// Package report turns what happens in a replay into its report: latency
// percentiles, goodput at given SLOs, where memory and time went, and a page of
// charts that opens offline.
//
// The host makes a [Recorder] per run, tells it what ended and what changed, and
// calls Finish once:
//
//	r := report.New(report.Options{SLO: slo})
//	prefill := r.Pool(report.PoolSpec{Name: "prefill", Workers: 4, Blocks: 4096, BlockBytes: 2 << 20})
//	prefill.Memory(worker, now, manager.Snapshot()) // at every change
//	prefill.Busy(worker, from, to, report.Prefill)  // per step, or stretch of steps
//	r.Gaps(step, n)                                 // n tokens came that long after the one before
//	r.Request(report.Request{…})                    // once per request, when it ended
//	r.Count("refused", "never fits", 1)
//	res, err := r.Finish(now)
//
// docs/replay-report.md defines every figure.
//
// Equal calls give equal bytes: nothing depends on the machine, on a clock or on
// the order of a map. What is integrated over time (memory, busy time) is summed
// in 128-bit integers, so that a stretch reported in one call equals its steps
// reported one by one.
//
// A Recorder belongs to one goroutine. In steady state no call allocates. It
// keeps 36 bytes per measured request, and nothing else grows with the trace;
// see [Options].Exact for what happens with very long ones.
package report
