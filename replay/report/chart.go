package report

import (
	"slices"

	"github.com/tandem-llm/tandem/engine/timed"
)

// chart fills in the series over time, as far as the run went.
func (r *Recorder) chart(c *Charts, end timed.Time, scratch []int64) {
	width := r.grid.width
	n := min(r.grid.index(end-1)+1, r.grid.points)
	span := func(i int) timed.Time { return min(width, end-timed.Time(i)*width) } // the last bucket ends with the run
	rate := func(of func(p *flowPoint) int64) []Number {
		out := make([]Number, n)
		for i := range out {
			out[i] = round(float64(of(&r.flow.at[i])) / span(i).Seconds())
		}
		return out
	}
	c.Width = Seconds(width)
	c.Arrivals = rate(func(p *flowPoint) int64 { return p.arrived })
	c.Completed = rate(func(p *flowPoint) int64 { return p.completed })
	c.Good = rate(func(p *flowPoint) int64 { return p.good })
	mean := func(l *levels, unit timed.Time) []Number {
		out := make([]Number, n)
		for i, x := range l.integrals(width)[:n] {
			out[i] = round(x * float64(unit) / float64(span(i)))
		}
		return out
	}
	c.Output = mean(&r.flow.tokens, timed.Second)
	c.Waiting = mean(&r.flow.waiting, 1)
	c.Decoding = mean(&r.flow.decoding, 1)
	r.chartTTFT(c, n, scratch)
	c.Pools = []PoolChart{}
	for _, p := range r.pools {
		c.Pools = append(c.Pools, p.chart(n, span))
	}
}

// chartTTFT fills in the percentiles by time of arrival; with a sketch, which
// does not know when requests arrived, the mean stands in for the median.
func (r *Recorder) chartTTFT(c *Charts, n int, scratch []int64) {
	c.TTFT50, c.TTFT90, c.TTFT99 = make([]Number, n), make([]Number, n), make([]Number, n)
	if r.ttft.hist.counts != nil {
		for i := range n {
			at := &r.flow.at[i]
			c.TTFT50[i] = round(float64(ratio(at.ttft, float64(at.ttfts))) / float64(timed.Second))
		}
		c.TTFT90, c.TTFT99 = nil, nil
		return
	}
	// Counting sort by bucket, then each bucket by value.
	starts := make([]int, n+1)
	bucketOf := func(arrival float32) int {
		return min(r.grid.index(timed.OfSeconds(float64(arrival))), n-1)
	}
	for _, chunk := range r.arrivals {
		for _, a := range chunk {
			starts[bucketOf(a)+1]++
		}
	}
	for i := range n {
		starts[i+1] += starts[i]
	}
	values := slices.Grow(scratch[:0], int(r.ttft.n))[:r.ttft.n]
	next := slices.Clone(starts)
	for i, chunk := range r.arrivals {
		for k, a := range chunk {
			b := bucketOf(a)
			values[next[b]] = r.ttft.chunks[i][k]
			next[b]++
		}
	}
	for i := range n {
		v := values[starts[i]:starts[i+1]]
		if len(v) == 0 {
			continue
		}
		slices.Sort(v)
		at := func(share uint64) Number {
			return round(timed.Time(v[nearest(uint64(len(v)), share)-1]).Seconds())
		}
		c.TTFT50[i], c.TTFT90[i], c.TTFT99[i] = at(500_000), at(900_000), at(990_000)
	}
}

func (p *Pool) chart(n int, span func(i int) timed.Time) PoolChart {
	c := PoolChart{Name: p.spec.Name}
	time := func(i int) float64 { return float64(span(i)) * float64(p.spec.Workers) }
	for class, to := range []*[]Number{&c.Active, &c.Pinned, &c.Reserved, &c.Cached, &c.Free} {
		*to = make([]Number, n)
		for i := range n {
			(*to)[i] = round(float64(ratio(p.memory[i][class].float(), time(i)*float64(p.spec.Blocks))))
		}
	}
	for kind, to := range []*[]Number{&c.Prefill, &c.Decode, &c.Mixed, &c.Transfer} {
		*to = make([]Number, n)
		for i := range n {
			(*to)[i] = round(float64(ratio(p.work[i][kind].float(), time(i))))
		}
	}
	return c
}

// round leaves what a chart can show: four digits, and no remainders of spans
// that cancel out.
func round(x float64) Number {
	if x < 1e-6 && x > -1e-6 {
		return 0
	}
	return Number(significant(x, 4))
}
