package gateway

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/route"
	"github.com/tandem-llm/tandem/telemetry"
)

// Link is the gateway's end of the bus: *bus.GatewayLink, or a script in tests. All methods are
// safe for concurrent use.
type Link interface {
	// Command sends a command and waits for its reply until ctx ends. Commands are
	// idempotent by handoff id. Errors are those of package bus.
	Command(ctx context.Context, worker string, cmd *buspb.Command) (*buspb.Reply, error)
	// Post sends a command without wanting a reply. It never blocks.
	Post(worker string, cmd *buspb.Command) error
	// Hello asks every worker to announce itself now.
	Hello() error
	// Heartbeat tells every worker that this gateway lives.
	Heartbeat() error
	// Goodbye is the last heartbeat.
	Goodbye() error
}

var _ Link = (*bus.GatewayLink)(nil)

// Gateway serves one model. Make it with New. All methods are safe for concurrent use.
type Gateway struct {
	cfg     Config
	epoch   time.Time // host time 0
	metrics *telemetry.Gateway
	events  *telemetry.Events
	fleet   *fleet
	prompts *prompter
	gate    *admission
	readers chan struct{} // holds one for each prompt that is being turned into tokens
	live    *liveIDs
	acks    *acks
	handler http.Handler

	handoffs *telemetry.Handoffs // the newest records

	mu       sync.Mutex
	link     Link                    // nil until Run; guarded by mu
	requests map[handoff.ID]*request // by every attempt that a message may still name; guarded by mu
	open     map[*request]struct{}   // requests that have not finished; guarded by mu
	closed   []closing               // finished requests, oldest first; guarded by mu
	late     []closing               // finished requests whose records wait for workers, oldest first; guarded by mu
	busDown  time.Duration           // since when, 0 while the bus is up; guarded by mu
	stopping bool                    // no new calls; guarded by mu
	senders  int                     // goroutines that send commands; guarded by mu
	commands context.Context         // ends when commands must not be sent any more; set once
	stop     context.CancelCauseFunc // of commands
}

// closing is a finished request that late messages are still fenced for.
type closing struct {
	request *request
	until   time.Duration
}

// New makes a gateway. It starts nothing: Run does.
func New(cfg Config) (*Gateway, error) {
	if err := cfg.normalize(); err != nil {
		return nil, err
	}
	g := &Gateway{
		cfg:      cfg,
		epoch:    time.Now().Add(-time.Nanosecond), // host time is never 0, which means "none"
		metrics:  cfg.Metrics,
		events:   cfg.Events,
		live:     newLiveIDs(),
		readers:  make(chan struct{}, runtime.GOMAXPROCS(0)),
		requests: make(map[handoff.ID]*request),
		open:     make(map[*request]struct{}),
		handoffs: telemetry.NewHandoffs(0),
	}
	g.gate = newAdmission(cfg.MaxActive, cfg.MaxQueue, cfg.MaxPerTenant, g.now)
	g.metrics.SetSLO(cfg.SLO)
	g.fleet = newFleet(cfg.Model, cfg.Tokenizer, cfg.WorkerTimeout)
	g.fleet.router.Use(route.Options{Prefill: cfg.Prefill, Decode: cfg.Decode, Seed: cfg.Incarnation, KeyTokens: keyTokens})
	g.acks = newAcks(g)
	g.prompts = newPrompter(cfg.Vocab, cfg.Template)
	g.commands, g.stop = context.WithCancelCause(context.Background())
	g.handler = g.routes()
	return g, nil
}

// now is the host's time: what machines and records are told.
func (g *Gateway) now() time.Duration { return time.Since(g.epoch) }

// Handler returns the HTTP handler. Requests that need workers are refused until Run is under way.
func (g *Gateway) Handler() http.Handler { return g.handler }

// BusHandler returns what to give to bus.ServeGateway.
func (g *Gateway) BusHandler() bus.GatewayHandler {
	return bus.GatewayHandler{Registration: g.registration, Statuses: g.statuses}
}

// registration takes a worker's announcement.
func (g *Gateway) registration(reg *buspb.Registration) {
	changes, err := g.fleet.announce(g.now(), reg)
	if err != nil {
		g.cfg.Log.Warn("a worker's registration was refused", "worker", reg.GetWorker(), "error", err)
		return
	}
	g.changed(changes)
	if len(changes) > 0 {
		g.leftovers(reg)
	}
}

// leftovers reports what a worker that has just joined still holds for an earlier life of this
// gateway. Nothing has to be done: the heartbeat of the new life makes the worker end it.
func (g *Gateway) leftovers(reg *buspb.Registration) {
	n := 0
	for _, o := range reg.GetOwned() {
		if o.GetGateway() == g.cfg.Name && o.GetGatewayIncarnation() != g.cfg.Incarnation {
			n++
		}
	}
	if n > 0 {
		g.events.Emit(telemetry.Event{Kind: telemetry.WorkerHolds, Worker: reg.GetWorker(), End: n})
		g.cfg.Log.Info("a worker still holds handoffs of this gateway's earlier life", "worker", reg.GetWorker(), "handoffs", n)
	}
}

// changed tells requests what became of workers.
func (g *Gateway) changed(changes []change) {
	if len(changes) == 0 {
		return
	}
	joined := false
	for _, c := range changes {
		if c.joined {
			joined = true
			g.events.Emit(telemetry.Event{Kind: telemetry.WorkerSeen, Worker: c.target.Worker, Detail: c.detail})
			g.cfg.Log.Info("worker joined", "worker", c.target.Worker, "incarnation", c.target.Incarnation, "role", c.detail)
			continue
		}
		g.events.Emit(telemetry.Event{Kind: telemetry.WorkerLost, Worker: c.target.Worker, Detail: c.detail})
		g.cfg.Log.Warn("worker lost", "worker", c.target.Worker, "incarnation", c.target.Incarnation, "why", c.detail)
		g.workerLost(c.target)
	}
	g.metrics.Workers(g.fleet.count())
	if joined {
		for _, q := range g.openRequests() {
			q.workersChanged()
		}
	}
}

// workerLost tells every request that an incarnation of a worker is gone.
func (g *Gateway) workerLost(t route.Target) {
	for _, q := range g.openRequests() {
		q.workerLost(t)
	}
}

// openRequests returns the unfinished requests. It is called without any request's lock.
func (g *Gateway) openRequests() []*request {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make([]*request, 0, len(g.open))
	for q := range g.open {
		list = append(list, q)
	}
	return list
}

// BusDown tells the gateway that its connection to the bus broke. Give it to bus.Events.
func (g *Gateway) BusDown(error) {
	g.mu.Lock()
	if g.busDown == 0 {
		g.busDown = g.now()
	}
	g.mu.Unlock()
	g.fleet.pause()
	g.metrics.BusConnected(false)
	g.events.Emit(telemetry.Event{Kind: telemetry.BusDown})
	g.cfg.Log.Warn("the bus is disconnected; requests in flight wait for it", "limit", g.cfg.BusWait)
}

// BusUp tells the gateway that the connection is back. Give it to bus.Events.
func (g *Gateway) BusUp() {
	g.mu.Lock()
	g.busDown = 0
	link := g.link
	g.mu.Unlock()
	g.fleet.revive(g.now()) // silence during the outage says nothing about workers
	g.metrics.BusConnected(true)
	g.events.Emit(telemetry.Event{Kind: telemetry.BusUp})
	g.cfg.Log.Info("the bus is connected")
	if link != nil {
		link.Heartbeat()
		link.Hello() // a failure is reported by BusDown
	}
}
