package replay

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/replay/fleet"
	"github.com/tandem-llm/tandem/replay/link"
	"github.com/tandem-llm/tandem/route"
	"github.com/tandem-llm/tandem/workload"
)

// request hosts one handoff.Request machine, as the gateway does live.
type request struct {
	machine handoff.Request
	gen     uint32 // counts the requests that had this number
	pending int32  // messages under way and tasks: until 0 it stays in memory

	index   int64
	arrival timed.Time
	input   int
	output  int
	session uint64
	turn    int
	tenant  string
	keys    []keys // for each size of blocks that the fleet has

	deadline time.Duration

	first, current int32 // attempts, linked by next; -1: none
	holder         int32 // attempt whose pinned source may be taken over, -1
	avoid, exclude []route.Target
	refuser        route.Target // refused the last attempt, and nothing was begun there
	waiting        bool         // for a worker to place it on, or a pause to end
	resume         timed.Time   // workers that failed it are left alone until then
	giveUp         timed.Time   // ends the wait for a worker; 0 while none is missing
	cause          string       // why it fails, if it does

	firstAt, secondAt, lastAt timed.Time // of tokens, where they are sampled
	attempts, preempted       int
	cached                    [3]int32 // tokens found, by side
}

// keys name a request's blocks.
type keys struct {
	all    []kv.Key // with those of the answer, where they are known
	prompt int      // of them full in the prompt
}

func (q *request) done() bool { return q.machine.State() == handoff.RequestDone }

// attempt is one handoff of a request. Arrays over two sides are indexed by
// handoff.Role.
type attempt struct {
	id      handoff.ID
	request int32
	next    int32
	policy  handoff.Policy

	worker      [3]int32 // -1: none on that side
	incarnation [3]uint64
	task        [3]int32 // -1: none, or released

	forced     int  // tokens of the answer that were forced: part of its prompt
	skip       int  // prompt tokens that need not travel
	over       bool // fenced or finished
	pinned     bool
	reserved   bool
	broken     bool // its stream failed
	cancelling [3]bool

	// The stream.
	link      fleet.Link
	flow      link.Flow // while flowing
	flowing   bool
	granted   bool
	final     bool // the snapshot may go
	ended     bool // no more bytes are sent
	closed    bool // it was aborted or lost
	importing bool
	exported  int        // prompt tokens whose export began, skipped ones included
	exportEnd timed.Time // when the exporter is free

	m measure
}

// requestFact is a fact that a request's machine is to be told.
type requestFact struct {
	request int32
	fact    handoff.RequestFact
}

// arrive takes a request of the source.
func (h *host) arrive(in *workload.Request) {
	n, q := h.requests.add()
	kept := q.keys
	*q = request{
		gen: q.gen + 1, index: h.arrived, arrival: h.now, input: in.Input, output: in.Output,
		session: in.Session, turn: in.Turn, tenant: in.Tenant, first: -1, current: -1, holder: -1,
		avoid: q.avoid[:0], exclude: q.exclude[:0], keys: kept,
	}
	h.arrived++
	if err := h.name(q, in); err != nil {
		h.fail(err)
	}
	if h.cfg.Cancels.Rate > 0 || len(h.cfg.Cancels.Requests) > 0 {
		h.drawCancel(n, q)
	}
	g := &h.cfg.Gateway
	switch {
	case g.Active == 0 || h.active < g.Active:
		h.start(n, q)
	case g.Queue > 0 && len(h.queue)-h.queued >= g.Queue:
		q.cause = "too many requests wait at the gateway"
		h.record(q, handoff.StatusRefused)
		h.gone(n, q)
	default:
		h.queue = append(h.queue, n)
	}
}

// start admits a request and places it.
func (h *host) start(n int32, q *request) {
	h.active++
	g := &h.cfg.Gateway
	now := h.now.Duration()
	q.deadline = now + g.Timeout
	q.pending++ // until it is placed: it may end at once
	h.apply(n, handoff.RequestFact{
		Kind: handoff.FactAdmitted, Deadline: q.deadline, Patience: g.Patience, Retries: uint8(*g.Retries),
		MaxTokens: q.output, Retry: g.Retry, Backoff: g.Backoff, Lease: g.Lease,
	})
	h.place(n, q)
	q.pending--
	h.release(n)
}

// admitNext lets in who waits for admission.
func (h *host) admitNext() {
	for h.queued < len(h.queue) && h.active < h.cfg.Gateway.Active {
		n := h.queue[h.queued]
		h.queued++
		if h.queued*2 >= len(h.queue) {
			h.queue = h.queue[:copy(h.queue, h.queue[h.queued:])]
			h.queued = 0
		}
		if q := h.requests.at(n); q.machine.State() == handoff.RequestNew {
			h.start(n, q)
		}
	}
}

// apply tells a request's machine a fact and executes what it answers, and then
// the facts that this yielded, until there are none.
func (h *host) apply(n int32, f handoff.RequestFact) {
	h.asked = append(h.asked, requestFact{n, f})
	if h.applying {
		return // the loop below, further up the stack, takes it
	}
	h.applying = true
	for i := 0; i < len(h.asked); i++ {
		n, f := h.asked[i].request, h.asked[i].fact
		q := h.requests.at(n)
		now := h.now.Duration()
		actions, result, err := q.machine.Apply(now, f, h.actions[:0])
		h.actions = actions
		if h.trace != nil {
			h.trace.request(q, now, f, actions, result, err)
		}
		if err != nil {
			h.defect(err)
			continue
		}
		for j := range actions {
			h.execute(n, q, &actions[j])
		}
	}
	h.asked = h.asked[:0]
	h.applying = false
}

// execute does what a request's machine decided.
func (h *host) execute(n int32, q *request, act *handoff.RequestAction) {
	switch act.Kind {
	case handoff.ActionWakeAt:
		h.wake(2*n, act.At)
	case handoff.ActionBook:
		h.book(n, q, act)
	case handoff.ActionUnbook:
		_ = h.router.Unbook(act.Handoff, act.Booking)
	case handoff.ActionReserve:
		a := h.attempts.at(q.current)
		a.m.asked = h.now
		h.order(q.current, handoff.RoleDestination, cmdReserve, 0)
	case handoff.ActionPrefill, handoff.ActionRunColocated:
		h.attempts.at(q.current).forced = act.Index
		what := cmdPrefill
		if act.Kind == handoff.ActionRunColocated {
			what = cmdRun
		}
		h.order(q.current, handoff.RoleSource, what, int64(h.find(q, act.Reuse)))
	case handoff.ActionMoveAffinity:
		h.order(h.find(q, act.Handoff), handoff.RoleSource, cmdReaderCompleted, 0)
	case handoff.ActionRenewLease:
		if !h.cfg.Gateway.NoRenewal {
			h.order(h.find(q, act.Handoff), handoff.RoleSource, cmdRenew, int64(act.Seq))
		}
	case handoff.ActionCancel:
		h.cancel(q, act)
	case handoff.ActionRetry:
		h.retry(n, q, act)
	case handoff.ActionForward: // the token is counted by the machine
	case handoff.ActionFinish:
		h.finishRequest(n, q, act)
	}
}

// order sends a command to the worker on a side of an attempt.
func (h *host) order(attempt int32, side handoff.Role, what uint8, arg int64) {
	if attempt >= 0 {
		h.send(h.now+h.oneWay, event{kind: evCommand, what: what, side: side, subject: attempt, n: arg})
	}
}

// find returns the attempt of a request that has an id, -1 without one.
func (h *host) find(q *request, id handoff.ID) int32 {
	for n := q.first; n >= 0 && !id.IsZero(); n = h.attempts.at(n).next {
		if h.attempts.at(n).id == id {
			return n
		}
	}
	return -1
}

// book enters a booking for the worker that the placement chose.
func (h *host) book(n int32, q *request, act *handoff.RequestAction) {
	a := h.attempts.at(q.current)
	side, tokens := handoff.RoleSource, q.input+q.output
	switch act.Booking {
	case handoff.BookDecode:
		side = handoff.RoleDestination
	case handoff.BookPrefill:
		tokens = q.input + q.machine.Next()
	}
	f := handoff.RequestFact{Kind: handoff.FactBooked, Handoff: a.id, Booking: act.Booking}
	if err := h.router.Book(a.id, act.Booking, h.target(a, side), tokens); err != nil {
		f = handoff.RequestFact{Kind: handoff.FactFailed, Handoff: a.id, Side: side, Phase: handoff.PhaseBook}
	}
	h.apply(n, f)
}

// target is the worker on a side of an attempt.
func (h *host) target(a *attempt, side handoff.Role) route.Target {
	if a.worker[side] < 0 {
		return route.Target{}
	}
	return route.Target{Worker: h.workers[a.worker[side]].name, Incarnation: a.incarnation[side]}
}

func (h *host) cancel(q *request, act *handoff.RequestAction) {
	n := h.find(q, act.Handoff)
	if n < 0 {
		return
	}
	a := h.attempts.at(n)
	a.over = true
	if q.holder == n {
		q.holder = -1
	}
	if a.cancelling[act.Side] {
		return
	}
	a.cancelling[act.Side] = true
	h.send(h.now+h.oneWay, event{kind: evCommand, what: cmdCancel, side: act.Side, subject: n, reason: act.Reason})
}

// retry places the request again. Workers of the failed attempt are avoided.
func (h *host) retry(n int32, q *request, act *handoff.RequestAction) {
	h.rec.Count("retried", retryReason(act), 1)
	// Between half of the pause and all of it, as the gateway draws it.
	half := timed.Of(act.Pause) / 2
	q.resume = h.now + half + timed.Time(h.random()%uint64(half+1))
	q.holder = -1
	if act.ReuseSource {
		q.holder = h.find(q, act.Reuse)
	}
	for a := q.first; a >= 0; a = h.attempts.at(a).next {
		h.attempts.at(a).over = true
	}
	h.place(n, q)
}

func retryReason(act *handoff.RequestAction) string {
	switch {
	case act.Phase == handoff.PhaseDecode:
		return "computed again"
	case act.Outcome == handoff.OutcomePeerLost:
		return "a worker was lost"
	case act.Outcome == handoff.OutcomeExpired:
		return "it took too long"
	case act.Phase == handoff.PhaseReserve:
		return "a reservation was refused"
	}
	return "an attempt failed"
}

// clientGone reports that nobody waits for the answer any more.
func (h *host) clientGone(n int32, q *request) {
	if q.machine.State() == handoff.RequestNew { // it waits for admission
		waits := h.queue[h.queued:]
		h.queue = h.queue[:h.queued+len(slices.DeleteFunc(waits, func(m int32) bool { return m == n }))]
		q.cause = "the client went away"
		h.record(q, handoff.StatusCancelled)
		h.gone(n, q)
		return
	}
	q.cause = "the client went away"
	h.learn(n, q)
	h.apply(n, handoff.RequestFact{Kind: handoff.FactClientGone})
}

// finishRequest ends the client's request: the machine has ended everything else.
func (h *host) finishRequest(n int32, q *request, act *handoff.RequestAction) {
	h.timers.Clear(2 * n)
	h.stopWaiting(n, q)
	for a := q.first; a >= 0; a = h.attempts.at(a).next {
		h.attempts.at(a).over = true
	}
	if act.Status == handoff.StatusTimeout {
		q.cause = "the request's time is over"
	}
	h.record(q, act.Status)
	h.active--
	h.over = append(h.over, n)
	h.gone(n, q)
}

// gone is called once for each request, when it has ended.
func (h *host) gone(n int32, q *request) {
	h.ended++
	h.lastEnd = max(h.lastEnd, h.now)
	if q.session != 0 {
		h.src.Finished(q.session, h.now)
	}
	if q.pending == 0 && q.machine.State() == handoff.RequestNew {
		h.forget(n, q)
	}
}

// release forgets a request that has ended when nothing speaks of it any more.
func (h *host) release(n int32) {
	if q := h.requests.at(n); q.pending == 0 && q.done() {
		h.forget(n, q)
	}
}

func (h *host) forget(n int32, q *request) {
	for a := q.first; a >= 0; {
		next := h.attempts.at(a).next
		h.attempts.free(a)
		a = next
	}
	for i := range q.keys {
		if cap(q.keys[i].all) > keptKeys {
			q.keys[i].all = nil
		}
	}
	q.machine = handoff.Request{}
	q.gen++
	q.first = -1
	h.requests.free(n)
}

// keptKeys is the most names whose memory a request's number keeps for the next one.
const keptKeys = 1024
