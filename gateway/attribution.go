package gateway

import (
	"strings"
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/route"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/telemetry"
)

// This file joins what both workers measured of an attempt with what the gateway saw of it into one
// telemetry.Handoff. Nothing here decides anything: a worker that reports late, never, or nonsense
// costs the record its numbers and the request nothing.

// lateReports is how long an ended request's records wait for the workers' last statuses. They come
// within a moment of the last token, unless a worker died.
const lateReports = 3 * time.Second

// draft is the record of one attempt while it is written. The request's mu guards it.
type draft struct {
	telemetry.Handoff
	// at bounds, by side, where a worker's clock began on the gateway's: after the command was sent
	// and before whatever was heard of the worker.
	sent, heard [3]time.Duration
	owed        [3]bool // by side: a command was sent, and the worker's last report is not here
	committed   bool
	code        string // what a worker gave as the cause of a failure
}

// since is a gateway time as records have it: 0 is the arrival of the request, and never stands for
// something that happened.
func (q *request) since(now time.Duration) time.Duration { return max(1, now-q.arrival) }

// begun opens the record of a new attempt.
func (q *request) begun(a *attempt) {
	d := &draft{}
	d.ID, d.Attempt, d.Why = a.id, len(q.attempts), q.why
	d.Mode, d.Policy, d.Rebound = q.served, a.policy, a.rebind
	d.Gateway.Placed = q.since(a.placed)
	d.Chosen, d.Target, d.MTP = telemetry.ChosenPair, telemetry.TargetAsked, telemetry.MTPUnknown
	d.Source = telemetry.Part{Worker: a.source.Worker, Incarnation: a.source.Incarnation, Role: q.g.fleet.role(a.source)}
	if a.policy == handoff.Disabled {
		d.Chosen, d.Target = telemetry.ChosenAsked, telemetry.TargetNone
		if q.mode == Auto {
			d.Chosen = telemetry.ChosenFallback
		}
	} else {
		d.Destination = &telemetry.Part{
			Worker: a.destination.Worker, Incarnation: a.destination.Incarnation, Role: q.g.fleet.role(a.destination),
		}
	}
	a.record = d
}

// commanded notes that a command which creates something was sent to a side.
func (q *request) commanded(a *attempt, side handoff.Role) {
	if d := a.record; d != nil && d.sent[side] == 0 {
		d.sent[side], d.owed[side] = q.since(q.g.now()), true
		if side == handoff.RoleDestination {
			d.Gateway.Reserve = d.sent[side]
		} else {
			d.Gateway.Dispatched = d.sent[side]
		}
	}
}

// heard notes that a worker had had its command for so long when it sent what came now.
func (q *request) heard(a *attempt, side handoff.Role, sinceAccepted time.Duration) {
	if a.record != nil {
		a.record.hear(side, q.since(q.g.now())-sinceAccepted)
	}
}

// hear keeps the earliest time before which a worker's clock began.
func (d *draft) hear(side handoff.Role, at time.Duration) {
	if d.heard[side] == 0 || at < d.heard[side] {
		d.heard[side] = at
	}
}

// failing notes the cause of an attempt's failure, of which the first counts.
func (q *request) failing(f handoff.RequestFact) {
	if f.Kind != handoff.FactFailed && f.Kind != handoff.FactWorkerLost || q.done() {
		return
	}
	a := q.attempt(f.Handoff)
	if a == nil || a.over || a.record == nil || a.record.Failure != nil {
		return
	}
	failure := telemetry.Failure{Code: a.record.code, Phase: f.Phase.String()}
	switch f.Side {
	case handoff.RoleSource:
		failure.Side = telemetry.Source
	case handoff.RoleDestination:
		failure.Side = telemetry.Destination
	}
	if f.Kind == handoff.FactWorkerLost {
		failure.Code, failure.Phase = "worker_lost", q.phase(a, f.Side, buspb.Code_CODE_UNSPECIFIED).String()
	}
	a.record.Failure = &failure
}

// gaveUp notes that the gateway itself ends the current attempt, and why.
func (q *request) gaveUp(code string, phase handoff.Phase) {
	if a := q.current(); a != nil && a.record != nil && a.record.Failure == nil {
		a.record.Failure = &telemetry.Failure{Phase: phase.String(), Code: code}
	}
}

// unheard notes why no worker could be asked.
func (a *attempt) unheard(code string) {
	if d := a.record; d != nil && d.code == "" {
		d.code = code
	}
}

// silenced gives up the reports of a worker that is gone.
func (q *request) silenced(t route.Target) {
	for _, a := range q.attempts {
		for _, side := range []handoff.Role{handoff.RoleSource, handoff.RoleDestination} {
			if a.record != nil && a.target(side) == t {
				a.record.owed[side] = false
			}
		}
	}
}

// codeName is a code as records and metrics spell it.
func codeName(c buspb.Code) string {
	return strings.ToLower(strings.TrimPrefix(c.String(), "CODE_"))
}

// tokenSeen notes the arrival of one of an attempt's first tokens.
func (q *request) tokenSeen(now time.Duration) {
	a := q.current()
	if a == nil || a.record == nil {
		return
	}
	g := &a.record.Gateway
	if len(g.Tokens) == 0 {
		g.Sampled = !a.record.committed
	}
	if len(g.Tokens) < telemetry.MaxTokenTimes {
		g.Tokens = append(g.Tokens, q.since(now))
	}
}

// measured takes a worker's numbers. last says that it has no more to tell.
func (q *request) measured(a *attempt, side handoff.Role, m *buspb.Attribution, last bool) {
	d := a.record
	if d == nil {
		return
	}
	part := &d.Source
	if side == handoff.RoleDestination {
		part = d.Destination
	}
	if m != nil && part != nil {
		take(part, m)
		q.heard(a, side, duration(m.GetNowNs()))
		if mtp := m.GetMtp(); mtp != nil && d.Destination != nil {
			d.MTP, d.MTPWhy = telemetry.MTPNotBuilt, clip(mtp.GetReason())
			if mtp.GetActive() {
				d.MTP, d.MTPWhy = telemetry.MTPActive, ""
			}
		}
	}
	if last {
		d.owed[side] = false
		if q.done() {
			q.publish(false)
		}
	}
}

// closeRecord ends an attempt's record, but for what workers still owe.
func (q *request) closeRecord(a *attempt, ending telemetry.Ending) {
	d := a.record
	if d == nil || d.Ending != "" {
		return
	}
	d.Ending, d.Gateway.Ended = ending, q.since(q.g.now())
	if ending != telemetry.EndedFailed {
		d.Failure = nil
	}
	if d.Destination != nil && d.Gateway.Reserved > 0 {
		d.Target = telemetry.TargetReserved
	}
	if d.committed {
		d.Target = telemetry.TargetCommitted
	}
}

// recorded completes the records of a request that has just ended: what concerns all of it.
func (q *request) recorded(r telemetry.Request) {
	r.SLO = q.g.metrics.Judged(&r)
	q.final = &r
	for i, a := range q.attempts {
		ending := telemetry.EndedFailed
		if i == len(q.attempts)-1 {
			switch {
			case r.Outcome == telemetry.Cancelled || r.Outcome == telemetry.Expired:
				ending = telemetry.EndedCancelled
			case r.Outcome == telemetry.Failed:
			case r.Mode == telemetry.Colocated:
				ending = telemetry.EndedColocated
			case a.record != nil && a.record.committed:
				ending = telemetry.EndedHandedOff
			default:
				ending = telemetry.EndedAtSource
			}
		}
		q.closeRecord(a, ending)
	}
	q.publish(false)
}

// publish hands the records of an ended request over to metrics, ring and traces, once: when no
// worker owes a report, or at any rate when forced. mu is held.
func (q *request) publish(force bool) {
	g := q.g
	if q.final == nil {
		return // published before
	}
	for _, a := range q.attempts {
		if d := a.record; d != nil && !force && (d.owed[handoff.RoleSource] || d.owed[handoff.RoleDestination]) {
			return // reports are late; sweep forces
		}
	}
	r := *q.final
	q.final = nil
	var list []*telemetry.Handoff
	for _, a := range q.attempts {
		d := a.record
		if d == nil {
			continue
		}
		a.record = nil
		d.Request = r
		d.Source.At = d.began(handoff.RoleSource)
		if d.Destination != nil {
			d.Destination.At = d.began(handoff.RoleDestination)
		}
		d.Summarize()
		g.metrics.Handoff(&d.Handoff)
		g.handoffs.Add(&d.Handoff)
		list = append(list, &d.Handoff)
	}
	g.cfg.Traces.Offer(q.parent, r, list)
}

// began is where a worker's clock began: as late as all that was heard of it allows, which is late by
// the quickest message, and no earlier than the command. What was heard are answers, reports, and the
// first tokens, each of which came after its worker had sampled it.
func (d *draft) began(side handoff.Role) time.Duration {
	heard := d.heard[side]
	before := func(came, happened time.Duration) {
		if happened > 0 && (heard == 0 || came-happened < heard) {
			heard = came - happened
		}
	}
	switch tokens := d.Gateway.Tokens; {
	case len(tokens) == 0:
	case side == handoff.RoleSource:
		before(tokens[0], d.Source.Prompted) // whoever sent it: it was sampled there
	case !d.Gateway.Sampled:
		before(tokens[0], d.Destination.Ready)
	case len(tokens) > 1:
		before(tokens[1], d.Destination.Decode.End())
	}
	return max(d.sent[side], heard)
}

// take fills a part with a worker's numbers, which may be anything.
func take(p *telemetry.Part, m *buspb.Attribution) {
	p.Reported = true
	p.Slot, p.Opened, p.Granted = duration(m.GetSlotNs()), duration(m.GetOpenedNs()), duration(m.GetGrantedNs())
	p.Prompted, p.Sent, p.Committed = duration(m.GetPromptedNs()), duration(m.GetSentNs()), duration(m.GetCommittedNs())
	p.Complete, p.Ready = duration(m.GetCompleteNs()), duration(m.GetReadyNs())
	p.Compute, p.Export, p.Seal, p.Stall = work(m.GetCompute()), work(m.GetExport()), work(m.GetSeal()), work(m.GetStall())
	p.Verify, p.Wait, p.Import, p.Commit = work(m.GetVerify()), work(m.GetWait()), work(m.GetImport()), work(m.GetCommit())
	p.Decode = work(m.GetDecode())
	p.Before = telemetry.Before{
		Exported: number(m.GetBeforeExportedBytes()), Export: duration(m.GetBeforeExportNs()),
		Sent: number(m.GetBeforeSentBytes()), Wire: duration(m.GetBeforeWireNs()),
	}
	s := m.GetStream()
	p.Stream = telemetry.Stream{
		Lane: telemetry.LaneName(s.GetLane()), Bytes: number(s.GetBytes()), Units: int(s.GetUnits()), Open: duration(s.GetOpenNs()),
		FirstByte: duration(s.GetFirstByteNs()), Busy: duration(s.GetBusyNs()), RTT: duration(s.GetRttNs()),
	}
	p.Pages, p.Snapshots = int(m.GetPages()), int(m.GetSnapshots())
	p.Prompt, p.Cached, p.Computed = int(m.GetPromptTokens()), int(m.GetCachedTokens()), int(number(m.GetComputedTokens()))
	p.Skipped, p.SkippedBytes = int(m.GetSkippedTokens()), number(m.GetSkippedBytes())
	p.Components = nil
	for _, c := range m.GetComponents() {
		if k := state.Kind(c.GetKind()); c.GetKind() < 256 && k.Bytes() && len(p.Components) < maxComponents {
			p.Components = append(p.Components, telemetry.Component{Name: k.String(), Bytes: number(c.GetBytes())})
		}
	}
}

// maxComponents is more than there are kinds of state that are bytes.
const maxComponents = 16

func work(m *buspb.Work) telemetry.Work {
	w := telemetry.Work{Count: int(m.GetCount()), Busy: duration(m.GetBusyNs())}
	var last time.Duration
	for _, s := range m.GetSpans() {
		span := telemetry.Span{Begin: duration(s.GetBeginNs()), End: duration(s.GetEndNs()), Busy: duration(s.GetBusyNs())}
		if len(w.Spans) == telemetry.MaxSpans || span.Begin < last || span.End < span.Begin {
			break
		}
		last = span.Begin
		w.Spans = append(w.Spans, span)
	}
	return w
}

// Nothing that a worker measures is larger: one that says so is wrong, and sums must not overflow.
const (
	mostTime   = 30 * 24 * time.Hour
	mostNumber = 1 << 50
)

func duration(ns uint64) time.Duration { return time.Duration(min(ns, uint64(mostTime))) }

func number(n uint64) int64 { return int64(min(n, mostNumber)) }

// clip bounds a text from a worker.
func clip(s string) string {
	const most = 160
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

// failed keeps the first cause that a worker gave.
func (a *attempt) failed(c buspb.Code) {
	if d := a.record; d != nil && d.code == "" && c != buspb.Code_CODE_UNSPECIFIED {
		d.code = codeName(c)
	}
}
