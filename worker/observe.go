package worker

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/sched"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/wire"
)

// record keeps one application of a fact for replay.
func (w *Worker) record(r handoff.Record) {
	if w.cfg.Events == nil {
		return
	}
	r.Host = w.cfg.Identity.Name()
	r.SourceActions = slices.Clone(r.SourceActions)
	r.DestinationActions = slices.Clone(r.DestinationActions)
	w.cfg.Events.Transition(r)
}

func (w *Worker) event(e telemetry.Event) { w.cfg.Events.Emit(e) }

// unitMoved observes one page or snapshot that left or entered the engine.
func (w *Worker) unitMoved(t *task, unit, component string, size, first, end int, out bool) {
	kind := telemetry.PageImported
	switch {
	case unit == "page" && out:
		kind = telemetry.PageExported
	case unit == "snapshot" && out:
		kind = telemetry.SnapshotExported
	case unit == "snapshot":
		kind = telemetry.SnapshotImported
	}
	if unit == "page" {
		t.m.pages++
	} else {
		t.m.snapshots++
	}
	w.event(telemetry.Event{Kind: kind, Handoff: t.id, Request: t.request, First: first, End: end, Bytes: int64(size)})
	if m := w.cfg.Metrics; m != nil {
		m.Unit(unit, out)
		if component != "" {
			m.Moved(component, size, out)
		}
	}
}

func (w *Worker) moved(component string, size int, out bool) {
	if m := w.cfg.Metrics; m != nil {
		m.Moved(component, size, out)
	}
}

func (w *Worker) took(s telemetry.Stage, d time.Duration) {
	if m := w.cfg.Metrics; m != nil {
		m.Took(s, d)
	}
}

func (w *Worker) hold(h telemetry.Held, delta int) {
	if m := w.cfg.Metrics; m != nil {
		m.Hold(h, delta)
	}
}

// sampled is what the metrics show of things that the wire counts.
type sampled struct{ tickets, buffers int }

// sampleWire brings the metrics of the wire's tickets and buffers up to date.
func (w *Worker) sampleWire() {
	s := w.node.Stats()
	now := sampled{tickets: s.Tickets, buffers: int(s.Sending + s.Receiving)}
	w.hold(telemetry.HeldTickets, now.tickets-w.sampled.tickets)
	w.hold(telemetry.HeldBuffers, now.buffers-w.sampled.buffers)
	w.sampled = now
}

func (w *Worker) computed(p telemetry.Phase, tokens int) {
	if m := w.cfg.Metrics; m != nil {
		m.Computed(p, tokens)
	}
}

func (w *Worker) preempted(p telemetry.Preemption) {
	if m := w.cfg.Metrics; m != nil {
		m.Preempted(p)
	}
}

func (w *Worker) stepped(rows int) {
	if m := w.cfg.Metrics; m != nil {
		m.Step(rows)
	}
}

// capacity says how slots and cells are used. The parts of each add up to its total.
func (w *Worker) capacity() (slots, cells telemetry.Capacity) {
	m := w.mem
	s := m.kv.Snapshot()
	cells = telemetry.Capacity{
		Total: s.Blocks * m.block, Active: s.Active * m.block, Pinned: s.Pinned * m.block,
		Reserved: s.Reserved * m.block, Cached: s.Cached * m.block, Free: s.Free * m.block,
	}
	slots = telemetry.Capacity{Total: m.slots, Active: s.Slots, Free: m.slots - s.Slots}
	for _, t := range w.tasks {
		if t.slot < 0 {
			continue
		}
		switch m.sched.Info(t.ref).State {
		case sched.StatePinned:
			slots.Pinned++
			slots.Active--
		case sched.StateReserved:
			slots.Reserved++
			slots.Active--
		}
	}
	return slots, cells
}

// checkState passes the sequence's whole state to whoever asked to verify it.
func (w *Worker) checkState(t *task, side telemetry.Side) {
	if w.cfg.StateChecked == nil {
		return
	}
	b, err := w.eng.Canonical(t.slot)
	if err != nil {
		w.cfg.Log.Error("re-export failed", "handoff", t.id.String(), "error", err)
		return
	}
	w.cfg.StateChecked(t.id.String(), side, b)
}

// streamDone observes the end of a stream.
func (w *Worker) streamDone(t *task, s wire.Stats) {
	w.hold(telemetry.HeldStreams, -1)
	if s.Bytes == 0 {
		return
	}
	w.took(telemetry.StageWire, s.Wire)
	if m := &t.m; t.side == sideSource {
		w.took(telemetry.StageStall, m.stall.busy)
		if m.committed > 0 && m.prompted > 0 {
			w.took(telemetry.StageTail, m.committed-m.prompted)
		}
	}
	w.event(telemetry.Event{Kind: telemetry.StreamDone, Handoff: t.id, Request: t.request, Bytes: s.Bytes, Took: s.Wire, Detail: s.Lane})
}
