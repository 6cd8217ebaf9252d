package worker

import (
	"errors"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/telemetry"
)

// The step loop serves first come first served: waiting tasks are admitted in
// order as slots and cells allow, all decoding sequences are stepped together,
// and one chunk of the oldest prompt follows. Decodes and the chunk are batches
// of their own, so that the bits of a prompt do not depend on who decodes beside
// it; chunk boundaries are multiples of the page, so that they do not depend on
// it either.

// errNeverFits refuses what no waiting can admit.
var errNeverFits = errors.New("worker: prompt and answer need more cells than this worker has; ask for fewer tokens, or raise --cells")

// enqueue puts a task at the end of the queue for a slot, or refuses it when it
// can never be admitted.
func (w *Worker) enqueue(t *task) {
	if !w.admission.fits(t.side, t.need) {
		t.blame(buspb.Code_CODE_TOO_LONG, errNeverFits)
		w.later(func() {
			if t.side == sideSource {
				w.source(t, handoff.SourceFact{Kind: handoff.FactPrefillRejected, Never: true})
			} else {
				w.destination(t, handoff.DestinationFact{Kind: handoff.FactReserveRefused, Never: true})
			}
		})
		return
	}
	t.phase = phaseWaiting
	w.waiting = append(w.waiting, t)
	w.stale = true
	w.later(w.admitWaiting)
}

// unqueue takes a task out of every queue.
func (w *Worker) unqueue(t *task) {
	switch t.phase {
	case phaseWaiting:
		w.remove(&w.waiting, t)
	case phasePrefill:
		w.remove(&w.prefilling, t)
	case phaseDecode:
		w.remove(&w.decoding, t)
	}
	t.phase = phaseIdle
}

// remove takes t out of a queue and keeps the order of the rest.
func (w *Worker) remove(queue *[]*task, t *task) {
	q := *queue
	for i := range q {
		if q[i] == t {
			copy(q[i:], q[i+1:])
			q[len(q)-1] = nil
			*queue = q[:len(q)-1]
			return
		}
	}
}

// admitWaiting admits tasks in order. The first of a side that does not fit
// holds up the later ones of that side, so that nobody is overtaken.
func (w *Worker) admitWaiting() {
	var blocked [2]bool
	for i := 0; i < len(w.waiting); {
		t := w.waiting[i]
		if blocked[t.side] {
			i++
			continue
		}
		seq, ok := w.admission.take(t.side, t.need)
		if !ok {
			blocked[t.side] = true
			i++
			continue
		}
		w.remove(&w.waiting, t)
		t.seq, t.cells = seq, t.need
		w.gotSlot(t)
		w.hold(telemetry.HeldSequences, 1)
		if t.side == sideSource {
			t.phase = phasePrefill
			w.prefilling = append(w.prefilling, t)
		} else {
			t.phase = phaseIdle
			w.reserved(t)
		}
		w.capacityChanged()
	}
}

// runnable reports whether a step has anything to compute.
func (w *Worker) runnable() bool { return len(w.decoding) > 0 || len(w.prefilling) > 0 }

// step computes one batch of decodes and one chunk of the oldest prompt.
func (w *Worker) step() {
	if len(w.decoding) > 0 {
		w.decodeStep()
	}
	if len(w.prefilling) > 0 {
		w.prefillStep(w.prefilling[0])
	}
}

func (w *Worker) prefillStep(t *task) {
	first := t.computed
	end := min((first/w.cfg.PageTokens+1)*w.cfg.PageTokens, t.prompt)
	rows := w.rows[:0]
	for pos := first; pos < end; pos++ {
		rows = append(rows, engine.Row{Token: t.gen.history[pos], Pos: int32(pos), Seq: t.seq, Output: pos == t.prompt-1})
	}
	w.rows = rows
	began := w.now()
	if err := w.decode(rows); err != nil {
		w.failPrefill(t, err)
		return
	}
	t.m.compute.add(began, w.now())
	w.computed(telemetry.Prefill, len(rows))
	t.computed = end
	t.stepped += uint64(len(rows))
	w.event(telemetry.Event{Kind: telemetry.ChunkComputed, Handoff: t.id, Request: t.request, First: first, End: end})
	if end < t.prompt {
		w.export(t)
		return
	}
	logits, err := w.eng.Logits(len(rows) - 1)
	if err != nil {
		w.failPrefill(t, err)
		return
	}
	w.promptDone(t, logits)
	// The token is on its way before what remains is exported, which may take
	// longer than a client's patience.
	w.flush()
	if t.snd != nil {
		w.export(t)
	}
}

func (w *Worker) decodeStep() {
	rows := w.rows[:0]
	batch := append(w.batch[:0], w.decoding[:min(len(w.decoding), w.info.BatchTokens)]...)
	for _, t := range batch {
		rows = append(rows, engine.Row{Token: t.gen.history[t.computed], Pos: int32(t.computed), Seq: t.seq, Output: true})
	}
	w.rows, w.batch = rows, batch
	began := w.now()
	if err := w.decode(rows); err != nil {
		for _, t := range batch {
			w.failDecode(t, err)
		}
		return
	}
	w.computed(telemetry.Decode, len(rows))
	ended := w.now()
	for i, t := range batch {
		if t.m.first.count == 0 {
			t.m.first.add(began, ended)
		}
		t.computed++
		t.stepped++
		logits, err := w.eng.Logits(i)
		var next token
		if err == nil {
			next, err = t.gen.next(logits)
		}
		if err != nil {
			w.failDecode(t, err)
			continue
		}
		w.emit(t, next)
		if next.finish != finishNone {
			w.unqueue(t)
			w.finished(t, next.finish)
		}
	}
	clear(w.batch)
}

// finished reports the end of an answer on this worker.
func (w *Worker) finished(t *task, f finish) {
	if t.side == sideSource {
		w.source(t, handoff.SourceFact{Kind: handoff.FactFinishedAtSource, Finish: f.fact()})
	} else {
		w.destination(t, handoff.DestinationFact{Kind: handoff.FactDecodeFinished, Finish: f.fact()})
	}
}

// failDecode ends one answer that cannot go on.
func (w *Worker) failDecode(t *task, err error) {
	w.cfg.Log.Error("decode failed", "handoff", t.id.String(), "error", err)
	t.blame(buspb.Code_CODE_ENGINE, err)
	w.unqueue(t)
	if t.side == sideSource {
		w.source(t, handoff.SourceFact{Kind: handoff.FactPrefillRejected})
	} else {
		w.destination(t, handoff.DestinationFact{Kind: handoff.FactDecodeFailed})
	}
}

// decode computes one batch and learns whether the engine can go on.
func (w *Worker) decode(rows []engine.Row) error {
	err := w.eng.Decode(rows)
	w.stepped(len(rows))
	if errors.Is(err, engine.ErrFatal) {
		w.broken(err)
	}
	return err
}

// releaseTask gives back everything a task holds; its machine is Released.
func (w *Worker) releaseTask(t *task) {
	w.unqueue(t)
	if t.rcv != nil {
		w.endImport(t)
	}
	if t.seq >= 0 {
		w.drop(t)
		w.admission.give(t.side, t.seq, t.cells)
		t.seq, t.cells = -1, 0
		w.hold(telemetry.HeldSequences, -1)
		w.capacityChanged()
	}
	if t.gen != nil {
		clear(t.gen.history)
		t.gen = nil
	}
	t.wakes++ // no timer of this task matters any more
	t.ticket = nil
	w.later(w.admitWaiting)
}

// drop empties the task's sequence in the engine.
func (w *Worker) drop(t *task) {
	if err := w.eng.Drop(t.seq); err != nil {
		w.broken(err)
	}
}
