package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem/engine/timed"
)

// Seconds is a time that JSON shows as decimal seconds, exact to the picosecond.
type Seconds timed.Time

// MarshalJSON writes all digits that matter and no exponent.
func (s Seconds) MarshalJSON() ([]byte, error) { return appendSeconds(nil, timed.Time(s)), nil }

// UnmarshalJSON reads what MarshalJSON writes.
func (s *Seconds) UnmarshalJSON(text []byte) error {
	sign, digits := int64(1), string(text)
	if d, ok := strings.CutPrefix(digits, "-"); ok {
		sign, digits = -1, d
	}
	whole, part, _ := strings.Cut(digits, ".")
	if whole == "" || len(part) > 12 || strings.Trim(whole+part, "0123456789") != "" {
		return fmt.Errorf("report: %q is no number of seconds with at most 12 decimals", text)
	}
	ps, err := strconv.ParseInt(whole+part+strings.Repeat("0", 12-len(part)), 10, 64)
	if err != nil {
		return fmt.Errorf("report: %q seconds is out of range", text)
	}
	*s = Seconds(sign * ps)
	return nil
}

// appendSeconds appends t in seconds without trailing zeros.
func appendSeconds(dst []byte, t timed.Time) []byte {
	ps := uint64(t)
	if t < 0 {
		dst = append(dst, '-')
		ps = -ps
	}
	dst = strconv.AppendUint(dst, ps/uint64(timed.Second), 10)
	rest := ps % uint64(timed.Second)
	if rest == 0 {
		return dst
	}
	dst = append(dst, '.')
	for unit := uint64(timed.Second) / 10; rest > 0; unit /= 10 {
		dst = append(dst, byte('0'+rest/unit))
		rest %= unit
	}
	return dst
}

// Number is a figure that is no time and no count. JSON shows it with at most
// nine significant digits, so that the last bits of a float64, which may differ
// between processors, do not show.
type Number float64

// MarshalJSON writes the rounded number without an exponent.
func (n Number) MarshalJSON() ([]byte, error) { return appendNumber(nil, float64(n), 9), nil }

// appendNumber appends x rounded to that many significant digits. What is not
// finite becomes 0.
func appendNumber(dst []byte, x float64, digits int) []byte {
	return strconv.AppendFloat(dst, significant(x, digits), 'f', -1, 64)
}

// significant rounds x to that many digits. What is not finite becomes 0.
func significant(x float64, digits int) float64 {
	if x-x != 0 || x == 0 {
		return 0
	}
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', digits, 64), 64)
	return rounded
}
