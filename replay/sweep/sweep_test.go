package sweep

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/replay/report"
)

const ms = timed.Millisecond

// base is a configuration such as a YAML decoder makes it.
func base() any {
	return map[string]any{
		"pools": []any{
			map[string]any{"name": "prefill", "count": 1},
			map[string]any{"name": "decode", "count": 1},
		},
		"workload": map[string]any{"rate": 1},
	}
}

// queue is a fleet whose requests wait as in M/D/1: prefill takes 100 ms, decode
// 200 ms, a worker serves one at a time.
func queue(ctx context.Context, c Cell) (*report.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	count := func(i int) float64 {
		return asFloat(c.Config.(map[string]any)["pools"].([]any)[i].(map[string]any)["count"])
	}
	rate := asFloat(c.Config.(map[string]any)["workload"].(map[string]any)["rate"])
	if count(0) < 1 || count(1) < 1 {
		return nil, errors.New("a pool without workers")
	}
	wait := func(d, servers float64) timed.Time {
		load := rate * d / servers
		if load >= 0.999 {
			load = 0.999
		}
		return timed.OfSeconds(d + load*d/(2*(1-load)))
	}
	r := report.New(report.Options{SLO: report.SLO{TTFT: 200 * ms, TPOT: 40 * ms}, Accelerators: int(count(0) + count(1))})
	for i := range 20 {
		q := report.Request{Index: int64(i), Arrival: timed.OfSeconds(float64(i) / rate), Input: 10, Output: 11, Status: handoff.StatusCompleted, Policy: handoff.DestinationFirst}
		q.First = q.Arrival + wait(0.1, count(0))
		q.Second = q.First + wait(0.2, count(1))/10
		q.End = q.First + wait(0.2, count(1))
		r.Request(&q)
	}
	return r.Finish(0)
}

func asFloat(v any) float64 {
	switch n := v.(type) {
	case int:
		return float64(n)
	case int64:
		return float64(n)
	case float64:
		return n
	}
	return 0
}

func axes(t *testing.T, texts ...string) (out []Axis) {
	t.Helper()
	for _, text := range texts {
		a, err := ParseAxis(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, a)
	}
	return out
}

func jsonOf(t *testing.T, r *Results) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.JSON(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestSameOnAnyCores: the bytes of all outputs do not depend on how many cells
// run at once, nor on which ends first.
func TestSameOnAnyCores(t *testing.T) {
	all := func(parallel int, run Run) string {
		s := Sweep{Base: base(), Axes: axes(t, "pools.prefill.count:pools.decode.count=5", "workload.rate=1..9/4"), Load: "workload.rate", Run: run, Parallel: parallel}
		res, err := s.Do(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		b.WriteString(jsonOf(t, res))
		for _, write := range []func(*bytes.Buffer) error{
			func(b *bytes.Buffer) error { return res.CSV(b) }, func(b *bytes.Buffer) error { return res.Table(b) },
			func(b *bytes.Buffer) error { return res.HTML(b) }, func(b *bytes.Buffer) error { return res.SVG(b) },
		} {
			if err := write(&b); err != nil {
				t.Fatal(err)
			}
		}
		return b.String()
	}
	one := all(1, queue)
	// The first cell ends only when the last one has begun.
	last := make(chan struct{})
	late := func(ctx context.Context, c Cell) (*report.Result, error) {
		switch c.Index {
		case 0:
			<-last
		case 11:
			close(last)
		}
		return queue(ctx, c)
	}
	if diff := cmp.Diff(one, all(3, late)); diff != "" {
		t.Error(diff)
	}
}

func TestOrderAndConfig(t *testing.T) {
	var mu sync.Mutex
	seen := map[int]string{}
	start := base()
	s := Sweep{Base: start, Axes: axes(t, "pools[0].count=1,2", "mode=colocated,x", "pools.decode.deep.er=true"), Parallel: 2, Run: func(ctx context.Context, c Cell) (*report.Result, error) {
		text, err := json.Marshal(c.Config)
		mu.Lock()
		defer mu.Unlock()
		seen[c.Index] = string(text)
		c.Config.(map[string]any)["mine"] = true
		return &report.Result{}, err
	}}
	res, err := s.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := map[int]string{}
	for i, x := range []struct {
		count int
		mode  string
	}{{1, "colocated"}, {1, "x"}, {2, "colocated"}, {2, "x"}} {
		want[i] = fmt.Sprintf(`{"mode":%q,"pools":[{"count":%d,"name":"prefill"},{"count":1,"deep":{"er":true},"name":"decode"}],"workload":{"rate":1}}`, x.mode, x.count)
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(base(), start); diff != "" {
		t.Errorf("the base changed: %s", diff)
	}
	for i, c := range res.Cells {
		if c.Index != i {
			t.Errorf("cell %d is at %d", c.Index, i)
		}
	}
}

// TestBases: fleets that are compared come first, by their names, and their
// names are no setting of theirs.
func TestBases(t *testing.T) {
	run := func(ctx context.Context, c Cell) (*report.Result, error) {
		text, err := json.Marshal(c.Config)
		return &report.Result{Title: string(text)}, err
	}
	s := Sweep{Base: map[string]any{"a": 1}, Name: "one", With: []Base{{"two", map[string]any{"b": 2}}}, Axes: axes(t, "c=3,4"), Run: run}
	res, err := s.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range res.Cells {
		got = append(got, fmt.Sprint(c.Settings, c.Result.Title))
	}
	want := []string{
		`[{fleet one} {c 3}]{"a":1,"c":3}`, `[{fleet one} {c 4}]{"a":1,"c":4}`,
		`[{fleet two} {c 3}]{"b":2,"c":3}`, `[{fleet two} {c 4}]{"b":2,"c":4}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestFailedCells(t *testing.T) {
	s := Sweep{Base: base(), Axes: axes(t, "pools[0].count=0,1", "pools.nobody.count=1"), Run: queue}
	res, err := s.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if res.Failed() != 2 || !strings.Contains(res.Cells[1].Error, "no item of the list has the name nobody") {
		t.Errorf("%+v", res.Cells)
	}
	s.Axes = axes(t, "pools[0].count=0,1")
	if res, err = s.Do(t.Context()); err != nil || res.Failed() != 1 || res.Cells[0].Error != "a pool without workers" || res.Cells[1].Result == nil {
		t.Errorf("%v, %+v", err, res.Cells)
	}
	var b bytes.Buffer
	if err := errors.Join(res.CSV(&b), res.Table(&b), res.HTML(&b)); err != nil || strings.Count(b.String(), "a pool without workers") != 3 {
		t.Errorf("%v: the error is missing from an output", err)
	}
}

// TestResume: a sweep that was interrupted, and whose last line was cut, runs
// only what is missing and ends with the same bytes.
func TestResume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runs.jsonl")
	grid := axes(t, "pools.prefill.count=1..6")
	fresh := Sweep{Base: base(), Axes: grid, Run: queue, Inputs: "v1"}
	want, err := fresh.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	store, err := OpenStore(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	first := Sweep{Base: base(), Axes: grid, Inputs: "v1", Parallel: 1, Store: store, Run: func(ctx context.Context, c Cell) (*report.Result, error) {
		if c.Index == 3 {
			interrupt()
		}
		r, err := queue(ctx, c)
		if err == nil && r.Charts == nil {
			t.Error("the run made no charts, so nothing is left out")
		}
		return r, err
	}}
	part, err := first.Do(ctx)
	if !errors.Is(err, context.Canceled) || len(part.Cells) != 3 {
		t.Fatalf("%v with %d cells, want an interrupt after 3", err, len(part.Cells))
	}
	store.Close()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text[:len(text)-5], 0o644); err != nil {
		t.Fatal(err)
	}

	whole, err := OpenStore(path)
	if err != nil {
		t.Fatal(err)
	}
	whole.Close()
	if cut, _ := os.ReadFile(path); string(cut) != string(text[:bytes.LastIndexByte(text[:len(text)-1], '\n')+1]) || whole.Len() != 2 {
		t.Errorf("of the file %d bytes are left, and %d runs", len(cut), whole.Len())
	}

	var runs atomic.Int64
	again := func(inputs string) (*Results, Progress) {
		store, err := OpenStore(path)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		var last Progress
		runs.Store(0)
		s := Sweep{Base: base(), Axes: grid, Inputs: inputs, Store: store, Progress: func(p Progress) { last = p }, Run: func(ctx context.Context, c Cell) (*report.Result, error) {
			runs.Add(1)
			return queue(ctx, c)
		}}
		res, err := s.Do(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return res, last
	}
	res, last := again("v1")
	if runs.Load() != 4 || last.Runs != 4 || last.Reused != 2 || last.Done != 6 {
		t.Errorf("%d runs, %+v, want 4 of 6", runs.Load(), last)
	}
	if strings.Contains(string(text)+jsonOf(t, res), `"charts"`) {
		t.Error("data of charts is kept")
	}
	if diff := cmp.Diff(jsonOf(t, want), jsonOf(t, res)); diff != "" {
		t.Error(diff)
	}
	if again("v1"); runs.Load() != 0 {
		t.Errorf("%d runs the third time, want none", runs.Load())
	}
	if again("v2"); runs.Load() != 6 {
		t.Errorf("%d runs with other inputs, want all", runs.Load())
	}
}

func TestStoreRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"a trace":        `{"timestamp":0,"input_length":3}` + "\n",
		"another schema": `{"key":"a","result":{"schema":"tandem-replay-report/0"}}` + "\n",
		"a long line":    strings.Repeat("x", maxLine+1) + "\n",
	} {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenStore(path); !errors.Is(err, ErrStore) {
			t.Errorf("%s: %v", name, err)
		}
		if now, _ := os.ReadFile(path); string(now) != text {
			t.Errorf("%s: the file was changed", name)
		}
	}
}

func TestFind(t *testing.T) {
	probes := map[string]bool{}
	for _, c := range []struct {
		name  string
		limit float64 // the highest load that meets the SLO
		find  Find
		found Found
	}{
		{"in the middle", 7.3, Find{Low: 1, High: 100, Tolerance: 0.02}, Exactly},
		{"just above the lowest", 1.001, Find{Low: 1, High: 100, Tolerance: 0.02}, Exactly},
		{"below", 0.5, Find{Low: 1, High: 100, Tolerance: 0.02}, Below},
		{"at the end", 1000, Find{Low: 1, High: 100, Tolerance: 0.02}, AtLeast},
		{"near the end", 99, Find{Low: 1, High: 100, Tolerance: 0.001}, Exactly},
		{"small", 0.000123, Find{Low: 0.00001, High: 1, Tolerance: 0.01}, Exactly},
	} {
		clear(probes)
		f := c.find
		f.Path = "workload.rate"
		s := Sweep{Base: base(), Find: &f, Run: func(ctx context.Context, cell Cell) (*report.Result, error) {
			text := cell.Settings[len(cell.Settings)-1].Value
			if probes[text] {
				t.Errorf("%s: %s ran twice", c.name, text)
			}
			probes[text] = true
			r := &report.Result{}
			r.Goodput.Met = asFloat(cell.Config.(map[string]any)["workload"].(map[string]any)["rate"]) <= c.limit
			return r, nil
		}}
		res, err := s.Do(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cell := res.Cells[0]
		load := asFloat(scalar(cell.Load))
		if cell.Found != c.found || len(cell.Probes) != len(probes) || len(probes) > 25 {
			t.Errorf("%s: found %s %s after %d runs", c.name, cell.Found, cell.Load, len(probes))
		}
		if c.found == Exactly && (load > c.limit || load*(1+f.Tolerance) < c.limit*0.999) {
			t.Errorf("%s: found %s, the limit is %v", c.name, cell.Load, c.limit)
		}
		for i := 1; i < len(cell.Probes); i++ {
			if compareValues(cell.Probes[i-1].Load, cell.Probes[i].Load) >= 0 {
				t.Errorf("%s: probes are not in the order of load", c.name)
			}
		}
	}
}

// TestFindQueue holds a search against the formula: TTFT ≤ 200 ms with D = 100 ms
// means R·D/(2(1-R·D)) ≤ 1, so R·D ≤ 2/3 per worker.
func TestFindQueue(t *testing.T) {
	s := Sweep{Base: base(), Axes: axes(t, "pools.prefill.count=1..3", "pools.decode.count=100"), Find: &Find{Path: "workload.rate", Low: 0.1, High: 1000, Tolerance: 0.002}, Run: queue}
	res, err := s.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range res.Cells {
		want := float64(i+1) * 10 * 2 / 3
		if got := asFloat(scalar(c.Load)); got > want || got < want/1.003 {
			t.Errorf("%d workers: %v requests/s, want %v", i+1, got, want)
		}
		if c.Result == nil || !c.Result.Goodput.Met {
			t.Errorf("%d workers: the result is not that of the load found", i+1)
		}
	}
}

func TestBadSweeps(t *testing.T) {
	ok := Find{Path: "workload.rate", Low: 1, High: 2, Tolerance: 0.1}
	bad := func(change func(f *Find)) *Find { f := ok; change(&f); return &f }
	for name, c := range map[string]struct {
		axes []Axis
		find *Find
		want error
	}{
		"load on an axis":    {axes(t, "workload.rate=1,2"), &ok, ErrFind},
		"no low":             {nil, bad(func(f *Find) { f.Low = 0 }), ErrFind},
		"high below low":     {nil, bad(func(f *Find) { f.High = 0.5 }), ErrFind},
		"no tolerance":       {nil, bad(func(f *Find) { f.Tolerance = 0 }), ErrFind},
		"path":               {nil, bad(func(f *Find) { f.Path = "a..b" }), ErrPath},
		"two axes, one path": {axes(t, "a=1", "a=2"), nil, ErrAxis},
		"too many cells":     {axes(t, "a=1..1000", "b=1..1000"), nil, ErrAxis},
	} {
		s := Sweep{Base: base(), Axes: c.axes, Find: c.find, Run: queue}
		if _, err := s.Do(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	twice := Sweep{Base: base(), Name: "x", With: []Base{{Name: "x"}}, Run: queue}
	if _, err := twice.Do(t.Context()); !errors.Is(err, ErrAxis) {
		t.Errorf("two of one name: %v", err)
	}
	s := Sweep{Base: map[string]any{"a": map[any]any{1: 2}}, Run: queue}
	if res, err := s.Do(t.Context()); err != nil || res.Failed() != 1 {
		t.Errorf("keys that are no text: %v", err)
	}
}

func TestCSV(t *testing.T) {
	s := Sweep{Base: base(), Axes: axes(t, "pools.prefill.count=1,2"), Find: &Find{Path: "workload.rate", Low: 1, High: 4, Tolerance: 0.5}, Run: queue}
	res, err := s.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := res.CSV(&b); err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(&b).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if want := "cell,pools.prefill.count,workload.rate,found,goodput_requests_per_s"; !strings.HasPrefix(strings.Join(lines[0], ","), want) {
		t.Errorf("the head is %v", lines[0])
	}
	var got []string
	for _, l := range lines[1:] {
		got = append(got, strings.Join(append(l[:4:4], l[len(l)-2]), " "))
	}
	// Decode has 40 ms a token: d + L·d/(2(1-L)) = 400 ms with d = 200 ms, so
	// L = 2/3 and the limit is 3.33 requests/s; half a doubling suffices.
	want := []string{
		"0 1 1  true", "0 1 2  true", "0 1 2.828 exactly true", "0 1 4  false",
		"1 2 1  true", "1 2 2  true", "1 2 2.828 exactly true", "1 2 4  false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestPageSize: the page stays below a megabyte, however large the grid.
func TestPageSize(t *testing.T) {
	one, err := queue(t.Context(), Cell{Config: base()})
	if err != nil {
		t.Fatal(err)
	}
	run := func(ctx context.Context, c Cell) (*report.Result, error) { return one, nil }
	for _, s := range []Sweep{
		{Base: base(), Axes: axes(t, "a=1..40", "b=1..40", "c=1..5"), Run: run},
		{Base: base(), Axes: axes(t, "a=1..40", "b=0.001..0.24/0.001"), Load: "b", Run: run},
		{Base: base(), Axes: axes(t, "a=1..300"), Find: &Find{Path: "b", Low: 1, High: 1000, Tolerance: 0.01}, Run: run},
	} {
		res, err := s.Do(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := res.HTML(&b); err != nil || b.Len() > 1<<20 {
			t.Errorf("%d cells make %d bytes, %v", len(res.Cells), b.Len(), err)
		}
	}
}

func TestETA(t *testing.T) {
	if left(10, 0, 5) != 0 || left(10, 2, 5) != 25 || left(10, 2, 0) != 0 {
		t.Error("the estimate is wrong")
	}
}
