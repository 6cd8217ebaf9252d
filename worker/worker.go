package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/sample"
	"github.com/tandem-llm/tandem/sched"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/wire"
)

// Worker hosts one engine. Make it with New, run it with Run.
type Worker struct {
	cfg    Config
	eng    engine.Engine
	info   engine.Info
	vocab  engine.Vocab
	node   *wire.Node
	limits state.Limits
	epoch  time.Time

	box     *mailbox
	stopped chan struct{} // closed when the owner goroutine takes no more events
	running atomic.Bool

	// Everything below belongs to the owner goroutine.
	conn    *bus.Conn
	link    *bus.WorkerLink
	herald  *herald
	tasks   map[handoff.ID]*task
	unacked map[handoff.ID]*task // released, with statuses that the gateway has not acknowledged
	tombs   *handoff.Tombstones
	mem     *memory
	alarms  alarms

	gateways  map[string]*gateway
	stale     bool          // capacity changed since the last announcement
	announced time.Duration // when that was
	draining  bool
	drainEnd  time.Duration // when draining gives up
	fatal     error
	sampled   sampled
	cells     telemetry.Capacity // as the newest event says
	came      time.Duration      // when the command came that is being executed

	followUps          []func() // facts that executing actions brought about
	sourceActions      []handoff.SourceAction
	destinationActions []handoff.DestinationAction
	rows               []engine.Row
	results            sched.Results // of the running step
	workspace          sample.Workspace
}

// ErrEngine means that the engine failed in a way that it cannot recover from. The process
// should end; its supervisor starts a new incarnation.
var ErrEngine = errors.New("worker: the engine failed; restart the worker")

// New opens the data plane, connects to the bus and prepares a worker. ctx bounds
// the connecting only. The caller runs the worker with Run, from when on it
// takes commands; without Run it must Close it.
func New(ctx context.Context, cfg Config) (*Worker, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	info := cfg.Engine.Info()
	mem, err := newMemory(cfg, info)
	if err != nil {
		return nil, err
	}
	node, err := wire.Listen(cfg.Wire)
	if err != nil {
		return nil, err
	}
	w := &Worker{
		cfg: cfg, eng: cfg.Engine, info: info, vocab: cfg.Engine.Vocab(), node: node,
		limits: state.DefaultLimits(), epoch: time.Now(),
		box: newMailbox(), stopped: make(chan struct{}),
		tasks: map[handoff.ID]*task{}, unacked: map[handoff.ID]*task{}, gateways: map[string]*gateway{},
		mem: mem,
	}
	w.tombs = handoff.NewTombstones(tombstoneLife, uint64(w.epoch.UnixMilli()), 0)
	w.limits.UnitBytes = uint64(cfg.Wire.LargestUnit)
	if err := w.connect(ctx); err != nil {
		_ = node.Close()
		return nil, err
	}
	if cfg.Metrics != nil {
		cfg.Metrics.MTP(false, w.mtpInactive())
	}
	return w, nil
}

// tombstoneLife is how long a released handoff is remembered, and so how old a
// handoff id may be that is new to this worker. It covers the difference of two
// machines' clocks and the longest delivery of a command.
const tombstoneLife = 10 * time.Minute

// connect joins the bus. What it brings is posted to the owner, who runs it once
// Run was called.
func (w *Worker) connect(ctx context.Context) error {
	opt := w.cfg.Bus
	opt.Identity = w.cfg.Identity
	log := w.cfg.Log
	opt.Events = bus.Events{
		Disconnected: func(err error) {
			log.Warn("bus lost; reconnecting", "error", err)
			w.event(telemetry.Event{Kind: telemetry.BusDown})
		},
		Reconnected: func() {
			log.Info("bus is back")
			w.event(telemetry.Event{Kind: telemetry.BusUp})
			w.box.post(w.announce)
		},
		Problem: func(err error) { log.Warn("bus", "error", err) },
	}
	conn, err := bus.Connect(ctx, opt)
	if err != nil {
		return err
	}
	link, err := bus.ServeWorker(conn, w.cfg.Incarnation, bus.WorkerHandler{
		Command: func(c *buspb.Command, reply func(*buspb.Reply)) {
			at := w.now()
			w.box.post(func() { reply(w.execute(c, at)) })
		},
		Hello: func(gateway string, incarnation uint64) {
			w.box.post(func() { w.gatewaySeen(gateway, incarnation, false); w.announce() })
		},
		GatewaySeen: func(gateway string, incarnation uint64, leaving bool) {
			w.box.post(func() { w.gatewaySeen(gateway, incarnation, leaving) })
		},
	})
	if err != nil {
		_ = conn.Close(ctx)
		return err
	}
	w.conn, w.link, w.herald = conn, link, &herald{link: link}
	return nil
}

// Endpoint is where peers reach the worker's data plane.
func (w *Worker) Endpoint() wire.Endpoint { return w.node.Endpoint() }

// now is the host's time: since New.
func (w *Worker) now() time.Duration { return time.Since(w.epoch) }

// mtpInactive says why multi-token prediction state does not move.
func (w *Worker) mtpInactive() string {
	for _, kind := range []state.Kind{state.MTPKV, state.MTPHidden} {
		if c := w.info.Inventory.Find(kind); c != nil && !c.Active() {
			return c.Inactive
		}
	}
	return "the model has no multi-token prediction block"
}

// Run serves until ctx ends, then finishes what it owns within grace, and closes
// the engine and the data plane. It returns nil after an orderly end and
// ErrEngine when the engine failed.
func (w *Worker) Run(ctx context.Context, grace time.Duration) error {
	if !w.running.CompareAndSwap(false, true) {
		return errors.New("worker: Run was called twice")
	}
	// The engine belongs to this goroutine, and accelerator back ends tie their
	// state to the system's thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	w.announce()
	go w.herald.run(w.stopped)
	w.keepHouse()
	stop := ctx.Done()
	var deadline <-chan time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	var spent []func()
	for w.fatal == nil {
		if w.draining && len(w.tasks) == 0 && (!w.owes() || w.now() > w.drainEnd) {
			break
		}
		events := w.box.take(spent)
		for _, fn := range events {
			fn()
			w.settle()
		}
		spent = events
		for fn := w.alarms.due(w.now()); fn != nil; fn = w.alarms.due(w.now()) {
			fn()
			w.settle()
		}
		w.flush()
		if w.runnable() {
			w.step()
			w.settle()
			w.flush()
			select {
			case <-stop:
			case <-deadline:
				w.abandon()
			default:
				continue
			}
		} else {
			if len(events) > 0 {
				continue // what they led to may have posted more
			}
			wait := time.Minute
			if at, ok := w.alarms.earliest(); ok {
				wait = max(0, at-w.now())
			}
			timer.Reset(wait)
			select {
			case <-w.box.wake:
				continue
			case <-timer.C:
				continue
			case <-stop:
			case <-deadline:
				w.abandon()
			}
		}
		if stop != nil && ctx.Err() != nil {
			stop = nil
			w.draining = true
			w.drainEnd = w.now() + grace
			deadline = time.After(grace)
			w.announce()
		}
	}
	return w.shutdown()
}

// settle executes the facts that actions brought about, until there are none.
func (w *Worker) settle() {
	for len(w.followUps) > 0 {
		fn := w.followUps[0]
		w.followUps = w.followUps[1:]
		fn()
	}
	w.followUps = w.followUps[:0]
}

// abandon cancels everything that draining did not finish in time.
func (w *Worker) abandon() {
	for _, t := range w.inOrder() {
		w.tell(t, handoff.FactCancelled, handoff.ReasonShutdown)
		w.settle()
	}
}

// inOrder returns the tasks in order of arrival.
func (w *Worker) inOrder() []*task {
	all := make([]*task, 0, len(w.tasks))
	for _, t := range w.tasks {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *task) int {
		if a.arrived != b.arrived {
			return int(a.arrived - b.arrived)
		}
		return a.id.Compare(b.id)
	})
	return all
}

// shutdown closes what the worker owns.
func (w *Worker) shutdown() error {
	w.flush()
	w.mem.dropSnapshots()
	close(w.stopped)
	_ = w.link.Goodbye() // gateways learn it by silence otherwise
	w.box.close()
	err := w.node.Close()
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	if cerr := w.conn.Close(ctx); err == nil {
		err = cerr
	}
	if cerr := w.eng.Close(); err == nil {
		err = cerr
	}
	if w.fatal != nil {
		return fmt.Errorf("%w: %w", ErrEngine, w.fatal)
	}
	return err
}

// closeLimit bounds the orderly end of the bus connection.
const closeLimit = 2 * time.Second

// broken ends the worker: an engine that cannot be trusted must not answer.
func (w *Worker) broken(err error) {
	if w.fatal == nil {
		w.fatal = err
		w.cfg.Log.Error("engine failed", "error", err)
	}
}
