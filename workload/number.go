package workload

import (
	"math"
	"strconv"
	"time"
)

// Trace clocks count nanoseconds here: 100 ns is the finest that published
// traces have, and any epoch of theirs fits.
const (
	nanosPerMilli  = int64(time.Millisecond)
	nanosPerSecond = int64(time.Second)
)

// maxTokens is the longest prompt or answer that is believed.
const maxTokens = 1 << 30

// parseCount reads a whole number without sign, at most most.
func parseCount(text []byte, most uint64) (uint64, bool) {
	if len(text) == 0 {
		return 0, false
	}
	var n uint64
	for _, c := range text {
		d := uint64(c - '0')
		if d > 9 || n > (most-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}

// parseID reads a block id: 64 bits, with or without sign.
func parseID(text []byte) (uint64, bool) {
	if len(text) > 0 && text[0] == '-' {
		n, ok := parseCount(text[1:], 1<<63)
		return -n, ok
	}
	return parseCount(text, math.MaxUint64)
}

// parseTime reads a decimal number of units of so many nanoseconds. What is
// finer than a nanosecond is cut off.
func parseTime(text []byte, unit int64) (int64, bool) {
	digits := text
	if len(digits) > 0 && digits[0] == '-' {
		digits = digits[1:]
	}
	whole, i := int64(0), 0
	for ; i < len(digits) && isDigit(digits[i]); i++ {
		if whole > math.MaxInt64/unit/10-1 {
			return 0, false
		}
		whole = whole*10 + int64(digits[i]-'0')
	}
	if i == 0 {
		return 0, false
	}
	nanos := whole * unit
	if i < len(digits) && digits[i] == '.' {
		first := i + 1
		scale := unit
		for i++; i < len(digits) && isDigit(digits[i]); i++ {
			scale /= 10
			nanos += int64(digits[i]-'0') * scale
		}
		if i == first {
			return 0, false
		}
	}
	if i < len(digits) { // an exponent, or no number
		f, err := strconv.ParseFloat(string(text), 64)
		f *= float64(unit)
		if err != nil || !(math.Abs(f) < 1<<62) {
			return 0, false
		}
		return int64(math.Round(f)), true
	}
	if len(digits) < len(text) {
		nanos = -nanos
	}
	return nanos, true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// parseDate reads a point of time such as 2023-11-16 18:15:46.6805900, with or
// without a T and a zone, UTC where there is none, as nanoseconds since 1970.
func parseDate(text []byte) (int64, bool) {
	const layout = "dddd-dd-dd dd:dd:dd"
	if len(text) < len(layout) {
		return 0, false
	}
	for i := range len(layout) {
		switch c := text[i]; layout[i] {
		case 'd':
			if !isDigit(c) {
				return 0, false
			}
		case ' ':
			if c != ' ' && c != 'T' {
				return 0, false
			}
		default:
			if c != layout[i] {
				return 0, false
			}
		}
	}
	field := func(first, end int) int {
		n, _ := parseCount(text[first:end], 9999)
		return int(n)
	}
	year, month, day := field(0, 4), field(5, 7), field(8, 10)
	hour, minute, second := field(11, 13), field(14, 16), field(17, 19)
	// Before 1678 and after 2262 the nanoseconds do not fit.
	if year < 1700 || year > 2200 || month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 59 {
		return 0, false
	}
	date := time.Date(year, time.Month(month), day, hour, minute, second, 0, time.UTC)
	if date.Day() != day { // the month has no such day
		return 0, false
	}
	nanos := date.UnixNano()

	rest := text[len(layout):]
	if len(rest) > 0 && rest[0] == '.' {
		scale, i := nanosPerSecond, 1
		for ; i < len(rest) && isDigit(rest[i]); i++ {
			scale /= 10
			nanos += int64(rest[i]-'0') * scale
		}
		if i == 1 {
			return 0, false
		}
		rest = rest[i:]
	}
	zone, ok := parseZone(rest)
	return nanos - zone, ok
}

// parseZone reads Z, +hh:mm, -hh:mm or nothing, as nanoseconds east.
func parseZone(text []byte) (int64, bool) {
	if len(text) == 0 || string(text) == "Z" {
		return 0, true
	}
	if len(text) != len("+hh:mm") || text[3] != ':' {
		return 0, false
	}
	hours, ok1 := parseCount(text[1:3], 23)
	minutes, ok2 := parseCount(text[4:6], 59)
	east := int64(hours*60+minutes) * 60 * nanosPerSecond
	if text[0] == '-' {
		east = -east
	} else if text[0] != '+' {
		return 0, false
	}
	return east, ok1 && ok2
}
