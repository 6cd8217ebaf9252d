package gateway

import (
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/route"
	"github.com/tandem-llm/tandem/telemetry"
)

// statuses takes one message of a worker.
func (g *Gateway) statuses(s *buspb.Statuses) {
	from := route.Target{Worker: s.GetWorker(), Incarnation: s.GetIncarnation()}
	for _, st := range s.GetStatuses() {
		var id handoff.ID
		if len(st.GetHandoff()) != len(id) {
			g.metrics.Status(telemetry.StatusUnknown)
			continue
		}
		copy(id[:], st.GetHandoff())
		g.mu.Lock()
		q := g.requests[id]
		g.mu.Unlock()
		if q == nil {
			// Of an earlier life of this gateway, whose workers end what they own
			// by their own deadlines, or long over. Acknowledge, so that it is not
			// repeated for ever.
			g.metrics.Status(telemetry.StatusUnknown)
			if s.GetGatewayIncarnation() == g.cfg.Incarnation {
				g.acks.add(from, id, st.GetSide(), st.GetSeq(), st.GetTokens().GetFrom()+uint32(len(st.GetTokens().GetTokens())))
			}
			continue
		}
		q.status(from, id, st)
	}
}

// status takes one fact that a worker reports about an attempt of this request, tells the machine,
// and acknowledges.
func (q *request) status(from route.Target, id handoff.ID, st *buspb.Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.attempt(id)
	side := handoff.Role(st.GetSide())
	if a == nil || side != handoff.RoleSource && side != handoff.RoleDestination || a.target(side) != from {
		// A worker that this attempt was never given to, or an old life of one:
		// nothing it says counts.
		q.g.metrics.Status(telemetry.StatusUnknown)
		return
	}
	result := telemetry.StatusApplied
	switch {
	case a.seen[side].has(st.GetSeq()): // first: a repetition of a fenced status must not be answered with another cancel
		result = telemetry.StatusDuplicate
	case id != q.machine.Handoff() && (q.holder == nil || q.holder.id != id) || q.done():
		result = telemetry.StatusFenced
	}
	if result == telemetry.StatusDuplicate || q.told(a, side, st) {
		a.seen[side].add(st.GetSeq())
		if st.GetTokens() != nil && a.gap[side] { // filled: what came behind it is wanted again
			a.gap[side] = false
			q.query(a, side)
		}
	} else {
		result = telemetry.StatusGap
		q.missing(a, side)
	}
	q.g.metrics.Status(result)
	q.g.acks.add(from, id, st.GetSide(), a.seen[side].below, uint32(q.machine.Next()))
}

// askPause is the least time between two questions for missing tokens.
const askPause = 250 * time.Millisecond

// missing asks a worker to send again what was not acknowledged: tokens came before others that are
// late or lost. Every status behind the gap tells of it, and the answer to each question is all of
// them, so it asks again only after a pause: a question for each would multiply without end.
func (q *request) missing(a *attempt, side handoff.Role) {
	a.gap[side] = true
	if a.asked[side] {
		return
	}
	a.asked[side] = true
	q.query(a, side)
	time.AfterFunc(askPause, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		a.asked[side] = false
		if a.gap[side] && !a.over && !q.done() {
			q.missing(a, side)
		}
	})
}

// told turns a status into facts. It reports false when tokens before these are missing, so that the
// status must come again. mu is held.
func (q *request) told(a *attempt, side handoff.Role, st *buspb.Status) bool {
	f := handoff.RequestFact{Handoff: a.id, Side: side}
	switch b := st.GetBody().(type) {
	case *buspb.Status_Reserved:
		a.reserved = true
		if a.skip = b.Reserved.GetSkipTokens(); a.policy == handoff.DestinationFirst {
			a.endpoint, a.ticket = b.Reserved.GetEndpoint(), b.Reserved.GetTicket()
		}
		if a.record != nil {
			a.record.Gateway.Reserved = q.since(q.g.now())
		}
		f.Kind = handoff.FactReserved
	case *buspb.Status_Refused:
		t := a.target(side)
		a.failed(b.Refused.GetCode())
		q.refusedBy(t, b.Refused.GetCode())
		q.note(workerError(b.Refused.GetCode()))
		q.avoid = append(q.avoid, t)
		f.Kind = handoff.FactReserveRefused
		f.Never = b.Refused.GetNever() && !q.done() && q.nobodyElse(t)
	case *buspb.Status_Pinned:
		a.pinned = true
		if a.policy == handoff.SourceFirst {
			a.endpoint, a.ticket = b.Pinned.GetEndpoint(), b.Pinned.GetTicket()
		}
		q.counted(b.Pinned.GetUsage())
		f.Kind = handoff.FactPrefillPinned
	case *buspb.Status_Tokens:
		return q.tokens(a, side, b.Tokens)
	case *buspb.Status_StreamFailed:
		if a.id != q.machine.Handoff() {
			return true // given up already; its source stays pinned, and may be taken over
		}
		f.Kind, f.Phase = handoff.FactFailed, handoff.PhaseTransfer
		q.failed(a, side, b.StreamFailed.GetCode())
	case *buspb.Status_Committed:
		if d := a.record; d != nil {
			d.committed, d.Gateway.Committed = true, q.since(q.g.now())
			q.measured(a, side, b.Committed.GetAttribution(), false)
		}
		f.Kind = handoff.FactCommitted
	case *buspb.Status_Ended:
		return q.ended(a, side, b.Ended)
	case *buspb.Status_Released:
		if side != handoff.RoleSource {
			return true // nothing is booked on a destination after it ended
		}
		f.Kind, f.Outcome = handoff.FactSourceReleased, handoff.Outcome(b.Released.GetOutcome())
	default:
		return true // of a newer release: safe to ignore
	}
	q.apply(f)
	return true
}

// tokens forwards what is next and drops what the client has. At least one fact reaches the machine,
// also when all tokens are known: a destination's first message commits, and one of an abandoned
// attempt is answered with cancel.
func (q *request) tokens(a *attempt, side handoff.Role, t *buspb.Tokens) bool {
	q.counted(t.GetUsage())
	if side == handoff.RoleDestination && a.record != nil {
		a.record.committed = true // nobody decodes without
	}
	list, told := t.GetTokens(), false
	for i, tok := range list {
		index := int(t.GetFrom()) + i
		last := i == len(list)-1
		current := a.id == q.machine.Handoff() && !q.done()
		if (index < q.machine.Next() || !current) && !(last && !told) {
			continue
		}
		f := handoff.RequestFact{Kind: handoff.FactTokenOut, Handoff: a.id, Side: side, Index: index}
		if last {
			f.Finish = handoff.Finish(t.GetFinish())
		}
		gap := current && index > q.machine.Next()
		q.incoming = tok
		q.apply(f)
		q.incoming = nil
		told = true
		if gap {
			return false
		}
	}
	return true
}

// ended takes the outcome of one side. Success is no news: the last token said so, and where it was
// lost it comes again. Everything else fails the attempt.
func (q *request) ended(a *attempt, side handoff.Role, e *buspb.Ended) bool {
	q.counted(e.GetUsage())
	defer q.measured(a, side, e.GetAttribution(), true)
	outcome := handoff.Outcome(e.GetOutcome())
	if outcome == handoff.OutcomeHandedOff || outcome == handoff.OutcomeFinishedAtSource || outcome == handoff.OutcomeCompleted {
		return true
	}
	f := handoff.RequestFact{
		Kind: handoff.FactFailed, Handoff: a.id, Side: side, Outcome: outcome, Phase: q.phase(a, side, e.GetCode()),
	}
	q.failed(a, side, e.GetCode())
	f.Never = e.GetNever() && !q.done() && q.nobodyElse(a.target(side))
	q.apply(f)
	return true
}

// failed notes a worker's failure for the client, the next placement and the log.
func (q *request) failed(a *attempt, side handoff.Role, code buspb.Code) {
	if q.done() || a.id != q.machine.Handoff() {
		return
	}
	t := a.target(side)
	a.failed(code)
	q.note(workerError(code))
	q.avoid = append(q.avoid, t)
	q.g.cfg.Log.Warn("an attempt failed", "request", q.key, "worker", t.Worker, "side", side.String(), "code", code.String())
}

// phase says where an attempt was when a side of it ended.
func (q *request) phase(a *attempt, side handoff.Role, code buspb.Code) handoff.Phase {
	return q.machine.FailedIn(side, a.reserved, a.pinned, code == buspb.Code_CODE_TRANSFER)
}

// counted keeps the first count of the prompt: of the worker that computed it for this request.
func (q *request) counted(u *buspb.Usage) {
	if u.GetPrompt() > 0 && q.usage.prompt == 0 {
		q.usage = promptUsage{prompt: int(u.GetPrompt()), cached: int(min(u.GetCached(), u.GetPrompt()))}
	}
}

// sequence is the set of status numbers that are known, from 1. Numbers far ahead are not kept: they
// come again.
type sequence struct {
	below uint64 // all numbers up to this are known
	ahead map[uint64]struct{}
}

// maxAhead bounds what is kept of numbers behind a gap.
const maxAhead = 256

func (s *sequence) has(n uint64) bool {
	_, ahead := s.ahead[n]
	return n != 0 && n <= s.below || ahead
}

func (s *sequence) add(n uint64) {
	if n <= s.below {
		return
	}
	if n > s.below+1 {
		if len(s.ahead) < maxAhead {
			if s.ahead == nil {
				s.ahead = make(map[uint64]struct{})
			}
			s.ahead[n] = struct{}{}
		}
		return
	}
	s.below = n
	for {
		if _, ok := s.ahead[s.below+1]; !ok {
			return
		}
		s.below++
		delete(s.ahead, s.below)
	}
}
