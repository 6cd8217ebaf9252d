package worker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/sched"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/wire"
)

// errOpenRefused is what a peer is told whose stream the machine did not accept.
var errOpenRefused = errors.New("the handoff takes no stream now")

// reserved follows a granted reservation: destination-first it makes the ticket
// with which the source may come.
func (w *Worker) reserved(t *task) {
	if t.order == handoff.DestinationFirst {
		r := &receiving{}
		events := w.receiverEvents(t, r)
		opened := handoff.DestinationFact{Kind: handoff.FactStreamOpened, Incarnation: t.binding.Source.Incarnation}
		events.Open = func() error { return w.acceptStream(func() handoff.Result { return w.destination(t, opened) }) }
		rcv, err := w.node.Expect(t.binding, events)
		if err != nil {
			t.blame(buspb.Code_CODE_INTERNAL, err)
			w.destination(t, handoff.DestinationFact{Kind: handoff.FactReserveRefused})
			return
		}
		w.hold(telemetry.HeldStreams, 1)
		r.rcv, t.rcv = rcv, r
		t.ticket = rcv.Ticket()
	}
	bytes := uint64(t.prompt-t.skip) * w.info.Inventory.TokenBytes()
	if w.info.Inventory.Snapshot() {
		_, most := w.info.Inventory.SnapshotBytes(uint32(t.prompt))
		bytes += most
	}
	w.destination(t, handoff.DestinationFact{Kind: handoff.FactReserved, SkipTokens: t.skip, Bytes: bytes})
}

// receiverEvents are what the stream of a task tells, but how it is opened.
func (w *Worker) receiverEvents(t *task, r *receiving) wire.ReceiverEvents {
	return wire.ReceiverEvents{
		// Hashed while they arrive, and looked through, on the stream's goroutine, so
		// that the owner only imports.
		Piece: func(h *state.UnitHeader, off int, piece []byte) { r.digester.Piece(h, off, piece) },
		Unit: func(u *wire.Unit) {
			arrived := w.now()
			digest := r.digester.Arrived(&u.Header, r.rcv.Local())
			err := engine.ScanUnit(w.eng, &u.Header, u.Payload)
			checked := w.now()
			if !w.box.post(func() { w.importUnit(t, u, digest, err, arrived, checked) }) {
				u.Release()
			}
		},
		Manifest: func(m []byte) { w.box.post(func() { w.manifest(t, m) }) },
		Failed: func(err error) {
			w.box.post(func() {
				w.cfg.Log.Info("stream failed", "handoff", t.id.String(), "state", t.dst.State().String(), "error", err)
				t.blame(buspb.Code_CODE_TRANSFER, err)
				w.destination(t, handoff.DestinationFact{Kind: handoff.FactReceiveFailed})
			})
		},
		Quiesced: func() {
			w.box.post(func() {
				r.quiesced = true
				w.streamDone(t, r.rcv.Stats())
				w.destination(t, handoff.DestinationFact{Kind: handoff.FactTransferQuiesced})
			})
		},
	}
}

// acceptStream asks a machine whether the peer's stream is welcome. It runs on a
// goroutine of the wire and waits for the owner, which calls opened.
func (w *Worker) acceptStream(opened func() handoff.Result) error {
	answer := make(chan handoff.Result, 1)
	if !w.box.post(func() { answer <- opened() }) {
		return errOpenRefused
	}
	select {
	case result := <-answer:
		if result == handoff.Applied {
			return nil
		}
	case <-w.stopped:
	}
	return errOpenRefused
}

// startReceive makes the uncommitted session, unless it has begun with what was here
// already, source-first dials the source, and grants credit.
func (w *Worker) startReceive(t *task) {
	if !w.touch(t) {
		w.later(func() { w.destination(t, handoff.DestinationFact{Kind: handoff.FactReceiveFailed}) })
		return
	}
	if t.order == handoff.SourceFirst {
		r := &receiving{}
		events := w.receiverEvents(t, r)
		events.Opened = func() {
			at := w.now()
			w.box.post(func() {
				t.m.fact(handoff.FactStreamOpened, at)
				w.destination(t, handoff.DestinationFact{Kind: handoff.FactStreamOpened, Incarnation: t.binding.Source.Incarnation})
			})
		}
		rcv, err := w.node.Pull(t.binding, t.endpoint, t.ticket, uint32(t.skip), events)
		if err != nil {
			w.cfg.Log.Warn("stream not opened", "handoff", t.id.String(), "error", err)
			t.blame(buspb.Code_CODE_TRANSFER, err)
			w.later(func() { w.destination(t, handoff.DestinationFact{Kind: handoff.FactReceiveFailed}) })
			return
		}
		w.hold(telemetry.HeldStreams, 1)
		r.rcv, t.rcv = rcv, r
	}
	r := t.rcv
	var err error
	if t.imp == nil {
		if t.imp, err = w.eng.BeginImport(t.slot, t.prompt); err != nil {
			w.failReceive(t, fmt.Errorf("begin import: %w", err))
			return
		}
	}
	t.imp.Scanned()
	key := state.DeriveKey(t.ticket, t.binding)
	r.digester = state.NewDigester(key) // before the grant: the stream reads it only after
	r.asm, err = state.NewAssembly(state.Expect{
		Identity: w.info.Identity, Binding: t.binding, Parts: []state.Inventory{w.info.Inventory},
		Codec: state.CodecLlamaSeq, Tokens: uint32(t.prompt), Skip: uint32(t.skip), Key: key, Limits: w.limits,
	})
	if err != nil {
		w.failReceive(t, err)
		return
	}
	once(&t.m.granted, w.now())
	r.rcv.Grant()
}

// importUnit puts one unit into the session; scanned is what was wrong with its
// payload, if anything, arrived and checked are when that was looked for.
func (w *Worker) importUnit(t *task, u *wire.Unit, digest state.Digest, scanned error, arrived, checked time.Duration) {
	defer u.Release()
	r := t.rcv
	if r.ended || t.imp == nil {
		return
	}
	h := &u.Header
	size := len(u.Payload)
	err := r.asm.Streamed(h, uint64(size), h.Checksum, digest) // the wire verified the checksum
	began := w.now()
	if err == nil {
		err = scanned
	}
	if err == nil {
		if h.Unit == state.UnitPage {
			err = t.imp.Page(int(h.Tokens.First), int(h.Tokens.End), u.Payload)
		} else {
			err = t.imp.Snapshot(u.Payload)
		}
	}
	if err != nil {
		w.failReceive(t, err)
		return
	}
	w.imported(t, arrived, checked, began)
	if h.Unit == state.UnitPage {
		t.m.carried(h.Component, int64(size))
		w.unitMoved(t, "page", h.Component.String(), size, int(h.Tokens.First), int(h.Tokens.End), false)
	} else {
		w.unitMoved(t, "snapshot", "", size, 0, int(h.Tokens.End), false)
	}
}

// manifest validates what was received as a whole.
func (w *Worker) manifest(t *task, raw []byte) {
	r := t.rcv
	if r.ended || t.imp == nil {
		return
	}
	err := r.asm.Manifest(raw)
	if err == nil {
		err = r.asm.Missing()
	}
	if err != nil {
		w.failReceive(t, err)
		return
	}
	m := r.asm.Sequence()
	for _, ref := range m.Components {
		t.m.carried(ref.Kind, int64(ref.Length))
		w.moved(ref.Kind.String(), int(ref.Length), false)
	}
	r.manifest = m
	w.destination(t, handoff.DestinationFact{Kind: handoff.FactReceiveCompleted})
}

// failReceive discards the session, so that nothing of a failed receive is ever
// decoded from. The machine ends the stream.
func (w *Worker) failReceive(t *task, err error) {
	w.cfg.Log.Warn("receive failed", "handoff", t.id.String(), "error", err)
	t.blame(buspb.Code_CODE_TRANSFER, err)
	w.endImport(t)
	w.later(func() { w.destination(t, handoff.DestinationFact{Kind: handoff.FactReceiveFailed}) })
}

// endImport discards an uncommitted session.
func (w *Worker) endImport(t *task) {
	if r := t.rcv; r != nil {
		r.ended = true
		r.asm, r.manifest = nil, nil // they hold the prompt, and timers keep the task for a while
	}
	if t.imp != nil {
		if err := t.imp.Discard(); err != nil {
			w.broken(err)
		}
		t.imp = nil
	}
}

// activate turns the session into a sequence that decodes, or discards it.
func (w *Worker) activate(t *task) {
	r := t.rcv
	began := w.now()
	err := w.restore(t)
	if err != nil {
		w.endImport(t)
		w.cfg.Log.Warn("activation failed", "handoff", t.id.String(), "error", err)
		t.blame(buspb.Code_CODE_ENGINE, err)
		w.later(func() { w.destination(t, handoff.DestinationFact{Kind: handoff.FactActivationFailed}) })
		return
	}
	t.usage = r.manifest.Usage
	t.computed, t.prompted = t.prompt, true
	first := t.gen.restoredFirst(r.manifest.First)
	w.checkState(t, telemetry.Destination)
	r.asm, r.manifest = nil, nil
	now := w.now()
	t.m.commit.add(began, now)
	w.took(telemetry.StageCommit, now-t.m.complete)
	w.later(func() {
		if w.destination(t, handoff.DestinationFact{Kind: handoff.FactActivationApplied}) != handoff.Applied {
			return
		}
		// The source's word of its token may be lost, or come after the commit, when
		// nobody listens to the source any more: the owner's report is complete.
		w.emit(t, first)
	})
}

// errOtherTokens says that the prefix that was here does not belong to what came.
var errOtherTokens = errors.New("worker: the source computed another prompt than the reservation was for")

// restore commits the session and makes it a sequence that the scheduler runs. The
// pages that came are the source's, and the manifest says of which tokens; those that
// were here are of the tokens that the reservation named. So both must be the same.
func (w *Worker) restore(t *task) error {
	m := t.rcv.manifest
	prompt := m.History[:m.Position]
	if t.tokens != nil && !slices.Equal(prompt, t.tokens) {
		return errOtherTokens
	}
	t.forgetTokens()
	imp := t.imp
	t.imp, t.rcv.ended = nil, true
	if err := imp.Commit(); err != nil {
		return err
	}
	var err error
	if t.gen, err = restoreGeneration(w.vocab, m, w.cfg.ContextTokens); err != nil {
		return err
	}
	t.gen.sampler.Use(&w.workspace)
	if t.chain == nil { // only now the prompt is known
		w.mem.sched.Keys(w.now(), t.id, w.mem.keys(t, prompt))
	}
	return w.begin(t)
}

// forgetTokens clears what a reservation said will come.
func (t *task) forgetTokens() {
	clear(t.tokens)
	t.tokens = nil
}

// begin makes a restored sequence one that the scheduler runs.
func (w *Worker) begin(t *task) error {
	g := t.gen
	if most := mostTokens(t.prompt, t.prompt-g.prompt, int(g.params.MaxTokens), g.context); most > t.most {
		return fmt.Errorf("worker: the manifest allows %d tokens, the reservation is for %d", most, t.most)
	}
	if o := w.mem.sched.Activate(w.now(), t.id); o != sched.Accepted {
		return fmt.Errorf("worker: the reservation cannot be activated: %v", o)
	}
	w.sync()
	return nil
}

// ackCommit tells the source; the wire repeats it until the source answers.
func (w *Worker) ackCommit(t *task) {
	if err := t.rcv.rcv.Commit(wire.OutcomeActive); err != nil {
		w.cfg.Log.Warn("commit not sent", "handoff", t.id.String(), "error", err)
	}
}

// abortReceive ends the stream; Quiesced answers.
func (w *Worker) abortReceive(t *task, force bool) {
	if t.rcv == nil {
		w.later(func() { w.destination(t, handoff.DestinationFact{Kind: handoff.FactTransferQuiesced}) })
		return
	}
	w.endImport(t)
	if force {
		t.rcv.rcv.ForceClose()
	} else {
		t.rcv.rcv.Abort("handoff ended")
	}
}

// revokeTicket makes the ticket worthless.
func (w *Worker) revokeTicket(t *task) {
	if t.rcv != nil {
		t.rcv.rcv.Revoke()
	}
}
