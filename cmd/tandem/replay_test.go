package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/telemetry"
)

const replayExamples = "../../examples/replay/"

// tandem runs a command line.
func tandem(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestReplayExamples(t *testing.T) {
	for _, name := range []string{"colocated", "disaggregated"} {
		args := []string{"replay", "--config", replayExamples + name + ".yaml", "--limit=300", "--json"}
		code, out, errs := tandem(t, args...)
		if code != exitOK {
			t.Fatalf("%s: exit %d: %s", name, code, errs)
		}
		var res struct {
			Requests struct{ Completed int }
		}
		if err := json.Unmarshal([]byte(out), &res); err != nil || res.Requests.Completed != 300 {
			t.Errorf("%s: %d requests completed, %v", name, res.Requests.Completed, err)
		}
		if _, again, _ := tandem(t, args...); again != out {
			t.Errorf("%s: another run gives another report", name)
		}
	}
}

func TestReplayWritesWhatIsAskedFor(t *testing.T) {
	dir := t.TempDir()
	trace := filepath.Join(dir, "trace.jsonl")
	write(t, trace, `{"arrival": 0, "input": 100, "output": 5}
{"arrival": 0.1, "input": 0, "output": 5}
{"arrival": 0.2, "input": 300, "output": 7}
`)
	html, lines, events := filepath.Join(dir, "r.html"), filepath.Join(dir, "r.jsonl"), filepath.Join(dir, "e.jsonl")
	args := []string{"replay", "--config=" + replayExamples + "disaggregated.yaml", "--trace=" + trace}
	code, out, errs := tandem(t, append(args, "--html="+html, "--requests-out="+lines, "--trace-lifecycle="+events, "--set=pools.decode.count=1")...)
	if code != exitOK || !strings.Contains(out, "TTFT") || !strings.Contains(errs, "1 malformed lines") || !strings.Contains(errs, "line 2") {
		t.Fatalf("exit %d\n%s\n%s", code, out, errs)
	}
	for path, want := range map[string]string{html: "<html", lines: `"index":1`} {
		if raw, err := os.ReadFile(path); err != nil || !bytes.Contains(raw, []byte(want)) {
			t.Errorf("%s lacks %s, %v", path, want, err)
		}
	}
	f, err := os.Open(events)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	if err := telemetry.ReadEvents(f, func(telemetry.Event) bool { n++; return true }); err != nil {
		t.Fatal(err)
	}
	if n < 40 {
		t.Errorf("%d lifecycle events of two handoffs", n)
	}
	if code, out, errs := tandem(t, append(args, "--html="+filepath.Join(dir, "none", "r.html"))...); code != exitFailure || !strings.Contains(out, "TTFT") || !strings.Contains(errs, "--html") {
		t.Errorf("a page that cannot be written: exit %d\n%s\n%s", code, out, errs)
	}
	if code, _, errs := tandem(t, append(args, "--strict")...); code != exitFailure || !strings.Contains(errs, "line 2") {
		t.Errorf("--strict: exit %d, %s", code, errs)
	}
}

func TestReplayRefuses(t *testing.T) {
	good := "--config=" + replayExamples + "colocated.yaml"
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--config is missing"},
		{[]string{"--config=/does/not/exist"}, "--config"},
		{[]string{good, "--set=pools.engine.count"}, "PATH=VALUE"},
		{[]string{good, "--set=pools.engine.cuont=3"}, "cuont"},
		{[]string{good, "--set=pools.other.count=3"}, "other"},
		{[]string{good, "--set=pools.engine.count=0"}, "pools[0].count is 0"},
		{[]string{good, "--slo-attainment=7"}, "--slo-attainment"},
		{[]string{good, "--slo-ttft=-1s"}, "--slo-ttft"},
		{[]string{good, "--limit=-1"}, "--limit"},
		{[]string{good, "--speedup=-1"}, "--speedup"},
		{[]string{good, "--workload=poisson"}, "--workload"},
		{[]string{good, "--workload=poisson rate=1 input=1 output=1 requests=1", "--trace=x"}, "both given"},
		{[]string{good, "--trace=/does/not/exist"}, "--trace"},
	} {
		code, _, errs := tandem(t, append([]string{"replay"}, c.args...)...)
		if code != exitUsage || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit %d, %s", c.args, code, errs)
		}
	}
}

func TestReplaySweep(t *testing.T) {
	dir := t.TempDir()
	store, csv := filepath.Join(dir, "runs"), filepath.Join(dir, "out.csv")
	args := []string{"replay", "sweep", "--config=" + replayExamples + "colocated.yaml", "--limit=100", "--over=pools.engine.count=1,2", "--store=" + store}
	code, out, errs := tandem(t, append(args, "--csv="+csv, "--json")...)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, errs)
	}
	if raw, err := os.ReadFile(csv); err != nil || bytes.Count(raw, []byte("\n")) != 3 {
		t.Errorf("%s, %v", raw, err)
	}
	if code, again, errs := tandem(t, append(args, "--json", "--jobs=1")...); code != exitOK || again != out {
		t.Errorf("from the store: exit %d, %s, equal %v", code, errs, again == out)
	}
	code, out, errs = tandem(t, "replay", "sweep", "--config="+replayExamples+"colocated.yaml", "--limit=200", "--find=goodput", "--slo-ttft=100ms",
		"--low=10", "--tolerance=0.5", "--json")
	if code != exitOK || !strings.Contains(out, `"found": "exactly"`) {
		t.Errorf("search: exit %d, %s\n%s", code, errs, out)
	}
}

// TestReplaySweepCompares: two fleets under generated requests whose rate is on an
// axis; and what cannot be swept is a wrong command line.
func TestReplaySweepCompares(t *testing.T) {
	dir := t.TempDir()
	html, svg, csv := filepath.Join(dir, "s.html"), filepath.Join(dir, "s.svg"), filepath.Join(dir, "s.csv")
	args := []string{"replay", "sweep", "--config=" + replayExamples + "colocated.yaml"}
	code, out, errs := tandem(t, append(args, "--with="+replayExamples+"disaggregated.yaml", "--workload=poisson rate=1 input=100 output=20 requests=50",
		"--over=workload.rate=5,50", "--title=Two fleets", "--html="+html, "--svg="+svg, "--csv="+csv)...)
	if code != exitOK || !strings.Contains(out, "disaggregated  50") {
		t.Fatalf("exit %d: %s\n%s", code, errs, out)
	}
	for _, path := range []string{html, svg} {
		raw, err := os.ReadFile(path)
		for _, want := range []string{"Two fleets", "colocated", "disaggregated"} {
			if err != nil || !bytes.Contains(raw, []byte(want)) {
				t.Errorf("%s lacks %s, %v", path, want, err)
			}
		}
	}
	// Fifty requests come in about ten seconds, or in one.
	lines, err := os.ReadFile(csv)
	if err != nil {
		t.Fatal(err)
	}
	if rows := strings.Split(string(lines), "\n"); len(rows) != 6 || strings.Split(rows[1], ",")[3] == strings.Split(rows[2], ",")[3] {
		t.Errorf("the rate makes no difference:\n%s", lines)
	}
	for _, c := range []struct{ arg, want string }{
		{"--over=workload.rate", "PATH=VALUE"}, {"--trace=-", "name a file"}, {"--find=goodput", "workload.rate is on an axis"},
		{"--over=workload.rate=1,2", "two axes"}, {"--with=/does/not/exist", "exist"}, {"--load=speedup", "--svg"}, {"--store=" + dir, "--store"},
	} {
		code, _, errs := tandem(t, append(args, "--over=workload.rate=5,50", "--svg="+svg, c.arg)...)
		if code != exitUsage || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit %d, %s", c.arg, code, errs)
		}
	}
	if code, out, _ := tandem(t, append(args, "--over=workload.rte=5")...); code != exitFailure || !strings.Contains(out, "rte") {
		t.Errorf("a field that does not exist: exit %d\n%s", code, out)
	}
}

// TestReplaySweepSets: a setting changes the fleets that have its field, and one that
// none has is wrong. What is wrong with a fleet names its file.
func TestReplaySweepSets(t *testing.T) {
	args := []string{"replay", "sweep", "--config=" + replayExamples + "colocated.yaml", "--with=" + replayExamples + "disaggregated.yaml",
		"--over=workload.requests=5", "--json"}
	_, plain, _ := tandem(t, args...)
	code, out, errs := tandem(t, append(args, "--set=pools.decode.count=1")...)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, errs)
	}
	if before, after := strings.Count(plain, `"accelerators": 8`), strings.Count(out, `"accelerators": 6`); before != 2 || after != 1 {
		t.Errorf("%d fleets of 8 and %d of 6 accelerators:\n%s", before, after, out)
	}
	for _, c := range []struct{ set, want string }{
		{"pools.other.count=1", "none of the fleets"},
		{"pools.decode.cuont=1", "disaggregated.yaml"},
	} {
		if code, _, errs := tandem(t, append(args, "--set="+c.set)...); code != exitUsage || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit %d, %s", c.set, code, errs)
		}
	}
}

// TestSLOVariable: the name of the last limit has a digit, which is no word of its own.
func TestSLOVariable(t *testing.T) {
	t.Setenv("TANDEM_SLO_E2E", "1s")
	if code, out, errs := tandem(t, "replay", "--config="+replayExamples+"colocated.yaml", "--limit=5"); code != exitOK || !strings.Contains(out, "E2E ≤ 1 s") {
		t.Errorf("exit %d: %s\n%s", code, errs, out)
	}
}

func TestReplayModels(t *testing.T) {
	code, out, _ := tandem(t, "replay", "models")
	for _, want := range []string{"llama-3.1-8b", "h100-sxm", "dynamo"} {
		if !strings.Contains(out, want) {
			t.Errorf("exit %d, %s is missing", code, want)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReplayTrace(t *testing.T) {
	file := replayExamples + "traces/mooncake-conversation-10min.jsonl.gz"
	code, out, errs := tandem(t, "replay", "trace", file)
	if code != exitOK || !strings.HasPrefix(out, "format        mooncake\nrequests      1750\n") || !strings.Contains(out, "28.9 % of input tokens") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	// What docs/workload.md shows is what is printed.
	doc, err := os.ReadFile("../../docs/workload.md")
	if err != nil {
		t.Fatal(err)
	}
	if shown := "    " + strings.ReplaceAll(strings.TrimSuffix(out, "\n"), "\n", "\n    "); !strings.Contains(string(doc), shown) {
		t.Errorf("docs/workload.md does not show\n%s", shown)
	}

	broken := filepath.Join(t.TempDir(), "broken.jsonl")
	if err := os.WriteFile(broken, []byte("{\"arrival\":0,\"input\":5,\"output\":1}\n{\"arrival\":0}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, _ := tandem(t, "replay", "trace", broken); code != exitOK || !strings.HasSuffix(out, "malformed     1 lines, 1 missing field\n  line 2: missing field: input_length or input\n") {
		t.Errorf("exit %d: %s", code, out)
	}
	if code, _, errs := tandem(t, "replay", "trace", "--strict", broken); code != exitFailure || !strings.Contains(errs, "line 2: missing field") {
		t.Errorf("exit %d: %s", code, errs)
	}
	var s struct {
		Requests  int
		Malformed int
	}
	code, out, _ = tandem(t, "replay", "trace", "--json", "--workload", "constant rate=2 input=5 output=1 requests=10")
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != exitOK || s.Requests != 10 {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	if code, _, _ := tandem(t, "replay", "trace"); code != exitUsage {
		t.Errorf("exit %d without anything to describe", code)
	}
}
