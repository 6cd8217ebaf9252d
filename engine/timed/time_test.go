package timed

import (
	"math"
	"testing"
	"time"
)

func TestTimeConverts(t *testing.T) {
	for _, c := range []struct {
		d    time.Duration
		want Time
	}{
		{0, 0},
		{1, Nanosecond},
		{-time.Second, -Second},
		{106 * 24 * time.Hour, 106 * 24 * 3600 * Second},
		{math.MaxInt64, math.MaxInt64},
		{math.MinInt64, math.MinInt64},
	} {
		if got := Of(c.d); got != c.want {
			t.Errorf("Of(%v) = %d, want %d", c.d, got, c.want)
		}
	}
	if got := (1999 * Picosecond).Duration(); got != 1 {
		t.Errorf("1999 ps are %v, want 1ns", got)
	}
	if got := (-1999 * Picosecond).Duration(); got != -1 {
		t.Errorf("-1999 ps are %v, want -1ns", got)
	}
	if got := (1500 * Millisecond).Seconds(); got != 1.5 {
		t.Errorf("1500 ms are %v s", got)
	}
	for _, c := range []struct {
		s    float64
		want Time
	}{{0.25, 250 * Millisecond}, {1e-12, 1}, {math.Inf(1), math.MaxInt64}, {-1e30, math.MinInt64}, {math.NaN(), 0}} {
		if got := OfSeconds(c.s); got != c.want {
			t.Errorf("OfSeconds(%v) = %d, want %d", c.s, got, c.want)
		}
	}
	if got := (2 * Second).String(); got != "2s" {
		t.Errorf("2 s print as %s", got)
	}
}
