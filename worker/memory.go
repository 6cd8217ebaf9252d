package worker

import (
	"errors"
	"fmt"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/block"
	"github.com/tandem-llm/tandem/kv/mirror"
	"github.com/tandem-llm/tandem/sched"
	"github.com/tandem-llm/tandem/telemetry"
)

// memory says what runs next and whose memory is whose: the scheduler decides, its
// manager counts blocks of attention cells, the mirror says which of the engine's
// slots a sequence is in. The worker tells the scheduler what commands, machines and
// steps bring, and sync makes the engine follow.
type memory struct {
	kv     *block.Manager
	sched  *sched.Scheduler
	mirror *mirror.Mirror
	block  int // cells of a block
	slots  int // sequences at once
	shares [2]sched.Share
	secret []byte // of block names; nil: no prefix cache
	paged  bool   // slots hold pages; else sequences have snapshots only
	marked bool   // prefixes need a snapshot too
	cached int    // most blocks that no sequence has

	snapshots map[int32][]byte // by the block at whose end they were taken
	spare     []byte           // a zeroed buffer of one that went, or nil
	reached   []*task          // in the running step, a boundary where one is to be taken

	byRef []*task // nil: none, or released
	sides []side  // of the sequence that is open in each slot
	lost  []bool  // slots that are empty in the engine, whatever the mirror has them hold
	open  [2]int  // slots by side

	changed bool // what is free, since the last announcement of it
	notices []sched.Notice
	events  []kv.Event
	blocks  []int32
	ops     []mirror.Op
}

// side says what a task does on this worker.
type side uint8

const (
	sideSource      side = iota // computes a prompt, or a whole request
	sideDestination             // receives state and decodes
)

// maxBlock is the largest block. It is a multiple of 64 cells where pages are: what
// is computed behind a block has the same bits wherever that lies.
const maxBlock = 64

// newMemory divides an engine's cells and slots as the configuration says.
func newMemory(cfg Config, info engine.Info) (*memory, error) {
	m := &memory{block: min(maxBlock, cfg.PageTokens), slots: info.Slots - cfg.CachedSlots, sides: make([]side, info.Slots), lost: make([]bool, info.Slots)}
	for cfg.PageTokens%m.block != 0 {
		m.block--
	}
	shape := kv.Config{
		Blocks: info.Cells / m.block, BlockTokens: m.block, Slots: m.slots, Align: cfg.PageTokens / m.block,
		Fixed:  true, // the engine has no way to exchange a part of a sequence
		Events: true,
	}
	m.paged, m.cached = info.Inventory.Paged(), shape.Blocks
	if cfg.CachedTokens > 0 && m.paged {
		m.cached = min(m.cached, cfg.CachedTokens/m.block)
	}
	if cfg.PrefixCache && info.ColocatedOnly == "" { // else its state does not move at all
		m.secret = newSecret()
		m.marked, m.snapshots = info.Inventory.Snapshot() && cfg.Role.computesPrompts(), map[int32][]byte{}
		shape.Marked, shape.MarkBytes = m.marked, cfg.SnapshotBytes
	}
	manager, err := block.New(shape)
	if err != nil {
		return nil, fmt.Errorf("worker: %d cells in blocks of %d: %w", info.Cells, m.block, err)
	}
	running := min(m.slots, info.BatchTokens)
	order := sched.Config{
		// Every decode is in every step, and waits for no more than the step's prompts.
		Budget: max(cfg.StepTokens, cfg.PageTokens) + running, Chunk: cfg.PageTokens, Page: cfg.PageTokens, Running: running,
		Headroom:    cfg.Headroom,
		NoRecompute: !cfg.Role.computesPrompts(),
	}
	all := sched.Share{Blocks: shape.Blocks, Slots: shape.Slots}
	switch cfg.Role {
	case RolePrefill:
		m.shares[sideSource] = all
	case RoleDecode:
		m.shares[sideDestination] = all
	default:
		half := sched.Share{Blocks: all.Blocks / 2, Slots: all.Slots / 2}
		order.Source = sched.Share{Blocks: all.Blocks - half.Blocks, Slots: all.Slots - half.Slots}
		order.Destination = half
		m.shares = [2]sched.Share{order.Source, order.Destination}
	}
	if m.sched, err = sched.New(order, manager); err != nil {
		return nil, fmt.Errorf("worker: %d blocks and %d slots in role %s: %w", shape.Blocks, shape.Slots, cfg.Role, err)
	}
	m.kv, m.mirror = manager, mirror.New(shape, info.Slots)
	return m, nil
}

// waiting is the number of tasks that wait for memory or a slot.
func (m *memory) waiting() int {
	l := m.sched.Load()
	return l.Waiting + l.Reserving
}

// Why a request is refused, or ends, for lack of memory.
var (
	errNeverFits = errors.New("worker: prompt and answer need more cells than this worker has; ask for fewer tokens, or raise --cells")
	errNoMemory  = errors.New("worker: no memory was left for the request; send it again")
	errLate      = errors.New("worker: no room before the deadline; send the request again, or allow it more time")
)

// submit queues a task's prompt.
func (w *Worker) submit(t *task) {
	ref, o := w.mem.sched.Submit(w.now(), t.id, sched.Request{Prompt: t.prompt, MaxTokens: t.most, Held: t.order != handoff.Disabled, Keys: w.mem.keys(t, t.gen.history)})
	if o != sched.Accepted {
		w.blameOutcome(t, o)
		w.later(func() {
			w.source(t, handoff.SourceFact{Kind: handoff.FactPrefillRejected, Never: o == sched.Never})
		})
		return
	}
	w.enter(t, ref)
}

// reserveRoom queues a task's reservation.
func (w *Worker) reserveRoom(t *task, a *handoff.DestinationAction) {
	r := sched.Reservation{Prompt: t.prompt, MaxTokens: t.most, Deadline: a.Deadline}
	if w.mem.paged { // else all there is must come
		r.Keys = w.mem.keys(t, t.tokens)
	}
	ref, o := w.mem.sched.Reserve(w.now(), t.id, r)
	if o != sched.Accepted {
		w.blameOutcome(t, o)
		w.later(func() {
			w.destination(t, handoff.DestinationFact{Kind: handoff.FactReserveRefused, Never: o == sched.Never})
		})
		return
	}
	w.enter(t, ref)
}

// blameOutcome notes why a task could not be queued.
func (w *Worker) blameOutcome(t *task, o sched.Outcome) {
	switch o {
	case sched.Never:
		t.blame(buspb.Code_CODE_TOO_LONG, errNeverFits)
	case sched.Expired:
		t.blame(buspb.Code_CODE_OVERLOADED, errLate)
	default:
		t.blame(buspb.Code_CODE_INTERNAL, fmt.Errorf("worker: the scheduler answers %v", o))
	}
}

// enter notes under which ref the scheduler knows a task.
func (w *Worker) enter(t *task, ref sched.Ref) {
	m := w.mem
	for int(ref) >= len(m.byRef) {
		m.byRef = append(m.byRef, nil)
	}
	m.byRef[ref], t.ref = t, ref
	if t.touched { // its stream was opened before it was queued
		m.sched.Touch(t.id)
	}
	w.stale = true // it waits, if nothing else
	w.sync()
}

// touch says that a stream can reach a task's memory from now on, or as soon as it
// has some. False: the task has ended, and no stream may start.
func (w *Worker) touch(t *task) bool {
	t.touched = true
	return t.ref < 0 || w.mem.sched.Touch(t.id) != sched.Conflict
}

// quiet says that no stream can any more.
func (w *Worker) quiet(t *task) {
	t.touched = false
	w.mem.sched.Quiet(w.now(), t.id)
	w.sync()
}

// releaseTask gives back everything a task holds; its machine is Released.
func (w *Worker) releaseTask(t *task) {
	w.endImport(t)
	if t.ref >= 0 {
		m := w.mem
		seq := m.sched.Info(t.ref).Seq
		m.byRef[t.ref] = nil
		t.ref, t.slot = -1, -1
		// Memory that a stream of an earlier attempt may still read is freed when that
		// is quiet: a notice says so.
		if m.sched.Release(w.now(), t.id) == sched.Accepted {
			w.follow()
			w.closeSequence(seq)
		}
		w.stale = true
		w.sync()
	}
	if t.gen != nil {
		clear(t.gen.history)
		t.gen = nil
	}
	t.forgetTokens()
	t.chain, t.keys = nil, nil // the one holds tokens; a task may wait long for its last acknowledgement
	t.wakes++                  // no timer of this task matters any more
	t.ticket = nil
}

// sync makes the engine follow what the scheduler decided, and queues what machines
// are to be told of it. It is called after everything that the scheduler is told,
// tells no machine itself, and may be called while actions are being executed.
func (w *Worker) sync() {
	m := w.mem
	w.follow()
	m.notices = m.sched.Notices(m.notices[:0])
	for _, n := range m.notices { // what ended, before what needs its slot
		switch n.Kind {
		case sched.NotePreempted, sched.NoteFailed, sched.NoteFreed:
			w.closeSequence(n.Seq)
		}
	}
	for _, n := range m.notices {
		if t := w.tasks[n.ID]; t != nil && t.ref == n.Ref {
			w.noticed(t, n)
		}
	}
	if over := m.kv.Snapshot().Cached - m.cached; over > 0 {
		w.evict(over)
	}
	if m.changed || len(m.notices) > 0 {
		m.changed = false
		w.capacityChanged()
	}
}

// follow has the engine do what the manager's events ask for.
func (w *Worker) follow() {
	m := w.mem
	m.events = m.kv.Events(m.events[:0])
	for _, e := range m.events {
		if e.Kind == kv.Removed || e.Kind == kv.Unmarked {
			m.dropSnapshot(e.Block)
		}
		if m.paged { // without pages a slot keeps nothing when its sequence ends
			w.perform(m.mirror.Apply(e, m.ops[:0]))
		}
	}
}

// noticed handles one notice about a task.
func (w *Worker) noticed(t *task, n sched.Notice) {
	switch n.Kind {
	case sched.NoteAdmitted:
		t.parts = w.mem.parts(t)
		w.openSequence(t, n)
	case sched.NoteGranted:
		w.openSequence(t, n)
		w.later(func() {
			switch {
			case w.tasks[t.id] != t || t.dst.State() != handoff.DestinationReserving:
			case w.mem.gone(t):
				w.failTask(t, buspb.Code_CODE_ENGINE, errLostPrefix)
			default:
				w.reserved(t)
			}
		})
	case sched.NoteRefused:
		t.blame(buspb.Code_CODE_OVERLOADED, errLate)
		w.later(func() { w.destination(t, handoff.DestinationFact{Kind: handoff.FactReserveRefused}) })
	case sched.NotePinned:
		w.later(func() { w.pinned(t, int(n.Blocks)) })
	case sched.NoteFinished:
		w.later(func() { w.finished(t) })
	case sched.NotePreempted:
		// What is computed again is not sampled again: history has it, and the sampler
		// stays where it is.
		t.slot = -1
		w.preempted(telemetry.Recomputed)
	case sched.NoteFailed:
		t.slot = -1
		w.preempted(telemetry.Lost)
		w.later(func() { w.failTask(t, buspb.Code_CODE_OVERLOADED, errNoMemory) })
	}
}

// openSequence gives a sequence its slot.
func (w *Worker) openSequence(t *task, n sched.Notice) {
	m := w.mem
	m.blocks = m.kv.Blocks(n.Seq, m.blocks[:0])
	if len(m.blocks) == 0 {
		return // preempted since
	}
	slot, err := w.place(t, n)
	if errors.Is(err, errLostPrefix) {
		m.lost[slot], n.Tokens = true, 0 // whoever comes to compute or to receive sees it
	} else if err != nil {
		w.broken(fmt.Errorf("opening a sequence: %w", err))
		return
	}
	t.slot, t.computed = slot, int(n.Tokens)
	if n.Kind == sched.NoteGranted {
		t.skip = t.computed
	}
	m.sides[slot] = t.side
	m.open[t.side]++
	m.changed = true
	if t.m.slot == 0 { // it was not preempted
		w.gotSlot(t)
		t.usage.Cached = uint32(n.Tokens)
	}
	if t.computed > 0 && t.snd != nil {
		w.later(func() { w.export(t) }) // as far as it is there
	}
	w.hold(telemetry.HeldSequences, 1)
}

// gone reports whether the engine does not have what the scheduler thinks a task has.
func (m *memory) gone(t *task) bool { return t.slot < 0 || m.lost[t.slot] }

// closeSequence gives a slot back, if its sequence has no memory any more.
func (w *Worker) closeSequence(seq kv.Seq) {
	m := w.mem
	slot, ok := m.mirror.Slot(seq)
	if m.blocks = m.kv.Blocks(seq, m.blocks[:0]); !ok || len(m.blocks) > 0 {
		return
	}
	m.open[m.sides[slot]]--
	m.changed = true
	w.hold(telemetry.HeldSequences, -1)
	w.perform(m.mirror.Close(seq, m.ops[:0]))
	if m.lost[slot] {
		// It keeps in name what was cached of it, and of that nobody has more. Which
		// blocks these are only the mirror knows, and it is rare.
		w.evict(m.kv.Snapshot().Cached)
	}
}

// perform executes what the mirror asks of the engine. An engine that cannot do it
// holds other state than the manager counts.
func (w *Worker) perform(ops []mirror.Op) {
	w.mem.ops = ops
	for _, op := range ops {
		if err := w.do(op); err != nil {
			w.broken(fmt.Errorf("%v of slot %d: %w", op.Kind, op.Slot, err))
			return
		}
	}
}

func (w *Worker) do(op mirror.Op) error {
	if w.mem.lost[op.Slot] && op.Kind != mirror.Share {
		if op.Kind != mirror.Empty {
			return nil
		}
		w.mem.lost[op.Slot] = false
	}
	switch op.Kind {
	case mirror.Share:
		return w.eng.Keep(op.Slot, op.From, op.First, op.End)
	case mirror.Trim:
		return w.eng.Trim(op.Slot, op.First, op.End)
	case mirror.Retire:
		return w.eng.Retire(op.Slot)
	case mirror.Empty:
		return w.eng.Drop(op.Slot)
	}
	return fmt.Errorf("worker: no operation %v", op.Kind)
}
