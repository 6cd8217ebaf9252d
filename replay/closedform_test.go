package replay

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/workload"
)

// outcome is what the closed forms are compared with.
type outcome struct {
	Latency map[string]struct {
		Mean float64 `json:"mean_s"`
	}
}

// run returns the figures of a run.
func run(t *testing.T, config string, src workload.Source) (o outcome) {
	t.Helper()
	res, _ := simulate(t, config, src, Options{})
	if err := json.Unmarshal(res, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// runEach returns the lines of a run's requests.
func runEach(t *testing.T, config string, src workload.Source) (all []each) {
	t.Helper()
	_, lines := simulate(t, config, src, Options{})
	for line := range strings.Lines(string(lines)) {
		var e each
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// each is a request's line.
type each struct {
	Index       int64
	Status      string
	Reason      string
	Arrival     float64 `json:"arrival_s"`
	TTFT        float64 `json:"ttft_s"`
	End         float64 `json:"end_s"`
	Wire        float64 `json:"wire_s"`
	Tail        float64 `json:"tail_s"`
	Import      float64 `json:"import_s"`
	Bytes       int64
	Skipped     int `json:"skipped_tokens"`
	Cached      int `json:"cached_source"`
	Retries     int
	Output      int
	Overlapped  float64 `json:"overlapped_s"`
	Destination int     `json:"cached_destination"`
}

// near fails unless got is within 0.1 % of want.
func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 0.001*math.Abs(want) {
		t.Errorf("%s is %g, want %g", what, got, want)
	}
}

// One worker that computes one prompt of constant length at a time is an M/D/1
// queue: TTFT = D + R·D²/(2(1 − R·D)).
func TestMD1(t *testing.T) {
	const d = 0.1 // a prompt of 100 tokens at 1 ms
	config := `
mode: colocated
gateway: {rtt: 0s}
pools:
  - name: one
    fixed: {decode_ms: 10, token_ms: 1}
    memory: {blocks: 1000, block_tokens: 100}
    schedule: {running: 1, budget: 1000}
`
	for _, rate := range []float64{2, 5, 8} {
		// The mean of a sample comes close to the formula slowly; this one is long, and of
		// a seed whose arrivals are near their mean.
		spec, err := workload.ParseSpec(fmt.Sprintf("poisson rate=%g input=100 output=1 requests=200000 seed=45", rate))
		if err != nil {
			t.Fatal(err)
		}
		src, err := workload.New(spec)
		if err != nil {
			t.Fatal(err)
		}
		arrivals := &lindley{Source: src, d: d}
		o := run(t, config, arrivals)
		got := o.Latency["ttft"].Mean
		near(t, fmt.Sprintf("TTFT at %g a second", rate), got, d+rate*d*d/(2*(1-rate*d)))
		if math.Abs(got-arrivals.mean()) > 1e-9 {
			t.Errorf("TTFT at %g a second is %.12f, of these arrivals it is %.12f", rate, got, arrivals.mean())
		}
	}
}

// lindley computes what the waiting times of its arrivals are in a queue with one
// server of constant time.
type lindley struct {
	workload.Source
	d, free, sum float64
	n            int
}

func (l *lindley) Next() (workload.Request, bool, error) {
	q, ok, err := l.Source.Next()
	if ok {
		at := q.Arrival.Seconds()
		l.free = max(l.free, at) + l.d
		l.sum += l.free - at
		l.n++
	}
	return q, ok, err
}

func (l *lindley) mean() float64 { return l.sum / float64(l.n) }

// pair is a fleet of one prefill and one decode worker: 1 MB a token, pages after the
// prompt.
const pair = `
mode: disaggregated
streaming: %s
gateway: {rtt: 0s}
links: {default: {gbps: 200, convert: %s}}
pools:
  - name: p
    count: %d
    fixed: {decode_ms: 10, token_ms: 0.1}
    geometry: {attention_per_token: 1000000}
    memory: {blocks: 10000}
    schedule: {budget: 512}
  - name: d
    role: decode
    fixed: {decode_ms: 10, token_ms: 1}
    geometry: {attention_per_token: 1000000}
    memory: {blocks: 10000}
`

// 2 GB at 25 GB/s are 80 ms, with a conversion of 10 ms they are 90.
func TestTransferFloor(t *testing.T) {
	for _, c := range []struct {
		convert string
		want    float64
	}{{"0s", 0.080}, {"10ms", 0.090}} {
		got := runEach(t, fmt.Sprintf(pair, "false", c.convert, 1), &list{requests: []workload.Request{{Input: 2000, Output: 2}}})
		near(t, "bytes", float64(got[0].Bytes), 2e9)
		near(t, "wire", got[0].Wire, 0.080)
		near(t, "uncovered tail", got[0].Tail, c.want)
		near(t, "end", got[0].End, 0.2+c.want+0.01) // prompt, transfer, one decode
	}
}

// k equal transfers into one worker take k times as long, each.
func TestTransfersShare(t *testing.T) {
	const k = 5
	var reqs []workload.Request
	for range k {
		reqs = append(reqs, workload.Request{Input: 2000, Output: 2})
	}
	got := runEach(t, fmt.Sprintf(pair, "false", "0s", k), &list{requests: reqs})
	for _, e := range got {
		near(t, "wire", e.Wire, k*0.080)
	}
}

// Streamed pages travel under the prompt's computation: of four chunks of 51.2 ms,
// whose pages need 20.48 ms each, the last one's are left.
func TestStreamingCovers(t *testing.T) {
	got := runEach(t, fmt.Sprintf(pair, "true", "0s", 1), &list{requests: []workload.Request{{Input: 2048, Output: 2}}})
	near(t, "uncovered tail", got[0].Tail, 0.02048)
	near(t, "overlapped", got[0].Overlapped, 3*0.02048)
}

// A prefix that is cached is neither computed nor sent again.
func TestPrefixSavings(t *testing.T) {
	hashes := []uint64{1, 2, 3, 4} // of 512 tokens
	reqs := []workload.Request{
		{Input: 2048, Output: 2, Hashes: hashes, HashTokens: 512},
		{Arrival: timed.Second, Input: 2048, Output: 2, Hashes: []uint64{1, 2, 3, 5}, HashTokens: 512},
	}
	got := runEach(t, fmt.Sprintf(pair, "false", "0s", 1), &list{requests: reqs})
	near(t, "TTFT without", got[0].TTFT, 0.2048)
	near(t, "TTFT with three of four blocks", got[1].TTFT, 0.0512)
	near(t, "bytes without", float64(got[0].Bytes), 2048e6)
	near(t, "bytes with", float64(got[1].Bytes), 512e6)
	if got[1].Skipped != 1536 || got[1].Cached != 1536 {
		t.Errorf("%d tokens skipped, %d cached, want 1536", got[1].Skipped, got[1].Cached)
	}
	// A full hit still computes the last token, and sends nothing.
	reqs[1].Hashes = hashes
	got = runEach(t, fmt.Sprintf(pair, "false", "0s", 1), &list{requests: reqs})
	if got[1].Bytes != 0 || got[1].Status != "completed" {
		t.Errorf("a full hit sends %d bytes and is %s", got[1].Bytes, got[1].Status)
	}
}

// A split's steps pass through both boxes: the time of each, the round trip, and the
// activations of each token.
func TestLayerSplit(t *testing.T) {
	config := `
mode: colocated
gateway: {rtt: 0s}
pools:
  - name: split
    model: llama-3.1-8b
    hardware: h100-sxm
    split: {share: 0.5, gbps: 80, rtt: 1ms, activation_bytes: 10000000}
    memory: {blocks: 1000}
`
	whole := strings.Replace(config, "    split: {share: 0.5, gbps: 80, rtt: 1ms, activation_bytes: 10000000}\n", "", 1)
	one := func(config string) each {
		return runEach(t, config, &list{requests: []workload.Request{{Input: 100, Output: 11}}})[0]
	}
	split, alone := one(config), one(whole)
	// 100 tokens and 10 decodes of 1 ms a token on the way, and 11 round trips.
	extra := split.End - alone.End - 0.110 - 0.011
	if extra < 0 || extra > 11*0.001 { // what each step takes beside its work, once more
		t.Errorf("the split ends at %g s, the whole at %g: %g s unexplained", split.End, alone.End, extra)
	}
}

// A step that verifies drafts yields several tokens: here 1 + 0.5 + 0.25 in the mean.
func TestSpeculation(t *testing.T) {
	config := `
mode: colocated
gateway: {rtt: 0s}
pools:
  - name: one
    fixed: {decode_ms: 17.5, token_ms: 1}
    memory: {blocks: 1000}
    speculation: {kind: mtp, draft: 2, accept: [0.5]}
`
	got := runEach(t, config, &list{requests: []workload.Request{{Input: 100, Output: 201}}})[0]
	near(t, "end", got.End, 0.1+200*0.010)
}
