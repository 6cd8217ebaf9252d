package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/internal/splitmix"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/replay/agenda"
	"github.com/tandem-llm/tandem/replay/fleet"
	"github.com/tandem-llm/tandem/replay/link"
	"github.com/tandem-llm/tandem/replay/report"
	"github.com/tandem-llm/tandem/route"
	"github.com/tandem-llm/tandem/sched"
	"github.com/tandem-llm/tandem/workload"
)

// Options of a run.
type Options struct {
	Report report.Options

	// StepByStep takes every step by itself: slower, with the same report.
	StepByStep bool

	// Lifecycle gets one line of JSON for each application of a fact to a machine and
	// each change of a worker's memory, in the format of the live hosts
	// (telemetry.Event); nil: nothing.
	Lifecycle io.Writer

	// Progress is called now and then with the virtual time and the number of
	// requests that arrived and ended.
	Progress func(at timed.Time, arrived, ended int64)

	defect func(error) // tests: a machine refused a fact
}

// errClock ends a run whose times add up to more than a Time holds.
var errClock = errors.New("replay: virtual time ran over its end, which is after 106 days: some time in the fleet is too long, or the trace is")

// host is one run.
type host struct {
	cfg *fleet.Config
	src workload.Source
	opt Options
	now timed.Time

	events agenda.Queue[event]
	steps  agenda.Alarms // when each worker's step, or stretch of steps, ends
	timers agenda.Alarms // of requests (2·number) and tasks (2·number + 1)
	rank   uint64        // of the newest timer
	net    link.Network
	flows  []int32     // attempt of each flow
	done   []link.Flow // of one Advance
	oneWay timed.Time  // between gateway and workers

	workers []worker
	pools   []pool
	byName  map[string]int32        // workers; never iterated
	trunks  map[trunk]link.Resource // looked up, never iterated
	router  *route.Router

	trunkList  []trunkRate
	degraded   []degraded
	blockSizes []int    // that caches have
	blockMost  []int    // of each size, the blocks of the largest worker
	ids        []uint64 // of one request
	chained    []kv.Key
	salts      map[string]kv.Salt // looked up, never iterated

	requests slab[request]
	attempts slab[attempt]
	tasks    slab[task]
	taskGen  uint32

	asked    []requestFact // the same for requests
	applying bool
	waiting  []int32 // requests that wait for a worker, in order
	queue    []int32 // requests that wait for admission, from queued on
	queued   int
	active   int     // admitted and not ended
	over     []int32 // requests that ended just now

	sources      []handoff.SourceAction
	destinations []handoff.DestinationAction
	actions      []handoff.RequestAction
	notices      []sched.Notice
	batch        timed.Batch

	rec      *report.Recorder
	trace    *trace
	arrived  int64
	ended    int64
	entropy  uint64
	drawn    uint64
	lastEnd  timed.Time
	defects  int
	firstErr error
}

// trunk names a link that workers share: a pair of pools, or of workers.
type trunk struct {
	pools    bool
	from, to int32
}

// pool is what the workers of a pool have in common.
type pool struct {
	cfg   *fleet.Pool
	cost  cost
	rep   *report.Pool
	first int32 // its first worker

	block    int   // tokens
	blocks   int   // of a worker
	perToken int64 // bytes of state
	state    timed.Geometry
	cache    bool
	names    int // index of request.keys, by size of blocks
}

// Run replays a source on a fleet. The error is that of the source, of an output,
// of a fleet that cannot be, or ctx's.
func Run(ctx context.Context, cfg *fleet.Config, src workload.Source, opt Options) (*report.Result, error) {
	h, err := newHost(cfg, src, opt)
	if err != nil {
		return nil, err
	}
	if err := h.loop(ctx); err != nil {
		return nil, err
	}
	return h.finish()
}

func newHost(cfg *fleet.Config, src workload.Source, opt Options) (*host, error) {
	if opt.Report.Accelerators == 0 {
		for i := range cfg.Pools {
			opt.Report.Accelerators += cfg.Pools[i].Count * cfg.Pools[i].Devices()
		}
	}
	h := &host{
		cfg: cfg, src: src, opt: opt, oneWay: timed.Of(*cfg.Gateway.RTT) / 2, entropy: cfg.Seed, rec: report.New(opt.Report),
		byName: map[string]int32{}, trunks: map[trunk]link.Resource{}, salts: map[string]kv.Salt{},
	}
	if opt.Lifecycle != nil {
		h.trace = newTrace(opt.Lifecycle)
	}
	return h, h.build()
}

// loop handles everything in its order.
func (h *host) loop(ctx context.Context) error {
	for n := 0; ; n++ {
		if h.firstErr != nil {
			return h.firstErr
		}
		if n&0xfff == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			if h.opt.Progress != nil {
				h.opt.Progress(h.now, h.arrived, h.ended)
			}
		}
		arrival, some, err := h.src.Peek()
		if err != nil {
			return err
		}
		if !some {
			arrival = timed.Never
			if h.requests.live == 0 {
				return nil
			}
		}
		step, w := h.steps.Next()
		at, kind := step, 0
		if t := h.net.Next(); t < at {
			at, kind = t, 1
		}
		if t := h.events.Next(); t < at {
			at, kind = t, 2
		}
		if t, _ := h.timers.Next(); t < at {
			at, kind = t, 3
		}
		if arrival < at {
			at, kind = arrival, 4
		}
		if at == timed.Never && some {
			return errClock
		}
		if at == timed.Never {
			return fmt.Errorf("replay: %d requests can never end, the first of them is %s: a defect of the replay; please report it", h.requests.live, h.stuck())
		}
		if at < h.now {
			return errClock
		}
		h.now = at
		switch kind {
		case 0:
			h.stepEnds(&h.workers[w])
		case 1:
			h.transfers()
		case 2:
			h.handle(h.events.Pop())
		case 3:
			h.alarm()
		default:
			q, _, err := h.src.Next()
			if err != nil {
				return err
			}
			h.arrive(&q)
		}
		h.tidy()
	}
}

// tidy is called when everything that followed from an event is done: it forgets
// requests that ended, if nothing speaks of them any more, and lets others in.
func (h *host) tidy() {
	if len(h.over) == 0 {
		return
	}
	for _, n := range h.over {
		h.release(n)
	}
	h.over = h.over[:0]
	h.admitNext()
}

// finish closes what is open and makes the report.
func (h *host) finish() (*report.Result, error) {
	end := h.lastEnd
	for i := range h.workers {
		w := &h.workers[i]
		w.flushBusy()
		h.sample(w)
		end = max(end, w.busyTo)
		if !w.alive {
			w.pool.rep.Down(w.index, w.downSince, max(h.now, w.downSince))
		}
	}
	if h.defects > 0 {
		h.rec.Count("defects", "facts that a machine refused", h.defects)
	}
	if h.trace != nil {
		if err := h.trace.close(); err != nil {
			return nil, fmt.Errorf("replay: lifecycle trace: %w", err)
		}
	}
	return h.rec.Finish(max(end, h.now))
}

// random is the next number of the run's own sequence (splitmix64).
func (h *host) random() uint64 {
	h.drawn++
	return splitmix.Mix(h.entropy + h.drawn*splitmix.Step)
}

// mint makes a handoff id.
func (h *host) mint() handoff.ID {
	var e [10]byte
	a, b := h.random(), h.random()
	for i := range 8 {
		e[i] = byte(a >> (8 * i))
	}
	e[8], e[9] = byte(b), byte(b>>8)
	return handoff.Mint(epoch+uint64(h.now.Duration()/time.Millisecond), e)
}

// epoch is the wall clock at time zero, in Unix milliseconds: ids carry one.
const epoch = 1_700_000_000_000

// wake sets the timer of a request or task; see host.timers.
func (h *host) wake(id int32, at time.Duration) {
	h.rank++
	h.timers.Set(id, max(timed.Of(at), h.now), h.rank)
}

// alarm reports that a timer's time has come.
func (h *host) alarm() {
	_, id := h.timers.Next()
	h.timers.Clear(id)
	if id&1 == 0 {
		h.apply(id/2, handoff.RequestFact{Kind: handoff.FactDeadlineReached})
		return
	}
	t := h.tasks.at(id / 2)
	w := &h.workers[t.worker]
	h.catchUp(w)
	if t.side == handoff.RoleSource {
		h.source(t, handoff.SourceFact{Kind: handoff.FactLeaseExpired})
	} else {
		h.destination(t, handoff.DestinationFact{Kind: handoff.FactReservationExpired})
	}
	h.goOn(w)
}

// fail ends the run with an error.
func (h *host) fail(err error) {
	if h.firstErr == nil {
		h.firstErr = err
	}
}

// stuck describes a request that did not end.
func (h *host) stuck() string {
	for _, chunk := range h.requests.chunks {
		for i := range chunk {
			if q := &chunk[i]; q.pending > 0 || q.machine.State() != handoff.RequestNew {
				return fmt.Sprintf("number %d, in state %s, of which %d things are under way", q.index, q.machine.State(), q.pending)
			}
		}
	}
	return "none"
}
