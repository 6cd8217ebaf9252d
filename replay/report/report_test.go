package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

var update = flag.Bool("update", false, "write the golden files")

const ms = timed.Millisecond

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s changed; if that is meant, run go test ./replay/report -update (-want +got):\n%s", path, diff)
	}
}

// small is a run that one can check by hand: three requests, one handed off, one
// refused, two pools.
func small(lines *bytes.Buffer) *Recorder {
	opts := Options{
		Title: "three requests", Settings: []Setting{{"workload", "by hand"}},
		SLO: SLO{TTFT: 100 * ms, TPOT: 20 * ms}, Accelerators: 2, Points: 16,
	}
	if lines != nil {
		opts.PerRequest = lines
	}
	r := New(opts)
	p := r.Pool(PoolSpec{Name: "prefill", Role: "prefill", Workers: 1, Blocks: 10, BlockBytes: 1000})
	d := r.Pool(PoolSpec{Name: "decode", Role: "decode", Workers: 1, Blocks: 10, BlockBytes: 1000})

	p.Memory(0, 0, kv.Snapshot{Blocks: 10, Active: 4, Free: 6})
	p.Busy(0, 0, 50*ms, Prefill)
	p.Memory(0, 50*ms, kv.Snapshot{Blocks: 10, Pinned: 4, Free: 6})
	d.Memory(0, 60*ms, kv.Snapshot{Blocks: 10, Reserved: 4, Free: 6})
	d.Memory(0, 80*ms, kv.Snapshot{Blocks: 10, Active: 4, Free: 6})
	p.Memory(0, 80*ms, kv.Snapshot{Blocks: 10, Cached: 4, Free: 6})
	d.Busy(0, 80*ms, 110*ms, Decode)
	d.Memory(0, 110*ms, kv.Snapshot{Blocks: 10, Free: 10})
	d.Down(0, 150*ms, 200*ms)

	r.Request(&Request{
		Index: 1, Tenant: "a\"b\\c\n", Arrival: 10 * ms, End: 10 * ms, Input: 1000, Status: handoff.StatusRefused,
		Reason: "never fits", Policy: handoff.DestinationFirst, Prefill: -1, Decode: -1,
	})
	r.Request(&Request{
		Index: 0, Session: 7, Turn: 2, Arrival: 0, First: 50 * ms, Second: 90 * ms, End: 110 * ms, Input: 64, Output: 4,
		CachedSource: 16, CachedDestination: 32, Status: handoff.StatusCompleted, Policy: handoff.DestinationFirst,
		Retries: 1, Prefill: 0, Decode: 1, HandedOff: true,
		Handoff: Handoff{Reserve: 2 * ms, Queue: 1 * ms, Prefill: 40 * ms, Export: 3 * ms, Wire: 25 * ms, Import: 2 * ms,
			Commit: 1 * ms, Overlapped: 10 * ms, Tail: 30 * ms, Bytes: 4000, SkippedTokens: 32},
	})
	r.Request(&Request{
		Index: 2, Arrival: 20 * ms, First: 200 * ms, End: 200 * ms, Input: 16, Output: 1,
		Status: handoff.StatusCompleted, Policy: handoff.Disabled, Preempted: 2, Prefill: 0, Decode: 0,
	})
	r.Gaps(40*ms, 1)
	r.Gaps(10*ms, 2)
	r.Count("route.decode", "least loaded", 2)
	r.Count("route.decode", "only one", 1)
	r.Count("expired", "lease", 0)
	return r
}

func TestGolden(t *testing.T) {
	var lines bytes.Buffer
	res, err := small(&lines).Finish(200 * ms)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(res, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "small.json", append(text, '\n'))
	golden(t, "small.jsonl", lines.Bytes())
	var table bytes.Buffer
	if err := res.Table(&table); err != nil {
		t.Fatal(err)
	}
	golden(t, "small.txt", table.Bytes())

	var back Result
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	again, err := json.MarshalIndent(&back, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(text), string(again)); diff != "" {
		t.Errorf("read back and written again, the report differs:\n%s", diff)
	}
	for line := range strings.Lines(lines.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}
}

// TestSchema lists every field of the JSON: scripts rely on them.
func TestSchema(t *testing.T) {
	var b bytes.Buffer
	var walk func(path string, typ reflect.Type)
	walk = func(path string, typ reflect.Type) {
		switch {
		case typ.Kind() == reflect.Pointer:
			walk(path, typ.Elem())
		case typ.Kind() == reflect.Slice:
			walk(path+"[]", typ.Elem())
		case typ.Kind() == reflect.Struct:
			for i := range typ.NumField() {
				name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
				if name == "" {
					t.Errorf("%s.%s has no JSON name", path, typ.Field(i).Name)
				}
				walk(path+"."+name, typ.Field(i).Type)
			}
		default:
			fmt.Fprintf(&b, "%s %s\n", path, typ.Name())
		}
	}
	walk("", reflect.TypeFor[Result]())
	golden(t, "schema.txt", b.Bytes())
}

// random makes n requests of a busy run, in the order of their ends.
func random(n int, seed uint64) []Request {
	rng := rand.New(rand.NewPCG(seed, 1))
	qs := make([]Request, n)
	at := timed.Time(0)
	for i := range qs {
		at += timed.Time(rng.ExpFloat64() * float64(25*ms))
		q := &qs[i]
		q.Index, q.Arrival, q.Input, q.Output = int64(i), at, rng.IntN(4000)+1, rng.IntN(200)+1
		q.Policy, q.Status = handoff.Disabled, handoff.StatusCompleted
		q.First = at + timed.Time(rng.ExpFloat64()*float64(200*ms)) + 1
		q.Second, q.End = q.First, q.First
		if q.Output > 1 {
			q.Second += timed.Time(rng.ExpFloat64()*float64(20*ms)) + 1
			q.End = q.Second + timed.Time(q.Output-2)*timed.Time(rng.IntN(int(20*ms))+1)
		}
	}
	slices.SortStableFunc(qs, func(a, b Request) int { return int((a.End - b.End) / timed.Nanosecond) })
	return qs
}

func TestPercentiles(t *testing.T) {
	qs := random(20_000, 1)
	var ttft []timed.Time
	exact, sketched := New(Options{}), New(Options{Exact: 5000})
	for i := range qs {
		exact.Request(&qs[i])
		sketched.Request(&qs[i])
		ttft = append(ttft, qs[i].First-qs[i].Arrival)
	}
	slices.Sort(ttft)
	a, _ := exact.Finish(0)
	b, _ := sketched.Finish(0)
	if !a.Latency.TTFT.Exact || b.Latency.TTFT.Exact || b.Latency.E2E.Exact {
		t.Errorf("exact: %v, %v", a.Latency.TTFT.Exact, b.Latency.TTFT.Exact)
	}
	// Nearest rank by its definition: the first value that so many do not exceed.
	for _, p := range []struct {
		share  float64
		of     func(l *Latency) Seconds
		sketch bool
	}{
		{0.5, func(l *Latency) Seconds { return l.P50 }, true}, {0.75, func(l *Latency) Seconds { return l.P75 }, true},
		{0.9, func(l *Latency) Seconds { return l.P90 }, true}, {0.95, func(l *Latency) Seconds { return l.P95 }, true},
		{0.99, func(l *Latency) Seconds { return l.P99 }, true}, {0.999, func(l *Latency) Seconds { return l.P999 }, true},
		{1, func(l *Latency) Seconds { return l.Max }, false}, {0, func(l *Latency) Seconds { return l.Min }, false},
	} {
		i := 0
		for float64(i+1) < p.share*float64(len(ttft)) {
			i++
		}
		want := ttft[i]
		if got := timed.Time(p.of(&a.Latency.TTFT)); got != want {
			t.Errorf("p%v is %v, want %v", 100*p.share, got, want)
		}
		got := timed.Time(p.of(&b.Latency.TTFT))
		if off := float64(got-want) / float64(want); off > 0.001 || off < -0.001 || (!p.sketch && off != 0) {
			t.Errorf("p%v of the sketch is %v, want %v", 100*p.share, got, want)
		}
	}
	if a.Latency.TTFT.Mean != b.Latency.TTFT.Mean || a.Latency.TPOT.Mean != b.Latency.TPOT.Mean {
		t.Error("the sketch changes a mean")
	}
}

func TestWindow(t *testing.T) {
	r := New(Options{From: 10 * ms, To: 20 * ms})
	for _, at := range []timed.Time{9 * ms, 10 * ms, 19 * ms, 20 * ms} {
		r.Request(&Request{Arrival: at, First: at + 1, End: at + 1, Output: 1, Status: handoff.StatusCompleted})
	}
	res, _ := r.Finish(30 * ms)
	if res.Requests.Measured != 2 || res.Requests.Outside != 2 || res.Latency.TTFT.N != 2 {
		t.Errorf("measured %d, outside %d, want 2 and 2", res.Requests.Measured, res.Requests.Outside)
	}
	if res.First != Seconds(10*ms) || res.Last != Seconds(19*ms+1) {
		t.Errorf("measured from %d to %d", res.First, res.Last)
	}
}

func TestGoodput(t *testing.T) {
	fine := Request{First: 100 * ms, Second: 120 * ms, End: 200 * ms, Output: 6, Status: handoff.StatusCompleted} // TPOT 20 ms
	slo := SLO{TTFT: 100 * ms, TTST: 20 * ms, TPOT: 20 * ms, E2E: 200 * ms}
	for _, c := range []struct {
		name   string
		slo    SLO
		change func(q *Request)
		good   bool
	}{
		{"all limits just held", slo, func(q *Request) {}, true},
		{"TTFT", slo, func(q *Request) { q.Arrival = -1 }, false},
		{"TTST", slo, func(q *Request) { q.Second++ }, false},
		{"TPOT", SLO{TPOT: 20 * ms}, func(q *Request) { q.End += 5 }, false},
		{"TPOT, less than a picosecond more", SLO{TPOT: 20 * ms}, func(q *Request) { q.End += 4 }, true},
		{"E2E", SLO{E2E: 200 * ms}, func(q *Request) { q.End++ }, false},
		{"no limits", SLO{}, func(q *Request) { q.End *= 100 }, true},
		{"one token has no TPOT", slo, func(q *Request) { q.Output, q.Second, q.End = 1, 0, 200*ms }, true},
		{"refused", SLO{}, func(q *Request) { q.Status, q.Output = handoff.StatusRefused, 0 }, false},
		{"cancelled in time", slo, func(q *Request) { q.Status = handoff.StatusCancelled }, false},
	} {
		q := fine
		c.change(&q)
		q.First, q.Second, q.End, q.Arrival = q.First+1, q.Second+1, q.End+1, q.Arrival+1
		r := New(Options{SLO: c.slo})
		r.Request(&q)
		res, _ := r.Finish(0)
		if got := res.Goodput.Good == 1; got != c.good || res.Goodput.Met != c.good {
			t.Errorf("%s: good is %v, met %v, want %v", c.name, got, res.Goodput.Met, c.good)
		}
	}

	r := New(Options{SLO: SLO{TTFT: 10 * ms}, Accelerators: 4})
	for i := range 10 {
		q := Request{First: 10 * ms, End: 2000 * ms, Output: 5, Status: handoff.StatusCompleted}
		if i == 0 {
			q.First++
		}
		r.Request(&q)
	}
	res, _ := r.Finish(0)
	want := Goodput{
		SLO: SLOResult{TTFT: Seconds(10 * ms), Attainment: 0.9}, Good: 9, Attainment: 0.9, Met: true, WithinTTFT: 0.9,
		WithinTTST: 1, WithinTPOT: 1, WithinE2E: 1, Requests: 4.5, OutputTokens: 22.5, Accelerators: 4, PerAccelerator: 1.125,
	}
	if diff := cmp.Diff(want, res.Goodput); diff != "" {
		t.Error(diff)
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{Seconds(0), "0"}, {Seconds(timed.Second), "1"}, {Seconds(80 * ms), "0.08"}, {Seconds(1), "0.000000000001"},
		{Seconds(timed.Never), "9223372.036854775807"}, {Seconds(-1500 * ms), "-1.5"},
		{Number(0.1 + 0.2), "0.3"}, {Number(1e21), "1000000000000000000000"}, {Number(1.0 / 3), "0.333333333"},
	} {
		text, err := json.Marshal(c.v)
		if err != nil || string(text) != c.want {
			t.Errorf("%v: %s, %v, want %s", c.v, text, err, c.want)
		}
		back := reflect.New(reflect.TypeOf(c.v))
		if err := json.Unmarshal(text, back.Interface()); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if s, ok := c.v.(Seconds); ok && back.Elem().Interface() != s {
			t.Errorf("%s is read as %v", text, back.Elem())
		}
	}
	for _, bad := range []string{`"1"`, "1e3", "0.0000000000001", "99999999999", "null", ".5"} {
		var s Seconds
		if err := json.Unmarshal([]byte(bad), &s); err == nil {
			t.Errorf("%s is read as %v", bad, s)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	r := New(Options{PerRequest: discard{}})
	p := r.Pool(PoolSpec{Name: "a", Workers: 2, Blocks: 100})
	qs := random(1000, 2)
	for i := range qs {
		qs[i].HandedOff = true
	}
	at, i := timed.Time(0), 0
	r.Request(&qs[len(qs)-1])
	r.Count("a", "b", 1)
	step := func() {
		r.Request(&qs[i%len(qs)])
		r.Gaps(ms, 5)
		r.GapRun(ms, ms+1, 2, 2*ms+1)
		r.Count("a", "b", 1)
		p.Memory(0, at, kv.Snapshot{Active: i % 100})
		p.Busy(1, at, at+ms, Mixed)
		at += 3 * ms
		i++
	}
	if n := testing.AllocsPerRun(500, step); n != 0 {
		t.Errorf("%v allocations per request", n)
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func BenchmarkRequest(b *testing.B) {
	for _, handed := range []bool{false, true} {
		b.Run(fmt.Sprintf("handoff=%v", handed), func(b *testing.B) {
			qs := random(4096, 3)
			for i := range qs {
				qs[i].HandedOff = handed
			}
			r := New(Options{Exact: 1 << 30})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r.Request(&qs[i&4095])
			}
		})
	}
}

func BenchmarkMemory(b *testing.B) {
	r := New(Options{})
	p := r.Pool(PoolSpec{Workers: 8, Blocks: 100})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p.Memory(i&7, timed.Time(i)*ms, kv.Snapshot{Active: i & 63})
	}
}

func BenchmarkGaps(b *testing.B) {
	r := New(Options{})
	for i := 0; b.Loop(); i++ {
		r.Gaps(10*ms+timed.Time(i&1023)*timed.Microsecond, 64)
	}
}

func BenchmarkFinish(b *testing.B) {
	qs := random(100_000, 3)
	for b.Loop() {
		b.StopTimer()
		r := New(Options{})
		for i := range qs {
			r.Request(&qs[i])
		}
		b.StartTimer()
		r.Finish(0)
	}
}
