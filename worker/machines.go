package worker

import (
	"time"

	"github.com/tandem-llm/tandem/handoff"
)

// This file is the only place where facts reach the machines of a worker, and
// where what they answer is executed. Everything the worker reserves, pins,
// activates, releases or cancels happens in one of the functions called from
// executeSource and executeDestination.

// source tells a task's source machine one fact and executes its actions.
func (w *Worker) source(t *task, f handoff.SourceFact) handoff.Result {
	now := w.now()
	t.m.fact(f.Kind, now)
	if f.Kind == handoff.FactTransferQuiesced || f.Kind == handoff.FactSendCompleted {
		w.quiet(t) // before the machine, which may release the memory now
	}
	mark := len(w.sourceActions)
	actions, result, err := t.src.Apply(now, f, w.sourceActions)
	w.sourceActions = actions
	fresh := actions[mark:]
	w.record(handoff.Record{
		Role: handoff.RoleSource, Handoff: t.id, Request: t.request, Now: now, Result: result, Err: errText(err),
		State: t.src.State().String(), SourceFact: &f, SourceActions: fresh,
	})
	if err != nil {
		w.refusedFact(t, err)
	}
	for i := range fresh {
		w.executeSource(t, fresh[i])
	}
	w.sourceActions = w.sourceActions[:mark]
	if t.src.State() == handoff.SourceReleased {
		w.ended(t, t.src.Outcome())
	}
	return result
}

// destination tells a task's destination machine one fact and executes its
// actions.
func (w *Worker) destination(t *task, f handoff.DestinationFact) handoff.Result {
	now := w.now()
	t.m.fact(f.Kind, now)
	if f.Kind == handoff.FactTransferQuiesced || f.Kind == handoff.FactReceiveCompleted {
		w.quiet(t) // before the machine, which may activate or release the memory now
	}
	mark := len(w.destinationActions)
	actions, result, err := t.dst.Apply(now, f, w.destinationActions)
	w.destinationActions = actions
	fresh := actions[mark:]
	w.record(handoff.Record{
		Role: handoff.RoleDestination, Handoff: t.id, Request: t.request, Now: now, Result: result, Err: errText(err),
		State: t.dst.State().String(), DestinationFact: &f, DestinationActions: fresh,
	})
	if err != nil {
		w.refusedFact(t, err)
	}
	for i := range fresh {
		w.executeDestination(t, fresh[i])
	}
	w.destinationActions = w.destinationActions[:mark]
	if t.dst.State() == handoff.DestinationReleased {
		w.ended(t, t.dst.Outcome())
	}
	return result
}

func (w *Worker) executeSource(t *task, a handoff.SourceAction) {
	switch a.Kind {
	case handoff.ActionDispatchPrefill:
		w.dispatchPrefill(t, a.Reuse)
	case handoff.ActionStopPrefill:
		w.stopPrefill(t)
	case handoff.ActionOpenStream:
		w.openStream(t, a.SkipTokens)
	case handoff.ActionSendFinal:
		w.sendFinal(t)
	case handoff.ActionAbortStream:
		w.abortSend(t, a.Force)
	case handoff.ActionRevokeTicket:
		w.revokeOffer(t)
	case handoff.ActionReportStatus:
		w.report(t, report{kind: a.Report, outcome: a.Outcome, cause: a.Cause, reason: a.Reason, never: a.Never})
	case handoff.ActionReleaseSource:
		w.releaseTask(t)
	case handoff.ActionWakeAt:
		w.wakeAt(t, a.At)
	}
}

func (w *Worker) executeDestination(t *task, a handoff.DestinationAction) {
	switch a.Kind {
	case handoff.ActionReserveDestination:
		w.reserveRoom(t, &a)
	case handoff.ActionStartReceive:
		w.startReceive(t)
	case handoff.ActionActivateDestination:
		w.activate(t)
	case handoff.ActionAckCommit:
		w.ackCommit(t)
	case handoff.ActionAbortStream:
		w.abortReceive(t, a.Force)
	case handoff.ActionRevokeTicket:
		w.revokeTicket(t)
	case handoff.ActionReportStatus:
		w.report(t, report{kind: a.Report, outcome: a.Outcome, cause: a.Cause, reason: a.Reason, never: a.Never})
	case handoff.ActionReleaseDestination:
		w.releaseTask(t)
	case handoff.ActionWakeAt:
		w.wakeAt(t, a.At)
	}
}

// later queues a fact that executing an action brought about, so that a machine
// is never told a fact while the actions of another one are still being
// executed.
func (w *Worker) later(fn func()) { w.followUps = append(w.followUps, fn) }

// wakeAt replaces the machine's timer.
func (w *Worker) wakeAt(t *task, at time.Duration) {
	t.wakes++
	wake := t.wakes
	w.alarms.set(at, func() {
		if wake != t.wakes {
			return
		}
		if t.side == sideSource {
			w.source(t, handoff.SourceFact{Kind: handoff.FactLeaseExpired})
		} else {
			w.destination(t, handoff.DestinationFact{Kind: handoff.FactReservationExpired})
		}
	})
}

// tell passes a fact that both machines know to whichever the task has.
func (w *Worker) tell(t *task, kind handoff.FactKind, reason handoff.Reason) {
	if t.side == sideDestination {
		w.destination(t, handoff.DestinationFact{Kind: kind, Reason: reason})
		return
	}
	f := handoff.SourceFact{Kind: kind, Reason: reason}
	if kind == handoff.FactCancelled {
		f.Reader = handoff.All // a lost gateway is that of all readers anyway
	}
	w.source(t, f)
}

// refusedFact reports a fact that a machine called impossible: a defect of this
// host or a lie of a peer. The handoff's deadlines end it.
func (w *Worker) refusedFact(t *task, err error) {
	w.cfg.Log.Warn("fact refused", "handoff", t.id.String(), "error", err)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
