package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Dist is a distribution of lengths or seconds, none of them negative. Its text
// form is a number, which is always drawn, or
//
//	uniform:LOW:HIGH
//	normal:MEAN:SD[:LOW:HIGH]
//	lognormal:MEAN:SD[:LOW:HIGH]
//	exponential:MEAN[:LOW:HIGH]
//	empirical:VALUE[*WEIGHT],VALUE[*WEIGHT],…
//
// Low and high cut a distribution off: what lies outside is drawn again, and
// after 100 vain draws the nearer end is taken. Mean and SD (standard
// deviation) are those before the cut. Without them low is 0.
type Dist struct {
	kind      distKind
	mean, sd  float64
	low, high float64
	mu, sigma float64   // lognormal: of the logarithm
	values    []float64 // empirical
	weights   []float64 // empirical: of each value
	sums      []float64 // empirical: the weights of the values up to here
}

type distKind uint8

const (
	distNone distKind = iota
	distFixed
	distUniform
	distNormal
	distLognormal
	distExponential
	distEmpirical
)

var distNames = [...]string{"", "fixed", "uniform", "normal", "lognormal", "exponential", "empirical"}

// redraws is how often a draw outside of the cut is repeated.
const redraws = 100

// maxValues is how many values an empirical distribution may have.
const maxValues = 1 << 16

// ParseDist reads the text form of a distribution.
func ParseDist(text string) (Dist, error) {
	name, rest, found := strings.Cut(text, ":")
	if !found {
		v, err := parseNumber(text)
		if err != nil {
			return Dist{}, fmt.Errorf("workload: a distribution is a number or one of %s with its numbers after colons: %w",
				strings.Join(distNames[distUniform:], ", "), err)
		}
		return Dist{kind: distFixed, mean: v, low: v, high: v}, nil
	}
	kind := distKind(slices.Index(distNames[:], name))
	if name == "" || int(kind) >= len(distNames) {
		return Dist{}, fmt.Errorf("workload: no such distribution: choose one of %s", strings.Join(distNames[distFixed:], ", "))
	}
	if kind == distEmpirical {
		return parseEmpirical(rest)
	}
	var n []float64
	for _, part := range strings.Split(rest, ":") {
		v, err := parseNumber(part)
		if err != nil {
			return Dist{}, fmt.Errorf("workload: %s: %w", name, err)
		}
		n = append(n, v)
	}
	d := Dist{kind: kind, high: math.Inf(1)}
	own := map[distKind]int{distFixed: 1, distUniform: 0, distNormal: 2, distLognormal: 2, distExponential: 1}[kind]
	bounds := len(n) - own
	if bounds != 2 && (bounds != 0 || kind == distUniform) || kind == distFixed && bounds != 0 {
		return Dist{}, fmt.Errorf("workload: %s has %d numbers, want the form %s", name, len(n), distForms[kind])
	}
	if bounds == 2 {
		if d.low, d.high = n[own], n[own+1]; d.low > d.high {
			return Dist{}, fmt.Errorf("workload: %s: low is above high", name)
		}
	}
	switch kind {
	case distFixed:
		d.mean, d.low, d.high = n[0], n[0], n[0]
	case distUniform:
		d.mean = (d.low + d.high) / 2
	case distNormal, distLognormal:
		d.mean, d.sd = n[0], n[1]
	case distExponential:
		d.mean = n[0]
	}
	if kind == distLognormal {
		if d.mean == 0 {
			return Dist{}, fmt.Errorf("workload: lognormal: the mean must be above 0")
		}
		ratio := d.sd / d.mean
		variance := math.Log1p(ratio * ratio)
		d.mu, d.sigma = math.Log(d.mean)-variance/2, math.Sqrt(variance)
	}
	return d, nil
}

var distForms = map[distKind]string{
	distFixed: "fixed:VALUE", distUniform: "uniform:LOW:HIGH", distNormal: "normal:MEAN:SD[:LOW:HIGH]",
	distLognormal: "lognormal:MEAN:SD[:LOW:HIGH]", distExponential: "exponential:MEAN[:LOW:HIGH]",
}

func parseEmpirical(text string) (Dist, error) {
	d := Dist{kind: distEmpirical, low: math.Inf(1)}
	sum := 0.0
	for _, part := range strings.Split(text, ",") {
		value, times, weighted := strings.Cut(part, "*")
		v, err := parseNumber(value)
		if err != nil {
			return Dist{}, fmt.Errorf("workload: empirical: %w", err)
		}
		weight := 1.0
		if weighted {
			if weight, err = parseNumber(times); err != nil {
				return Dist{}, fmt.Errorf("workload: empirical: weight: %w", err)
			}
		}
		if len(d.values) == maxValues {
			return Dist{}, fmt.Errorf("workload: empirical: more than %d values", maxValues)
		}
		sum += weight
		d.values, d.weights, d.sums = append(d.values, v), append(d.weights, weight), append(d.sums, sum)
		d.low, d.high = min(d.low, v), max(d.high, v)
		d.mean += v * weight
	}
	if !(sum > 0) || math.IsInf(sum, 1) {
		return Dist{}, fmt.Errorf("workload: empirical: the weights must add up to a number above 0")
	}
	d.mean /= sum
	return d, nil
}

// parseNumber reads a finite number that is not negative.
func parseNumber(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(v, 0) || math.IsNaN(v) || v < 0 {
		return 0, fmt.Errorf("expected a number of at least 0, not %.40q", text)
	}
	return v, nil
}

// IsZero reports whether d is no distribution at all.
func (d Dist) IsZero() bool { return d.kind == distNone }

// String returns the text form, empty for none.
func (d Dist) String() string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	var b strings.Builder
	switch d.kind {
	case distNone:
		return ""
	case distFixed:
		return number(d.mean)
	case distEmpirical:
		for i, v := range d.values {
			sep := ","
			if i == 0 {
				sep = ":"
			}
			b.WriteString(sep + number(v))
			if d.weights[i] != 1 {
				b.WriteString("*" + number(d.weights[i]))
			}
		}
		return distNames[d.kind] + b.String()
	case distNormal, distLognormal:
		b.WriteString(":" + number(d.mean) + ":" + number(d.sd))
	case distExponential:
		b.WriteString(":" + number(d.mean))
	}
	if d.low > 0 || !math.IsInf(d.high, 1) {
		b.WriteString(":" + number(d.low) + ":" + number(d.high))
	}
	return distNames[d.kind] + b.String()
}

// MarshalText returns the text form.
func (d Dist) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the text form, or nothing for none.
func (d *Dist) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*d = Dist{}
		return nil
	}
	parsed, err := ParseDist(string(text))
	if err == nil {
		*d = parsed
	}
	return err
}

// UnmarshalJSON reads a number, or the text form as a string.
func (d *Dist) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	if unquoted, err := strconv.Unquote(string(text)); err == nil {
		return d.UnmarshalText([]byte(unquoted))
	}
	return d.UnmarshalText(text)
}

// draw returns a value between low and high.
func (d *Dist) draw(r *rand.Rand) float64 {
	switch d.kind {
	case distNone, distFixed:
		return d.mean
	case distUniform:
		return d.low + float64((d.high-d.low)*r.Float64())
	case distEmpirical:
		return d.values[pick(d.sums, r)]
	}
	v := 0.0
	for range redraws {
		switch d.kind {
		case distNormal:
			v = d.mean + float64(d.sd*r.NormFloat64()) // no fused addition, on any machine
		case distLognormal:
			v = math.Exp(d.mu + float64(d.sigma*r.NormFloat64()))
		case distExponential:
			v = d.mean * r.ExpFloat64()
		}
		if d.low <= v && v <= d.high {
			return v
		}
	}
	return min(max(v, d.low), d.high)
}

// pick draws an index, by the sums of the weights up to each.
func pick(sums []float64, r *rand.Rand) int {
	at := r.Float64() * sums[len(sums)-1]
	return min(sort.Search(len(sums), func(i int) bool { return sums[i] > at }), len(sums)-1)
}

// tokens draws a length of at least 1. A uniform distribution draws each whole
// number from low to high alike.
func (d *Dist) tokens(r *rand.Rand) int {
	var v float64
	if d.kind == distUniform {
		low, high := int64(min(math.Ceil(d.low), maxDrawn)), int64(min(math.Floor(d.high), maxDrawn))
		v = float64(low + r.Int64N(max(high-low, 0)+1))
	} else {
		v = math.Round(d.draw(r))
	}
	return int(min(max(v, 1), maxDrawn))
}

// maxDrawn is the longest length that is drawn: far above any context, and
// what keeps lists of block ids small.
const maxDrawn = 1 << 24
