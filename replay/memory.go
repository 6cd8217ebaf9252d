package replay

import (
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/sched"
)

// dispatchPrefill queues a prompt, or takes over the finished one of an earlier
// attempt of the same request.
func (h *host) dispatchPrefill(t *task, reuse handoff.ID) {
	switch {
	case reuse.IsZero():
		h.submit(t)
	case !h.takeOver(t, reuse):
		h.later(t, fact{kind: handoff.FactPrefillRejected})
	}
}

// submit queues a task's prompt.
func (h *host) submit(t *task) {
	w := &h.workers[t.worker]
	a := h.attempts.at(t.attempt)
	ref, o := w.sched.Submit(h.now.Duration(), a.id, sched.Request{
		Prompt: t.prompt, MaxTokens: t.most, Held: a.policy != handoff.Disabled, Keys: h.keys(w, a),
	})
	if o != sched.Accepted {
		h.rec.Count(refusedBy, outcomeReason(o), 1)
		h.later(t, fact{kind: handoff.FactPrefillRejected, never: o == sched.Never})
		return
	}
	h.enter(w, t, ref)
}

// refusedBy is the name under which refusals of attempts count: those of requests
// count under their status.
const refusedBy = "refused by a worker"

func outcomeReason(o sched.Outcome) string {
	switch o {
	case sched.Never:
		return "it can never fit"
	case sched.Expired:
		return "no room before the deadline"
	}
	return "the scheduler answers " + o.String()
}

// takeOver gives t the sequence of an earlier attempt that holds it for a
// destination that failed. It reports false, and changes nothing, when there is
// nothing to take.
func (h *host) takeOver(t *task, reuse handoff.ID) bool {
	w := &h.workers[t.worker]
	a := h.attempts.at(t.attempt)
	q := h.requests.at(a.request)
	n := h.find(q, reuse)
	if n < 0 || h.attempts.at(n).task[handoff.RoleSource] < 0 || h.attempts.at(n).worker[handoff.RoleSource] != w.number {
		return false
	}
	was := h.attempts.at(n)
	old := h.tasks.at(was.task[handoff.RoleSource])
	if old.ref < 0 || old.src.State() != handoff.SourcePinned && old.src.State() != handoff.SourceAwaitingReader || t.prompt < old.computed {
		return false
	}
	ref, o := w.sched.Rebind(h.now.Duration(), reuse, a.id, sched.Request{
		Prompt: t.prompt, MaxTokens: t.most, Held: a.policy != handoff.Disabled, Keys: h.keys(w, a),
	})
	if o != sched.Accepted {
		return false
	}
	t.computed = old.computed
	a.m.began, a.m.prompted = was.m.began, was.m.prompted
	if t.computed == t.prompt {
		t.sampled = true
		h.send(h.now+h.oneWay, event{kind: evTokens, side: handoff.RoleSource, subject: t.attempt, n: int64(a.forced + 1)})
	}
	h.enter(w, t, ref) // it is pinned now, or goes on computing
	h.later(old, fact{kind: handoff.FactCancelled, reason: handoff.ReasonRebound})
	return true
}

// reserveRoom queues a task's reservation.
func (h *host) reserveRoom(t *task, act *handoff.DestinationAction) {
	w := &h.workers[t.worker]
	a := h.attempts.at(t.attempt)
	ref, o := w.sched.Reserve(h.now.Duration(), a.id, sched.Reservation{
		Prompt: t.prompt, MaxTokens: t.most, Deadline: act.Deadline, Keys: h.keys(w, a),
	})
	if o != sched.Accepted {
		h.rec.Count(refusedBy, outcomeReason(o), 1)
		h.later(t, fact{kind: handoff.FactReserveRefused, never: o == sched.Never})
		return
	}
	h.enter(w, t, ref)
}

// enter notes under which ref the scheduler knows a task.
func (h *host) enter(w *worker, t *task, ref sched.Ref) {
	for int(ref) >= len(w.byRef) {
		w.byRef = append(w.byRef, -1)
	}
	w.byRef[ref], t.ref = t.number, ref
	if t.touched { // its stream was opened before it was queued
		w.sched.Touch(h.attempts.at(t.attempt).id)
	}
	w.changed = true
	h.sync(w)
}

// touch says that a stream can reach a task's memory from now on, or as soon as it
// has some. False: the task has ended, and no stream may start.
func (h *host) touch(t *task) bool {
	t.touched = true
	return t.ref < 0 || h.workers[t.worker].sched.Touch(h.attempts.at(t.attempt).id) != sched.Conflict
}

// quiet says that no stream can any more.
func (h *host) quiet(t *task) {
	if !t.touched {
		return
	}
	t.touched = false
	w := &h.workers[t.worker]
	w.sched.Quiet(h.now.Duration(), h.attempts.at(t.attempt).id)
	w.changed = true
	h.sync(w)
}

// stop lets no further step include a task, and reports whether the running step
// does; then a notice follows when it is done.
func (h *host) stop(w *worker, t *task) bool {
	t.stopped = true
	stepping := w.sched.Cancel(h.now.Duration(), h.attempts.at(t.attempt).id) == sched.Stepping
	h.left(w, t, stepping)
	h.sync(w)
	return stepping
}

// left forgets a task in the account of tokens.
func (h *host) left(w *worker, t *task, stepping bool) {
	if stepping && t.decoding {
		w.lost++
	}
	h.unjoin(w, t)
	w.changed = true
}

// releaseMemory gives back everything a task holds; its machine is Released.
func (h *host) releaseMemory(t *task) {
	a := h.attempts.at(t.attempt)
	h.closeStream(t, a)
	if t.ref < 0 {
		return
	}
	w := &h.workers[t.worker]
	w.byRef[t.ref] = -1
	t.ref = -1
	o := w.sched.Release(h.now.Duration(), a.id)
	h.left(w, t, o == sched.Stepping)
	h.sync(w)
}

// sync queues what machines are to be told of what the scheduler decided. It is
// called after everything that the scheduler is told, and tells no machine itself.
func (h *host) sync(w *worker) {
	mark := len(h.notices)
	h.notices = w.sched.Notices(h.notices)
	for i := mark; i < len(h.notices); i++ {
		n := &h.notices[i]
		w.changed = true
		if t := h.taskOf(w, n.Ref); t != nil && h.attempts.at(t.attempt).id == n.ID {
			h.noticed(w, t, n)
		}
	}
	h.notices = h.notices[:mark]
}

// noticed handles one notice about a task.
func (h *host) noticed(w *worker, t *task, n *sched.Notice) {
	a := h.attempts.at(t.attempt)
	q := h.requests.at(a.request)
	switch n.Kind {
	case sched.NoteAdmitted:
		t.computed = int(n.Tokens)
		if !t.sampled {
			q.cached[t.side] = n.Tokens
			h.export(t, a)
		}
	case sched.NoteGranted:
		a.m.reserved = h.now
		a.skip = int(n.Tokens)
		q.cached[t.side] = n.Tokens
		h.later(t, fact{kind: handoff.FactReserved, n: int(n.Tokens)})
	case sched.NoteRefused:
		h.rec.Count(refusedBy, "no room before the deadline", 1)
		h.later(t, fact{kind: handoff.FactReserveRefused})
	case sched.NotePromoted:
		if t.sampled {
			h.join(w, t)
		}
	case sched.NotePinned:
		t.computed = t.prompt
		if a.m.ready == never {
			a.m.ready = h.now
		}
		h.later(t, fact{kind: handoff.FactPrefillPinned, n: int(n.Blocks)})
	case sched.NoteFinished:
		h.finished(w, t, a, q)
	case sched.NotePreempted:
		q.preempted++
		h.rec.Count("preempted", w.pool.cfg.Name, 1)
		h.unjoin(w, t)
		t.computed = 0
	case sched.NoteFailed:
		h.unjoin(w, t)
		h.rec.Count("failed at a worker", "no memory was left for the answer", 1)
		if t.sampled {
			n := a.forced + max(0, int(n.Tokens)-t.prompt) + 1
			h.send(h.now+h.oneWay, event{kind: evTokens, side: t.side, subject: t.attempt, n: int64(n)})
		}
		h.failTask(t)
	case sched.NoteRetired:
		h.later(t, fact{kind: handoff.FactStepRetired})
	}
}

// finished reports the end of an answer.
func (h *host) finished(w *worker, t *task, a *attempt, q *request) {
	h.unjoin(w, t)
	h.keepAnswer(w, a, q)
	tokens := a.forced + w.sched.Info(t.ref).Tokens
	if t.stopped {
		return
	}
	kind := handoff.FactFinishedAtSource
	if t.side == handoff.RoleDestination {
		kind = handoff.FactDecodeFinished
	}
	h.send(h.now+h.oneWay, event{kind: evTokens, side: t.side, subject: t.attempt, n: int64(tokens), finish: handoff.FinishLength})
	h.later(t, fact{kind: kind})
}

// failTask reports a task that lost its memory.
func (h *host) failTask(t *task) {
	switch {
	case t.side == handoff.RoleSource:
		h.later(t, fact{kind: handoff.FactPrefillRejected})
	case t.dst.State() == handoff.DestinationReserving:
		h.later(t, fact{kind: handoff.FactReserveRefused})
	default:
		h.later(t, fact{kind: handoff.FactDecodeFailed})
	}
}

// keys are the names of a request's prompt in the blocks of a worker.
func (h *host) keys(w *worker, a *attempt) []kv.Key {
	q := h.requests.at(a.request)
	if !w.pool.cache || w.pool.names >= len(q.keys) {
		return nil
	}
	k := &q.keys[w.pool.names]
	return k.all[:k.prompt]
}

// keepAnswer publishes the blocks of an answer, where they have names.
func (h *host) keepAnswer(w *worker, a *attempt, q *request) {
	if !w.pool.cache || w.pool.names >= len(q.keys) {
		return
	}
	if k := &q.keys[w.pool.names]; len(k.all) > k.prompt {
		w.sched.Keys(h.now.Duration(), a.id, k.all)
	}
}
