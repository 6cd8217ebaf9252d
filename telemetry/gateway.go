package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Gateway is a gateway's metrics. Methods are safe for concurrent use.
type Gateway struct {
	registry
	requests, rejected, responses *prometheus.CounterVec
	retries, tokens               *prometheus.CounterVec
	statuses                      *memo[prometheus.Counter]
	queued, active, workers, bus  *prometheus.GaugeVec
	ttft, tpot, total, queue      *prometheus.HistogramVec
	itl                           *memo[prometheus.Observer]
	attribution
}

// NewGateway makes the metrics of a gateway of that version.
func NewGateway(version string) *Gateway {
	r := newRegistry(version, "gateway")
	g := &Gateway{registry: r}
	g.requests = r.counter("tandem_requests_total", "Requests (one for each sample) by how they were served and how they ended.", "mode", "outcome")
	g.rejected = r.counter("tandem_requests_rejected_total", "HTTP requests refused before admission.", "reason")
	g.responses = r.counter("tandem_http_responses_total", "HTTP answers by status code.", "code")
	g.retries = r.counter("tandem_retries_total", "Further attempts of requests.", "reason")
	g.tokens = r.counter("tandem_tokens_total", "Tokens of ended requests: prompt, of them cached, and completion.", "kind")
	statuses := r.counter("tandem_worker_statuses_total", "Messages from workers: applied, duplicate, gap (asked again), fenced (of an abandoned attempt, answered with cancel), unknown.", "result")
	g.queued = r.gauge("tandem_requests_queued", "HTTP requests waiting for admission.")
	g.active = r.gauge("tandem_requests_active", "Requests admitted and not ended.")
	g.workers = r.gauge("tandem_workers", "Live workers by role.", "role")
	g.bus = r.gauge("tandem_bus_connected", "1 while the gateway is connected to the bus.")
	g.queue = r.histogram("tandem_queue_seconds", "Waiting time before admission.", requestBuckets)
	g.ttft = r.histogram("tandem_ttft_seconds", "Arrival of a request to its first token at the gateway.", requestBuckets, "mode")
	g.tpot = r.histogram("tandem_tpot_seconds", "Mean time per output token after the first, of one ended request.", requestBuckets, "mode")
	itl := r.histogram("tandem_itl_seconds", "Time between consecutive tokens of a request at the gateway.", requestBuckets, "mode")
	g.statuses = newMemo(statuses.WithLabelValues,
		string(StatusApplied), string(StatusDuplicate), string(StatusGap), string(StatusFenced), string(StatusUnknown))
	g.itl = newMemo(itl.WithLabelValues, string(Disaggregated), string(Colocated))
	g.total = r.histogram("tandem_request_seconds", "Arrival of a request to its end.", requestBuckets, "mode")
	g.attribution = newAttribution(r)
	for _, role := range []string{"prefill", "decode", "both"} {
		g.workers.WithLabelValues(role)
	}
	g.queued.WithLabelValues()
	g.active.WithLabelValues()
	g.bus.WithLabelValues()
	return g
}

// RequestStarted counts a request as active until RequestEnded.
func (g *Gateway) RequestStarted() { g.active.WithLabelValues().Inc() }

// RequestEnded counts the end of a request that took d since its arrival.
func (g *Gateway) RequestEnded(m Mode, o Outcome, d time.Duration) {
	g.active.WithLabelValues().Dec()
	g.requests.WithLabelValues(string(m), string(o)).Inc()
	g.total.WithLabelValues(string(m)).Observe(d.Seconds())
}

// Rejected counts an HTTP request that was not admitted.
func (g *Gateway) Rejected(r Rejection) { g.rejected.WithLabelValues(string(r)).Inc() }

// Responded counts an HTTP answer. Codes outside 100..599 count as 0.
func (g *Gateway) Responded(code int) {
	if code < 100 || code > 599 {
		code = 0
	}
	g.responses.WithLabelValues(strconv.Itoa(code)).Inc()
}

// Queued moves the number of waiting requests by delta.
func (g *Gateway) Queued(delta int) { g.queued.WithLabelValues().Add(float64(delta)) }

// Waited observes how long a request waited for admission.
func (g *Gateway) Waited(d time.Duration) { g.queue.WithLabelValues().Observe(d.Seconds()) }

// Retried counts a further attempt of a request.
func (g *Gateway) Retried(r Retry) { g.retries.WithLabelValues(string(r)).Inc() }

// Tokens counts the tokens of an ended request.
func (g *Gateway) Tokens(prompt, cached, completion int) {
	g.tokens.WithLabelValues("prompt").Add(float64(prompt))
	g.tokens.WithLabelValues("cached").Add(float64(cached))
	g.tokens.WithLabelValues("completion").Add(float64(completion))
}

// StatusResult is what became of a message from a worker.
type StatusResult string

const (
	StatusApplied   StatusResult = "applied"
	StatusDuplicate StatusResult = "duplicate"
	StatusGap       StatusResult = "gap"     // an index is missing: asked again
	StatusFenced    StatusResult = "fenced"  // of an abandoned attempt: answered with cancel
	StatusUnknown   StatusResult = "unknown" // of a handoff this gateway does not know: answered with cancel
)

// Status counts a message from a worker.
func (g *Gateway) Status(r StatusResult) { g.statuses.of(string(r)).Inc() }

// FirstToken observes the time from a request's arrival to its first token.
func (g *Gateway) FirstToken(m Mode, d time.Duration) {
	g.ttft.WithLabelValues(string(m)).Observe(d.Seconds())
}

// NextToken observes the time between two consecutive tokens.
func (g *Gateway) NextToken(m Mode, d time.Duration) {
	g.itl.of(string(m)).Observe(d.Seconds())
}

// PerToken observes an ended request's mean time per output token after the first.
func (g *Gateway) PerToken(m Mode, d time.Duration) {
	g.tpot.WithLabelValues(string(m)).Observe(d.Seconds())
}

// Workers sets the number of live workers of each role.
func (g *Gateway) Workers(prefill, decode, both int) {
	g.workers.WithLabelValues("prefill").Set(float64(prefill))
	g.workers.WithLabelValues("decode").Set(float64(decode))
	g.workers.WithLabelValues("both").Set(float64(both))
}

// BusConnected says whether the gateway is connected to the bus.
func (g *Gateway) BusConnected(ok bool) {
	v := 0.0
	if ok {
		v = 1
	}
	g.bus.WithLabelValues().Set(v)
}
