package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSummarize(t *testing.T) {
	for _, tt := range []struct {
		name   string
		values []float64
		want   Summary
	}{
		{"nothing", nil, Summary{}},
		{"one", []float64{3}, Summary{1, 3, 3, 3, 3, 3}},
		{"between two", []float64{2, 1}, Summary{2, 1, 1.25, 1.5, 1.75, 2}},
		{"five, unsorted", []float64{50, 10, 40, 20, 30}, Summary{5, 10, 20, 30, 40, 50}},
		{"not numbers", []float64{math.NaN(), 1, math.Inf(1)}, Summary{1, 1, 1, 1, 1, 1}},
	} {
		if d := cmp.Diff(tt.want, Summarize(tt.values)); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
	}
}

// counting is a side whose n-th run measures value(n).
func counting(log *strings.Builder, name string, value func(n int) float64) Side {
	n := 0
	return Side{name, func(context.Context) ([]Figure, error) {
		log.WriteString(name)
		n++
		return []Figure{{"rate", "things/s", value(n - 1)}}, nil
	}}
}

// The sides take turns, the warm-up does not count, and the ratio is taken within
// each turn: both slow down together here and the ratio stays.
func TestAlternate(t *testing.T) {
	var log strings.Builder
	says := 0
	drift := func(n int) float64 { return 100 / float64(n+1) }
	a := counting(&log, "A", drift)
	b := counting(&log, "B", func(n int) float64 { return 2 * drift(n) })
	runs, err := Alternate(t.Context(), Plan{Warmup: 1, Runs: 3, Say: func(string) { says++ }}, a, b)
	if err != nil {
		t.Fatal(err)
	}
	if log.String() != "ABABABAB" || says != 8 {
		t.Errorf("order %s with %d lines of progress", log.String(), says)
	}
	got := runs.Results()
	want := []Result{{
		Name: "rate", Unit: "things/s",
		Series: []Series{NewSeries("A", []float64{50, 100. / 3, 25}), NewSeries("B", []float64{100, 200. / 3, 50})},
		Ratio:  &Series{"A / B", Summary{3, .5, .5, .5, .5, .5}, []float64{.5, .5, .5}},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// What one side cannot measure is missing there, and there is no ratio; nor of
// nothing, nor of counts.
func TestMissingFigures(t *testing.T) {
	a := Side{"A", func(context.Context) ([]Figure, error) {
		return []Figure{{"x", "s", 1}, {"y", "s", 0}, {"n", "", 4}}, nil
	}}
	b := Side{"B", func(context.Context) ([]Figure, error) {
		return []Figure{{"x", "s", math.NaN()}, {"y", "s", 0}, {"n", "", 2}}, nil
	}}
	runs, err := Alternate(t.Context(), Plan{Runs: 2}, a, b)
	if err != nil {
		t.Fatal(err)
	}
	want := []Result{
		{Name: "x", Unit: "s", Series: []Series{NewSeries("A", []float64{1, 1})}},
		{Name: "y", Unit: "s", Series: []Series{NewSeries("A", []float64{0, 0}), NewSeries("B", []float64{0, 0})}},
		{Name: "n", Series: []Series{NewSeries("A", []float64{4, 4}), NewSeries("B", []float64{2, 2})}},
	}
	if d := cmp.Diff(want, runs.Results()); d != "" {
		t.Error(d)
	}
}

// An interrupt, or a side that fails, leaves the completed turns.
func TestAlternateStops(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name string
		end  func(cancel func()) error
		want error
	}{
		{"interrupt", func(cancel func()) error { cancel(); return nil }, context.Canceled},
		{"failure", func(func()) error { return broken }, broken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := 0
			a := Side{"A", func(context.Context) ([]Figure, error) {
				if n++; n == 3 {
					return nil, tt.end(cancel)
				}
				return []Figure{{"x", "s", float64(n)}}, nil
			}}
			runs, err := Alternate(ctx, Plan{Runs: 5}, a)
			if !errors.Is(err, tt.want) {
				t.Errorf("ended with %v", err)
			}
			if got := runs.Results(); runs.Turns() != 2 || len(got) != 1 || got[0].Series[0].Median != 1.5 {
				t.Errorf("%d turns, %+v", runs.Turns(), got)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	yes, no := true, false
	value := Result{Series: []Series{NewSeries("A", []float64{2, 3, 4}), NewSeries("B", []float64{9})}}
	ratio := Result{Series: value.Series}
	r := NewSeries("A / B", []float64{.9, .94, 2})
	ratio.Ratio = &r
	for _, tt := range []struct {
		name string
		res  Result
		bar  *Bar
		want *bool
	}{
		{"no bar", ratio, nil, nil},
		{"value reached", value, AtLeast(OnValue, 3), &yes},
		{"value below", value, AtLeast(OnValue, 3.1), &no},
		{"value within", value, AtMost(OnValue, 3), &yes},
		{"value above", value, AtMost(OnValue, 2.9), &no},
		{"ratio reached", ratio, AtLeast(OnRatio, 0.94), &yes},
		{"ratio below", ratio, AtLeast(OnRatio, 0.95), &no},
		{"no ratio to judge", value, AtLeast(OnRatio, 0.95), nil},
		{"nothing measured", Result{}, AtLeast(OnValue, 1), nil},
	} {
		tt.res.Judge(tt.bar)
		if d := cmp.Diff(tt.want, tt.res.Held); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
	}
}

func report() *Report {
	r := NewReport("test")
	r.Machine = Machine{CPU: "Some CPU", Cores: 2, MemoryBytes: 8 << 30, OS: "linux", Arch: "amd64", Kernel: "6.1", Go: "go1.26"}
	r.Set("streams", 8)
	ratio := NewSeries("A / B", []float64{.5, .7})
	res := Result{Name: "rate", Unit: "tokens/s", Series: []Series{NewSeries("A", []float64{1234.5, 1235.5}), NewSeries("B", []float64{0.00012})}, Ratio: &ratio, Note: "as told"}
	res.Judge(AtLeast(OnRatio, 0.95))
	r.Results = append(r.Results, res, Result{Name: "failures", Series: []Series{NewSeries("A", []float64{0})}})
	r.Turns = 2
	return r
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	r := report()
	r.Results = append(r.Results, Result{Name: "none"}, Result{Name: "unjudged", Bar: AtMost(OnRatio, 1)})
	if err := r.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	want := `tandem bench test
machine: Some CPU, 2 cores, 8 GiB, linux 6.1, go1.26
streams: 8
INCOMPLETE: these are the 2 turns before it was stopped

figure          side   min      quartile  median   quartile  max      runs  bar
rate, tokens/s  A      1234     1235      1235     1235      1236     2     
                B      0.00012  0.00012   0.00012  0.00012   0.00012  1     
                A / B  0.5      0.55      0.6      0.65      0.7      2     >= 0.95: MISSED
failures        A      0        0         0        0         0        1     
unjudged                                                              0     <= 1: not applicable
rate: as told
1 of the bars are missed
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Error(d)
	}
}

// Programs read these names.
func TestJSON(t *testing.T) {
	var out bytes.Buffer
	if err := report().WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	var want any
	if err := json.Unmarshal([]byte(`{
		"command": "test", "complete": false, "turns": 2,
		"settings": [{"name": "streams", "value": "8"}],
		"machine": {"cpu": "Some CPU", "cores": 2, "memory_bytes": 8589934592, "os": "linux", "arch": "amd64", "kernel": "6.1", "go": "go1.26"},
		"results": [
			{"name": "rate", "unit": "tokens/s", "held": false, "note": "as told", "bar": {"on": "ratio", "op": ">=", "limit": 0.95},
			 "ratio": {"name": "A / B", "n": 2, "min": 0.5, "q1": 0.55, "median": 0.6, "q3": 0.6499999999999999, "max": 0.7, "values": [0.5, 0.7]},
			 "series": [
				{"name": "A", "n": 2, "min": 1234.5, "q1": 1234.75, "median": 1235, "q3": 1235.25, "max": 1235.5, "values": [1234.5, 1235.5]},
				{"name": "B", "n": 1, "min": 0.00012, "q1": 0.00012, "median": 0.00012, "q3": 0.00012, "max": 0.00012, "values": [0.00012]}]},
			{"name": "failures", "unit": "", "held": null,
			 "series": [{"name": "A", "n": 1, "min": 0, "q1": 0, "median": 0, "q3": 0, "max": 0, "values": [0]}]}]}`), &want); err != nil {
		t.Fatal(err)
	}
	approx := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
	if d := cmp.Diff(want, got, approx); d != "" {
		t.Error(d)
	}
}

func TestMachine(t *testing.T) {
	m := readMachine()
	if m.Cores < 1 || m.Go == "" || m.OS == "" {
		t.Errorf("%+v", m)
	}
	if m.OS == "linux" && (m.MemoryBytes < 1<<20 || m.Kernel == "" || m.LoadBefore == nil) {
		t.Errorf("a Linux machine says more than %+v", m)
	}
}

// Each run begins after a pause, which an interrupt ends.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		side := Side{"a", func(context.Context) ([]Figure, error) {
			at = append(at, time.Since(began))
			return nil, nil
		}}
		if _, err := Alternate(t.Context(), Plan{Warmup: 1, Runs: 1, Pause: time.Second}, side, side); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}, at); diff != "" {
			t.Error(diff)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		now := time.Now()
		if _, err := Alternate(ctx, Plan{Runs: 1, Pause: time.Hour}, Side{"b", func(ctx context.Context) ([]Figure, error) { return nil, ctx.Err() }}); err == nil || time.Since(now) != time.Second {
			t.Errorf("%v after %v", err, time.Since(now))
		}
	})
}
