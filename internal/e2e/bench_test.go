package e2e

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/tandem-llm/tandem/bench"
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
