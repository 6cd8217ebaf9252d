package report

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/kv"
)

func marshal(t *testing.T, r *Result) string {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestStretchesEqualSteps records the same run twice: step by step, and in
// stretches. Nothing in the report may tell them apart.
func TestStretchesEqualSteps(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	type stretch struct {
		worker, steps int
		step          timed.Time
		held          kv.Snapshot
		kind          Work
	}
	var run []stretch
	for range 300 {
		s := stretch{worker: rng.IntN(3), steps: 1 + rng.IntN(50), step: 1 + timed.Time(rng.Int64N(int64(30*ms))), kind: Work(rng.IntN(int(works)))}
		s.held.Active = rng.IntN(50)
		s.held.Pinned = rng.IntN(30)
		s.held.Cached = rng.IntN(20)
		s.held.Free = 100 - s.held.Active - s.held.Pinned - s.held.Cached
		run = append(run, s)
	}
	report := func(steps bool) string {
		r := New(Options{Points: 64})
		p := r.Pool(PoolSpec{Name: "a", Workers: 3, Blocks: 100, BlockBytes: 7})
		var now [3]timed.Time
		for _, s := range run {
			at := &now[s.worker]
			p.Memory(s.worker, *at, s.held)
			if !steps {
				end := *at + timed.Time(s.steps)*s.step
				p.Busy(s.worker, *at, end, s.kind)
				r.Gaps(s.step, s.steps)
				*at = end
				continue
			}
			for range s.steps {
				p.Busy(s.worker, *at, *at+s.step, s.kind)
				r.Gaps(s.step, 1)
				*at += s.step
				p.Memory(s.worker, *at, s.held)
			}
		}
		res, _ := r.Finish(max(now[0], now[1], now[2]))
		return marshal(t, res)
	}
	if diff := cmp.Diff(report(true), report(false)); diff != "" {
		t.Error(diff)
	}
}

func TestGapRuns(t *testing.T) {
	one, run := New(Options{}), New(Options{})
	for start := timed.Time(1); start < timed.Second; start = start*9/8 + 1 {
		limit := min(GapLimit(start), start+40)
		sum, n := timed.Time(0), 0
		for g := start; g <= limit; g++ {
			one.Gaps(g, 2)
			sum, n = sum+2*g, n+2
		}
		run.GapRun(start, limit, n, sum)
	}
	a, _ := one.Finish(0)
	b, _ := run.Finish(0)
	if diff := cmp.Diff(marshal(t, a), marshal(t, b)); diff != "" {
		t.Error(diff)
	}
}

func TestGapLimit(t *testing.T) {
	for gap := timed.Time(1); gap < timed.Never/4; gap = gap*5/3 + 1 {
		limit := GapLimit(gap)
		if bucket(uint64(gap), fineBits) != bucket(uint64(limit), fineBits) || bucket(uint64(limit+1), fineBits) != bucket(uint64(limit), fineBits)+1 {
			t.Fatalf("%d is not the last of the bucket of %d", limit, gap)
		}
		if limit < gap || limit-gap > gap>>fineBits {
			t.Fatalf("the bucket of %d reaches to %d", gap, limit)
		}
	}
	if i := bucket(math.MaxInt64, fineBits); i != len(newHistogram(fineBits).counts)-1 {
		t.Errorf("the largest time is in bucket %d", i)
	}
}

// TestConstantGaps: a bucket with one value shows that value, one with several
// its middle, but nothing beyond the largest there was.
func TestConstantGaps(t *testing.T) {
	r := New(Options{})
	r.Gaps(7*ms, 10)
	r.Gaps(9*ms, 90)
	res, _ := r.Finish(0)
	if l := res.Latency.ITL; l.P50 != Seconds(9*ms) || l.Mean != Seconds(8800*timed.Microsecond) {
		t.Errorf("constant: %+v", l)
	}
	r = New(Options{})
	limit := GapLimit(9 * ms)
	r.GapRun(9*ms, limit, 2, 9*ms+limit)
	r.Gaps(limit-1, 1)
	res, _ = r.Finish(0)
	if l := res.Latency.ITL; l.P50 < Seconds(9*ms) || l.P50 >= Seconds(limit) || l.P50 != l.P99 || l.Max != Seconds(limit) {
		t.Errorf("mixed: %+v", l)
	}
}

// TestLevels holds the O(1) integration against adding up every bucket, over a
// grid that doubles while spans come in.
func TestLevels(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	r := New(Options{Points: 32})
	type span struct {
		from, to timed.Time
		height   float64
	}
	var spans []span
	for at := timed.Time(0); at < timed.Second; at += timed.Time(rng.Int64N(int64(2 * ms))) {
		s := span{at, at + timed.Time(rng.Int64N(int64(at/4+3))), float64(1 + rng.IntN(5))}
		spans = append(spans, s)
		r.grid.cover(s.to)
		r.flow.waiting.add(&r.grid, s.from, s.to, r.grid.index(s.from), r.grid.index(s.to), s.height)
	}
	want := make([]float64, r.grid.points)
	for _, s := range spans {
		for i := range want {
			from, to := max(s.from, timed.Time(i)*r.grid.width), min(s.to, timed.Time(i+1)*r.grid.width)
			want[i] += s.height * float64(max(to-from, 0))
		}
	}
	if diff := cmp.Diff(want, r.flow.waiting.integrals(r.grid.width), cmpopts.EquateApprox(1e-9, 1)); diff != "" {
		t.Error(diff)
	}
}

// TestLongRun: what is kept over time does not grow, and the longest time fits.
func TestLongRun(t *testing.T) {
	r := New(Options{Points: 64})
	p := r.Pool(PoolSpec{Name: "a", Workers: 1, Blocks: 4, BlockBytes: 1})
	p.Memory(0, 0, kv.Snapshot{Active: 1, Free: 3})
	p.Memory(0, timed.Never/2, kv.Snapshot{Pinned: 4})
	p.Busy(0, timed.Never/4, timed.Never-1, Decode)
	res, _ := r.Finish(timed.Never - 1)
	if n := len(res.Charts.Pools[0].Active); n < 32 || n > 64 {
		t.Errorf("%d points", n)
	}
	u := res.Pools[0]
	for _, x := range []struct{ got, want Number }{{u.Active, 0.125}, {u.Free, 0.375}, {u.Pinned, 0.5}, {u.Busy, 0.75}} {
		if math.Abs(float64(x.got-x.want)) > 1e-9 {
			t.Errorf("%v, want %v: %+v", x.got, x.want, u)
		}
	}
}

// TestChartsAddUp: the area under each chart is what the report says of the run
// as a whole.
func TestChartsAddUp(t *testing.T) {
	qs := random(3000, 5)
	r := New(Options{})
	var last timed.Time
	for i := range qs {
		r.Request(&qs[i])
		last = max(last, qs[i].End)
	}
	res, _ := r.Finish(last)
	c := res.Charts
	width := timed.Time(c.Width).Seconds()
	area := func(v []Number) (sum float64) {
		for i, x := range v {
			sum += float64(x) * min(width, last.Seconds()-float64(i)*width)
		}
		return sum
	}
	var waiting, decoding timed.Time
	for i := range qs {
		waiting += qs[i].First - qs[i].Arrival
		decoding += qs[i].End - qs[i].First
	}
	for _, x := range []struct {
		name      string
		got, want float64
	}{
		{"arrivals", area(c.Arrivals), 3000}, {"completed", area(c.Completed), 3000}, {"good", area(c.Good), 3000},
		{"output", area(c.Output), float64(res.Requests.OutputTokens)},
		{"waiting", area(c.Waiting), waiting.Seconds()}, {"decoding", area(c.Decoding), decoding.Seconds()},
	} {
		if math.Abs(x.got/x.want-1) > 0.001 { // charts have four digits
			t.Errorf("%s: %v, want %v", x.name, x.got, x.want)
		}
	}
}
