package timed

import (
	"math"
	"time"
)

// Time is virtual time, or a length of it, in picoseconds. As a point it
// counts from the start of the run. The largest one is 106 days.
type Time int64

// Lengths of virtual time.
const (
	Picosecond  Time = 1
	Nanosecond       = 1000 * Picosecond
	Microsecond      = 1000 * Nanosecond
	Millisecond      = 1000 * Microsecond
	Second           = 1000 * Millisecond

	// Never is later than every point that happens.
	Never Time = math.MaxInt64
)

// Of converts d, which is exact. What does not fit becomes the largest (or
// smallest) Time.
func Of(d time.Duration) Time {
	switch {
	case d > math.MaxInt64/time.Duration(Nanosecond):
		return math.MaxInt64
	case d < math.MinInt64/time.Duration(Nanosecond):
		return math.MinInt64
	}
	return Time(d) * Nanosecond
}

// OfSeconds converts s and rounds to the nearest picosecond. What does not fit
// becomes the largest (or smallest) Time, NaN becomes 0.
func OfSeconds(s float64) Time { return Picoseconds(s * float64(Second)) }

// Picoseconds rounds to the nearest picosecond. What does not fit becomes the
// largest (or smallest) Time, NaN becomes 0.
func Picoseconds(ps float64) Time {
	ps = math.RoundToEven(ps)
	switch {
	case ps >= math.MaxInt64:
		return math.MaxInt64
	case ps <= math.MinInt64:
		return math.MinInt64
	case ps != ps:
		return 0
	}
	return Time(ps)
}

// Duration converts t to the nanoseconds that the core counts in, and
// truncates towards zero.
func (t Time) Duration() time.Duration { return time.Duration(t / Nanosecond) }

// Seconds converts t, to the precision of a float64.
func (t Time) Seconds() float64 { return float64(t) / float64(Second) }

// String writes t as a duration does, to the nanosecond.
func (t Time) String() string { return t.Duration().String() }
