package report

import (
	"fmt"
	"strconv"

	"github.com/tandem-llm/tandem/engine/timed"
)

// Figures for people: four digits and the unit that fits.

// FormatSeconds writes a time.
func FormatSeconds(s Seconds) string {
	t := timed.Time(s)
	for _, u := range []struct {
		unit timed.Time
		name string
	}{{timed.Second, "s"}, {timed.Millisecond, "ms"}, {timed.Microsecond, "µs"}, {timed.Nanosecond, "ns"}} {
		if t >= u.unit {
			return digits(float64(t)/float64(u.unit)) + " " + u.name
		}
	}
	if t == 0 {
		return "0"
	}
	return fmt.Sprintf("%d ps", t)
}

func digits(x float64) string { return strconv.FormatFloat(significant(x, 4), 'f', -1, 64) }

func short(n Number) string { return digits(float64(n)) }

// FormatShare writes a share as percent.
func FormatShare(n Number) string { return strconv.FormatFloat(100*float64(n), 'f', 1, 64) + "%" }

// FormatBytes writes bytes in powers of 1000.
func FormatBytes(n Number) string {
	x := float64(n)
	unit := 0
	for x >= 1000 && unit < len(byteUnits)-1 {
		x /= 1000
		unit++
	}
	return digits(x) + " " + byteUnits[unit]
}

var byteUnits = []string{"B", "kB", "MB", "GB", "TB", "PB"}

// count groups thousands.
func count(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
