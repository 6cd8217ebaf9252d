package report

import (
	"math/bits"
	"slices"
)

// histogram counts values in buckets that are 2^-sub of their value wide, and
// exactly one apart below 2^sub. It does not grow. A bucket that has seen only
// one value knows it, so that constant times come out exactly.
type histogram struct {
	sub    uint
	counts []uint64
	only   []uint64 // the one value seen plus 1, or mixed
}

const mixed = 1<<64 - 1

func newHistogram(sub uint) histogram {
	n := (64 - sub) << sub // for values below 2^63
	return histogram{sub: sub, counts: make([]uint64, n), only: make([]uint64, n)}
}

// add counts n values from low to high, which lie in one bucket.
func (h *histogram) add(low, high, n uint64) {
	i := bucket(high, h.sub)
	h.counts[i] += n
	switch only := h.only[i]; {
	case low != high:
		h.only[i] = mixed
	case only == 0:
		h.only[i] = low + 1
	case only != low+1:
		h.only[i] = mixed
	}
}

// value returns what stands for the values of bucket i: the only one, or the
// middle.
func (h *histogram) value(i int) uint64 {
	if only := h.only[i]; only != mixed {
		return only - 1
	}
	low, next := bounds(i, h.sub)
	return low + (next-low)/2
}

// bucket returns the index of v's bucket.
func bucket(v uint64, sub uint) int {
	if v < 1<<sub {
		return int(v)
	}
	e := uint(bits.Len64(v)) - sub - 1
	return int(e<<sub) + int(v>>e)
}

// bounds returns the least value of a bucket and of the one after it.
func bounds(i int, sub uint) (low, next uint64) {
	if i < 1<<sub {
		return uint64(i), uint64(i) + 1
	}
	e := uint(i)>>sub - 1
	low = (uint64(i) - uint64(e)<<sub) << e
	return low, low + 1<<e
}

// dist is a distribution of times that are not negative: exact count, sum, least
// and greatest; and either all values or a histogram of them.
type dist struct {
	n        uint64
	sum      sum
	min, max uint64
	chunks   [][]int64 // all values in the order they came, each chunk but the last full
	hist     histogram // used instead when it has counts
}

const chunkLen = 8192

func (d *dist) note(v, n uint64) {
	if d.n == 0 || v < d.min {
		d.min = v
	}
	if v > d.max {
		d.max = v
	}
	d.n += n
}

// keep adds one value to the exact ones.
func (d *dist) keep(v uint64) {
	d.note(v, 1)
	d.sum.add(v)
	if d.hist.counts != nil {
		d.hist.add(v, v, 1)
		return
	}
	last := len(d.chunks) - 1
	if last < 0 || len(d.chunks[last]) == chunkLen {
		d.chunks = append(d.chunks, make([]int64, 0, chunkLen))
		last++
	}
	d.chunks[last] = append(d.chunks[last], int64(v))
}

// sketch lets go of the exact values and counts them in a histogram from now on.
func (d *dist) sketch(sub uint) {
	d.hist = newHistogram(sub)
	for _, c := range d.chunks {
		for _, v := range c {
			d.hist.add(uint64(v), uint64(v), 1)
		}
	}
	d.chunks = nil
}

// sorted returns a reader of ranks. It sorts the values if there are any, into
// scratch when that is large enough; both belong to the reader until the next
// call.
func (d *dist) sorted(scratch *[]int64) ranks {
	if d.hist.counts != nil {
		return ranks{d: d}
	}
	n := int(d.n)
	*scratch = slices.Grow((*scratch)[:0], n)
	for _, c := range d.chunks {
		*scratch = append(*scratch, c...)
	}
	slices.Sort(*scratch)
	return ranks{d: d, values: *scratch}
}

// ranks reads values by their rank. Ranks of a histogram must be asked for in
// ascending order.
type ranks struct {
	d      *dist
	values []int64
	bucket int    // the next one to count
	below  uint64 // values in buckets before it
}

// at returns the value with that rank, from 1 to n.
func (r *ranks) at(rank uint64) uint64 {
	if r.values != nil {
		return uint64(r.values[rank-1])
	}
	h := &r.d.hist
	for r.below+h.counts[r.bucket] < rank {
		r.below += h.counts[r.bucket]
		r.bucket++
	}
	return min(max(h.value(r.bucket), r.d.min), r.d.max)
}

// nearest is the nearest-rank rule: the least rank that at least share of n
// values do not exceed. share is in parts of 1e6.
func nearest(n, share uint64) uint64 {
	hi, lo := bits.Mul64(n, share)
	lo, carry := bits.Add64(lo, 999_999, 0)
	rank, _ := bits.Div64(hi+carry, lo, 1_000_000)
	return max(rank, 1)
}

// latency summarizes, and returns the points of a cumulative distribution.
func (d *dist) latency(scratch *[]int64, points bool) (Latency, *CDF) {
	l := Latency{N: int64(d.n), Exact: d.hist.counts == nil}
	if d.n == 0 {
		return l, nil
	}
	l.Mean, l.Min, l.Max = Seconds(d.sum.over(d.n)), Seconds(d.min), Seconds(d.max)
	r := d.sorted(scratch)
	var cdf CDF
	next := 0
	quantiles := []struct {
		share uint64
		to    *Seconds
	}{{500_000, &l.P50}, {750_000, &l.P75}, {900_000, &l.P90}, {950_000, &l.P95}, {990_000, &l.P99}, {999_000, &l.P999}}
	for _, share := range cdfShares {
		v := Seconds(r.at(nearest(d.n, share)))
		if next < len(quantiles) && quantiles[next].share == share {
			*quantiles[next].to = v
			next++
		}
		if points {
			cdf.add(Number(float64(share)/1e6), v)
		}
	}
	if !points {
		return l, nil
	}
	return l, &cdf
}

// add adds a point. Of a run of equal values only the ends are kept.
func (c *CDF) add(share Number, v Seconds) {
	if n := len(c.Values); n >= 2 && c.Values[n-1] == v && c.Values[n-2] == v {
		c.Shares[n-1] = share
		return
	}
	c.Shares = append(c.Shares, share)
	c.Values = append(c.Values, v)
}

// cdfShares are the shares at which distributions are drawn, in parts of 1e6:
// every half percent, and finer in the last percent, where tails are read.
var cdfShares = func() []uint64 {
	var s []uint64
	for p := uint64(0); p < 990_000; p += 5_000 {
		s = append(s, p)
	}
	for p := uint64(990_000); p < 999_000; p += 500 {
		s = append(s, p)
	}
	for p := uint64(999_000); p <= 1_000_000; p += 100 {
		s = append(s, p)
	}
	return s
}()
