package worker

import (
	"errors"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/sched"
	"github.com/tandem-llm/tandem/telemetry"
)

// A step is what the scheduler plans: one batch of all decodes, and each chunk of a
// prompt as a batch of its own, so that the bits of a prompt do not depend on who
// decodes or is computed beside it; chunks end at multiples of the page, so that
// they do not depend on it either.
//
// Between Plan and Done no command runs and no machine is told anything: what a step
// brings about is queued, and told when the scheduler knows of it too.

// runnable reports whether a step has anything to compute.
func (w *Worker) runnable() bool { return !w.mem.sched.Idle() }

// step computes what the scheduler plans.
func (w *Worker) step() {
	plan := w.mem.sched.Plan(w.now())
	w.sync() // slots are open before their first row
	if plan.Empty() {
		return
	}
	w.results = sched.Results{Finished: w.results.Finished[:0], Failed: w.results.Failed[:0]}
	if len(plan.Decodes) > 0 {
		w.decodeStep(plan.Decodes)
	}
	for _, c := range plan.Chunks {
		w.prefillStep(c)
	}
	w.mem.sched.Done(w.now(), w.results)
	w.sync()
	w.keepSnapshots()
}

// prefillStep computes one chunk.
func (w *Worker) prefillStep(c sched.Chunk) {
	t := w.mem.byRef[c.Ref]
	if w.mem.gone(t) {
		w.fail(t, errLostPrefix)
		return
	}
	rows := w.rows[:0]
	for pos := c.First; pos < c.End; pos++ {
		rows = append(rows, engine.Row{Token: t.gen.history[pos], Pos: pos, Seq: t.slot, Output: c.Last && pos == c.End-1})
	}
	w.rows = rows
	began := w.now()
	if err := w.decode(rows); err != nil {
		w.fail(t, err)
		return
	}
	t.m.compute.add(began, w.now())
	w.computed(telemetry.Prefill, len(rows))
	t.computed = int(c.End)
	t.stepped += uint64(len(rows))
	w.event(telemetry.Event{Kind: telemetry.ChunkComputed, Handoff: t.id, Request: t.request, First: int(c.First), End: int(c.End)})
	if c.Last {
		logits, err := w.eng.Logits(len(rows) - 1)
		if err == nil {
			err = w.promptDone(t, logits)
		}
		if err != nil {
			w.fail(t, err)
			return
		}
		// The token is on its way before what remains is exported, which may take
		// longer than a client's patience.
		w.flush()
	}
	w.export(t)
	w.boundary(t)
}

// decodeStep computes the next token of every running answer.
func (w *Worker) decodeStep(decodes []sched.Decode) {
	rows := w.rows[:0]
	for _, d := range decodes {
		t := w.mem.byRef[d.Ref]
		rows = append(rows, engine.Row{Token: t.gen.history[d.Pos], Pos: d.Pos, Seq: t.slot, Output: true})
	}
	w.rows = rows
	began := w.now()
	if err := w.decode(rows); err != nil {
		for _, d := range decodes {
			w.fail(w.mem.byRef[d.Ref], err)
		}
		return
	}
	w.computed(telemetry.Decode, len(rows))
	ended := w.now()
	for i, d := range decodes {
		t := w.mem.byRef[d.Ref]
		if t.m.first.count == 0 {
			t.m.first.add(began, ended)
		}
		t.computed = int(d.Pos) + 1
		t.stepped++
		logits, err := w.eng.Logits(i)
		if err == nil {
			err = w.answerOn(t, logits)
		}
		if err != nil {
			w.fail(t, err)
			continue
		}
		w.boundary(t)
	}
}

// answerOn samples the next token of an answer.
func (w *Worker) answerOn(t *task, logits []float32) error {
	next, err := t.gen.next(logits)
	if err != nil {
		return err
	}
	w.emit(t, next)
	w.ends(t, next)
	return nil
}

// ends tells the scheduler, with the step's results, if an answer ended with a token.
func (w *Worker) ends(t *task, last token) {
	if last.finish != finishNone {
		t.finish = last.finish
		w.results.Finished = append(w.results.Finished, t.ref)
	}
}

// fail ends one answer of the running step that cannot go on.
func (w *Worker) fail(t *task, err error) {
	w.results.Failed = append(w.results.Failed, t.ref)
	w.later(func() { w.failTask(t, buspb.Code_CODE_ENGINE, err) })
}

// failTask reports a failed answer.
func (w *Worker) failTask(t *task, code buspb.Code, err error) {
	w.cfg.Log.Error("computing failed", "handoff", t.id.String(), "error", err)
	t.blame(code, err)
	switch {
	case t.side == sideSource:
		w.source(t, handoff.SourceFact{Kind: handoff.FactPrefillRejected})
	case t.dst.State() == handoff.DestinationReserving:
		w.destination(t, handoff.DestinationFact{Kind: handoff.FactReserveRefused})
	default:
		w.destination(t, handoff.DestinationFact{Kind: handoff.FactDecodeFailed})
	}
}

// finished reports the end of an answer on this worker.
func (w *Worker) finished(t *task) {
	w.name(t)
	if t.side == sideSource {
		w.source(t, handoff.SourceFact{Kind: handoff.FactFinishedAtSource, Finish: t.finish.fact()})
	} else {
		w.destination(t, handoff.DestinationFact{Kind: handoff.FactDecodeFinished, Finish: t.finish.fact()})
	}
}

// cellsEvicted is how many blocks a batch that finds no cells costs the prefix cache at a time.
const cellsEvicted = 8

// decode computes one batch and learns whether the engine can go on.
func (w *Worker) decode(rows []engine.Row) error {
	err := w.eng.Decode(rows)
	for errors.Is(err, engine.ErrNoCells) && w.evict(cellsEvicted) {
		err = w.eng.Decode(rows) // cells are there, if not always where the engine wants them
	}
	w.stepped(len(rows))
	switch {
	case errors.Is(err, engine.ErrFatal):
		w.broken(err)
	case errors.Is(err, engine.ErrLost):
		for i := range rows {
			w.mem.lost[rows[i].Seq] = true
		}
	}
	return err
}
