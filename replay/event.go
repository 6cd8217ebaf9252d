package replay

import (
	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
)

// event is something that happens at a time. Those about an attempt keep its
// request in memory until they are handled.
type event struct {
	kind    eventKind
	what    uint8        // a command, or a handoff.Report
	side    handoff.Role // of the attempt: who is told, or who tells
	outcome handoff.Outcome
	reason  handoff.Reason
	finish  handoff.Finish
	phase   handoff.Phase
	never   bool
	subject int32  // attempt; other kinds say what
	gen     uint32 // of the subject, where that is not an attempt
	n       int64
}

type eventKind uint8

// About an attempt, subject.
const (
	evCommand eventKind = iota // gateway to the worker on side: what
	evStatus                   // that worker to the gateway: what, a handoff.Report
	evTokens                   // the same: the first n tokens of the answer are there, finish
	evRefused                  // the command could not be started there: phase, outcome, never

	evDialled    // a stream asks the worker on side to be accepted
	evAccepted   // it was, the one on side learns
	evStreamLost // the peer's end of the stream is gone, side learns
	evQuiet      // no transport touches the memory of side any more
	evExported   // n bytes of state left the source's engine; never: they are the last
	evSent       // the source learns that everything arrived
	evReceived   // the destination has imported everything
	evAck        // the source learns of the commit

	// About something else.
	evClientGone // request
	evPlace      // request: look for a worker again, or give up
	evFailure    // entry of Config.Failures
	evRepair     // the same, when it is over
	evLost       // worker: the gateway notices that it is gone
)

// Commands.
const (
	cmdReserve uint8 = iota
	cmdPrefill
	cmdRun
	cmdCancel
	cmdRenew
	cmdReaderCompleted
	cmdPeerLost
)

// send makes an event about an attempt happen.
func (h *host) send(at timed.Time, e event) {
	h.requests.at(h.attempts.at(e.subject).request).pending++
	h.events.Push(at, e)
}

// handle handles one event.
func (h *host) handle(e event) {
	switch e.kind {
	case evClientGone:
		if q := h.requests.at(e.subject); q.gen == e.gen && !q.done() {
			h.clientGone(e.subject, q)
		}
		return
	case evPlace:
		if q := h.requests.at(e.subject); q.gen == e.gen && q.waiting {
			h.place(e.subject, q)
		}
		return
	case evFailure:
		h.fails(e.subject)
		return
	case evRepair:
		h.repaired(e.subject)
		return
	case evLost:
		h.workerLost(e.subject, uint64(e.n))
		return
	}
	a := h.attempts.at(e.subject)
	request := a.request
	switch e.kind {
	case evStatus:
		h.status(a, &e)
	case evTokens:
		h.tokens(request, e.subject, a, e.side, int(e.n), e.finish)
	case evRefused:
		h.refusedCommand(request, a, &e)
	default:
		h.atWorker(a, &e)
	}
	h.requests.at(request).pending--
	h.release(request)
}

// atWorker handles an event at the worker on one side of an attempt.
func (h *host) atWorker(a *attempt, e *event) {
	w := &h.workers[a.worker[e.side]]
	if !w.alive || w.incarnation != a.incarnation[e.side] {
		h.nobodyThere(a, e)
		return
	}
	h.catchUp(w)
	var t *task
	if n := a.task[e.side]; n >= 0 {
		t = h.tasks.at(n)
	}
	if e.kind == evCommand {
		h.command(w, a, t, e)
	} else {
		h.transport(w, a, t, e)
	}
	h.goOn(w)
}

// nobodyThere answers what comes for a worker that is gone.
func (h *host) nobodyThere(a *attempt, e *event) {
	switch {
	case e.kind == evCommand && e.what <= cmdRun:
		phase := handoff.PhasePrefill
		if e.what == cmdReserve {
			phase = handoff.PhaseReserve
		}
		h.send(h.now+h.oneWay, event{kind: evRefused, subject: e.subject, side: e.side, phase: phase, outcome: handoff.OutcomePeerLost})
	case e.kind == evDialled:
		h.send(h.now+h.wire(a), event{kind: evStreamLost, subject: e.subject, side: other(e.side)})
	}
}

// other is the other side of a handoff.
func other(side handoff.Role) handoff.Role {
	return handoff.RoleSource + handoff.RoleDestination - side
}
