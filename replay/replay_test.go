package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/replay/fleet"
	"github.com/tandem-llm/tandem/workload"
)

// list is a source of given requests.
type list struct {
	requests []workload.Request
	next     int
}

func (l *list) Peek() (timed.Time, bool, error) {
	if l.next == len(l.requests) {
		return 0, false, nil
	}
	return l.requests[l.next].Arrival, true, nil
}

func (l *list) Next() (workload.Request, bool, error) {
	l.next++
	return l.requests[l.next-1], true, nil
}

func (l *list) Finished(uint64, timed.Time) {}

// simulate runs requests and returns the JSON of the report and of the requests. A
// fact that a machine refuses fails the test.
func simulate(t tester, config string, src workload.Source, opt Options) (result, requests []byte) {
	t.Helper()
	cfg, err := fleet.Parse([]byte(config), nil)
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	opt.Report.PerRequest = &lines
	opt.defect = func(err error) { t.Error("a machine refused a fact:", err) }
	h, err := newHost(cfg, src, opt)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.loop(context.Background()); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, h)
	res, err := h.finish()
	if err != nil {
		t.Fatal(err)
	}
	if result, err = json.MarshalIndent(res, "", " "); err != nil {
		t.Fatal(err)
	}
	return result, lines.Bytes()
}

// tester is a *testing.T or a *rapid.T.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Error(...any)
	Errorf(string, ...any)
}

// nothingLeft fails unless a run that is over gave everything back.
func nothingLeft(t tester, h *host) {
	t.Helper()
	for h.events.Len() > 0 || h.steps.Len() > 0 { // messages and steps that nobody waits for
		if at, w := h.steps.Next(); at <= h.events.Next() {
			h.now = at
			h.stepEnds(&h.workers[w])
			h.tidy()
			continue
		}
		h.now = h.events.Next()
		h.handle(h.events.Pop())
		h.tidy()
	}
	if h.requests.live != 0 || h.attempts.live != 0 || h.tasks.live != 0 || h.timers.Len() != 0 || h.router.Bookings() != 0 || h.active != 0 {
		t.Errorf("%d requests, %d attempts, %d tasks, %d timers, %d bookings, %d active are left",
			h.requests.live, h.attempts.live, h.tasks.live, h.timers.Len(), h.router.Bookings(), h.active)
	}
	if at := h.net.Next(); at != timed.Never {
		t.Errorf("a transfer is left")
	}
	for i := range h.workers {
		w := &h.workers[i]
		if s := w.kv.Snapshot(); w.alive && (s.Used() != 0 || s.Slots != 0 || !w.sched.Drained() || len(w.joined) != 0) {
			t.Errorf("worker %s keeps %+v, %d joined", w.name, s, len(w.joined))
		}
	}
}

const colocated = `
mode: colocated
gateway: {rtt: 0s}
pools:
  - name: all
    fixed: {decode_ms: 10, token_ms: 1}
    memory: {blocks: 1000}
`

// A run depends on nothing but its input: others beside it change nothing.
func TestRunsBesideEachOther(t *testing.T) {
	spec, err := workload.ParseSpec("closed sessions=20 turns=3 think=exponential:0.2 input=50 output=30 requests=300 groups=4 prefix=64 hash_tokens=16")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	var results [4][]byte
	for i := range results {
		group.Go(func() {
			src, err := workload.New(spec)
			if err != nil {
				t.Error(err)
				return
			}
			res, lines := simulate(t, colocated, src, Options{})
			results[i] = append(res, lines...)
		})
	}
	group.Wait()
	for _, r := range results[1:] {
		if !bytes.Equal(r, results[0]) {
			t.Fatal("two runs differ")
		}
	}
	if !bytes.Contains(results[0], []byte(`"turn":3`)) {
		t.Error("no session came to its third turn")
	}
}
