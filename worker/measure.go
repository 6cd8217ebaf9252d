package worker

import (
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/wire"
)

// measure is what a task's attribution is made from: times of this host and
// counts. It is part of the task and grows with nothing: recording allocates
// nothing and sends nothing; the statuses that a task sends anyway carry it.
// Only the owner goroutine touches it.
type measure struct {
	// When something first happened; 0 until it did.
	slot, opened, granted     time.Duration
	prompted, sent, committed time.Duration // source
	complete, ready           time.Duration // destination

	compute, export, seal, stall         work // source
	verify, wait, imports, commit, first work // destination

	stalled time.Duration // since when a page waits for room, 0: none does
	before  struct {
		exported, sent int64
		export, wire   time.Duration
	}
	pages, snapshots uint32
	bytes            [len(componentKinds)]int64
}

// componentKinds are the kinds of state that are bytes in units.
var componentKinds = [...]state.Kind{
	state.AttentionKV, state.WindowKV, state.Recurrent, state.Conv, state.MTPKV, state.MTPHidden,
}

// work is something done in pieces. When the stretches do not fit any more,
// neighbours are joined, so that the whole of it stays covered.
type work struct {
	count uint32
	busy  time.Duration
	n     int
	spans [telemetry.MaxSpans]telemetry.Span
}

// add records one piece, which began no earlier than the piece before it.
func (k *work) add(begin, end time.Duration) {
	k.count++
	k.busy += end - begin
	if k.n == len(k.spans) {
		for i := 0; i < k.n; i += 2 {
			a, b := k.spans[i], k.spans[i+1]
			k.spans[i/2] = telemetry.Span{Begin: a.Begin, End: max(a.End, b.End), Busy: a.Busy + b.Busy}
		}
		k.n /= 2
	}
	k.spans[k.n] = telemetry.Span{Begin: begin, End: end, Busy: end - begin}
	k.n++
}

// once notes when something first happened.
func once(at *time.Duration, now time.Duration) {
	if *at == 0 {
		*at = now
	}
}

// fact notes the time of a fact that one of the task's machines is told. Where a
// callback of the wire brought it, the callback's time was noted before: the
// owner may have been computing since.
func (m *measure) fact(k handoff.FactKind, now time.Duration) {
	switch k {
	case handoff.FactStreamOpened:
		once(&m.opened, now)
	case handoff.FactSendCompleted:
		once(&m.sent, now)
	case handoff.FactReaderCompleted:
		once(&m.committed, now)
	case handoff.FactReceiveCompleted:
		once(&m.complete, now)
	case handoff.FactActivationApplied:
		once(&m.ready, now)
	}
}

// gotSlot ends the wait for a slot and cells.
func (w *Worker) gotSlot(t *task) {
	once(&t.m.slot, w.now())
	w.took(telemetry.StageSlot, t.m.slot-t.arrived)
}

// prompted notes the end of prefill and what of the transfer was done by then.
func (w *Worker) prompted(t *task) {
	m := &t.m
	m.prompted = w.now()
	if t.snd == nil || t.snd.snd == nil {
		return
	}
	for _, n := range m.bytes {
		m.before.exported += n
	}
	m.before.export = m.export.busy + m.seal.busy
	s := t.snd.snd.Stats()
	m.before.sent, m.before.wire = s.Bytes, s.Wire
}

// refusedRoom notes that a computed page cannot be exported yet; tookRoom that
// one can.
func (w *Worker) refusedRoom(t *task) { once(&t.m.stalled, w.now()) }

func (w *Worker) tookRoom(t *task, now time.Duration) {
	if t.m.stalled > 0 {
		t.m.stall.add(t.m.stalled, now)
		t.m.stalled = 0
	}
}

// exported notes one unit that left the engine and was sealed.
func (w *Worker) exported(t *task, began, sealing time.Duration) {
	now := w.now()
	t.m.export.add(began, sealing)
	t.m.seal.add(sealing, now)
	w.took(telemetry.StageExport, sealing-began)
	w.took(telemetry.StageSeal, now-sealing)
}

// imported notes one unit: when it arrived and was checked, both on the stream's
// goroutine, and when its import began.
func (w *Worker) imported(t *task, arrived, checked, began time.Duration) {
	now := w.now()
	t.m.verify.add(arrived, checked)
	t.m.wait.add(checked, began)
	t.m.imports.add(began, now)
	w.took(telemetry.StageVerify, checked-arrived)
	w.took(telemetry.StageWait, began-checked)
	w.took(telemetry.StageImport, now-began)
}

// carried counts payload bytes of one component.
func (m *measure) carried(k state.Kind, n int64) {
	for i, known := range componentKinds {
		if k == known {
			m.bytes[i] += n
		}
	}
}

// attribution is everything measured so far, for the gateway.
func (w *Worker) attribution(t *task) *buspb.Attribution {
	m := &t.m
	since := func(at time.Duration) uint64 {
		if at == 0 {
			return 0
		}
		return uint64(max(1, at-t.arrived)) // 0 would say that it did not happen
	}
	cached := t.usage.Cached
	if t.side == sideDestination { // which has the source's usage, too
		cached = uint32(t.skip)
	}
	a := &buspb.Attribution{
		Role: string(w.cfg.Role), NowNs: since(w.now()), SlotNs: since(m.slot), OpenedNs: since(m.opened), GrantedNs: since(m.granted),
		PromptedNs: since(m.prompted), SentNs: since(m.sent), CommittedNs: since(m.committed),
		Compute: t.work(&m.compute), Export: t.work(&m.export), Seal: t.work(&m.seal), Stall: t.work(&m.stall),
		BeforeExportedBytes: uint64(m.before.exported), BeforeExportNs: uint64(m.before.export),
		BeforeSentBytes: uint64(m.before.sent), BeforeWireNs: uint64(m.before.wire),
		CompleteNs: since(m.complete), ReadyNs: since(m.ready),
		Verify: t.work(&m.verify), Wait: t.work(&m.wait), Import: t.work(&m.imports), Commit: t.work(&m.commit), Decode: t.work(&m.first),
		Pages: m.pages, Snapshots: m.snapshots,
		PromptTokens: uint32(t.prompt), CachedTokens: cached, ComputedTokens: t.stepped,
		SkippedTokens: uint32(t.skip), SkippedBytes: w.pageBytes(t.skip),
		Mtp: &buspb.MTP{Reason: w.mtpInactive()},
	}
	if s, ok := t.streamStats(); ok {
		a.Stream = &buspb.Stream{
			Lane: s.Lane, Bytes: uint64(s.Bytes), Units: s.Units, OpenNs: uint64(max(0, s.Open)),
			FirstByteNs: uint64(max(0, s.FirstByte)), BusyNs: uint64(max(0, s.Wire)), RttNs: uint64(max(0, s.RTT)),
		}
	}
	for i, n := range m.bytes {
		if n > 0 {
			a.Components = append(a.Components, &buspb.ComponentBytes{Kind: uint32(componentKinds[i]), Bytes: uint64(n)})
		}
	}
	return a
}

// pageBytes is what the pages of the first tokens of a prompt take on the wire.
func (w *Worker) pageBytes(tokens int) uint64 {
	page := w.cfg.PageTokens
	n := tokens / page * w.eng.PageBytes(page)
	if rest := tokens % page; rest > 0 {
		n += w.eng.PageBytes(rest)
	}
	return uint64(n)
}

// streamStats asks the wire what it measured, while the task has a stream.
func (t *task) streamStats() (wire.Stats, bool) {
	switch {
	case t.snd != nil && t.snd.snd != nil:
		return t.snd.snd.Stats(), true
	case t.rcv != nil:
		return t.rcv.rcv.Stats(), true
	}
	return wire.Stats{}, false
}

func (t *task) work(k *work) *buspb.Work {
	if k.count == 0 {
		return nil
	}
	out := &buspb.Work{Count: k.count, BusyNs: uint64(max(0, k.busy))}
	for _, s := range k.spans[:k.n] {
		out.Spans = append(out.Spans, &buspb.Span{
			BeginNs: uint64(max(0, s.Begin-t.arrived)), EndNs: uint64(max(0, s.End-t.arrived)), BusyNs: uint64(max(0, s.Busy)),
		})
	}
	return out
}
