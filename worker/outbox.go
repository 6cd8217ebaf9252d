package worker

import (
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/sample"
)

// outbox keeps what a task told its gateway until the gateway has acknowledged
// it, also after the task is released: a status that is lost on the way is sent
// again, so no token and no outcome is lost.
type outbox struct {
	last     uint64          // number of the newest status
	pending  []*buspb.Status // not acknowledged, ascending
	waiting  time.Duration   // since when nothing new was acknowledged
	repeated time.Duration   // when pending was last sent again
	usageOut bool            // usage went out with the tokens of a colocated request
	problem  string          // why the task failed, for people; no content
	code     buspb.Code      // the same for programs
}

const (
	// resendAfter is how long the oldest status may wait for its acknowledgement
	// before it is sent again. Nothing depends on its exact value: statuses are
	// idempotent.
	resendAfter = time.Second
	// resendPause is the least time between two repetitions, however often the
	// gateway asks: it asks again for as long as it waits.
	resendPause = 100 * time.Millisecond
	// maxBurst bounds the statuses of one task that are sent again at once.
	maxBurst = 256
)

// blame notes why a task is failing, for the status that reports it. The first
// cause stays: what follows from it says less.
func (t *task) blame(code buspb.Code, err error) {
	if t.out.code == buspb.Code_CODE_UNSPECIFIED {
		t.out.code, t.out.problem = code, err.Error()
	}
}

// report is what a machine asks to tell the gateway.
type report struct {
	kind    handoff.Report
	outcome handoff.Outcome
	cause   handoff.FactKind
	reason  handoff.Reason
	never   bool
}

func (w *Worker) report(t *task, r report) {
	s := &buspb.Status{}
	switch r.kind {
	case handoff.ReportPinned:
		p := &buspb.Pinned{Usage: t.usageMessage()}
		if t.order == handoff.SourceFirst {
			p.Endpoint, p.Ticket = endpointMessage(w.node.Endpoint()), t.ticket
		}
		s.Body = &buspb.Status_Pinned{Pinned: p}
	case handoff.ReportStreamFailed:
		s.Body = &buspb.Status_StreamFailed{StreamFailed: &buspb.StreamFailed{Code: buspb.Code_CODE_TRANSFER, Message: t.out.problem}}
	case handoff.ReportReserved:
		r := &buspb.Reserved{SkipTokens: uint32(t.skip)}
		if t.order == handoff.DestinationFirst {
			r.Endpoint, r.Ticket = endpointMessage(w.node.Endpoint()), t.ticket
		}
		s.Body = &buspb.Status_Reserved{Reserved: r}
	case handoff.ReportRefused:
		s.Body = &buspb.Status_Refused{Refused: &buspb.Refused{Never: r.never, Code: t.out.code, Message: t.out.problem}}
	case handoff.ReportCommitted:
		s.Body = &buspb.Status_Committed{Committed: &buspb.Committed{PromptTokens: uint32(t.prompt), Attribution: w.attribution(t)}}
	case handoff.ReportEnded:
		s.Body = &buspb.Status_Ended{Ended: &buspb.Ended{
			Outcome: buspb.Outcome(r.outcome), Reason: buspb.Reason(r.reason), Never: r.never,
			Code: t.out.code, Message: t.out.problem, ComputedTokens: t.stepped, Usage: t.usageMessage(),
			Attribution: w.attribution(t),
		}}
	case handoff.ReportReleased:
		s.Body = &buspb.Status_Released{Released: &buspb.Released{Outcome: buspb.Outcome(r.outcome), ComputedTokens: t.stepped}}
	default:
		return
	}
	w.send(t, s)
}

// emit tells the gateway one token of the answer.
func (w *Worker) emit(t *task, tok token) {
	m := &buspb.Token{Id: tok.id, Piece: tok.piece, Logprob: tok.logprob}
	for _, alt := range tok.top {
		m.Top = append(m.Top, w.topMessage(alt))
	}
	tokens := &buspb.Tokens{From: uint32(tok.index), Tokens: []*buspb.Token{m}, Finish: buspb.Finish(tok.finish.fact())}
	if !t.out.usageOut && t.side == sideSource {
		tokens.Usage = t.usageMessage()
		t.out.usageOut = true
	}
	w.send(t, &buspb.Status{Body: &buspb.Status_Tokens{Tokens: tokens}})
}

func (w *Worker) topMessage(alt sample.TopToken) *buspb.TopToken {
	return &buspb.TopToken{Id: alt.Token, Piece: w.vocab.Piece(alt.Token), Logprob: alt.Logprob}
}

func (t *task) usageMessage() *buspb.Usage {
	return &buspb.Usage{Prompt: t.usage.Prompt, Cached: t.usage.Cached, Computed: t.usage.Computed}
}

// send numbers a status and queues it for its gateway.
func (w *Worker) send(t *task, s *buspb.Status) {
	o := &t.out
	o.last++
	s.Handoff, s.Request, s.Side, s.Seq = t.id[:], t.request, t.side.message(), o.last
	if len(o.pending) == 0 {
		o.waiting = w.now()
	}
	o.pending = append(o.pending, s)
	if w.tasks[t.id] != t {
		w.unacked[t.id] = t
	}
	if g := w.gateways[t.gateway.name]; g != nil && g.incarnation == t.gateway.incarnation {
		g.queue = append(g.queue, s)
	}
}

// flush sends what the last events and steps brought about: one message per
// gateway, and an announcement when capacity changed.
func (w *Worker) flush() {
	if w.stale && w.now()-w.announced >= announcePause {
		w.announce()
	}
	for name, g := range w.gateways {
		if len(g.queue) == 0 {
			continue
		}
		w.publish(name, g, g.queue)
		g.queue = nil
	}
}

func (w *Worker) publish(name string, g *gateway, statuses []*buspb.Status) {
	err := w.link.Statuses(name, &buspb.Statuses{GatewayIncarnation: g.incarnation, Statuses: statuses})
	if err != nil { // sent again until acknowledged
		w.cfg.Log.Debug("status not sent", "gateway", name, "error", err)
	}
}

// acknowledge drops what the gateway knows. A released task is forgotten with
// its last status.
func (w *Worker) acknowledge(t *task, seq uint64) {
	o := &t.out
	n := 0
	for n < len(o.pending) && o.pending[n].Seq <= seq {
		n++
	}
	if n == 0 {
		return
	}
	clear(o.pending[:n])
	o.pending = o.pending[n:]
	o.waiting = w.now()
	if len(o.pending) == 0 && w.unacked[t.id] == t {
		delete(w.unacked, t.id)
	}
}

// resend repeats what has been waiting for an acknowledgement.
func (w *Worker) resend(t *task) {
	g := w.gateways[t.gateway.name]
	if g == nil || g.incarnation != t.gateway.incarnation || len(t.out.pending) == 0 {
		return
	}
	now := w.now()
	if t.out.repeated > 0 && now-t.out.repeated < resendPause {
		return
	}
	t.out.repeated, t.out.waiting = now, now
	g.queue = append(g.queue, t.out.pending[:min(len(t.out.pending), maxBurst)]...)
}

// resendOverdue repeats every status that was not acknowledged in time.
func (w *Worker) resendOverdue() {
	now := w.now()
	each := func(t *task) {
		if len(t.out.pending) > 0 && now-t.out.waiting >= resendAfter {
			w.resend(t)
		}
	}
	for _, t := range w.tasks {
		each(t)
	}
	for _, t := range w.unacked {
		each(t)
	}
}
