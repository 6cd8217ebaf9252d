package timed

import (
	"errors"
	"fmt"
	"math/bits"
	"sort"
)

// Bounds that keep all arithmetic inside 63 bits: a step's time is at most
// maxBase + maxSlope·maxContext < 2^63, and twice that fits into 64 bits.
const (
	maxContext = 1 << 31 // tokens of context in one batch; more count as this many
	maxSlope   = 1 << 31 // picoseconds per token of context: two milliseconds
	maxBase    = 1 << 60 // picoseconds: 13 days
)

var errBounds = errors.New("timed: a step would take longer than this model can count")

// A seg is a piece of a curve: at a context c from from up to the next piece's
// from, a step takes base + slope·(c−from) picoseconds.
type seg struct{ from, base, slope int64 }

// A curve is the time of a decode step over the tokens of context in the batch,
// for one number of sequences. It is linear in pieces and everything in it is an
// integer, so that the sum of many steps has an exact closed form.
//
// The first piece starts at 0, starts ascend strictly, the last piece starts at
// maxContext with slope 0, and no step takes less than one picosecond.
type curve []seg

// seal ends a curve at maxContext and checks it.
func (c curve) seal() (curve, error) {
	if len(c) == 0 || c[0].from != 0 {
		return nil, errors.New("timed: a curve starts at context 0")
	}
	for len(c) > 1 && c[len(c)-1].from >= maxContext {
		c = c[:len(c)-1]
	}
	for i, s := range c {
		end := int64(maxContext)
		if i+1 < len(c) {
			end = c[i+1].from
		}
		if s.from >= end {
			return nil, fmt.Errorf("timed: piece %d of a curve starts at %d, after its end at %d", i, s.from, end)
		}
		if s.base > maxBase || s.base < 1 || s.slope > maxSlope || s.slope < -maxSlope {
			return nil, fmt.Errorf("%w: %d ps and %d ps per token of context", errBounds, s.base, s.slope)
		}
		if s.base+s.slope*(end-1-s.from) < 1 {
			return nil, fmt.Errorf("timed: steps take no time at a context of %d tokens", end-1)
		}
	}
	last := c[len(c)-1]
	return append(c, seg{from: maxContext, base: last.base + last.slope*(maxContext-1-last.from)}), nil
}

// find returns the piece that a context is in.
func (c curve) find(context int64) int {
	if len(c) <= 8 {
		k := len(c) - 1
		for k > 0 && c[k].from > context {
			k--
		}
		return k
	}
	return sort.Search(len(c), func(i int) bool { return c[i].from > context }) - 1
}

func (s *seg) at(context int64) int64 { return s.base + s.slope*(context-s.from) }

// at is the time of one step.
func (c curve) at(context int64) Time {
	context = clampContext(context)
	return Time(c[c.find(context)].at(context))
}

func clampContext(context int64) int64 { return min(max(context, 0), maxContext) }

// A span is a run of steps inside one piece: count steps, the first takes first,
// each next one inc more.
type span struct{ first, inc, count int64 }

// span returns the first steps of a stretch that lie in one piece.
func (c curve) span(decodes, context, steps int64) span {
	context = clampContext(context)
	k := c.find(context)
	s := span{first: c[k].at(context), inc: c[k].slope * decodes, count: steps}
	if k+1 < len(c) {
		s.count = min(steps, (c[k+1].from-context+decodes-1)/decodes)
	} else {
		s.inc = 0
	}
	return s
}

// sum is the time of the span's first n steps; false if it does not fit.
func (s span) sum(n int64) (Time, bool) {
	if n <= 0 {
		return 0, true
	}
	// First and last step are below 2^63, so the product has at most 128 bits; it
	// is even, as in every arithmetic series of integers.
	hi, lo := bits.Mul64(uint64(2*s.first+s.inc*(n-1)), uint64(n))
	if hi > 0 {
		return Never, false
	}
	return Time(lo >> 1), true
}

// stretch is the time of so many decode steps, each with decodes tokens of
// context more than the one before it. It is the exact sum; if that does not fit,
// Never.
func (c curve) stretch(decodes, context, steps int64) Time {
	var total Time
	for steps > 0 {
		s := c.span(decodes, context, steps)
		t, ok := s.sum(s.count)
		if !ok || t > Never-total {
			return Never
		}
		total += t
		steps -= s.count
		context += s.count * decodes
	}
	return total
}

// within is the largest number of steps, at most most, whose stretch is not
// longer than limit.
func (c curve) within(decodes, context int64, limit Time, most int64) int64 {
	var done int64
	for done < most && limit > 0 {
		s := c.span(decodes, context, most-done)
		t, ok := s.sum(s.count)
		if ok && t <= limit {
			limit -= t
			done += s.count
			context += s.count * decodes
			continue
		}
		// The answer lies between limit over the slowest step and limit over the
		// fastest one, which is close in all but tiny batches.
		last := s.first + s.inc*(s.count-1)
		lo := min(int64(limit)/max(s.first, last), s.count)
		hi := min(int64(limit)/min(s.first, last), s.count)
		for lo < hi {
			mid := hi - (hi-lo)/2
			if t, ok := s.sum(mid); ok && t <= limit {
				lo = mid
			} else {
				hi = mid - 1
			}
		}
		return done + lo
	}
	return done
}

// runs visits the buckets that the steps of a stretch fall into, in order of the
// steps: so many consecutive steps with that Quantize.
func (c curve) runs(decodes, context, steps int64, visit func(step Time, count int)) {
	for steps > 0 {
		s := c.span(decodes, context, steps)
		for v, left := s.first, s.count; left > 0; {
			low, next := bucket(v)
			n := left
			switch {
			case s.inc > 0:
				n = min(left, (next-v+s.inc-1)/s.inc)
			case s.inc < 0:
				n = min(left, (v-low)/-s.inc+1)
			}
			visit(Time(low+(next-low)/2), int(n))
			v += n * s.inc
			left -= n
		}
		steps -= s.count
		context += s.count * decodes
	}
}

// bucketBits is the number of leading bits that times in one bucket share.
const bucketBits = 11

// bucket returns the first time of v's bucket and the first one after it.
func bucket(v int64) (low, next int64) {
	shift := bits.Len64(uint64(v)) - bucketBits
	if shift <= 0 {
		return v, v + 1
	}
	low = v >> shift << shift
	return low, low + 1<<shift
}
