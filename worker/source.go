package worker

import (
	"slices"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/sched"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/wire"
)

// dispatchPrefill queues a prompt, or takes over the finished one of an earlier
// attempt of the same request.
func (w *Worker) dispatchPrefill(t *task, reuse handoff.ID) {
	switch {
	case reuse.IsZero():
		w.submit(t)
	case !w.takeOver(t, w.tasks[reuse]):
		w.later(func() { w.source(t, handoff.SourceFact{Kind: handoff.FactPrefillRejected}) })
	}
}

// takeOver gives t the sequence of an earlier attempt that holds it for a
// destination that failed. What the client got meanwhile is forced and computed
// on top of it; if that is nothing, the token that the old attempt sampled is
// still the next one. It reports false, and changes nothing, when there is nothing
// to take.
func (w *Worker) takeOver(t, old *task) bool {
	if old == nil || old.side != sideSource || old.request != t.request || old.tenant != t.tenant ||
		old.slot < 0 || old.src.State() != handoff.SourcePinned && old.src.State() != handoff.SourceAwaitingReader {
		return false
	}
	have, want := old.gen.history, t.gen.history
	if len(want) < old.computed || len(want) > len(have) || !slices.Equal(have[:len(want)], want) {
		return false
	}
	ref, o := w.mem.sched.Rebind(w.now(), old.id, t.id, sched.Request{Prompt: t.prompt, MaxTokens: t.most, Held: true, Keys: w.mem.keys(t, t.gen.history)})
	if o != sched.Accepted {
		return false
	}
	// The old task keeps its stream until it is quiescent, but not the memory:
	// exports are done on this goroutine, so none is running now.
	t.slot, t.computed, t.usage.Cached = old.slot, old.computed, old.usage.Cached
	old.slot = -1
	if t.computed == len(want) {
		t.gen, t.usage, old.gen = old.gen, old.usage, nil
		if t.snd == nil {
			t.snd = &sending{}
		}
		t.snd.first = old.snd.first
		w.prompted(t)
		w.later(func() { w.emit(t, t.snd.first) })
	}
	w.enter(t, ref) // it is pinned now, or goes on computing
	w.later(func() {
		w.source(old, handoff.SourceFact{Kind: handoff.FactCancelled, Reader: handoff.All, Reason: handoff.ReasonRebound})
	})
	return true
}

// stopPrefill takes a task out of the queues. Steps are computed on this
// goroutine, so no step that uses the sequence is running.
func (w *Worker) stopPrefill(t *task) {
	w.mem.sched.Cancel(w.now(), t.id)
	w.sync()
	w.later(func() { w.source(t, handoff.SourceFact{Kind: handoff.FactStepRetired}) })
}

// promptDone handles a computed prompt: the first token is sampled. Whether the
// answer ends, goes on here, or is handed over, the scheduler says when the step is
// done.
func (w *Worker) promptDone(t *task, logits []float32) error {
	if t.prompted { // it was preempted, and is where it was again
		return w.answerOn(t, logits)
	}
	t.usage.Computed = uint32(t.computed) - t.usage.Cached
	first, err := t.gen.next(logits)
	if err != nil {
		return err
	}
	t.prompted = true
	w.prompted(t)
	w.emit(t, first)
	if t.snd == nil {
		t.snd = &sending{}
	}
	t.snd.first = first
	w.checkState(t, telemetry.Source)
	w.ends(t, first)
	return nil
}

// pinned reports finished prefill: the scheduler keeps the memory from the very
// transition on that completed the prompt, because only a release gives it back.
func (w *Worker) pinned(t *task, blocks int) {
	w.source(t, handoff.SourceFact{Kind: handoff.FactPrefillPinned, Blocks: blocks, For: w.cfg.Lease})
}

// openStream dials the destination, or source-first makes the ticket with which it
// may come. Pages of chunks that are computed meanwhile stay in the engine until
// the destination grants credit. The first skip tokens are there already; source-first
// the destination says so when it comes.
func (w *Worker) openStream(t *task, skip int) {
	if t.snd == nil {
		t.snd = &sending{}
	}
	s := t.snd
	t.skip, s.sent = skip, skip
	post := func(fact handoff.FactKind) func() {
		return func() {
			at := w.now()
			w.box.post(func() {
				t.m.fact(fact, at)
				w.source(t, handoff.SourceFact{Kind: fact, Incarnation: t.binding.Destination.Incarnation})
			})
		}
	}
	events := wire.SenderEvents{
		Room: func() {
			at := w.now()
			w.box.post(func() {
				once(&t.m.granted, at)
				w.source(t, handoff.SourceFact{Kind: handoff.FactLeaseRenewed, For: w.cfg.Lease})
				w.export(t)
			})
		},
		Sent:      post(handoff.FactSendCompleted),
		Committed: func(wire.Outcome) { post(handoff.FactReaderCompleted)() },
		Failed: func(err error) {
			w.box.post(func() {
				w.cfg.Log.Info("stream failed", "handoff", t.id.String(), "state", t.src.State().String(), "error", err)
				t.blame(buspb.Code_CODE_TRANSFER, err)
				w.source(t, handoff.SourceFact{Kind: handoff.FactStreamFailed})
			})
		},
		Quiesced: func() {
			w.box.post(func() {
				s.ended = true
				w.streamDone(t, s.snd.Stats())
				w.source(t, handoff.SourceFact{Kind: handoff.FactTransferQuiesced})
			})
		},
	}
	var snd *wire.Sender
	var err error
	if t.order == handoff.SourceFirst {
		opened := handoff.SourceFact{Kind: handoff.FactStreamOpened, Incarnation: t.binding.Destination.Incarnation}
		events.Open = func(skip uint32) error {
			return w.acceptStream(func() handoff.Result {
				if !w.canSkip(t, uint64(skip)) {
					return handoff.NoOp
				}
				result := w.source(t, opened)
				if result != handoff.Applied || !w.touch(t) {
					return handoff.NoOp
				}
				t.skip, s.sent = int(skip), int(skip) // nothing is exported before this function returns
				return result
			})
		}
		if snd, err = w.node.Offer(t.binding, events); err == nil {
			t.ticket = snd.Ticket()
		}
	} else {
		w.touch(t) // it is not queued yet, so it has not ended
		events.Opened = post(handoff.FactStreamOpened)
		snd, err = w.node.Push(t.binding, t.endpoint, t.ticket, events)
	}
	if err != nil {
		w.cfg.Log.Warn("stream not opened", "handoff", t.id.String(), "error", err)
		t.blame(buspb.Code_CODE_TRANSFER, err)
		s.ended = true
		w.later(func() {
			w.source(t, handoff.SourceFact{Kind: handoff.FactStreamFailed})
			w.source(t, handoff.SourceFact{Kind: handoff.FactTransferQuiesced})
		})
		return
	}
	s.snd = snd
	key := state.DeriveKey(t.ticket, t.binding)
	s.seal = newSeal(state.SealerConfig{
		Handoff: t.id, Identity: w.info.Identity, Inventory: w.info.Inventory,
		Codec: state.CodecLlamaSeq, Key: key, Limits: w.limits,
	})
	s.hasher = state.NewDigester(key)
	w.hold(telemetry.HeldStreams, 1)
}

// canSkip reports whether a destination may have so many leading tokens of a prompt.
func (w *Worker) canSkip(t *task, skip uint64) bool {
	return skip == 0 || skip <= uint64(t.prompt) && w.eng.Paged()
}

// revokeOffer makes the ticket worthless.
func (w *Worker) revokeOffer(t *task) {
	t.ticket = nil
	if t.order == handoff.SourceFirst && t.snd != nil && t.snd.snd != nil {
		t.snd.snd.Revoke()
	}
}

// sendFinal lets export go on to the snapshot and the manifest.
func (w *Worker) sendFinal(t *task) {
	t.snd.final = true
	w.later(func() { w.export(t) })
}

// export queues what is computed and not yet queued, as far as the stream has
// room: the engine keeps the rest, so a destination that stops reading costs no
// memory outside it. It is called after every chunk, whenever room appears, and
// when the final part is asked for.
func (w *Worker) export(t *task) {
	s := t.snd
	if s == nil || s.snd == nil || s.ended || s.done || t.slot < 0 {
		return
	}
	if w.eng.Paged() {
		for s.sent < min(t.computed, t.prompt) {
			end := min(s.sent-s.sent%w.cfg.PageTokens+w.cfg.PageTokens, t.prompt) // also where another page size was skipped
			if end > t.computed {
				return // the chunk that completes this page is not computed yet
			}
			if !w.exportPage(t, s.sent, end, end == t.prompt && !w.info.Inventory.Snapshot()) {
				return
			}
		}
	}
	if !s.final {
		return
	}
	if err := w.exportFinal(t); err != nil {
		w.failStream(t, err)
	}
}

// exportPage queues one page. It reports false when the stream has no room or
// ended.
func (w *Worker) exportPage(t *task, first, end int, last bool) bool {
	s := t.snd
	size := w.eng.PageBytes(end - first)
	buf, ok := s.buffer(size)
	if !ok {
		w.refusedRoom(t)
		return false
	}
	began := w.now()
	w.tookRoom(t, began)
	n, err := w.eng.ExportPage(t.slot, first, end, buf.Bytes)
	sealing := w.now()
	if err == nil && n != size {
		err = engine.ErrBuffer
	}
	var h state.UnitHeader
	if err == nil {
		h, err = s.seal.page(state.Range{First: uint32(first), End: uint32(end)}, last, buf.Bytes)
	}
	if err != nil {
		buf.Discard()
		w.failStream(t, err)
		return false
	}
	w.exported(t, began, sealing)
	if err := w.sendUnit(t, h, buf); err != nil {
		return false // the stream ended; its own event says so
	}
	s.sent = end
	t.m.carried(state.AttentionKV, int64(size))
	w.unitMoved(t, "page", state.AttentionKV.String(), size, first, end, true)
	return true
}

// buffer is Sender.Buffer. The first one shows which lane the stream got, and so what
// digests cover; asked before, the sender may get its place on a lane meanwhile.
func (s *sending) buffer(size int) (*wire.Buffer, bool) {
	buf, ok := s.snd.Buffer(size)
	if ok && s.snd.Local() {
		s.seal.overChecksum()
	}
	return buf, ok
}

// sendUnit queues a sealed unit. Where its digest covers the payload, that is
// hashed while it travels.
func (w *Worker) sendUnit(t *task, h state.UnitHeader, buf *wire.Buffer) error {
	s := t.snd
	if s.snd.Local() {
		return s.snd.Send(h, buf)
	}
	return s.snd.SendHashed(h, buf, s.hasher, func(d state.Digest) {
		manifest, err := s.seal.hashed(h.Index, d)
		switch {
		case err != nil:
			w.box.post(func() {
				if !s.ended {
					w.failStream(t, err)
				}
			})
		case manifest != nil:
			_ = s.snd.Finish(manifest) // it fails after the stream's end only, whose own event says so
		}
	})
}

// exportFinal queues the snapshot, where the family has one, and the manifest,
// which follows once every unit is hashed.
func (w *Worker) exportFinal(t *task) error {
	s := t.snd
	n := t.prompt
	if w.info.Inventory.Snapshot() {
		size, err := w.eng.SnapshotBytes(t.slot)
		if err != nil {
			return err
		}
		buf, ok := s.buffer(size)
		if !ok {
			w.refusedRoom(t)
			return nil // Room brings us back
		}
		began := w.now()
		w.tookRoom(t, began)
		written, refs, err := w.eng.ExportSnapshot(t.slot, buf.Bytes)
		if err != nil {
			buf.Discard()
			return err
		}
		buf.Bytes = buf.Bytes[:written]
		sealing := w.now()
		h, err := s.seal.snapshot(uint32(n), buf.Bytes, refs)
		if err != nil {
			buf.Discard()
			return err
		}
		w.exported(t, began, sealing)
		if err := w.sendUnit(t, h, buf); err != nil {
			return nil
		}
		for _, ref := range refs {
			t.m.carried(ref.Kind, int64(ref.Length))
			w.moved(ref.Kind.String(), int(ref.Length), true)
		}
		w.unitMoved(t, "snapshot", "", written, 0, n, true)
	}
	sampler, err := t.gen.sampler.MarshalBinary()
	if err != nil {
		return err
	}
	manifest, err := s.seal.manifest(state.Manifest{
		Binding: t.binding, Parts: 1, History: t.gen.history, Position: uint32(n),
		First: t.gen.first(s.first), Generation: t.gen.params, Sampler: sampler, Usage: t.usage,
		MTP: state.MTP{Reason: w.mtpInactive()},
	})
	if err != nil {
		return err
	}
	s.done = true
	if manifest != nil {
		_ = s.snd.Finish(manifest) // as above
	}
	return nil
}

// failStream ends a stream whose state cannot be exported. The machine decides
// what becomes of the handoff.
func (w *Worker) failStream(t *task, err error) {
	w.cfg.Log.Error("export failed", "handoff", t.id.String(), "error", err)
	t.blame(buspb.Code_CODE_TRANSFER, err)
	t.snd.ended = true
	t.snd.snd.Abort("export failed")
	w.later(func() { w.source(t, handoff.SourceFact{Kind: handoff.FactStreamFailed}) })
}

// abortSend ends the stream; Quiesced answers.
func (w *Worker) abortSend(t *task, force bool) {
	s := t.snd
	if s == nil || s.snd == nil {
		w.later(func() { w.source(t, handoff.SourceFact{Kind: handoff.FactTransferQuiesced}) })
		return
	}
	s.ended = true
	if force {
		s.snd.ForceClose()
	} else {
		s.snd.Abort("handoff ended")
	}
}
