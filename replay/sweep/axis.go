package sweep

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Axis is one dimension of a grid: fields that change together, and the values
// that they take.
type Axis struct {
	Paths  []string   `json:"paths"`
	Values [][]string `json:"values"` // each has one value for each path
}

// Most values of an axis, and cells of a grid.
const (
	MaxValues = 10_000
	MaxCells  = 100_000
)

// ErrAxis is what every *AxisError wraps.
var ErrAxis = errors.New("sweep: no axis")

// AxisError says what is wrong with the text of an axis.
type AxisError struct {
	Text string
	Want string
}

// Error shows the text.
func (e *AxisError) Error() string { return fmt.Sprintf("sweep: %q: %s", e.Text, e.Want) }

// Unwrap returns ErrAxis.
func (e *AxisError) Unwrap() error { return ErrAxis }

// ParseAxis reads PATH=VALUES, where VALUES is a list with commas of
//
//	8           itself
//	1..8        1, 2, … 8
//	0..1/0.25   0, 0.25, … 1
//	1..64*2     1, 2, 4, … 64
//
// Several paths joined by colons change together. Their values are joined in
// the same way, 3:5; with two paths, one whole number stands for every way to
// split it: 8 for 1:7, 2:6, … 7:1.
func ParseAxis(text string) (Axis, error) {
	left, right, ok := strings.Cut(text, "=")
	if !ok || left == "" || right == "" {
		return Axis{}, &AxisError{text, "write it as PATH=VALUE,VALUE…"}
	}
	a := Axis{Paths: strings.Split(left, ":")}
	for i, p := range a.Paths {
		if _, err := parsePath(p); err != nil {
			return Axis{}, err
		}
		if slices.Contains(a.Paths[:i], p) {
			return Axis{}, &AxisError{text, "a path is there twice"}
		}
	}
	for item := range strings.SplitSeq(right, ",") {
		values, err := a.item(item)
		if err != nil {
			return Axis{}, &AxisError{text, err.Error()}
		}
		a.Values = append(a.Values, values...)
		if len(a.Values) > MaxValues {
			return Axis{}, &AxisError{text, fmt.Sprintf("more than %d values", MaxValues)}
		}
	}
	return a, nil
}

func (a *Axis) item(item string) ([][]string, error) {
	if item == "" {
		return nil, errors.New("a value is empty")
	}
	if len(a.Paths) == 1 {
		list, err := expand(item)
		if err != nil {
			return nil, err
		}
		values := make([][]string, len(list))
		for i := range list {
			values[i] = list[i : i+1]
		}
		return values, nil
	}
	parts := strings.Split(item, ":")
	switch total, err := strconv.Atoi(item); {
	case len(parts) == len(a.Paths) && !slices.Contains(parts, ""):
		return [][]string{parts}, nil
	case len(a.Paths) == 2 && err == nil && total >= 2 && total <= MaxValues:
		var values [][]string
		for first := 1; first < total; first++ {
			values = append(values, []string{strconv.Itoa(first), strconv.Itoa(total - first)})
		}
		return values, nil
	}
	return nil, fmt.Errorf("%q has no value for each of %d paths", item, len(a.Paths))
}

// expand returns the values of a range, or the item itself.
func expand(item string) ([]string, error) {
	low, high, ok := strings.Cut(item, "..")
	if !ok {
		return []string{item}, nil
	}
	op, by := byte('/'), "1"
	if i := strings.IndexAny(high, "/*"); i >= 0 {
		op, by, high = high[i], high[i+1:], high[:i]
	}
	a, errA := strconv.ParseFloat(low, 64)
	b, errB := strconv.ParseFloat(high, 64)
	step, errC := strconv.ParseFloat(by, 64)
	switch {
	case errA != nil || errB != nil || errC != nil || math.IsInf(a, 0) || math.IsInf(b, 0) || math.IsNaN(a+b+step):
		return nil, fmt.Errorf("%q is no range: write LOW..HIGH, LOW..HIGH/STEP or LOW..HIGH*FACTOR", item)
	case a > b:
		return nil, fmt.Errorf("%q begins above its end", item)
	case op == '/' && !(step > 0) || op == '*' && !(step > 1 && a > 0):
		return nil, fmt.Errorf("%q never reaches its end", item)
	}
	var values []string
	for i := 0; ; i++ {
		v := a + float64(i)*step
		if op == '*' {
			v = a * math.Pow(step, float64(i))
		}
		if v > b+1e-9*math.Abs(b) {
			return values, nil
		}
		if len(values) == MaxValues {
			return nil, fmt.Errorf("%q has more than %d values", item, MaxValues)
		}
		values = append(values, number(v, 12))
	}
}

// number writes v with at most so many significant digits, without an exponent.
func number(v float64, digits int) string {
	short, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', digits, 64), 64)
	return strconv.FormatFloat(short, 'f', -1, 64)
}

// cells returns how many cells the grid of axes has.
func cells(axes []Axis) (int, error) {
	n := 1
	var seen []string
	for _, a := range axes {
		if len(a.Paths) == 0 || len(a.Values) == 0 {
			return 0, fmt.Errorf("%w: an axis is empty", ErrAxis)
		}
		for _, p := range a.Paths {
			if slices.Contains(seen, p) {
				return 0, fmt.Errorf("%w: two axes change %s", ErrAxis, p)
			}
			seen = append(seen, p)
		}
		n *= len(a.Values)
		if n > MaxCells {
			return 0, fmt.Errorf("%w: the grid has more than %d cells; leave out values", ErrAxis, MaxCells)
		}
	}
	return n, nil
}

// settings returns those of a cell; the last axis changes fastest.
func settings(axes []Axis, cell int) []Setting {
	var out []Setting
	for i := len(axes) - 1; i >= 0; i-- {
		a := &axes[i]
		v := a.Values[cell%len(a.Values)]
		cell /= len(a.Values)
		for k := len(a.Paths) - 1; k >= 0; k-- {
			out = append(out, Setting{a.Paths[k], v[k]})
		}
	}
	slices.Reverse(out)
	return out
}
