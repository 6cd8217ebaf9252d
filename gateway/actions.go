package gateway

import (
	"math/rand/v2"
	"time"

	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/telemetry"
)

// execute does what the machine decided. It never blocks and never fails: what cannot be done comes
// back as a fact. mu is held.
func (q *request) execute(a handoff.RequestAction) {
	switch a.Kind {
	case handoff.ActionWakeAt:
		q.wakeAt(a.At)
	case handoff.ActionBook:
		q.book(a)
	case handoff.ActionUnbook:
		if err := q.g.fleet.unbook(a.Handoff, a.Booking); err != nil {
			q.g.cfg.Log.Error("a booking could not be ended", "request", q.key, "error", err)
		}
	case handoff.ActionReserve:
		q.reserve(q.attempt(a.Handoff))
	case handoff.ActionPrefill:
		q.prefill(q.attempt(a.Handoff), a)
	case handoff.ActionRunColocated:
		q.run(q.attempt(a.Handoff), a)
	case handoff.ActionMoveAffinity:
		q.relayCommit(q.attempt(a.Handoff))
	case handoff.ActionRenewLease:
		q.renew(q.attempt(a.Handoff), a)
	case handoff.ActionCancel:
		q.cancel(q.attempt(a.Handoff), a)
	case handoff.ActionRetry:
		q.retry(a)
	case handoff.ActionForward:
		q.forward()
	case handoff.ActionFinish:
		q.finish(a)
	default:
		q.g.cfg.Log.Error("the machine asked for an action that this gateway does not know", "action", a.Kind.String())
	}
}

// wakeAt replaces the machine's timer.
func (q *request) wakeAt(at time.Duration) {
	if q.timer != nil {
		q.timer.Stop()
	}
	q.timeAt = at
	q.timer = time.AfterFunc(max(0, at-q.g.now()), func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.timeAt == at && !q.done() {
			q.apply(handoff.RequestFact{Kind: handoff.FactDeadlineReached})
		}
	})
}

// book enters a booking for the worker that the placement chose.
func (q *request) book(act handoff.RequestAction) {
	a := q.attempt(act.Handoff)
	side, tokens := handoff.RoleSource, len(q.prompt)+q.maxTokens
	switch act.Booking {
	case handoff.BookDecode:
		side = handoff.RoleDestination
	case handoff.BookPrefill:
		tokens = len(q.prompt) + len(q.emitted)
	}
	if err := q.g.fleet.book(a.id, act.Booking, a.target(side), tokens); err != nil {
		q.g.cfg.Log.Error("a booking could not be made", "request", q.key, "error", err)
		q.apply(handoff.RequestFact{Kind: handoff.FactFailed, Handoff: a.id, Side: side, Phase: handoff.PhaseBook})
		return
	}
	q.apply(handoff.RequestFact{Kind: handoff.FactBooked, Handoff: a.id, Booking: act.Booking})
}

// retry places the request again. Workers of the failed attempt are avoided.
func (q *request) retry(act handoff.RequestAction) {
	reason := telemetry.RetryFailed
	switch {
	case act.Phase == handoff.PhaseDecode:
		reason = telemetry.RetryRecompute
	case act.Outcome == handoff.OutcomePeerLost:
		reason = telemetry.RetryWorkerLost
	case act.Phase == handoff.PhaseReserve:
		reason = telemetry.RetryRefused
	}
	q.g.metrics.Retried(reason)
	q.why = reason
	q.g.cfg.Log.Info("request retried", "request", q.key, "why", string(reason), "phase", act.Phase.String(), "tokens", act.Index)
	// Between half of the pause and all of it: requests that a worker failed together
	// do not come back together.
	q.resumeAt = q.g.now() + act.Pause/2 + rand.N(act.Pause/2+1)
	q.holder = nil
	if act.ReuseSource {
		q.holder = q.attempt(act.Reuse)
	}
	for _, a := range q.attempts {
		a.over = true
	}
	if a := q.attempts[len(q.attempts)-1]; a.record != nil && a.record.Failure == nil { // nobody failed: patience ended
		a.record.Failure = &telemetry.Failure{Phase: act.Phase.String(), Code: "no_progress"}
	}
	for _, a := range q.attempts {
		q.closeRecord(a, telemetry.EndedFailed)
	}
	q.place()
}

// forward gives the incoming token to the client.
func (q *request) forward() {
	t := q.incoming
	now := q.g.now()
	if len(q.emitted) == 0 {
		q.firstAt = now
		q.g.metrics.FirstToken(q.served, now-q.arrival)
	} else {
		q.g.metrics.NextToken(q.served, now-q.lastAt)
	}
	q.lastAt = now
	q.tokenSeen(now)
	q.emitted = append(q.emitted, t.GetId())
	var l openai.Logprob
	if q.params.GetLogprobs() {
		l = openai.Logprob{Piece: t.GetPiece(), Logprob: t.GetLogprob()}
		for _, o := range t.GetTop() {
			l.Top = append(l.Top, openai.Logprob{Piece: o.GetPiece(), Logprob: o.GetLogprob()})
		}
	}
	r := q.asm.feed(t.GetPiece(), l)
	if q.tokenIDs {
		r.ids = []int32{t.GetId()}
	}
	if !q.put(r) {
		q.note(errSlowClient())
		q.apply(handoff.RequestFact{Kind: handoff.FactClientGone})
	}
}

// put passes text on to the client's buffer. A client that let it fill up loses the request.
func (q *request) put(r released) bool {
	return r.empty() || q.out.put(openai.Delta{
		Index: q.index, Text: r.text, Asked: q.asm.asked, Logprobs: r.logprobs, Offset: r.offset, TokenIDs: r.ids,
	})
}

// finish ends the client's request: the machine has ended everything else.
func (q *request) finish(act handoff.RequestAction) {
	g, now := q.g, q.g.now()
	if q.timer != nil {
		q.timer.Stop()
	}
	q.stopWaiting()
	for _, a := range q.attempts {
		a.over, a.ticket = true, nil
	}
	end := ending{index: q.index, tokens: len(q.emitted), prompt: q.usage}
	if end.prompt.prompt == 0 {
		end.prompt.prompt = len(q.prompt)
	}
	outcome := telemetry.Failed
	switch act.Status {
	case handoff.StatusCompleted:
		end.finish, outcome = openai.FinishStop, telemetry.Stopped
		if act.Finish == handoff.FinishLength {
			end.finish, outcome = openai.FinishLength, telemetry.Length
		}
		if !q.put(q.asm.finish()) {
			end.finish, end.err, outcome = "", errSlowClient(), telemetry.Cancelled
		}
	case handoff.StatusCancelled:
		q.note(errClientGone())
		end.err, outcome = q.failure, telemetry.Cancelled
	case handoff.StatusTimeout:
		end.err, outcome = errDeadline(), telemetry.Expired
	default:
		q.note(errWorkerFailed())
		end.err = q.failure
	}
	q.out.end(end)
	if q.served == "" {
		q.served = telemetry.Unplaced
	}
	g.metrics.RequestEnded(q.served, outcome, now-q.arrival)
	g.metrics.Tokens(end.prompt.prompt, end.prompt.cached, end.tokens)
	r := telemetry.Request{
		Key: q.key, Arrived: g.epoch.Add(q.arrival).Round(0), Mode: q.served, Outcome: outcome, Attempts: len(q.attempts),
		Prompt: end.prompt.prompt, Cached: end.prompt.cached, Completion: end.tokens,
		Admitted: q.since(q.admitted), Total: q.since(now),
	}
	if end.tokens > 0 {
		r.TTFT = q.since(q.firstAt)
	}
	if end.tokens > 1 {
		r.TPOT = (q.lastAt - q.firstAt) / time.Duration(end.tokens-1)
		g.metrics.PerToken(q.served, r.TPOT)
	}
	g.cfg.Log.Info("request ended", "request", q.key, "outcome", string(outcome), "mode", string(q.served),
		"prompt_tokens", end.prompt.prompt, "completion_tokens", end.tokens, "attempts", len(q.attempts), "took", now-q.arrival)
	// Content lives no longer than the request, which is fenced for minutes. The answer too: what
	// a client that went away did not read is still in the outbox.
	q.prompt, q.keys, q.emitted, q.asm, q.params, q.out = nil, nil, nil, nil, nil, nil
	g.finished(q)
	q.recorded(r)
}

// terms are the same on both workers of an attempt.
func (q *request) terms(a *attempt) *buspb.Terms {
	t := &buspb.Terms{
		Tenant:      q.tenant,
		BudgetMs:    millis(q.deadline - a.placed),
		RemainingMs: millis(q.deadline - q.g.now()),
		Policy:      buspb.Policy(a.policy),
		Source:      peer(a.source),
	}
	if !a.destination.IsZero() {
		t.Destination = peer(a.destination)
	}
	return t
}

// millis rounds up, so that a positive duration is never 0.
func millis(d time.Duration) uint64 {
	return uint64(max(0, (d+time.Millisecond-1)/time.Millisecond))
}
