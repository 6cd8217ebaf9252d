package bench

import (
	"math"
	"slices"
)

// Summary is the spread of some values. All fields are 0 when N is.
type Summary struct {
	N      int     `json:"n"`
	Min    float64 `json:"min"`
	Q1     float64 `json:"q1"`
	Median float64 `json:"median"`
	Q3     float64 `json:"q3"`
	Max    float64 `json:"max"`
}

// Summarize returns the spread of the finite ones among values. Quartiles lie
// between two values where their rank does (the method of R's default and of
// numpy).
func Summarize(values []float64) Summary {
	v := finite(values)
	if len(v) == 0 {
		return Summary{}
	}
	slices.Sort(v)
	at := func(q float64) float64 {
		rank := q * float64(len(v)-1)
		low := int(rank)
		if low == len(v)-1 {
			return v[low]
		}
		return v[low] + (rank-float64(low))*(v[low+1]-v[low])
	}
	return Summary{N: len(v), Min: v[0], Q1: at(0.25), Median: at(0.5), Q3: at(0.75), Max: v[len(v)-1]}
}

// finite returns a copy without NaN and infinities, which JSON cannot carry.
func finite(values []float64) []float64 {
	v := make([]float64, 0, len(values))
	for _, x := range values {
		if !math.IsNaN(x) && !math.IsInf(x, 0) {
			v = append(v, x)
		}
	}
	return v
}

// Series is one figure of one side, turn by turn.
type Series struct {
	Name string `json:"name"` // the side's name, or "A / B" for a ratio
	Summary
	Values []float64 `json:"values"` // in the order of the turns
}

// NewSeries summarizes values, which it copies; those that are not finite are
// left out.
func NewSeries(name string, values []float64) Series {
	return Series{Name: name, Summary: Summarize(values), Values: finite(values)}
}
