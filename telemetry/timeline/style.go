package timeline

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Style says how to write.
type Style struct {
	Width  int  // columns; less than MinWidth means MinWidth, 0 means 80
	Color  bool // ANSI colours
	Blocks bool // block characters
}

// MinWidth is the narrowest output.
const MinWidth = 64

func (s Style) width() int {
	if s.Width == 0 {
		return 80
	}
	return max(s.Width, MinWidth)
}

// color is an ANSI colour by meaning.
type color string

const (
	plain   color = ""
	source  color = "36" // cyan
	target  color = "32" // green
	warning color = "33" // yellow: time that a client waits for
	strong  color = "1"
)

func (s Style) paint(c color, text string) string {
	if !s.Color || c == plain || text == "" {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// length writes a duration in at most six columns, with three significant digits.
func length(d time.Duration) string {
	switch {
	case d <= 0:
		return "0"
	case d < time.Microsecond:
		return fmt.Sprintf("%dns", d.Nanoseconds())
	case d < 10*time.Microsecond:
		return trim(float64(d)/1e3, 1) + "µs"
	case d < time.Millisecond:
		return fmt.Sprintf("%dµs", d.Microseconds())
	case d < 10*time.Millisecond:
		return trim(float64(d)/1e6, 2) + "ms"
	case d < 100*time.Millisecond:
		return trim(float64(d)/1e6, 1) + "ms"
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return trim(d.Seconds(), 2) + "s"
	case d < 100*time.Second:
		return trim(d.Seconds(), 1) + "s"
	case d < time.Hour:
		return fmt.Sprintf("%dm%02d", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh", int(d.Hours()))
}

// trim cuts rather than rounds, so that 9.999 does not become a wider 10.00.
func trim(v float64, digits int) string {
	scale := 1.0
	for range digits {
		scale *= 10
	}
	return fmt.Sprintf("%.*f", digits, float64(int64(v*scale))/scale)
}

// size writes bytes in at most eight columns.
func size(n int64) string {
	const units = "KMGTP"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", max(0, n))
	}
	v, u := float64(n)/(1<<10), 0
	for v >= 1024 && u < len(units)-1 {
		v, u = v/(1<<10), u+1
	}
	digits := 2
	if v >= 100 {
		digits = 0
	} else if v >= 10 {
		digits = 1
	}
	return trim(v, digits) + " " + units[u:u+1] + "iB"
}

// clean makes a text from a record fit for a terminal: printable, and at most n columns.
func clean(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == utf8.RuneError {
			return -1
		}
		return r
	}, s)
	if utf8.RuneCountInString(s) > n {
		s = string([]rune(s)[:max(0, n-1)]) + "~"
	}
	return s
}

// pad fills a text up to n columns, to the right of it or, with n negative, to the left.
func pad(s string, n int) string {
	left := n < 0
	if left {
		n = -n
	}
	fill := strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s)))
	if left {
		return fill + s
	}
	return s + fill
}
