package worker

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/telemetry"
)

// execute runs one command of a gateway, which came at the given time, on the owner
// goroutine. Commands are idempotent by handoff id.
func (w *Worker) execute(c *buspb.Command, came time.Duration) *buspb.Reply {
	w.came = came
	w.gatewaySeen(c.Gateway, c.GatewayIncarnation, false)
	if c.GatewayIncarnation < w.gateways[c.Gateway].incarnation {
		// Sent before the gateway was restarted, and overtaken by its new life: nobody is
		// left to hear of what it would start, or to cancel it.
		return refused(buspb.Code_CODE_BAD_REQUEST, false, "the gateway was restarted since")
	}
	if acks := c.GetAcks(); acks != nil {
		w.acks(acks)
		return accepted()
	}
	if c.WorkerIncarnation != 0 && c.WorkerIncarnation != w.cfg.Incarnation {
		return refused(buspb.Code_CODE_RESTARTED, true, "the worker was restarted")
	}
	id, err := parseID(c.Handoff)
	if err != nil {
		return refused(buspb.Code_CODE_BAD_REQUEST, false, err.Error())
	}
	if len(c.Request) > bus.MaxText { // it is part of every announcement, which has this limit
		return refused(buspb.Code_CODE_BAD_REQUEST, false, "the request's name is too long")
	}
	t := w.tasks[id]
	if t != nil && (t.gateway.name != c.Gateway || t.request != c.Request) {
		return refused(buspb.Code_CODE_CONFLICT, false, "the handoff belongs to another request")
	}
	if t == nil {
		if released := w.unacked[id]; released != nil && c.GetQuery() != nil {
			w.resend(released)
		}
		if outcome, ok := w.tombs.Lookup(w.now(), id); ok {
			return &buspb.Reply{Verdict: buspb.Verdict_VERDICT_RELEASED, Outcome: buspb.Outcome(outcome)}
		}
	}
	switch body := c.Body.(type) {
	case *buspb.Command_Reserve:
		return w.reserve(c, id, t, body.Reserve)
	case *buspb.Command_Prefill:
		p := body.Prefill
		return w.prefill(c, id, t, p.Terms, p.Generation, p)
	case *buspb.Command_Run:
		return w.prefill(c, id, t, body.Run.Terms, body.Run.Generation, nil)
	case *buspb.Command_Cancel:
		return w.cancel(c, id, t, body.Cancel)
	}
	if t == nil {
		return refused(buspb.Code_CODE_UNKNOWN, false, "no such handoff here")
	}
	switch body := c.Body.(type) {
	case *buspb.Command_Renew:
		if t.side == sideSource && body.Renew.ForMs > 0 {
			w.source(t, handoff.SourceFact{Kind: handoff.FactLeaseRenewed, Seq: body.Renew.Seq, For: millis(body.Renew.ForMs)})
		}
	case *buspb.Command_ReaderCompleted:
		if t.side == sideSource {
			t.m.fact(handoff.FactReaderCompleted, came)
			w.source(t, handoff.SourceFact{Kind: handoff.FactReaderCompleted, Incarnation: body.ReaderCompleted.GetDestination().GetIncarnation()})
		}
	case *buspb.Command_PeerLost:
		w.peerLost(t, body.PeerLost.GetPeer())
	case *buspb.Command_Query:
		w.resend(t)
	default:
		return refused(buspb.Code_CODE_UNSUPPORTED, false, "this build does not know the command")
	}
	return w.answer(t, buspb.Verdict_VERDICT_ACCEPTED)
}

// admissible checks what every creating command needs, and returns nil or the
// refusal.
func (w *Worker) admissible(id handoff.ID, t *task, s side, terms *buspb.Terms) *buspb.Reply {
	switch {
	case t != nil && t.side == s:
		w.resend(t)
		return w.answer(t, buspb.Verdict_VERDICT_DUPLICATE)
	case t != nil:
		return refused(buspb.Code_CODE_CONFLICT, false, "the handoff has its other side on this worker")
	case s == sideSource && !w.cfg.Role.computesPrompts():
		return refused(buspb.Code_CODE_WRONG_ROLE, false, "a worker in role decode computes no prompts")
	case s == sideDestination && !w.cfg.Role.receives():
		return refused(buspb.Code_CODE_WRONG_ROLE, false, "a worker in role prefill receives no state")
	case w.mem.waiting() >= w.cfg.MaxWaiting:
		return refused(buspb.Code_CODE_OVERLOADED, true, "too many tasks wait for a slot")
	case terms.GetRemainingMs() == 0 || terms.GetRemainingMs() > maxBudgetMs || terms.GetBudgetMs() > maxBudgetMs:
		return refused(buspb.Code_CODE_BAD_REQUEST, false, "the remaining time is missing or longer than a week")
	}
	if err := w.tombs.Admit(w.now(), id); err != nil {
		return refused(buspb.Code_CODE_TOO_OLD, true, err.Error())
	}
	if w.draining {
		return refused(buspb.Code_CODE_DRAINING, true, "the worker is going down")
	}
	return nil
}

// handsOver reports whether the handoff of that id holds a finished prompt here: a worker that is
// going down lets another attempt take it over, which ends what it holds sooner.
func (w *Worker) handsOver(reuse []byte) bool {
	id, err := parseID(reuse)
	t := w.tasks[id]
	return err == nil && t != nil && t.side == sideSource &&
		(t.src.State() == handoff.SourcePinned || t.src.State() == handoff.SourceAwaitingReader)
}

// maxBudgetMs bounds deadlines, so that adding one to the time cannot overflow.
const maxBudgetMs = 7 * 24 * 3600 * 1000

// newTask makes a task that holds nothing yet.
func (w *Worker) newTask(c *buspb.Command, id handoff.ID, s side) *task {
	t := &task{
		id: id, request: c.Request, side: s, ref: -1, slot: -1, arrived: w.came,
		gateway: gatewayID{name: c.Gateway, incarnation: c.GatewayIncarnation},
	}
	w.tasks[id] = t
	w.hold(telemetry.HeldHandoffs, 1)
	return t
}

// bind gives a task the terms that both workers of the attempt know.
func (t *task) bind(terms *buspb.Terms) {
	t.tenant = terms.Tenant
	t.binding = state.Binding{
		Handoff: t.id, Request: t.request, Tenant: terms.Tenant, Deadline: millis(terms.BudgetMs),
		Source:      state.Peer{Worker: terms.Source.GetWorker(), Incarnation: terms.Source.GetIncarnation()},
		Destination: state.Peer{Worker: terms.Destination.GetWorker(), Incarnation: terms.Destination.GetIncarnation()},
	}
}

// reserve starts the destination side of a handoff.
func (w *Worker) reserve(c *buspb.Command, id handoff.ID, t *task, r *buspb.Reserve) *buspb.Reply {
	if reply := w.admissible(id, t, sideDestination, r.Terms); reply != nil {
		return reply
	}
	policy, err := orderOf(r.Terms)
	switch {
	case err != nil:
		return refused(buspb.Code_CODE_BAD_REQUEST, false, err.Error())
	case policy == handoff.SourceFirst && (r.SourceEndpoint.GetQuic() == "" || len(r.SourceTicket) == 0):
		return refused(buspb.Code_CODE_BAD_REQUEST, false, "the source's address or ticket is missing")
	case r.PromptTokens == 0 || r.MaxTokens == 0 || r.ForcedTokens >= r.PromptTokens || len(r.Tokens) != 0 && len(r.Tokens) != int(r.PromptTokens):
		return refused(buspb.Code_CODE_BAD_REQUEST, false, "token counts do not fit together")
	case uint64(r.PromptTokens) > uint64(w.cfg.ContextTokens):
		return w.tooLong(uint64(r.PromptTokens))
	}
	t = w.newTask(c, id, sideDestination)
	t.bind(r.Terms)
	t.prompt, t.tokens = int(r.PromptTokens), r.Tokens
	t.most = mostTokens(t.prompt, int(r.ForcedTokens), int(r.MaxTokens), w.cfg.ContextTokens)
	if t.order = policy; policy == handoff.SourceFirst {
		t.endpoint, t.ticket = endpointOf(r.SourceEndpoint), r.SourceTicket
	}
	w.destination(t, handoff.DestinationFact{
		Kind: handoff.FactRouted, Policy: policy, Parts: 1,
		PromptTokens: t.prompt, Headroom: t.most - 1,
		Deadline: w.now() + millis(r.Terms.RemainingMs), Quarantine: w.cfg.Quarantine,
		Incarnation: t.binding.Source.Incarnation,
	})
	return w.begun(t)
}

// orderOf is the order of a handoff.
func orderOf(terms *buspb.Terms) (handoff.Policy, error) {
	switch terms.GetPolicy() {
	case buspb.Policy_POLICY_DESTINATION_FIRST:
		return handoff.DestinationFirst, nil
	case buspb.Policy_POLICY_SOURCE_FIRST:
		return handoff.SourceFirst, nil
	}
	return 0, errOrder
}

var errOrder = errors.New("a handoff is destination-first or source-first")

// begun answers a creating command. A task whose machine did not take it (its deadline
// may have passed just now) would have no timer that ends it, so it is not kept.
func (w *Worker) begun(t *task) *buspb.Reply {
	if t.src.State() == handoff.SourceNotStarted && t.dst.State() == handoff.DestinationNotRouted {
		delete(w.tasks, t.id)
		w.hold(telemetry.HeldHandoffs, -1)
		return refused(buspb.Code_CODE_BAD_REQUEST, true, "the command cannot be started any more")
	}
	return w.answer(t, buspb.Verdict_VERDICT_ACCEPTED)
}

// tooLong refuses a prompt, with forced tokens, that no sequence here can hold.
func (w *Worker) tooLong(tokens uint64) *buspb.Reply {
	return refused(buspb.Code_CODE_TOO_LONG, false, fmt.Sprintf("%d tokens, the context holds %d", tokens, w.cfg.ContextTokens))
}

// prefill starts the source side of a handoff, or with p nil a colocated
// request.
func (w *Worker) prefill(c *buspb.Command, id handoff.ID, t *task, terms *buspb.Terms, g *buspb.Generation, p *buspb.Prefill) *buspb.Reply {
	reply := w.admissible(id, t, sideSource, terms)
	if reply != nil && !(reply.Code == buspb.Code_CODE_DRAINING && w.handsOver(p.GetReuse())) {
		return reply
	}
	policy := handoff.Disabled
	if p != nil {
		var err error
		if policy, err = orderOf(terms); err != nil {
			return refused(buspb.Code_CODE_BAD_REQUEST, false, err.Error())
		}
		switch {
		case p.SkipTokens != 0 && policy == handoff.SourceFirst:
			return refused(buspb.Code_CODE_BAD_REQUEST, false, "source-first the destination itself says what it has")
		case int(p.SkipTokens) > len(g.GetTokens()) || p.SkipTokens > 0 && !w.eng.Paged():
			return refused(buspb.Code_CODE_BAD_REQUEST, false, "the destination cannot have so many tokens")
		}
		if terms.Destination.GetWorker() == "" {
			return refused(buspb.Code_CODE_BAD_REQUEST, false, "the destination is missing")
		}
	}
	var reuse handoff.ID
	if p != nil && len(p.Reuse) > 0 {
		var err error
		if reuse, err = parseID(p.Reuse); err != nil {
			return refused(buspb.Code_CODE_BAD_REQUEST, false, err.Error())
		}
	}
	if len(g.GetTokens()) > w.cfg.ContextTokens {
		return w.tooLong(uint64(len(g.Tokens)))
	}
	if g.GetMaxTokens() <= g.GetForcedTokens() {
		return refused(buspb.Code_CODE_BAD_REQUEST, false, "no token is left to generate")
	}
	gen, err := newGeneration(w.vocab, generationParams(g), samplingParams(g), g.Tokens, int(g.ForcedTokens), w.cfg.ContextTokens)
	if err != nil {
		return refused(buspb.Code_CODE_BAD_REQUEST, false, err.Error())
	}
	gen.sampler.Use(&w.workspace)
	t = w.newTask(c, id, sideSource)
	t.bind(terms)
	t.order = policy
	t.gen, t.prompt = gen, len(gen.history)
	t.usage.Prompt = uint32(gen.prompt)
	t.most = mostTokens(t.prompt, gen.emitted(), int(g.MaxTokens), w.cfg.ContextTokens)
	if policy == handoff.Disabled {
		t.binding.Destination = state.Peer{}
	}
	w.source(t, handoff.SourceFact{
		Kind: handoff.FactDispatched, Policy: policy, Parts: 1, Readers: 1,
		PromptTokens: t.prompt, MaxTokens: int(g.MaxTokens - g.ForcedTokens),
		Deadline: w.now() + millis(terms.RemainingMs), Quarantine: w.cfg.Quarantine, Reuse: reuse,
	})
	if policy == handoff.DestinationFirst && t.src.State() != handoff.SourceNotStarted {
		t.endpoint, t.ticket = endpointOf(p.DestinationEndpoint), p.DestinationTicket
		w.source(t, handoff.SourceFact{Kind: handoff.FactDestinationReady, Incarnation: t.binding.Destination.Incarnation, SkipTokens: int(p.SkipTokens)})
	}
	return w.begun(t)
}

// cancel ends a handoff, also one whose command has not come yet.
func (w *Worker) cancel(c *buspb.Command, id handoff.ID, t *task, body *buspb.Cancel) *buspb.Reply {
	if t == nil {
		if err := w.tombs.Admit(w.now(), id); err != nil {
			return refused(buspb.Code_CODE_TOO_OLD, false, err.Error())
		}
		s := sideSource
		if body.Side == buspb.Side_SIDE_DESTINATION {
			s = sideDestination
		}
		t = w.newTask(c, id, s)
	}
	w.tell(t, handoff.FactCancelled, handoff.Reason(body.Reason))
	return w.answer(t, buspb.Verdict_VERDICT_ACCEPTED)
}

// peerLost passes on that the other end of a handoff is gone for good.
func (w *Worker) peerLost(t *task, peer *buspb.Peer) {
	other := t.binding.Destination
	if t.side == sideDestination {
		other = t.binding.Source
	}
	if peer.GetWorker() != other.Worker {
		return
	}
	if t.side == sideSource {
		w.source(t, handoff.SourceFact{Kind: handoff.FactPeerLost, Reader: handoff.All, Incarnation: peer.Incarnation})
	} else {
		w.destination(t, handoff.DestinationFact{Kind: handoff.FactPeerLost, Part: handoff.All, Incarnation: peer.Incarnation})
	}
}

// acks drops statuses that the gateway knows.
func (w *Worker) acks(m *buspb.Acks) {
	for _, a := range m.Acks {
		id, err := parseID(a.Handoff)
		if err != nil {
			continue
		}
		if t := w.tasks[id]; t != nil {
			w.acknowledge(t, a.Seq)
		} else if t := w.unacked[id]; t != nil {
			w.acknowledge(t, a.Seq)
		}
	}
}

func (w *Worker) answer(t *task, v buspb.Verdict) *buspb.Reply {
	r := &buspb.Reply{Verdict: v, WorkerIncarnation: w.cfg.Incarnation, State: t.src.State().String()}
	if t.side == sideDestination {
		r.State = t.dst.State().String()
	}
	return r
}

func accepted() *buspb.Reply { return &buspb.Reply{Verdict: buspb.Verdict_VERDICT_ACCEPTED} }

func refused(code buspb.Code, retry bool, message string) *buspb.Reply {
	return &buspb.Reply{Verdict: buspb.Verdict_VERDICT_REFUSED, Code: code, Retry: retry, Message: message}
}

func millis(ms uint64) time.Duration {
	return time.Duration(min(ms, maxBudgetMs)) * time.Millisecond
}
