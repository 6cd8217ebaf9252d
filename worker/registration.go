package worker

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/sched"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/telemetry"
)

// capabilities are what this worker can do beyond serving whole requests.
func (w *Worker) capabilities() []string {
	c := []string{bus.CapHandoff}
	if w.mem.secret != nil && w.mem.paged && w.cfg.Role.receives() {
		c = append(c, bus.CapPrefix)
	}
	return c
}

// herald announces the worker once a beat from a goroutine of its own, because a
// long engine step must not look like a dead worker.
type herald struct {
	link *bus.WorkerLink
	mu   sync.Mutex
	last *buspb.Registration // guarded by mu
}

// announce publishes r now and repeats it from now on.
func (h *herald) announce(r *buspb.Registration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = r
	return h.link.Announce(r)
}

// repeat publishes the newest registration again.
func (h *herald) repeat() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last != nil {
		h.last = proto.Clone(h.last).(*buspb.Registration)
		_ = h.link.Announce(h.last) // the next beat is the retry
	}
}

// run repeats until stopped is closed.
func (h *herald) run(stopped <-chan struct{}) {
	tick := time.NewTicker(bus.Beat)
	defer tick.Stop()
	for {
		select {
		case <-stopped:
			return
		case <-tick.C:
			h.repeat()
		}
	}
}

// announcePause is the least time between two announcements that only tell of
// changed capacity; the beat brings the rest.
const announcePause = 100 * time.Millisecond

// capacityChanged has the next flush announce what is free now.
func (w *Worker) capacityChanged() {
	w.stale = true
	w.showCapacity()
}

// showCapacity brings the metrics of cells and slots up to date, and tells of a change.
func (w *Worker) showCapacity() {
	if w.cfg.Metrics == nil && w.cfg.Events == nil {
		return
	}
	slots, cells := w.capacity()
	if m := w.cfg.Metrics; m != nil {
		m.Slots(slots)
		m.Cells(cells)
	}
	if w.cfg.Events != nil && cells != w.cells {
		w.cells = cells
		w.event(telemetry.Event{Kind: telemetry.CapacityChanged, Cells: &cells})
	}
}

// announce publishes the worker's registration.
func (w *Worker) announce() {
	w.stale, w.announced = false, w.now()
	if err := w.herald.announce(w.registration()); err != nil {
		w.cfg.Log.Debug("announcement not sent", "error", err)
	}
}

func (w *Worker) registration() *buspb.Registration {
	used := w.mem.kv.Snapshot()
	r := &buspb.Registration{
		Role: string(w.cfg.Role), Version: w.cfg.Version, Identity: w.info.Identity.Encode(),
		SchemaMin: uint32(state.SchemaMin), SchemaMax: uint32(state.SchemaVersion), Capabilities: w.capabilities(),
		ModelName: w.cfg.ModelName, Backend: w.info.Backend, EngineBuild: w.info.Build, Threads: uint32(w.info.Threads),
		ContextTokens: uint32(w.cfg.ContextTokens), PageTokens: uint32(w.cfg.PageTokens),
		Mtp:           &buspb.MTP{Reason: w.mtpInactive()},
		ColocatedOnly: w.cfg.ColocatedOnly,
		SlotsTotal:    uint32(w.mem.slots), SlotsFree: uint32(w.mem.slots - used.Slots),
		CellsTotal: uint64(used.Blocks * w.mem.block), CellsFree: uint64(used.Available() * w.mem.block),
		Source: w.shareMessage(sideSource), Destination: w.shareMessage(sideDestination),
		Endpoint: endpointMessage(w.node.Endpoint()), Draining: w.draining,
	}
	for _, t := range w.inOrder() {
		o := &buspb.Owned{
			Handoff: t.id[:], Request: t.request, Gateway: t.gateway.name, GatewayIncarnation: t.gateway.incarnation,
			Side: t.side.message(), State: t.src.State().String(),
		}
		if t.side == sideDestination {
			o.State = t.dst.State().String()
		}
		r.Owned = append(r.Owned, o)
	}
	return r
}

func (w *Worker) shareMessage(s side) *buspb.Share {
	all := w.mem.shares[s].Slots
	m := &buspb.Share{SlotsTotal: uint32(all), SlotsFree: uint32(all - w.mem.open[s])}
	for _, t := range w.tasks {
		if t.side != s || t.ref < 0 {
			continue
		}
		switch q := w.mem.sched.Info(t.ref); q.State {
		case sched.StateWaiting, sched.StateReserving:
			m.Waiting++
			m.WaitingTokens += uint64(q.Target)
		case sched.StatePrefilling:
			m.Running++
			m.WaitingTokens += uint64(q.Target - q.Computed)
		case sched.StateDecoding, sched.StateReady:
			m.Running++
		}
	}
	return m
}

// ended notes that a task's machine is Released, with or without an action (a
// cancel may come before the command that it cancels): the task is remembered as
// a tombstone, and its unacknowledged statuses until the gateway has them. A
// second call does nothing.
func (w *Worker) ended(t *task, outcome handoff.Outcome) {
	if w.tasks[t.id] != t {
		return
	}
	delete(w.tasks, t.id)
	w.stale = true // it is owned no more, also when it never held anything
	w.hold(telemetry.HeldHandoffs, -1)
	w.tombs.Bury(w.now(), t.id, outcome)
	if len(t.out.pending) > 0 {
		w.unacked[t.id] = t
	}
	if m := w.cfg.Metrics; m != nil {
		m.HandoffEnded(t.telemetrySide(), outcome.String())
	}
}
