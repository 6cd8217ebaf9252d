package e2e

import (
	"encoding/json"
	"fmt"

	"github.com/tandem-llm/tandem/bench/soak"
)

// footprint is what a process at rest has.
type footprint struct{ Goroutines, Files int }

// footprint looks at a process.
func (l *lab) footprint(name string) (f footprint, err error) {
	if name == "gateway" {
		m, err := l.scrape(name)
		return footprint{int(m["go_goroutines"]), int(m["process_open_fds"])}, err
	}
	p := l.process(name)
	if p == nil {
		return f, fmt.Errorf("%s is down", name)
	}
	resp, err := l.client.Get("http://" + p.ready.Metrics + "/footprint")
	if err != nil {
		return f, err
	}
	defer resp.Body.Close()
	return f, json.NewDecoder(resp.Body).Decode(&f)
}

// scrape returns all samples of a process's metrics, or why it cannot.
func (l *lab) scrape(name string) (map[string]float64, error) {
	p := l.process(name)
	if p == nil {
		return nil, fmt.Errorf("%s is down", name)
	}
	addr := p.ready.Metrics
	if name == "gateway" {
		addr = p.ready.HTTP
	}
	resp, err := l.client.Get("http://" + addr + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return soak.ReadMetrics(resp.Body)
}

// footprintSlack is how many goroutines more than at the start are none: the HTTP
// server and the runtime come and go with a few. A leak in each of the requests and
// kills of one test exceeds it.
const footprintSlack = 2

// busy says what a process still holds for requests, or nothing.
func (l *lab) busy(name string) string {
	m, err := l.scrape(name)
	if err != nil {
		return err.Error()
	}
	if held := soak.Held(name == "gateway", m); len(held) > 0 {
		return name + ": " + held[0]
	}
	b, ok := l.baseline[name]
	if !ok {
		return ""
	}
	f, err := l.footprint(name)
	if err != nil {
		return err.Error()
	}
	if f.Goroutines > b.Goroutines+footprintSlack || f.Files > b.Files {
		l.suspect = name
		return fmt.Sprintf("%s: %+v, at the start %+v", name, f, b)
	}
	return ""
}

// owning says what the newest registration of a worker shows as taken, or nothing.
func (l *lab) owning(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.seen[name]
	switch {
	case r == nil:
		return name + " is not registered"
	case len(r.Owned) > 0:
		return fmt.Sprintf("%s says that it owns %d handoffs, the first is %s", name, len(r.Owned), r.Owned[0].State)
	case r.SlotsFree != r.SlotsTotal || r.SlotsTotal != labSlots || r.CellsFree != r.CellsTotal || r.CellsTotal != labSlots*labContext:
		return fmt.Sprintf("%s says that %d of %d slots and %d of %d cells are free", name, r.SlotsFree, r.SlotsTotal, r.CellsFree, r.CellsTotal)
	case r.Source.GetWaiting()+r.Source.GetRunning()+r.Destination.GetWaiting()+r.Destination.GetRunning() > 0:
		return name + " says that tasks wait or run"
	}
	return ""
}

// idle waits until nothing is held anywhere: what processes report about
// themselves, what workers register, and what the processes are made of.
func (l *lab) idle() {
	l.t.Helper()
	l.poll(func() string {
		for _, name := range labWorkers {
			if s := l.owning(name); s != "" {
				return s
			}
		}
		for _, name := range append([]string{"gateway"}, labWorkers...) {
			if s := l.busy(name); s != "" {
				return s
			}
		}
		return l.missing()
	})
}

// missing says which workers the gateway does not know, or nothing.
func (l *lab) missing() string {
	m, err := l.scrape("gateway")
	if err != nil {
		return err.Error()
	}
	for _, role := range []string{"prefill", "decode"} {
		if n := m[fmt.Sprintf("tandem_workers{role=%q}", role)]; n != 2 {
			return fmt.Sprintf("the gateway knows %v workers in role %s", n, role)
		}
	}
	return ""
}

// settleBaseline keeps what workers have before the first request, and the gateway
// after some (its bus client makes its reply subscription with the first command),
// and sees that these requests leave everything so.
func (l *lab) settleBaseline() {
	l.t.Helper()
	l.poll(l.missing)
	for _, name := range labWorkers {
		l.measure(name, func(a, b int) int { return min(a, b) })
	}
	for _, a := range l.crowd(16) {
		if !l.wait(a) {
			l.t.Fatalf("a new lab does not work: %s", a.code)
		}
	}
	l.idle()
	// The gateway's goroutines are known from its metrics only, and those that collect
	// them vary. The most of them is a slack that a leak at every kill exceeds.
	l.measure("gateway", func(a, b int) int { return max(a, b) })
}

// measure keeps what a process at rest has in several looks.
func (l *lab) measure(name string, keep func(a, b int) int) {
	l.t.Helper()
	for i := range 20 {
		f, err := l.footprint(name)
		if err != nil {
			l.t.Fatal(err)
		}
		if b := l.baseline[name]; i > 0 {
			f = footprint{keep(f.Goroutines, b.Goroutines), keep(f.Files, b.Files)}
		}
		l.baseline[name] = f
	}
}
