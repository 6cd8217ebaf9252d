package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlptrace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/telemetry"
)

const ms = time.Millisecond

// receiver is a collector that keeps what it was sent.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	spans    []*otlptrace.Span
	resource map[string]string
	raw      []byte
	paths    []string
	headers  []http.Header
	hang     chan struct{} // when not nil, answers wait for it
}

func receive(t *testing.T) *receiver {
	t.Helper()
	for _, v := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_SAMPLER", "OTEL_SDK_DISABLED"} {
		t.Setenv(v, "")
	}
	r := &receiver{resource: map[string]string{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var body io.Reader = req.Body
	if req.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(req.Body)
	}
	raw, err := io.ReadAll(body)
	var m collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(raw, &m)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if r.hang != nil {
		select {
		case <-r.hang:
		case <-req.Context().Done():
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.raw = append(r.raw, raw...)
	r.paths, r.headers = append(r.paths, req.URL.Path), append(r.headers, req.Header)
	for _, rs := range m.ResourceSpans {
		for _, a := range rs.GetResource().GetAttributes() {
			r.resource[a.Key] = a.Value.GetStringValue()
		}
		for _, ss := range rs.ScopeSpans {
			r.spans = append(r.spans, ss.Spans...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// counts are what an exporter said became of its spans.
type counts struct {
	mu sync.Mutex
	by map[telemetry.SpanResult]int
}

func (c *counts) add(r telemetry.SpanResult, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[telemetry.SpanResult]int{}
	}
	c.by[r] += n
}

func (c *counts) get(r telemetry.SpanResult) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by[r]
}

func open(t *testing.T, cfg Config) (*Exporter, *counts) {
	t.Helper()
	c := &counts{}
	cfg.Name, cfg.Version, cfg.Counted = "g1", "v1", c.add
	if cfg.delay == 0 {
		cfg.delay = ms
	}
	e, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e, c
}

func shut(t *testing.T, e *Exporter) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

func work(n int, begin, end, busy time.Duration) telemetry.Work {
	return telemetry.Work{Count: n, Busy: busy, Spans: []telemetry.Span{{Begin: begin, End: end, Busy: busy}}}
}

// request is one that needed two attempts: the first destination was lost, the second took over.
func request() (telemetry.Request, []*telemetry.Handoff) {
	r := telemetry.Request{
		Key: "cmpl-1.0", Arrived: time.Unix(1_790_000_000, 0), Mode: telemetry.Disaggregated, Outcome: telemetry.Length, Attempts: 2,
		Prompt: 1000, Completion: 3, Admitted: ms, TTFT: 110 * ms, TPOT: 20 * ms, Total: 150 * ms,
		SLO: telemetry.Verdicts{TTFT: telemetry.VerdictWithin, TPOT: telemetry.VerdictOff, Good: true},
	}
	lost := &telemetry.Handoff{
		ID: handoff.Mint(1, [10]byte{1}), Attempt: 1, Why: telemetry.RetryNone, Mode: telemetry.Disaggregated, Ending: telemetry.EndedFailed,
		Failure: &telemetry.Failure{Side: telemetry.Destination, Phase: "reserve", Code: "worker_lost"},
		Source:  telemetry.Part{Worker: "p1", Role: "prefill"}, Destination: &telemetry.Part{Worker: "d1", Role: "decode"},
		Gateway: telemetry.Times{Placed: 2 * ms, Reserve: 2 * ms, Ended: 5 * ms},
	}
	h := &telemetry.Handoff{
		ID: handoff.Mint(2, [10]byte{2}), Attempt: 2, Why: telemetry.RetryWorkerLost, Mode: telemetry.Disaggregated, Chosen: telemetry.ChosenPair,
		Ending: telemetry.EndedHandedOff, Target: telemetry.TargetCommitted, MTP: telemetry.MTPNotBuilt,
		Source: telemetry.Part{
			Worker: "p1", Role: "prefill", Reported: true, At: 8 * ms, Slot: ms, Prompted: 100 * ms, Sent: 106 * ms, Committed: 112 * ms, Prompt: 1000,
			Compute: work(2, ms, 100*ms, 90*ms), Export: work(3, 50*ms, 104*ms, 6*ms), Seal: work(3, 51*ms, 105*ms, 3*ms), Stall: work(1, 20*ms, 30*ms, 10*ms),
			Stream:     telemetry.Stream{Lane: "tls", Bytes: 1 << 20, Units: 3, Busy: 8 * ms, RTT: ms / 10},
			Components: []telemetry.Component{{Name: "attention_kv", Bytes: 1 << 20}}, Pages: 2, Snapshots: 1,
		},
		Destination: &telemetry.Part{
			Worker: "d2", Role: "decode", Reported: true, At: 6 * ms, Slot: ms, Complete: 110 * ms, Ready: 113 * ms,
			Verify: work(3, 55*ms, 108*ms, 4*ms), Wait: work(3, 56*ms, 109*ms, ms), Import: work(3, 57*ms, 110*ms, 5*ms), Commit: work(1, 110*ms, 113*ms, 3*ms),
		},
		Gateway: telemetry.Times{
			Placed: 6 * ms, Reserve: 6 * ms, Reserved: 7 * ms, Dispatched: 8 * ms, Committed: 120 * ms, Ended: 150 * ms,
			Tokens: []time.Duration{110 * ms, 130 * ms, 150 * ms},
		},
	}
	for _, one := range []*telemetry.Handoff{lost, h} {
		one.Request = r
		one.Summarize()
	}
	return r, []*telemetry.Handoff{lost, h}
}

func TestTraceTree(t *testing.T) {
	rec := receive(t)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-collector-key=k7")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
	e, c := open(t, Config{URL: rec.URL})
	r, list := request()
	e.Offer(Parent{}, r, list)
	shut(t, e)

	byID := map[string]*otlptrace.Span{}
	for _, s := range rec.spans {
		byID[string(s.SpanId)] = s
	}
	path := func(s *otlptrace.Span) string {
		p := s.Name
		for up := byID[string(s.ParentSpanId)]; up != nil; up = byID[string(up.ParentSpanId)] {
			p = up.Name + "/" + p
		}
		return p
	}
	began := uint64(r.Arrived.UnixNano())
	got := map[string][2]time.Duration{}
	var roots int
	for _, s := range rec.spans {
		if !bytes.Equal(s.TraceId, rec.spans[0].TraceId) || len(s.TraceId) != 16 {
			t.Errorf("%s is in another trace", s.Name)
		}
		up := byID[string(s.ParentSpanId)]
		switch {
		case len(s.ParentSpanId) == 0:
			roots++
			if s.Kind != otlptrace.Span_SPAN_KIND_SERVER {
				t.Errorf("the root is %v", s.Kind)
			}
		case up == nil:
			t.Errorf("%s has no parent in the trace", s.Name)
		case s.StartTimeUnixNano < up.StartTimeUnixNano || s.EndTimeUnixNano > up.EndTimeUnixNano:
			t.Errorf("%s sticks out of %s", path(s), up.Name)
		}
		p := path(s)
		if _, twice := got[p]; twice {
			p += " 2"
		}
		got[p] = [2]time.Duration{time.Duration(s.StartTimeUnixNano - began), time.Duration(s.EndTimeUnixNano - began)}
	}
	want := map[string][2]time.Duration{
		"request":                 {0, 150 * ms},
		"request/admission":       {0, ms},
		"request/attempt":         {2 * ms, 5 * ms},
		"request/attempt 2":       {6 * ms, 150 * ms},
		"request/attempt/reserve": {6 * ms, 7 * ms},
		"request/attempt/prefill": {9 * ms, 108 * ms}, "request/attempt/prefill/compute": {9 * ms, 108 * ms},
		"request/attempt/transfer":        {28 * ms, 116 * ms},
		"request/attempt/transfer/stall":  {28 * ms, 38 * ms},
		"request/attempt/transfer/export": {58 * ms, 112 * ms}, "request/attempt/transfer/seal": {59 * ms, 113 * ms},
		"request/attempt/transfer/verify": {61 * ms, 114 * ms}, "request/attempt/transfer/wait": {62 * ms, 115 * ms},
		"request/attempt/transfer/import": {63 * ms, 116 * ms},
		"request/attempt/tail":            {108 * ms, 119 * ms},
		"request/attempt/commit":          {116 * ms, 119 * ms},
		"request/attempt/decode":          {119 * ms, 150 * ms},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if roots != 1 || c.get(telemetry.SpansExported) != len(want) || c.get(telemetry.SpansDropped) != 0 {
		t.Errorf("%d roots, counted %v", roots, c.by)
	}
	for _, s := range rec.spans {
		attrs := map[string]string{}
		for _, a := range s.Attributes {
			attrs[a.Key] = a.Value.GetStringValue()
			if a.Value.GetStringValue() == "" {
				attrs[a.Key] = strings.TrimSpace(strings.Split(a.Value.String(), ":")[1])
			}
		}
		switch s.Name {
		case "attempt":
			if failed := s.Status.GetCode() == otlptrace.Status_STATUS_CODE_ERROR; failed != (attrs["tandem.attempt"] == "1") || failed && s.Status.Message != "worker_lost" {
				t.Errorf("attempt %s has status %v", attrs["tandem.attempt"], s.Status)
			}
			if attrs["tandem.attempt"] == "2" && (attrs["tandem.mtp"] != "not-built" || attrs["tandem.target"] != "committed" || attrs["tandem.why"] != "worker_lost") {
				t.Errorf("attempt 2: %v", attrs)
			}
		case "transfer":
			if attrs["tandem.lane"] != "tls" || attrs["tandem.bytes"] != "1048576" || attrs["tandem.bytes.attention_kv"] != "1048576" {
				t.Errorf("transfer: %v", attrs)
			}
		case "import":
			if attrs["tandem.pieces"] != "3" || attrs["tandem.busy_ns"] != "5000000" {
				t.Errorf("import: %v", attrs)
			}
		}
	}
	if len(rec.paths) != 1 || rec.paths[0] != "/v1/traces" || rec.headers[0].Get("X-Collector-Key") != "k7" {
		t.Errorf("posted to %v with %v", rec.paths, rec.headers)
	}
	if rec.resource["service.name"] != "tandem" || rec.resource["service.instance.id"] != "g1" || rec.resource["deployment.environment.name"] != "lab" {
		t.Errorf("resource %v", rec.resource)
	}
}

// TestColocatedTrace: no transfer, and decode where prefill was.
func TestColocatedTrace(t *testing.T) {
	it := ended{
		request: telemetry.Request{Mode: telemetry.Colocated, Outcome: telemetry.Stopped, Total: 90 * ms, Admitted: ms},
		handoffs: []*telemetry.Handoff{{
			Attempt: 1, Mode: telemetry.Colocated, Ending: telemetry.EndedColocated,
			Source:  telemetry.Part{Worker: "p1", Reported: true, At: 2 * ms, Slot: ms, Prompted: 40 * ms, Compute: work(1, ms, 40*ms, 39*ms)},
			Gateway: telemetry.Times{Placed: 2 * ms, Dispatched: 2 * ms, Ended: 90 * ms},
		}},
	}
	var names []string
	var walk func(n *node)
	walk = func(n *node) {
		names = append(names, n.name)
		for _, c := range n.children {
			walk(c)
		}
	}
	walk(tree(&it))
	if d := cmp.Diff([]string{"request", "admission", "attempt", "prefill", "compute", "decode"}, names); d != "" {
		t.Error(d)
	}
}

// TestChildrenFit: clocks are aligned to within a message, so offsets may stick out by one.
func TestChildrenFit(t *testing.T) {
	r, list := request()
	list[1].Destination.At += 200 * ms
	list[1].Source.At = 0
	var check func(n *node)
	check = func(n *node) {
		for _, c := range n.children {
			if c.begin < n.begin || c.end > n.end || c.end < c.begin {
				t.Errorf("%s %v–%v in %s %v–%v", c.name, c.begin, c.end, n.name, n.begin, n.end)
			}
			check(c)
		}
	}
	check(tree(&ended{request: r, handoffs: list}))
}

func TestCallerDecides(t *testing.T) {
	const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	for _, c := range []struct {
		name, header, state string
		spans, joined       bool
	}{
		{"sampled", "00-" + traceID + "-00f067aa0ba902b7-01", "vendor=1", true, true},
		{"not sampled", "00-" + traceID + "-00f067aa0ba902b7-00", "", false, false},
		{"malformed", "00-zz-00f067aa0ba902b7-01", "", true, false},
		{"none", "", "", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := receive(t)
			e, _ := open(t, Config{URL: rec.URL + "/v1/traces"}) // the whole address will do, too
			h := http.Header{}
			h.Set("Traceparent", c.header)
			h.Set("Tracestate", c.state)
			r, list := request()
			e.Offer(e.Parent(h), r, list)
			shut(t, e)
			if len(rec.spans) > 0 != c.spans {
				t.Fatalf("%d spans", len(rec.spans))
			}
			for _, s := range rec.spans {
				if s.Name != "request" {
					continue
				}
				joined := hex.EncodeToString(s.TraceId) == traceID && hex.EncodeToString(s.ParentSpanId) == "00f067aa0ba902b7" && s.TraceState == "vendor=1"
				if joined != c.joined {
					t.Errorf("trace %x parent %x state %q", s.TraceId, s.ParentSpanId, s.TraceState)
				}
			}
		})
	}
}

// TestEnvironment: without an address the standard variables name the collector, and may turn
// sampling off.
func TestEnvironment(t *testing.T) {
	rec := receive(t)
	if Configured("") {
		t.Error("configured by nothing")
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", rec.URL+"/base")
	if !Configured("") {
		t.Error("the environment's endpoint is not seen")
	}
	e, _ := open(t, Config{})
	r, list := request()
	e.Offer(Parent{}, r, list)
	shut(t, e)
	if len(rec.spans) == 0 || rec.paths[0] != "/base/v1/traces" {
		t.Errorf("%d spans at %v", len(rec.spans), rec.paths)
	}
	n := len(rec.spans)
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	e, c := open(t, Config{})
	e.Offer(Parent{}, r, list)
	shut(t, e)
	if len(rec.spans) != n || c.get(telemetry.SpansExported) != 0 {
		t.Error("an unsampled trace was sent")
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	if Configured("http://127.0.0.1:1") {
		t.Error("OTEL_SDK_DISABLED is not honoured")
	}
	for _, bad := range []string{"127.0.0.1:4318", "ftp://h", "http://", "http://h?x=1", "::"} {
		if _, err := New(t.Context(), Config{URL: bad}); !errors.Is(err, ErrURL) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestCollectorDown: a collector that refuses connections costs traces, which are counted.
func TestCollectorDown(t *testing.T) {
	receive(t) // clears the environment
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	e, c := open(t, Config{URL: "http://" + address})
	r, list := request()
	e.Offer(Parent{}, r, list)
	ctx, cancel := context.WithTimeout(context.Background(), 200*ms) // a repetition would come after seconds
	defer cancel()
	_ = e.Close(ctx)
	if n := c.get(telemetry.SpansFailed) + c.get(telemetry.SpansDropped); n != 17 || c.get(telemetry.SpansExported) != 0 {
		t.Errorf("counted %v", c.by)
	}
	e.Offer(Parent{}, r, list) // after Close: dropped
	if n := c.get(telemetry.SpansFailed) + c.get(telemetry.SpansDropped); n != 34 {
		t.Errorf("counted %v", c.by)
	}
	if e.Close(t.Context()) != nil {
		t.Log("a second Close may say that all is shut down")
	}
}

// TestCollectorHangs: what comes while one message hangs fills the queue and is then dropped, without
// anybody waiting; closing gives up when it is told to.
func TestCollectorHangs(t *testing.T) {
	rec := receive(t)
	rec.hang = make(chan struct{})
	defer close(rec.hang)
	e, c := open(t, Config{URL: rec.URL, queue: 4})
	r, list := request()
	const offered = 200
	for range offered {
		e.Offer(Parent{}, r, list) // would block for ever if it blocked
	}
	if c.get(telemetry.SpansDropped) == 0 {
		t.Error("nothing was dropped by a full queue")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*ms)
	defer cancel()
	_ = e.Close(ctx)
	if got := c.get(telemetry.SpansDropped) + c.get(telemetry.SpansFailed); got != 17*offered || c.get(telemetry.SpansExported) != 0 {
		t.Errorf("of %d spans %v are counted", 17*offered, c.by)
	}
}

func TestNilExporterIsOff(t *testing.T) {
	var e *Exporter
	e.Offer(e.Parent(http.Header{"Traceparent": {"x"}}), telemetry.Request{}, nil)
	if err := e.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
