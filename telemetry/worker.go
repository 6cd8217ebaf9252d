package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Worker is a worker's metrics. Methods are safe for concurrent use.
type Worker struct {
	registry
	handoffs, bytes, units, computed *prometheus.CounterVec
	preemptions                      *prometheus.CounterVec
	cells, slots, held, mtp          *prometheus.GaugeVec
	stages, batch                    *prometheus.HistogramVec
}

// Held is something of bounded number that handoffs hold and must give back.
type Held string

const (
	HeldSequences Held = "sequences" // engine sequences in use
	HeldStreams   Held = "streams"   // data-plane streams open
	HeldTickets   Held = "tickets"   // one-time tickets that can still be redeemed
	HeldBuffers   Held = "buffers"   // bytes of page buffers outside the engine
	HeldHandoffs  Held = "handoffs"  // machines that are not Released
)

var helds = []Held{HeldSequences, HeldStreams, HeldTickets, HeldBuffers, HeldHandoffs}

// Preemption is what becomes of a request whose memory an older one needed.
type Preemption string

const (
	Recomputed Preemption = "recomputed" // it waits, computes what it had again, and goes on
	Lost       Preemption = "failed"     // it ends here: this worker computes no prompts, or a stream could reach its memory
)

// Capacity is how a worker's cells or slots are used. The parts add up to Total, which is
// fixed. Cached are prefixes that no request has; slots have none.
type Capacity struct {
	Total    int `json:"total"`
	Active   int `json:"active"`
	Pinned   int `json:"pinned"`
	Reserved int `json:"reserved"`
	Cached   int `json:"cached"`
	Free     int `json:"free"`
}

// NewWorker makes the metrics of a worker of that version and role.
func NewWorker(version, role string) *Worker {
	r := newRegistry(version, role)
	w := &Worker{registry: r}
	w.handoffs = r.counter("tandem_worker_handoffs_total", "Handoffs by the worker's side of them and how they ended.", "side", "outcome")
	w.bytes = r.counter("tandem_worker_state_bytes_total", "Payload bytes of state by component and direction (out, in).", "component", "direction")
	w.units = r.counter("tandem_worker_state_units_total", "Pages and snapshots by direction (out, in).", "unit", "direction")
	w.computed = r.counter("tandem_worker_computed_tokens_total", "Tokens that the engine consumed, by what for.", "phase")
	w.preemptions = r.counter("tandem_worker_preemptions_total", "Requests that lost their memory to an older one, by what became of them: recomputed here, or failed.", "outcome")
	w.cells = r.gauge("tandem_worker_cells", "Attention cells: total, and by state: active, pinned, reserved, cached, free.", "state")
	w.slots = r.gauge("tandem_worker_slots", "Request slots: total, and by state: active, pinned, reserved, free.", "state")
	w.held = r.gauge("tandem_worker_held", "What handoffs hold now: sequences, streams, tickets, buffer bytes, unreleased handoffs.", "what")
	w.mtp = r.gauge("tandem_worker_mtp_active", "1 while multi-token prediction is active; the reason says why not.", "reason")
	w.stages = r.histogram("tandem_worker_stage_seconds", "Parts of handoffs: slot wait, wire, stall, commit and tail of one handoff; export, seal, verify, wait and import of one unit.", stageBuckets, "stage")
	w.batch = r.histogram("tandem_worker_batch_rows", "Rows in one engine step.", []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048})
	for _, h := range helds {
		w.held.WithLabelValues(string(h))
	}
	for _, s := range workerStages {
		w.stages.WithLabelValues(string(s))
	}
	for _, p := range []Phase{Prefill, Decode} {
		w.computed.WithLabelValues(string(p))
	}
	for _, p := range []Preemption{Recomputed, Lost} {
		w.preemptions.WithLabelValues(string(p))
	}
	w.Cells(Capacity{})
	w.Slots(Capacity{})
	return w
}

// HandoffEnded counts the release of a handoff. outcome is the machine's outcome by name.
func (w *Worker) HandoffEnded(side Side, outcome string) {
	w.handoffs.WithLabelValues(string(side), outcome).Inc()
}

// Moved counts payload bytes of one component, by its name in package state. out is true at the
// source.
func (w *Worker) Moved(component string, bytes int, out bool) {
	w.bytes.WithLabelValues(component, direction(out)).Add(float64(bytes))
}

// Unit counts one transfer unit: "page" or "snapshot".
func (w *Worker) Unit(kind string, out bool) { w.units.WithLabelValues(kind, direction(out)).Inc() }

func direction(out bool) string {
	if out {
		return "out"
	}
	return "in"
}

// Computed counts tokens that the engine consumed.
func (w *Worker) Computed(p Phase, tokens int) {
	w.computed.WithLabelValues(string(p)).Add(float64(tokens))
}

// Preempted counts a request that lost its memory.
func (w *Worker) Preempted(p Preemption) { w.preemptions.WithLabelValues(string(p)).Inc() }

// Step observes the number of rows of one engine step.
func (w *Worker) Step(rows int) { w.batch.WithLabelValues().Observe(float64(rows)) }

// Took observes the time of one part of a handoff.
func (w *Worker) Took(s Stage, d time.Duration) {
	w.stages.WithLabelValues(string(s)).Observe(d.Seconds())
}

// Cells sets how the attention cells are used.
func (w *Worker) Cells(c Capacity) {
	c.set(w.cells)
	w.cells.WithLabelValues("cached").Set(float64(c.Cached))
}

// Slots sets how the request slots are used.
func (w *Worker) Slots(c Capacity) { c.set(w.slots) }

func (c Capacity) set(v *prometheus.GaugeVec) {
	v.WithLabelValues("total").Set(float64(c.Total))
	v.WithLabelValues("active").Set(float64(c.Active))
	v.WithLabelValues("pinned").Set(float64(c.Pinned))
	v.WithLabelValues("reserved").Set(float64(c.Reserved))
	v.WithLabelValues("free").Set(float64(c.Free))
}

// Hold moves the number of held things by delta.
func (w *Worker) Hold(h Held, delta int) { w.held.WithLabelValues(string(h)).Add(float64(delta)) }

// MTP says whether multi-token prediction is active and, when it is not, why. It is called once.
func (w *Worker) MTP(active bool, reason string) {
	v := 0.0
	if active {
		v, reason = 1, ""
	}
	w.mtp.WithLabelValues(reason).Set(v)
}
