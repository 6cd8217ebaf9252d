package replay

import (
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/sched"
)

// task is one side of an attempt on a worker: it hosts a handoff.Source or
// handoff.Destination, as a live worker's task does.
type task struct {
	number  int32
	gen     uint32 // differs between the tasks that have one number
	attempt int32
	worker  int32
	side    handoff.Role

	src handoff.Source
	dst handoff.Destination

	ref      sched.Ref // -1: not queued, or released
	prompt   int       // tokens to compute or to receive
	most     int       // tokens of the answer that may follow
	computed int       // prompt tokens that are there
	touched  bool      // a stream can reach its memory
	stopped  bool      // no token of it counts any more
	sampled  bool      // the token after the prompt is
	joined   bool      // in worker.joined
	decoding bool      // gets its tokens together with others
}

// fact is a fact that executing an action brought about: a machine is never told one
// while the actions of another are being executed.
type fact struct {
	task   int32
	gen    uint32
	kind   handoff.FactKind
	reason handoff.Reason
	never  bool
	n      int // tokens, or blocks
}

// later queues a fact about a task.
func (h *host) later(t *task, f fact) {
	f.task, f.gen = t.number, t.gen
	w := &h.workers[t.worker]
	w.facts = append(w.facts, f)
}

// settle tells the facts that were queued at a worker, and those that this brings
// about.
func (h *host) settle(w *worker) {
	for i := 0; i < len(w.facts); i++ {
		f := w.facts[i]
		if t := h.tasks.at(f.task); f.gen != 0 && t.gen == f.gen {
			h.tell(t, &f)
		}
	}
	w.facts = w.facts[:0]
}

// tell gives a queued fact the form that the task's machine takes.
func (h *host) tell(t *task, f *fact) {
	w := &h.workers[t.worker]
	if t.side == handoff.RoleSource {
		s := handoff.SourceFact{Kind: f.kind, Never: f.never, Reason: f.reason}
		switch f.kind {
		case handoff.FactPrefillPinned:
			s.Blocks, s.For = f.n, h.cfg.Worker.Lease
		case handoff.FactFinishedAtSource:
			s.Finish = handoff.FinishLength
		case handoff.FactCancelled, handoff.FactPeerLost:
			s.Reader = handoff.All
		}
		h.source(t, s)
		return
	}
	d := handoff.DestinationFact{Kind: f.kind, Never: f.never, Reason: f.reason}
	switch f.kind {
	case handoff.FactReserved:
		if t.dst.State() != handoff.DestinationReserving {
			return
		}
		d.SkipTokens, d.Bytes = f.n, uint64(h.bytes(t, h.attempts.at(t.attempt)))
	case handoff.FactDecodeFinished:
		d.Finish = handoff.FinishLength
	case handoff.FactPeerLost:
		d.Part = handoff.All
	case handoff.FactCancelled:
		d.Stepping = false
	}
	if t.ref >= 0 && t.dst.State() == handoff.DestinationActive {
		switch f.kind {
		case handoff.FactCancelled, handoff.FactDecodeFailed, handoff.FactCoordinatorLost:
			d.Stepping = h.stop(w, t)
		}
	}
	h.destination(t, d)
}

// source tells a source's machine one fact and executes its actions.
func (h *host) source(t *task, f handoff.SourceFact) handoff.Result {
	if f.Kind == handoff.FactTransferQuiesced || f.Kind == handoff.FactSendCompleted {
		h.quiet(t) // before the machine, which may release the memory now
	}
	mark := len(h.sources)
	now := h.now.Duration()
	actions, result, err := t.src.Apply(now, f, h.sources)
	h.sources = actions
	fresh := actions[mark:]
	if h.trace != nil {
		h.trace.source(h, t, now, f, fresh, result, err)
	}
	if err != nil {
		h.defect(err)
	}
	for i := range fresh {
		h.executeSource(t, &fresh[i])
	}
	h.sources = h.sources[:mark]
	if t.src.State() == handoff.SourceReleased {
		h.endTask(t, t.src.Outcome())
	}
	return result
}

// destination tells a destination's machine one fact and executes its actions.
func (h *host) destination(t *task, f handoff.DestinationFact) handoff.Result {
	if f.Kind == handoff.FactTransferQuiesced || f.Kind == handoff.FactReceiveCompleted {
		h.quiet(t) // before the machine, which may activate or release the memory now
	}
	mark := len(h.destinations)
	now := h.now.Duration()
	actions, result, err := t.dst.Apply(now, f, h.destinations)
	h.destinations = actions
	fresh := actions[mark:]
	if h.trace != nil {
		h.trace.destination(h, t, now, f, fresh, result, err)
	}
	if err != nil {
		h.defect(err)
	}
	for i := range fresh {
		h.executeDestination(t, &fresh[i])
	}
	h.destinations = h.destinations[:mark]
	if t.dst.State() == handoff.DestinationReleased {
		h.endTask(t, t.dst.Outcome())
	}
	return result
}

func (h *host) executeSource(t *task, a *handoff.SourceAction) {
	switch a.Kind {
	case handoff.ActionDispatchPrefill:
		h.dispatchPrefill(t, a.Reuse)
	case handoff.ActionStopPrefill:
		if !h.stop(&h.workers[t.worker], t) {
			h.later(t, fact{kind: handoff.FactStepRetired})
		}
	case handoff.ActionOpenStream:
		h.openStream(t)
	case handoff.ActionSendFinal:
		h.sendFinal(t)
	case handoff.ActionAbortStream:
		h.abortStream(t)
	case handoff.ActionRevokeTicket: // who presents it is refused by the machine
	case handoff.ActionReportStatus:
		h.report(t, a.Report, a.Outcome, a.Reason, a.Never)
	case handoff.ActionReleaseSource:
		h.releaseMemory(t)
	case handoff.ActionWakeAt:
		h.wake(2*t.number+1, a.At)
	}
}

func (h *host) executeDestination(t *task, a *handoff.DestinationAction) {
	switch a.Kind {
	case handoff.ActionReserveDestination:
		h.reserveRoom(t, a)
	case handoff.ActionStartReceive:
		h.startReceive(t)
	case handoff.ActionActivateDestination:
		h.activate(t)
	case handoff.ActionAckCommit:
		h.send(h.now+h.wire(h.attempts.at(t.attempt)), event{kind: evAck, side: handoff.RoleSource, subject: t.attempt})
	case handoff.ActionAbortStream:
		h.abortStream(t)
	case handoff.ActionRevokeTicket:
	case handoff.ActionReportStatus:
		h.report(t, a.Report, a.Outcome, a.Reason, a.Never)
	case handoff.ActionReleaseDestination:
		h.releaseMemory(t)
	case handoff.ActionWakeAt:
		h.wake(2*t.number+1, a.At)
	}
}

// report sends the gateway what a machine reports.
func (h *host) report(t *task, r handoff.Report, o handoff.Outcome, reason handoff.Reason, never bool) {
	h.send(h.now+h.oneWay, event{kind: evStatus, what: uint8(r), side: t.side, outcome: o, reason: reason, never: never, subject: t.attempt})
}

// endTask forgets a task whose machine is Released.
func (h *host) endTask(t *task, o handoff.Outcome) {
	a := h.attempts.at(t.attempt)
	w := &h.workers[t.worker]
	if w.alive && w.incarnation == a.incarnation[t.side] {
		w.tombs.Bury(h.now.Duration(), a.id, o)
	}
	h.dropTask(t, a)
}

// dropTask forgets a task.
func (h *host) dropTask(t *task, a *attempt) {
	h.timers.Clear(2*t.number + 1)
	a.task[t.side] = -1
	n := t.number
	*t = task{number: n}
	h.tasks.free(n)
	request := a.request
	h.requests.at(request).pending--
	h.release(request)
}

// newTask makes a task that holds nothing yet.
func (h *host) newTask(w *worker, attempt int32, side handoff.Role) *task {
	n, t := h.tasks.add()
	h.taskGen++
	*t = task{number: n, gen: h.taskGen, attempt: attempt, worker: w.number, side: side, ref: -1}
	a := h.attempts.at(attempt)
	a.task[side] = n
	h.requests.at(a.request).pending++
	return t
}

// defect counts a fact that a machine refused, and keeps the first for whoever
// looks.
func (h *host) defect(err error) {
	h.defects++
	if h.opt.defect != nil {
		h.opt.defect(err)
	}
}
