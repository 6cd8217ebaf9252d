package report

import (
	"cmp"
	"slices"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
)

// Finish ends the run at that time, or when the last thing recorded ended if
// that is later, and returns its report. The error is that of
// Options.PerRequest; the result is valid all the same. The recorder is of no
// use afterwards.
func (r *Recorder) Finish(at timed.Time) (*Result, error) {
	at = max(at, r.last)
	for _, p := range r.pools {
		for i := range p.workers {
			at = max(at, p.workers[i].since)
		}
	}
	for _, p := range r.pools {
		for i := range p.workers {
			p.integrate(&p.workers[i], at)
		}
	}
	r.grid.cover(at)

	period := r.last - r.first
	res := &Result{
		Schema: Schema, Title: r.opts.Title, Settings: append([]Setting{}, r.opts.Settings...),
		End: Seconds(at), First: Seconds(r.first), Last: Seconds(r.last), Period: Seconds(period),
		Requests: r.requests, Cache: r.cache, Handoffs: r.handoffs.result(),
		Goodput: r.goodput(period),
		Throughput: Throughput{
			Offered:      per(max(r.requests.Measured-1, 0), r.newest-r.first),
			Requests:     per(r.requests.Completed, period),
			InputTokens:  per(r.requests.InputTokens, period),
			OutputTokens: per(r.requests.OutputTokens, period),
		},
		Pools: []PoolUse{}, Counts: r.sortedCounts(),
	}
	res.Requests.ByPolicy = []PolicyCount{}
	for p, n := range r.byPolicy {
		if n > 0 && p > 0 {
			res.Requests.ByPolicy = append(res.Requests.ByPolicy, PolicyCount{handoff.Policy(p), n})
		}
	}
	res.Cache.SourceShare = ratio(float64(r.cache.SourceTokens), float64(r.requests.InputTokens))
	res.Cache.DestinationShare = ratio(float64(r.cache.DestinationTokens), float64(r.handoffs.input))

	charts := &Charts{}
	var scratch []int64
	draw := !r.opts.NoCharts
	for _, l := range []struct {
		d   *dist
		to  *Latency
		cdf **CDF
	}{
		{&r.ttft, &res.Latency.TTFT, &charts.TTFT}, {&r.ttst, &res.Latency.TTST, &charts.TTST},
		{&r.tpot, &res.Latency.TPOT, &charts.TPOT}, {&r.gaps, &res.Latency.ITL, &charts.ITL},
		{&r.e2e, &res.Latency.E2E, &charts.E2E},
	} {
		*l.to, *l.cdf = l.d.latency(&scratch, draw)
	}
	for _, p := range r.pools {
		res.Pools = append(res.Pools, p.use(at))
	}
	if draw {
		r.chart(charts, at, scratch)
		res.Charts = charts
	}
	if r.lines != nil {
		r.err = cmp.Or(r.err, r.lines.Flush())
	}
	return res, r.err
}

func (r *Recorder) goodput(period timed.Time) Goodput {
	slo, n := r.opts.SLO, float64(r.requests.Measured)
	g := Goodput{
		SLO: SLOResult{
			TTFT: Seconds(slo.TTFT), TTST: Seconds(slo.TTST), TPOT: Seconds(slo.TPOT), E2E: Seconds(slo.E2E),
			Attainment: Number(slo.Attainment),
		},
		Good:       r.good.all,
		Attainment: ratio(float64(r.good.all), n),
		Met:        n > 0 && float64(r.good.all) >= slo.Attainment*n,
		WithinTTFT: ratio(float64(r.good.ttft), n), WithinTTST: ratio(float64(r.good.ttst), n),
		WithinTPOT: ratio(float64(r.good.tpot), n), WithinE2E: ratio(float64(r.good.e2e), n),
		Requests:     per(r.good.all, period),
		OutputTokens: per(r.good.outputTokens, period),
		Accelerators: r.opts.Accelerators,
	}
	if g.Accelerators > 0 {
		g.PerAccelerator = g.Requests / Number(g.Accelerators)
	}
	return g
}

func (r *Recorder) sortedCounts() []Count {
	out := make([]Count, 0, len(r.counts))
	for k, n := range r.counts {
		out = append(out, Count{k.name, k.reason, *n})
	}
	slices.SortFunc(out, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}

// use summarizes a pool over the whole run.
func (p *Pool) use(end timed.Time) PoolUse {
	u := PoolUse{
		Name: p.spec.Name, Role: p.spec.Role, Workers: p.spec.Workers,
		Blocks: p.spec.Blocks, BlockBytes: p.spec.BlockBytes,
	}
	var held [classes]float64
	var work [works]float64
	for i := range p.memory {
		for c := range held {
			held[c] += p.memory[i][c].float()
		}
	}
	for i := range p.workers {
		w := &p.workers[i]
		var busy timed.Time
		for k, t := range w.work {
			work[k] += float64(t)
			if Work(k) != down {
				busy += t
			}
		}
		share := ratio(float64(busy), float64(end-w.work[down]))
		if i == 0 || share < u.LeastBusy {
			u.LeastBusy = share
		}
		u.MostBusy = max(u.MostBusy, share)
		u.PeakUsed = max(u.PeakUsed, w.used)
		u.PeakPinned = max(u.PeakPinned, w.peak[pinned])
		u.PeakReserved = max(u.PeakReserved, w.peak[reserved])
	}
	all := float64(end) * float64(p.spec.Workers)
	up := all - work[down]
	u.Prefill, u.Decode, u.Mixed, u.Transfer = ratio(work[Prefill], up), ratio(work[Decode], up), ratio(work[Mixed], up), ratio(work[Transfer], up)
	u.Busy = ratio(work[Prefill]+work[Decode]+work[Mixed]+work[Transfer], up)
	u.Down = ratio(work[down], all)
	blocks := all * float64(p.spec.Blocks)
	for c, to := range []*Number{&u.Active, &u.Pinned, &u.Reserved, &u.Cached, &u.Free} {
		*to = ratio(held[c], blocks)
	}
	bytes := float64(p.spec.BlockBytes) / float64(timed.Second)
	u.PinnedByteSeconds = Number(held[pinned] * bytes)
	u.ReservedByteSeconds = Number(held[reserved] * bytes)
	u.StrandedByteSeconds = Number((held[pinned] + held[reserved]) * bytes)
	return u
}

// per returns n per second of period, 0 for no period.
func per(n int64, period timed.Time) Number { return ratio(float64(n), period.Seconds()) }

// ratio returns a over b, 0 for b = 0.
func ratio(a, b float64) Number {
	if b == 0 {
		return 0
	}
	return Number(a / b)
}
