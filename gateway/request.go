package gateway

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/place"
	"github.com/tandem-llm/tandem/route"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/telemetry/otlp"
)

// request hosts one handoff.Request machine: one sample of one prompt. It has no goroutine; whoever
// brings a fact locks it, and the machine's actions are executed before the lock is released.
type request struct {
	g      *Gateway
	key    string // names the request in records and on the bus; unique
	tenant string
	how
	index int // the choice's index
	out   *outbox

	prompt    []int32
	keys      []kv.Key          // of the prompt's blocks, for the router; nil when it does not ask
	params    *buspb.Generation // without tokens; not changed
	maxTokens int               // most completion tokens
	arrival   time.Duration     // of the HTTP request
	admitted  time.Duration
	parent    otlp.Parent // the caller's span
	deadline  time.Duration

	mu       sync.Mutex
	machine  handoff.Request
	actions  []handoff.RequestAction // reused
	facts    []handoff.RequestFact   // facts that executing actions yielded; drained by apply
	applying bool

	attempts []*attempt // all, the current one last
	avoid    []route.Target
	exclude  []route.Target
	holder   *attempt      // its pinned source may be taken over by the next attempt
	refuser  route.Target  // refused the last attempt, and nothing was begun there
	waiting  bool          // for a worker to place it on, or a pause to end
	resumeAt time.Duration // workers that failed it are left alone until then
	giveUpAt time.Duration // ends the wait for a worker; 0 while none is missing

	incoming *buspb.Token // the token that a TokenOut fact being applied speaks of
	emitted  []int32      // tokens given to the client: forced input of every later attempt
	asm      *assembler
	tokenIDs bool // the client asked for token ids
	usage    promptUsage
	firstAt  time.Duration // when the first token came
	lastAt   time.Duration // when the newest token came
	failure  *openai.Error // what the client is told if the request fails
	served   telemetry.Mode

	why   telemetry.Retry    // why the next attempt is made
	final *telemetry.Request // from the request's end until its records are published

	timer  *time.Timer // reports DeadlineReached
	timeAt time.Duration
	placer *time.Timer // ends waiting
}

// attempt is one handoff of a request.
type attempt struct {
	id                  handoff.ID
	policy              handoff.Policy
	source, destination route.Target // no destination when colocated
	rebind              bool         // the source takes over the state it holds

	placed   time.Duration // when it was placed
	pinned   bool
	endpoint *buspb.Endpoint // of the side that waits for the stream
	ticket   []byte          // opens it; secret, forgotten when the request ends
	skip     uint32
	reserved bool        // the destination said so
	forced   int         // tokens of the answer that the source was given with the prompt
	seen     [3]sequence // statuses known, by side
	gap      [3]bool     // by side: tokens came before those that precede them
	asked    [3]bool     // by side: a question for what is missing is under way
	over     bool        // fenced or finished: no new command but cancel

	cancelling [3]bool // a cancel is being sent, by side

	record *draft // until it is published
}

// target returns the worker on a side of the attempt.
func (a *attempt) target(side handoff.Role) route.Target {
	if side == handoff.RoleDestination {
		return a.destination
	}
	return a.source
}

// note remembers what the client will be told should the request fail, unless something more
// specific is known already.
func (q *request) note(e *openai.Error) {
	if q.failure == nil {
		q.failure = e
	}
}

// start admits the request and places it.
func (q *request) start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	g := q.g
	g.mu.Lock()
	g.open[q] = struct{}{}
	g.mu.Unlock()
	g.metrics.RequestStarted()
	q.apply(handoff.RequestFact{
		Kind: handoff.FactAdmitted, Deadline: q.deadline, Patience: g.cfg.Patience,
		Retries: uint8(g.cfg.Retries), MaxTokens: q.maxTokens, Retry: q.onFailure,
	})
	q.keys = g.fleet.keys(q.tenant, q.prompt)
	q.place()
}

// apply tells the machine a fact and executes what it answers, and then the facts that this
// yielded, until there are none. mu is held.
func (q *request) apply(f handoff.RequestFact) {
	q.facts = append(q.facts, f)
	if q.applying {
		return // the loop below, further up the stack, takes it
	}
	q.applying = true
	defer func() { q.applying = false }()
	for len(q.facts) > 0 {
		f := q.facts[0]
		q.facts = q.facts[1:]
		now := q.g.now()
		q.failing(f)
		actions, result, err := q.machine.Apply(now, f, q.actions[:0])
		q.record(now, f, actions, result, err)
		if err != nil {
			// A defect here or a worker that breaks the protocol. The machine is
			// unchanged, its deadlines end the request.
			q.g.cfg.Log.Error("a fact was refused", "request", q.key, "error", err)
			continue
		}
		for _, a := range actions {
			q.execute(a)
		}
		q.actions = actions
	}
	q.facts = q.facts[:0]
}

// record writes the application down. Facts and actions hold no content.
func (q *request) record(now time.Duration, f handoff.RequestFact, actions []handoff.RequestAction, result handoff.Result, err error) {
	if q.g.events == nil {
		return
	}
	r := handoff.Record{
		Host: q.g.cfg.Name, Role: handoff.RoleRequest, Handoff: f.Handoff, Request: q.key, Now: now, Result: result,
		State: q.machine.State().String(), RequestFact: &f,
		RequestActions: append([]handoff.RequestAction(nil), actions...),
	}
	if err != nil {
		r.Err, r.Result = err.Error(), 0
	}
	q.g.events.Transition(r)
}

// current returns the machine's current attempt, nil when there is none.
func (q *request) current() *attempt {
	if n := len(q.attempts); n > 0 && q.attempts[n-1].id == q.machine.Handoff() {
		return q.attempts[n-1]
	}
	return nil
}

func (q *request) attempt(id handoff.ID) *attempt {
	for _, a := range q.attempts {
		if a.id == id {
			return a
		}
	}
	return nil
}

func (q *request) done() bool { return q.machine.State() == handoff.RequestDone }

// placing is what the router needs to know. mu is held.
func (q *request) placing() route.Request {
	return route.Request{Tokens: len(q.prompt) + q.maxTokens, Avoid: q.avoid, Exclude: q.exclude, Keys: q.keys}
}

// place chooses workers and a new handoff id, or waits for workers that may come back. mu is held
// and the machine waits for a placement.
func (q *request) place() {
	if q.machine.State() != handoff.RequestAdmitted {
		return
	}
	g := q.g
	ask := place.Ask{Mode: q.mode, Order: q.order, Request: q.placing(), Only: q.onFailure == handoff.RetryRebind}
	if q.holder != nil {
		ask.Holder = q.holder.source
	}
	if q.machine.AvoidsSourceFirst() {
		ask.Order = handoff.DestinationFirst
	}
	d, err := g.fleet.place(ask)
	switch {
	case err != nil:
		q.placeFailed(err)
		return
	case d.GoesBack(q.avoid, q.refuser) && g.now() < q.resumeAt:
		q.placeLater(q.resumeAt)
		return
	}
	q.stopWaiting()
	g.fleet.learn(d, q.keys)
	a := &attempt{id: mint(), policy: d.Policy, source: d.Source, destination: d.Destination, rebind: d.Rebind, placed: g.now()}
	q.attempts = append(q.attempts, a)
	g.mu.Lock()
	g.requests[a.id] = q
	g.mu.Unlock()
	q.served = telemetry.Disaggregated
	if d.Policy == handoff.Disabled {
		q.served = telemetry.Colocated
	}
	q.begun(a)
	q.apply(handoff.RequestFact{Kind: handoff.FactPlaced, Policy: d.Policy, Handoff: a.id, Rebind: d.Rebind})
}

// placeFailed ends the request, or lets it wait when workers were there and may be again: after a
// failed attempt, and when all that is missing is a worker of some role.
func (q *request) placeFailed(err error) {
	g, now := q.g, q.g.now()
	hopeless := place.Hopeless(err, len(q.attempts) == 0)
	if q.giveUpAt == 0 && (len(q.attempts) > 0 || g.fleet.wasReady(q.mode)) {
		q.giveUpAt = now + g.cfg.PlaceWait
	}
	if !hopeless && now < q.giveUpAt {
		q.placeLater(q.giveUpAt)
		return
	}
	q.stopWaiting()
	q.note(placeError(q.mode, err))
	q.apply(handoff.RequestFact{Kind: handoff.FactFailed, Phase: handoff.PhasePlace, Never: len(q.attempts) == 0})
}

// placeLater looks for a place again at the given time, or when a worker joins before.
func (q *request) placeLater(at time.Duration) {
	if q.placer != nil {
		q.placer.Stop()
	}
	q.waiting = true
	q.placer = time.AfterFunc(at-q.g.now(), q.workersChanged)
}

func (q *request) stopWaiting() {
	q.waiting, q.giveUpAt, q.refuser = false, 0, route.Target{}
	if q.placer != nil {
		q.placer.Stop()
		q.placer = nil
	}
}

// workersChanged looks again for a place, if the request waits for one.
func (q *request) workersChanged() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting && !q.done() {
		q.place()
	}
}

// workerLost reports the loss of a worker of the current attempt, or of the one whose pinned source
// is kept. Older attempts have nothing left there.
func (q *request) workerLost(t route.Target) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.done() {
		return
	}
	q.silenced(t)
	if h := q.holder; h != nil && h.source == t {
		q.holder = nil
		q.apply(handoff.RequestFact{Kind: handoff.FactWorkerLost, Handoff: h.id, Side: handoff.RoleSource})
	}
	a := q.current()
	if a == nil {
		return
	}
	for _, side := range []handoff.Role{handoff.RoleSource, handoff.RoleDestination} {
		if a.target(side) == t && q.machine.Handoff() == a.id {
			q.apply(handoff.RequestFact{Kind: handoff.FactWorkerLost, Handoff: a.id, Side: side})
		}
	}
}

// clientGone reports that nobody waits for the answer any more.
func (q *request) clientGone() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.done() {
		q.apply(handoff.RequestFact{Kind: handoff.FactClientGone})
	}
}

// abort fails the request for a reason of the gateway's own, with no further attempt.
func (q *request) abort(e *openai.Error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.done() {
		return
	}
	q.failure = e
	q.stopWaiting()
	f := handoff.RequestFact{Kind: handoff.FactFailed, Phase: handoff.PhasePlace, Never: true}
	switch q.machine.State() {
	case handoff.RequestAdmitted:
	case handoff.RequestDecoding:
		f.Handoff, f.Side, f.Phase = q.machine.Handoff(), handoff.RoleDestination, handoff.PhaseDecode
	default:
		f.Handoff, f.Side, f.Phase = q.machine.Handoff(), handoff.RoleSource, handoff.PhasePrefill
	}
	q.gaveUp(e.Code, f.Phase)
	q.apply(f)
}

// mint makes a handoff id from the wall clock and fresh entropy.
func mint() handoff.ID {
	var entropy [10]byte
	rand.Read(entropy[:])
	return handoff.Mint(uint64(time.Now().UnixMilli()), entropy)
}
