package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/replay/fleet"
	"github.com/tandem-llm/tandem/workload"
)

// Times that add up to more than 106 days end a run, and nothing goes back in time.
func TestTimeRunsOver(t *testing.T) {
	config := strings.Replace(fmt.Sprintf(pair, "true", "2000h", 1), "rtt: 0s", "rtt: 2000h, timeout: 2100h", 1)
	cfg, err := fleet.Parse([]byte(config), nil)
	if err != nil {
		t.Fatal(err)
	}
	late := timed.Of(2000 * 3600 * 1e9)
	_, err = Run(context.Background(), cfg, &list{requests: []workload.Request{{Arrival: late, Input: 2000, Output: 3}}}, Options{})
	if !errors.Is(err, errClock) {
		t.Errorf("the run ends with %v", err)
	}
}

// A prompt that no worker can hold is refused, and its blocks get no names: a short
// line of a trace can claim very many.
func TestHugePromptsAreCheap(t *testing.T) {
	cfg, err := fleet.Parse([]byte(strings.Replace(colocated, "blocks: 1000", "blocks: 1000, block_tokens: 1", 1)), nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := newHost(cfg, &list{requests: []workload.Request{{Input: 1 << 30, Output: 1, Hashes: []uint64{1}, HashTokens: 1 << 30}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.loop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := cap(h.requests.at(0).keys[0].all); got > 2000 {
		t.Errorf("there is room for %d names", got)
	}
	res, err := h.finish()
	if err != nil {
		t.Fatal(err)
	}
	if res.Requests.Refused != 1 {
		t.Errorf("requests are %+v", res.Requests)
	}
}

// A step that a worker dies in counts as what it was.
func TestWorkOfTheLastStep(t *testing.T) {
	config := strings.Replace(colocated, "decode_ms: 10, token_ms: 1", "decode_ms: 1000, token_ms: 1", 1) +
		"failures: [{at: 3600ms, worker: all-0, for: 1s}]\n"
	res, _ := simulate(t, config, &list{requests: []workload.Request{{Input: 100, Output: 3}, {Arrival: 3500 * timed.Millisecond, Input: 200, Output: 1}}}, Options{})
	var o struct {
		End   float64 `json:"end_s"`
		Pools []struct {
			Prefill, Decode, Down float64
		}
	}
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(res), "busy_", "")), &o); err != nil {
		t.Fatal(err)
	}
	p := o.Pools[0]
	up := o.End * (1 - p.Down)
	// 100 ms and two steps; 100 ms of a prompt that was lost, and all of it again.
	near(t, "prefill", p.Prefill*up, 0.1+0.1+0.2)
	near(t, "decode", p.Decode*up, 2)
}

// The window of a prompt is imported after the last byte, all of it.
func TestWindowIsLeftToImport(t *testing.T) {
	config := strings.ReplaceAll(fmt.Sprintf(pair, "true", "0s", 1), "{attention_per_token: 1000000}",
		"{attention_per_token: 1000, window_per_token: 1000, window_tokens: 4096}\n    moves: {import_bytes_per_second: 1e8}")
	got := runEach(t, config, &list{requests: []workload.Request{{Input: 10_000, Output: 3}}})
	// Pages keep up. Left are the last chunk, of 272 tokens, and 4,096 tokens of window
	// on the wire at 25 GB/s, and the import of a page of 512 tokens and of the window.
	near(t, "tail", got[0].Tail, (272+4096)*1e3/25e9+(512+4096)*1e3/1e8)
}

// Salts of tenants are kept for some of them only.
func TestTenantsTakeNoMemory(t *testing.T) {
	cfg, err := fleet.Parse([]byte(strings.Replace(colocated, "blocks: 1000", "blocks: 1000, block_tokens: 16", 1)), nil)
	if err != nil {
		t.Fatal(err)
	}
	var requests []workload.Request
	for i := range 4 * maxSalts {
		requests = append(requests, workload.Request{Arrival: timed.Time(i) * timed.Second, Input: 64, Output: 1, Hashes: []uint64{1}, HashTokens: 64, Tenant: fmt.Sprint("t", i%(2*maxSalts))})
	}
	h, err := newHost(cfg, &list{requests: requests}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.loop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(h.salts) > maxSalts {
		t.Errorf("%d salts are kept", len(h.salts))
	}
}

// An arrival that virtual time does not reach is no defect.
func TestArrivalBeyondTime(t *testing.T) {
	cfg, err := fleet.Parse([]byte(colocated), nil)
	if err != nil {
		t.Fatal(err)
	}
	src := &list{requests: []workload.Request{{Input: 1, Output: 1}, {Arrival: timed.Never, Input: 1, Output: 1}}}
	if _, err := Run(context.Background(), cfg, src, Options{}); !errors.Is(err, errClock) {
		t.Errorf("the run ends with %v", err)
	}
}

// Every request that did not complete is counted once under its status.
func TestStatusesAreCountedOnce(t *testing.T) {
	for _, more := range []string{
		"gateway: {active: 1, queue: 1, rtt: 0s}", "gateway: {active: 1, queue: 5, rtt: 0s, timeout: 1s}",
		"gateway: {rtt: 0s, retries: 0}\ncancels: {rate: 0.3, within: 1s}\nfailures: [{at: 300ms, worker: all-0, for: 1s}]",
	} {
		config := strings.Replace(colocated, "gateway: {rtt: 0s}", more, 1)
		var requests []workload.Request
		for i := range 30 {
			requests = append(requests, workload.Request{Arrival: timed.Time(i) * 10 * timed.Millisecond, Input: 100 + 50*i, Output: 20})
		}
		res, _ := simulate(t, config, &list{requests: requests}, Options{})
		var o struct {
			Requests map[string]any
			Counts   []counted
		}
		if err := json.Unmarshal(res, &o); err != nil {
			t.Fatal(err)
		}
		by := map[string]float64{}
		for _, c := range o.Counts {
			by[strings.ReplaceAll(c.Name, " ", "_")] += float64(c.N)
		}
		some := false
		for _, status := range []string{"cancelled", "timed_out", "refused", "failed"} {
			n := o.Requests[status].(float64)
			name := status
			if status == "timed_out" {
				name = strings.ReplaceAll(handoff.StatusTimeout.String(), " ", "_")
			}
			if some = some || n > 0; by[name] != n {
				t.Errorf("%s: %v requests are %s, %v are counted", more, n, status, by[name])
			}
		}
		if !some {
			t.Errorf("%s: every request completed", more)
		}
	}
}
