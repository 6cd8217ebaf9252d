package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/route"
)

const (
	// commandTry is how long one try of a command waits for its reply.
	commandTry = 3 * time.Second
	// commandPause is the pause before a command is repeated.
	commandPause = 250 * time.Millisecond
	// cancelLimit ends the repetition of a cancel that nobody answers although the
	// worker seems to live: its own deadlines free what it holds.
	cancelLimit = time.Minute
)

// reserve sends the reserve command. mu is held, as for all that follow.
func (q *request) reserve(a *attempt) {
	q.commanded(a, handoff.RoleDestination)
	q.dispatch(a, handoff.RoleDestination, handoff.PhaseReserve, func() *buspb.Command {
		forced := len(q.emitted)
		if a.policy == handoff.SourceFirst {
			forced = a.forced // tokens that came from this attempt are not part of its prompt
		}
		r := &buspb.Reserve{
			Terms:        q.terms(a),
			PromptTokens: uint32(len(q.prompt) + forced),
			ForcedTokens: uint32(forced),
			MaxTokens:    uint32(q.maxTokens),
		}
		if a.policy == handoff.SourceFirst {
			r.SourceEndpoint, r.SourceTicket = a.endpoint, a.ticket
		}
		if q.g.fleet.findsPrefixes(a.source, a.destination) { // nobody is told content without a use for it
			r.Tokens = q.input(forced)
		}
		return &buspb.Command{Body: &buspb.Command_Reserve{Reserve: r}}
	})
}

// prefill sends the prefill command, with the reservation.
func (q *request) prefill(a *attempt, act handoff.RequestAction) {
	forced := act.Index
	a.forced = forced
	q.commanded(a, handoff.RoleSource)
	q.dispatch(a, handoff.RoleSource, handoff.PhasePrefill, func() *buspb.Command {
		p := &buspb.Prefill{Terms: q.terms(a), Generation: q.generation(forced)}
		if a.policy == handoff.DestinationFirst {
			p.DestinationEndpoint, p.DestinationTicket, p.SkipTokens = a.endpoint, a.ticket, a.skip
		}
		if !act.Reuse.IsZero() {
			p.Reuse = act.Reuse[:]
		}
		return &buspb.Command{Body: &buspb.Command_Prefill{Prefill: p}}
	})
}

// run sends the run command of a colocated request.
func (q *request) run(a *attempt, act handoff.RequestAction) {
	forced := act.Index
	q.commanded(a, handoff.RoleSource)
	q.dispatch(a, handoff.RoleSource, handoff.PhasePrefill, func() *buspb.Command {
		return &buspb.Command{Body: &buspb.Command_Run{Run: &buspb.Run{
			Terms: q.terms(a), Generation: q.generation(forced),
		}}}
	})
}

// generation is the prompt with the forced tokens behind it, and how to go on.
func (q *request) generation(forced int) *buspb.Generation {
	p := q.params
	return &buspb.Generation{
		Tokens: q.input(forced), ForcedTokens: uint32(forced), Sampling: p.GetSampling(), Stop: p.GetStop(),
		MaxTokens: uint32(q.maxTokens), MinTokens: p.GetMinTokens(), IgnoreEos: p.GetIgnoreEos(),
		Logprobs: p.GetLogprobs(), TopLogprobs: p.GetTopLogprobs(),
	}
}

// input is the prompt with the forced tokens behind it. The caller may keep it.
func (q *request) input(forced int) []int32 {
	tokens := make([]int32, 0, len(q.prompt)+forced)
	return append(append(tokens, q.prompt...), q.emitted[:forced]...)
}

// cancel sends a cancel until it is answered or the worker is gone.
func (q *request) cancel(a *attempt, act handoff.RequestAction) {
	a.over = true
	if q.holder == a {
		q.holder = nil
	}
	if a.cancelling[act.Side] {
		return // one is on its way, and is repeated
	}
	a.cancelling[act.Side] = true
	cmd := &buspb.Command{Body: &buspb.Command_Cancel{Cancel: &buspb.Cancel{
		Reason: buspb.Reason(act.Reason), Side: buspb.Side(act.Side),
	}}}
	q.insist(a, act.Side, cmd, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		a.cancelling[act.Side] = false
	})
}

// relayCommit tells the source that its reader is complete: the copy of the destination's own
// acknowledgement, either of which releases it.
func (q *request) relayCommit(a *attempt) {
	q.insist(a, handoff.RoleSource, &buspb.Command{Body: &buspb.Command_ReaderCompleted{
		ReaderCompleted: &buspb.ReaderCompleted{Destination: peer(a.destination)},
	}}, func() {})
}

// renew extends a pinned source's lease. It is not repeated: the next one comes soon.
func (q *request) renew(a *attempt, act handoff.RequestAction) {
	cmd := q.address(a, handoff.RoleSource, &buspb.Command{Body: &buspb.Command_Renew{Renew: &buspb.Renew{
		Seq: act.Seq, ForMs: millis(act.For),
	}}})
	t := a.source
	q.g.spawn(func(ctx context.Context) { q.g.try(ctx, t, cmd) })
}

// query asks a worker to send again what was not acknowledged.
func (q *request) query(a *attempt, side handoff.Role) {
	cmd := q.address(a, side, &buspb.Command{Body: &buspb.Command_Query{Query: &buspb.Query{Side: buspb.Side(side)}}})
	t := a.target(side)
	q.g.spawn(func(ctx context.Context) { q.g.try(ctx, t, cmd) })
}

// address fills in what every command says.
func (q *request) address(a *attempt, side handoff.Role, cmd *buspb.Command) *buspb.Command {
	cmd.Handoff = append([]byte(nil), a.id[:]...)
	cmd.Request = q.key
	cmd.WorkerIncarnation = a.target(side).Incarnation
	return cmd
}

// dispatch sends a command that an attempt depends on, repeating it while no answer comes, for as
// long as the attempt wants it. build is called with mu held, once for each try, so that remaining
// times are right.
func (q *request) dispatch(a *attempt, side handoff.Role, phase handoff.Phase, build func() *buspb.Command) {
	t := a.target(side)
	cmd := q.address(a, side, build())
	q.g.spawn(func(ctx context.Context) {
		began := q.g.now()
		for {
			reply, err := q.g.try(ctx, t, cmd)
			q.mu.Lock()
			if a.over || q.done() {
				q.mu.Unlock()
				return
			}
			if err == nil {
				q.replied(a, side, phase, reply)
				q.mu.Unlock()
				return
			}
			if ctx.Err() != nil || !again(err) || !q.g.patient(q.g.now()-began, err) {
				if errors.Is(err, bus.ErrNoWorker) {
					q.g.fleet.suspect(t)
				}
				q.note(commandError(err))
				a.unheard(commandError(err).Code)
				q.avoid = append(q.avoid, t)
				q.apply(handoff.RequestFact{Kind: handoff.FactFailed, Handoff: a.id, Side: side, Phase: phase})
				q.mu.Unlock()
				return
			}
			q.mu.Unlock()
			if !pause(ctx, commandPause) {
				continue // the next try ends at once, with the reason
			}
			q.mu.Lock()
			if a.over || q.done() {
				q.mu.Unlock()
				return
			}
			cmd = q.address(a, side, build())
			q.mu.Unlock()
		}
	})
}

// replied takes the answer to a dispatched command. A worker that accepted reports by status. mu is
// held.
func (q *request) replied(a *attempt, side handoff.Role, phase handoff.Phase, r *buspb.Reply) {
	f := handoff.RequestFact{Kind: handoff.FactFailed, Handoff: a.id, Side: side, Phase: phase}
	switch r.GetVerdict() {
	case buspb.Verdict_VERDICT_ACCEPTED, buspb.Verdict_VERDICT_DUPLICATE:
		q.heard(a, side, 0)
		return
	case buspb.Verdict_VERDICT_RELEASED:
		// It ended before: a repeated command, and the statuses that tell why are on
		// their way or lost.
		f.Outcome = handoff.Outcome(r.GetOutcome())
		if f.Outcome == handoff.OutcomeCompleted || f.Outcome == handoff.OutcomeHandedOff || f.Outcome == handoff.OutcomeFinishedAtSource {
			return
		}
	default:
		a.failed(r.GetCode())
		if a.record != nil {
			a.record.owed[side] = false // nothing was made there
		}
		q.refusedBy(a.target(side), r.GetCode())
		if r.GetCode() == buspb.Code_CODE_RESTARTED {
			// Another process has the name already and will announce itself: there is
			// nothing to choose this one for again until then.
			q.g.fleet.suspect(a.target(side))
		} else {
			f.Never = !r.GetRetry() && q.nobodyElse(a.target(side))
		}
		f.Outcome, f.Refused = handoff.OutcomeFailed, true // nothing is held there
		q.refuser = a.target(side)
	}
	q.note(workerError(r.GetCode()))
	q.avoid = append(q.avoid, a.target(side))
	q.apply(f)
}

// refusedBy notes a refusal for the log; its code is enough, the text is for the worker's log.
func (q *request) refusedBy(t route.Target, code buspb.Code) {
	q.g.cfg.Log.Warn("a worker refused", "request", q.key, "worker", t.Worker, "code", code.String())
}

// nobodyElse excludes a worker that can never serve the request and reports whether the request
// cannot be served without it. mu is held.
func (q *request) nobodyElse(t route.Target) bool {
	q.exclude = append(q.exclude, t)
	return q.g.fleet.check(q.mode, q.placing()) != nil
}

// insist repeats a command until it is answered, the worker is gone, or the limit is reached,
// whatever becomes of the request. Then it calls ended.
func (q *request) insist(a *attempt, side handoff.Role, cmd *buspb.Command, ended func()) {
	cmd = q.address(a, side, cmd)
	g, t := q.g, a.target(side)
	g.spawn(func(ctx context.Context) {
		defer ended()
		for began := g.now(); g.now()-began < cancelLimit; {
			_, err := g.try(ctx, t, cmd)
			if err == nil || ctx.Err() != nil || !again(err) && !errors.Is(err, bus.ErrNoWorker) || !g.fleet.live(t) {
				return
			}
			if !pause(ctx, commandPause) {
				return
			}
		}
	})
}

// try sends a command once.
func (g *Gateway) try(ctx context.Context, t route.Target, cmd *buspb.Command) (*buspb.Reply, error) {
	g.mu.Lock()
	link := g.link
	g.mu.Unlock()
	if link == nil {
		return nil, errNoLink
	}
	ctx, cancel := context.WithTimeout(ctx, commandTry)
	defer cancel()
	return link.Command(ctx, t.Worker, cmd)
}

var errNoLink = errors.New("gateway: not running yet")

// spawn runs a function that sends commands, until shutdown ends its context.
func (g *Gateway) spawn(f func(ctx context.Context)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.commands.Err() != nil {
		return
	}
	g.senders++
	go func() {
		defer func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.senders--
		}()
		f(g.commands)
	}()
}

// again reports whether repeating a command may help.
func again(err error) bool {
	return errors.Is(err, bus.ErrTimeout) || errors.Is(err, bus.ErrDisconnected) || errors.Is(err, context.DeadlineExceeded)
}

// patient reports whether an unanswered command is repeated after it has been tried for so long.
func (g *Gateway) patient(d time.Duration, err error) bool {
	if errors.Is(err, bus.ErrDisconnected) {
		return d < g.cfg.BusWait
	}
	return d < g.cfg.CommandWait
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func peer(t route.Target) *buspb.Peer {
	return &buspb.Peer{Worker: t.Worker, Incarnation: t.Incarnation}
}

// commandError is what the client is told when a command could not be delivered.
func commandError(err error) *openai.Error {
	if errors.Is(err, bus.ErrDisconnected) {
		return errBusDown()
	}
	if errors.Is(err, bus.ErrTooLarge) {
		return &openai.Error{
			Status: http.StatusRequestEntityTooLarge, Type: openai.TypeInvalidRequest, Code: openai.CodeTooLarge,
			Message: "The request is too large for the bus between gateway and workers.",
		}
	}
	return errWorkerFailed()
}
