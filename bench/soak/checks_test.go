package soak

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
)

func newTestJudge(follow func(*Request, []int32, float64) (verdict, error), explain func(context.Context, *Request, []int32, []int) ([]int, error)) (*judge, *Report) {
	r := &run{report: &Report{Divergence: Divergence{Orders: map[Order]Share{}}}}
	for _, name := range checkNames {
		r.report.Checks = append(r.report.Checks, &Check{Name: name})
	}
	return &judge{follow: follow, explain: explain, bound: 0.5, mu: &sync.Mutex{}, report: r.report, check: r.check}, r.report
}

// TestJudge: what an answer's verdict means for the report.
func TestJudge(t *testing.T) {
	none := func(_ context.Context, _ *Request, _ []int32, far []int) ([]int, error) { return far, nil }
	every := func(context.Context, *Request, []int32, []int) ([]int, error) { return nil, nil }
	sampled := Request{Order: SourceFirst}
	sampled.Sampling.Temperature = 1
	for _, tt := range []struct {
		name    string
		q       Request
		finish  string
		kind    kind
		verdict verdict
		err     error
		explain func(context.Context, *Request, []int32, []int) ([]int, error)
		failed  string
		differs Share
	}{
		{name: "equal", verdict: verdict{first: -1}, differs: Share{0, 1}},
		{name: "equal alone", kind: alone, verdict: verdict{first: -1}},
		{name: "near", verdict: verdict{first: 1, gap: 0.4, at: 1}, differs: Share{1, 1}},
		{name: "near but alone", kind: alone, verdict: verdict{first: 1, gap: 0.4, at: 1}, failed: checkAlone},
		{name: "far", verdict: verdict{first: 1, gap: 0.6, at: 1, far: []int{1}}, explain: none, failed: checkTokens, differs: Share{1, 1}},
		{name: "far and explained", verdict: verdict{first: 1, gap: 0.6, at: 1, far: []int{1}}, explain: every, differs: Share{1, 1}},
		{name: "sampled", q: sampled, verdict: verdict{first: 1, gap: 9, at: 1, far: []int{1}}},
		{name: "sampled alone", q: sampled, kind: alone, verdict: verdict{first: 1, gap: 9, at: 1, far: []int{1}}, failed: checkAlone},
		{name: "stops nowhere", finish: "stop", verdict: verdict{first: -1}, failed: checkTokens, differs: Share{0, 1}},
		{name: "stops", finish: "stop", verdict: verdict{first: -1, stops: true}, differs: Share{0, 1}},
		{name: "no token", err: errors.New("no token"), failed: checkTokens},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j, rep := newTestJudge(func(*Request, []int32, float64) (verdict, error) { return tt.verdict, tt.err }, tt.explain)
			j.answer(t.Context(), &Answer{Request: &tt.q, Finish: tt.finish, Tokens: []int32{1, 2, 3}}, tt.kind)
			if got := strings.Join(rep.Failed(), ","); got != tt.failed {
				t.Errorf("failed: %q, want %q", got, tt.failed)
			}
			if rep.Divergence.HandedOff != tt.differs {
				t.Errorf("divergence %v, want %v", rep.Divergence.HandedOff, tt.differs)
			}
		})
	}
}

// TestDivergenceRate: a rate that is really higher is found, one that chance makes is not.
func TestDivergenceRate(t *testing.T) {
	for _, tt := range []struct {
		a, b Share
		p    float64
	}{
		{Share{3, 4}, Share{1, 4}, 0.242857}, // the lady tasting tea: 17 of 70
		{Share{4, 4}, Share{0, 4}, 1.0 / 70},
		{Share{0, 50}, Share{0, 40}, 1},
		{Share{0, 50}, Share{9, 40}, 1},
	} {
		if p := higher(tt.a, tt.b); math.Abs(p-tt.p) > 1e-6 {
			t.Errorf("%v against %v: %v, want %v", tt.a, tt.b, p, tt.p)
		}
	}
	for _, tt := range []struct {
		handedOff, colocated Share
		held                 any
	}{
		{Share{230, 4000}, Share{110, 2000}, true},
		{Share{20, 4000}, Share{110, 2000}, true},
		{Share{320, 4000}, Share{110, 2000}, false},
		{Share{5, 40}, Share{0, 20}, true},
		{Share{5, 40}, Share{}, nil},
	} {
		c := &Check{}
		(&Divergence{HandedOff: tt.handedOff, Colocated: tt.colocated}).judge(c)
		var held any
		if c.Held != nil {
			held = *c.Held
		}
		if held != tt.held {
			t.Errorf("%v against %v: held %v, want %v", tt.handedOff, tt.colocated, held, tt.held)
		}
	}
}

func TestAtMost(t *testing.T) {
	if u := atMost(Share{0, 300}); u < 0.005 || u > 0.01 {
		t.Errorf("0 of 300: at most %v; about 1%%", u)
	}
	if u := atMost(Share{}); u != 1 {
		t.Errorf("of nothing: at most %v", u)
	}
}

const restMetrics = `# HELP x y
tandem_worker_held{what="sequences"} 0
tandem_worker_held{what="streams"} 0
tandem_worker_held{what="tickets"} 0
tandem_worker_held{what="buffers"} 0
tandem_worker_held{what="handoffs"} 0
tandem_worker_cells{state="active"} 0
tandem_worker_cells{state="pinned"} 0
tandem_worker_cells{state="reserved"} 0
tandem_worker_cells{state="cached"} 4096
tandem_worker_slots{state="active"} 0
tandem_worker_slots{state="pinned"} 0
tandem_worker_slots{state="reserved"} 0
go_goroutines 31
process_resident_memory_bytes 7.3400320e+07
`

// TestHeld: what is at rest passes, and one sample that is not zero, or not there, is found.
func TestHeld(t *testing.T) {
	held := func(text string) []string {
		m, err := ReadMetrics(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return Held(false, m)
	}
	if got := held(restMetrics); len(got) > 0 {
		t.Errorf("at rest: %v", got)
	}
	for _, line := range strings.Split(restMetrics, "\n") {
		if !strings.HasSuffix(line, " 0") {
			continue
		}
		if got := held(strings.Replace(restMetrics, line, strings.TrimSuffix(line, "0")+"3", 1)); len(got) != 1 || !strings.HasSuffix(got[0], "is 3") {
			t.Errorf("%s is 3: %v", line, got)
		}
		if got := held(strings.Replace(restMetrics, line, "", 1)); len(got) != 1 || !strings.Contains(got[0], "not there") {
			t.Errorf("without %s: %v", line, got)
		}
	}
	if got := Held(true, map[string]float64{"tandem_requests_active": 1, "tandem_requests_queued": 0}); len(got) != 1 {
		t.Errorf("a gateway with a request: %v", got)
	}
}

// TestGrowth: one goroutine for each request is found, connections that come are not.
func TestGrowth(t *testing.T) {
	var f footprints
	for i := range 10 {
		f.add("leaks", 1, map[string]float64{"go_goroutines": float64(30 + 50*i), "process_open_fds": 20})
		f.add("connects", 1, map[string]float64{"go_goroutines": float64(30 + 15*min(i, 2)), "process_open_fds": 20})
		f.add("fills", 1, map[string]float64{"process_resident_memory_bytes": float64(min(i, 3) * 60 << 20)})
		f.add("swells", 1, map[string]float64{"process_resident_memory_bytes": float64(i * 60 << 20)})
		f.add("opens", 1, map[string]float64{"process_open_fds": float64(i) * 10})
		f.add("restarts", i, map[string]float64{"go_goroutines": float64(30 + 50*i)})
	}
	var grown []string
	for _, p := range f.list {
		if s := p.grown(); s != "" {
			grown = append(grown, p.Process)
		}
	}
	if got := strings.Join(grown, " "); got != "leaks swells opens" {
		t.Errorf("grown: %s", got)
	}
}
