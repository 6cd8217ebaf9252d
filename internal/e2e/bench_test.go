package e2e

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/bench/soak"
	"github.com/tandem-llm/tandem/model/tiny"
)

// TestBenchServe drives a real fleet with the program's own benchmark: handed-off
// and colocated answers in turn, in a closed and in an open loop, all whole and of
// the length that was asked for.
func TestBenchServe(t *testing.T) {
	f := up(t)
	for _, load := range [][]string{{"--concurrency=2"}, {"--rate=50", "--endpoint=chat"}} {
		args := append([]string{"bench", "serve", "--json", "--url=" + f.url + "/v1", "--name=handed-off", "--header=Tandem-Mode: disaggregated",
			"--compare-url=" + f.url + "/v1", "--compare-name=colocated", "--compare-header=Tandem-Mode: colocated",
			"--requests=4", "--prompt-length=20", "--output-length=6", "--runs=2", "--warmup=0"}, load...)
		cmd := exec.Command(binary, args...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %v\n%s", load, err, &stderr)
		}
		var report bench.Report
		if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
			t.Fatal(err)
		}
		want := map[string]float64{"failures": 0, "output tokens per request": 6, "answers without usage": 0, "answers with more events than tokens": 0}
		for _, r := range report.Results {
			n, ok := want[r.Name]
			if !ok {
				continue
			}
			delete(want, r.Name)
			for _, s := range r.Series {
				if s.N != 2 || s.Min != n || s.Max != n {
					t.Errorf("%v: %s of %s is %v", load, r.Name, s.Name, s.Values)
				}
			}
		}
		if len(want) > 0 {
			t.Errorf("%v: no %v in the report\n%s", load, want, &stdout)
		}
	}
}

// TestBenchSoak runs a small soak with the program itself: workers die, every answer is
// checked, and nothing is left. The model is a dense one: prompts come from caches, and few
// tokens need control runs.
func TestBenchSoak(t *testing.T) {
	file, err := tiny.Cached(tiny.Llama)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "bench", "soak", "--json", "--model="+file, "--seed=6", "--requests=40", "--kill-every=20", "--alone=4", "--concurrency=8", "--most-errors=1")
	cmd.Env = append(cleanEnv(), "TMPDIR="+t.TempDir())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var report soak.Report
	if jerr := json.Unmarshal(stdout.Bytes(), &report); jerr != nil {
		t.Fatalf("%v, %v\n%s", err, jerr, &stderr)
	}
	for _, c := range report.Checks {
		// How often answers differ is a matter of chance: of so few it says nothing.
		if rate := c.Name == "no more divergence than colocated"; !rate && (c.Held == nil || !*c.Held) {
			t.Errorf("%s: failed, or not judged: %q", c.Name, c.Details)
		}
	}
	if !report.Complete || report.Kills != 2 || report.Alone.Ends[soak.Finished] != 4 || report.AloneCached.Ends[soak.Finished] != 4 || report.Colocated.Ends[soak.Finished] != 20 {
		t.Errorf("%v: complete %v, %d killed, colocated %v, alone %v\n%s",
			err, report.Complete, report.Kills, report.Colocated.Ends, report.Alone.Ends, &stderr)
	}
	// Each one has an end, and those that were drawn at random and those of clients that
	// left are the only ones whose tokens were not checked.
	if h := report.HandedOff; h.Ends[soak.Finished]+h.Ends[soak.Left]+h.Ends[soak.Refused] != h.Requests || h.Requests < 40 || report.Tokens < 500 {
		t.Errorf("handed off %+v, %d tokens checked", h, report.Tokens)
	}
	if report.Lives < 7 || report.Records < 1000 || len(report.Gaps) > 0 {
		t.Errorf("%d records of %d lives replayed, gaps %q", report.Records, report.Lives, report.Gaps)
	}
	checkNoProcess(t)
}
