package telemetry

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

var update = flag.Bool("update", false, "rewrite golden files")

// scrape returns the served text without the Go runtime's and the process's own metrics, whose
// values differ from run to run.
func scrape(t *testing.T, r registry) []byte {
	t.Helper()
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != 200 {
		t.Fatal(w.Code, err)
	}
	var out bytes.Buffer
	for line := range strings.Lines(string(body)) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if strings.HasPrefix(name, "tandem_") {
			out.WriteString(line)
		}
	}
	return out.Bytes()
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s: run go test -update if the change is meant\n%s", name, d)
	}
}

func TestGatewayMetricsGolden(t *testing.T) {
	g := NewGateway("v1")
	for range 3 {
		g.RequestStarted()
	}
	g.RequestEnded(Disaggregated, Stopped, 2*time.Second)
	g.RequestEnded(Colocated, Failed, 50*time.Millisecond)
	for _, r := range []Rejection{RejectedInvalid, RejectedAuth, RejectedDuplicate, RejectedQueue, RejectedTenant, RejectedWorkers, RejectedShutdown} {
		g.Rejected(r)
	}
	g.Responded(200)
	g.Responded(503)
	g.Responded(7)
	g.Queued(3)
	g.Queued(-1)
	g.Waited(time.Millisecond)
	for _, r := range []Retry{RetryRefused, RetryFailed, RetryWorkerLost, RetryRecompute} {
		g.Retried(r)
	}
	g.Tokens(100, 64, 7)
	for _, s := range []StatusResult{StatusApplied, StatusDuplicate, StatusGap, StatusFenced, StatusUnknown} {
		g.Status(s)
	}
	g.FirstToken(Disaggregated, 100*time.Millisecond)
	g.NextToken(Disaggregated, 10*time.Millisecond)
	g.PerToken(Disaggregated, 12*time.Millisecond)
	g.Workers(1, 2, 3)
	g.BusConnected(true)
	g.SetSLO(SLO{TTFT: 100 * time.Millisecond, TPOT: 20 * time.Millisecond})
	h := sample()
	h.Request.SLO = g.Judged(&h.Request)
	h.Summarize()
	g.Handoff(h)
	g.Judged(&Request{Outcome: Cancelled})
	g.Judged(&Request{Outcome: Stopped, TTFT: time.Millisecond, TPOT: time.Millisecond, Completion: 9})
	whole := &Handoff{
		Mode: Colocated, Chosen: ChosenFallback, Ending: EndedColocated, Attempt: 2, Target: TargetNone,
		Source: Part{Slot: time.Millisecond, Prompted: 5 * time.Millisecond, Compute: work(1, Span{1 * ms, 5 * ms, 4 * ms}), Prompt: 10, Cached: 4, Computed: 6, Stream: Stream{Lane: "a lane of another release"}},
	}
	g.Handoff(whole)
	g.Spans(SpansExported, 12)
	g.Spans(SpansDropped, 3)
	golden(t, "gateway.metrics", scrape(t, g.registry))
}

func TestWorkerMetricsGolden(t *testing.T) {
	w := NewWorker("v1", "prefill")
	w.HandoffEnded(Source, "handed-off")
	w.HandoffEnded(Destination, "peer-lost")
	w.HandoffEnded(Local, "finished-at-source")
	w.Moved("attention-kv", 4096, true)
	w.Moved("ssm", 128, false)
	w.Unit("page", true)
	w.Unit("snapshot", false)
	w.Computed(Prefill, 64)
	w.Computed(Decode, 3)
	w.Step(64)
	for _, s := range workerStages {
		w.Took(s, time.Millisecond)
	}
	w.Cells(Capacity{Total: 100, Active: 10, Pinned: 20, Reserved: 30, Cached: 15, Free: 25})
	w.Slots(Capacity{Total: 8, Active: 1, Pinned: 2, Reserved: 3, Free: 2})
	for i, h := range helds {
		w.Hold(h, i+2)
		w.Hold(h, -1)
	}
	w.MTP(false, "not built")
	golden(t, "worker.metrics", scrape(t, w.registry))
}

// TestProcessMetricsServed: tests of leaks read goroutines and file descriptors here.
func TestProcessMetricsServed(t *testing.T) {
	w := httptest.NewRecorder()
	NewWorker("v1", "decode").Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	want := []string{"go_goroutines "}
	if runtime.GOOS == "linux" {
		want = append(want, "process_open_fds ")
	}
	for _, want := range want {
		if !strings.Contains(w.Body.String(), "\n"+want) {
			t.Errorf("%s is not served", want)
		}
	}
}

const (
	telemetryDoc = "../docs/telemetry.md"
	docBegin     = "<!-- metrics: this part is generated; go test ./telemetry -update -->\n"
	docEnd       = "<!-- /metrics -->\n"
)

// TestMetricsDocument keeps the list in docs/telemetry.md equal to the definitions.
func TestMetricsDocument(t *testing.T) {
	raw, err := os.ReadFile(telemetryDoc)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), docBegin)
	got, after, ok2 := strings.Cut(rest, docEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no generated part", telemetryDoc)
	}
	var want strings.Builder
	for _, list := range []struct {
		title string
		defs  []Definition
	}{{"Of a gateway", NewGateway("").Definitions()}, {"Of a worker", NewWorker("", "").Definitions()}} {
		fmt.Fprintf(&want, "\n### %s\n\n| name | type | labels | meaning |\n|---|---|---|---|\n", list.title)
		for _, d := range list.defs {
			labels := ""
			if len(d.Labels) > 0 {
				labels = "`" + strings.Join(d.Labels, "`, `") + "`"
			}
			fmt.Fprintf(&want, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, labels, d.Help)
		}
	}
	want.WriteString("\n")
	if *update {
		if err := os.WriteFile(telemetryDoc, []byte(before+docBegin+want.String()+docEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if d := cmp.Diff(want.String(), got); d != "" {
		t.Errorf("%s: go test ./telemetry -update rewrites it\n%s", telemetryDoc, d)
	}
	for _, s := range gatewayStages {
		if !strings.Contains(before+after, "| `"+string(s)+"` |") {
			t.Errorf("%s does not say what stage %s is", telemetryDoc, s)
		}
	}
}

// TestLabelsBounded pins the label names: none may carry what a client chose.
func TestLabelsBounded(t *testing.T) {
	allowed := map[string]bool{
		"version": true, "role": true, "mode": true, "outcome": true, "reason": true, "code": true, "kind": true,
		"result": true, "side": true, "component": true, "direction": true, "unit": true, "phase": true,
		"state": true, "what": true, "stage": true, "lane": true, "ending": true, "choice": true, "of": true, "mtp": true, "slo": true,
	}
	g, w := NewGateway("v1"), NewWorker("v1", "both")
	for _, def := range append(g.Definitions(), w.Definitions()...) {
		for _, l := range def.Labels {
			if !allowed[l] {
				t.Errorf("%s is defined with label %s", def.Name, l)
			}
		}
	}
	g.Handoff(sample())
	g.RequestStarted()
	g.RequestEnded(Disaggregated, Stopped, time.Second)
	g.Rejected(RejectedAuth)
	g.Responded(200)
	g.Retried(RetryFailed)
	g.Tokens(1, 1, 1)
	g.Status(StatusApplied)
	g.FirstToken(Colocated, time.Second)
	w.HandoffEnded(Source, "completed")
	w.Moved("ssm", 1, true)
	w.Unit("page", true)
	w.MTP(true, "")
	for _, gatherer := range []prometheus.Gatherer{g.Gatherer(), w.Gatherer()} {
		families, err := gatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "tandem_") {
				continue
			}
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if !allowed[l.GetName()] {
						t.Errorf("%s has label %s", f.GetName(), l.GetName())
					}
				}
			}
		}
	}
}
