package replay

import (
	"fmt"
	"slices"
	"time"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/block"
	"github.com/tandem-llm/tandem/kv/radix"
	"github.com/tandem-llm/tandem/replay/fleet"
	"github.com/tandem-llm/tandem/replay/link"
	"github.com/tandem-llm/tandem/replay/report"
	"github.com/tandem-llm/tandem/route"
	"github.com/tandem-llm/tandem/sched"
)

// worker is one life after another of a worker.
type worker struct {
	number      int32 // in the fleet
	index       int   // in its pool
	pool        *pool
	name        string
	incarnation uint64
	alive       bool
	downSince   timed.Time

	kv            kv.Manager
	sched         *sched.Scheduler
	tombs         *handoff.Tombstones
	facts         []fact  // what machines are to be told when no action is being executed
	byRef         []int32 // task of each ref, -1
	nicIn, nicOut link.Resource

	// What runs: a step, or a stretch of steps that was not planned step by step.
	stepping bool
	step     sched.Step
	stretch  int // steps; 0: none
	decodes  int // of the stretch
	context  int64
	begun    timed.Time // when the step or stretch began
	ends     timed.Time

	// Tokens. A row that decodes in one step after another gets its tokens a step
	// apart; joined are the tasks whose next token is not: of them, the first inStep
	// have a row in the running step.
	joined     []int32
	inStep     int
	lost       int        // rows of the running step that were cancelled
	lastDecode timed.Time // end of the last step that had decodes

	busyFrom, busyTo timed.Time // not yet reported
	busyKind         report.Work
	seen             kv.Snapshot // as reported last,
	seenAt           timed.Time  // then
	before           kv.Snapshot // what is being handled now
	changed          bool        // something other than growth may have changed memory
}

// build makes the fleet.
func (h *host) build() error {
	h.router = route.New(func(route.Target, route.Target) error { return nil })
	h.pools = make([]pool, len(h.cfg.Pools))
	for i := range h.cfg.Pools {
		c, p := &h.cfg.Pools[i], &h.pools[i]
		p.build(c)
		if p.cache {
			if p.names = slices.Index(h.blockSizes, p.block); p.names < 0 {
				p.names = len(h.blockSizes)
				h.blockSizes, h.blockMost = append(h.blockSizes, p.block), append(h.blockMost, 0)
			}
			h.blockMost[p.names] = max(h.blockMost[p.names], p.blocks)
		}
		p.first = int32(len(h.workers))
		p.rep = h.rec.Pool(report.PoolSpec{Name: c.Name, Role: string(c.Role), Workers: c.Count,
			Blocks: p.blocks, BlockBytes: p.perToken * int64(p.block)})
		for j := range c.Count {
			w := worker{number: int32(len(h.workers)), index: j, pool: p, name: fleet.WorkerName(c.Name, j)}
			nic := h.nic(c)
			w.nicIn, w.nicOut = h.net.Resource(nic), h.net.Resource(nic)
			h.byName[w.name] = w.number
			h.workers = append(h.workers, w)
		}
	}
	h.useRoutes()
	for i := range h.workers {
		if err := h.boot(&h.workers[i]); err != nil {
			return fmt.Errorf("replay: worker %s: %w", h.workers[i].name, err)
		}
	}
	for i := range h.cfg.Failures {
		h.events.Push(timed.Of(h.cfg.Failures[i].At), event{kind: evFailure, subject: int32(i)})
	}
	return nil
}

// bytesPerSecond of 10^9 bits a second.
func bytesPerSecond(gbps float64) float64 { return gbps * 1e9 / 8 }

// nic is what a worker's NIC carries: as configured, or as the fastest of its links.
func (h *host) nic(c *fleet.Pool) float64 {
	gbps := c.NICGbps
	if gbps == 0 {
		gbps = h.cfg.Links.Default.Gbps
		for _, l := range h.cfg.Links.Between {
			if l.From == c.Name || l.To == c.Name {
				gbps = max(gbps, l.Gbps)
			}
		}
	}
	return bytesPerSecond(gbps)
}

// build derives a pool's costs and the size of its memory.
func (p *pool) build(c *fleet.Pool) {
	p.cfg, p.cost = c, newCost(c)
	p.state = p.cost.geometry()
	p.block, p.cache = c.Memory.BlockTokens, c.Memory.Caches()
	p.perToken = p.state.PerToken()
	p.blocks = c.BlocksEach()
}

// boot starts a worker's first or next life, with empty memory.
func (h *host) boot(w *worker) error {
	c := w.pool.cfg
	shape := kv.Config{Blocks: w.pool.blocks, BlockTokens: w.pool.block, Slots: c.Memory.Slots}
	var err error
	if c.Memory.Kind == fleet.Radix {
		w.kv, err = radix.New(shape)
	} else {
		w.kv, err = block.New(shape)
	}
	if err != nil {
		return err
	}
	s := sched.Config{
		Budget: max(c.Schedule.Budget, c.Schedule.Running+1), Chunk: c.Schedule.Chunk, Running: c.Schedule.Running,
		Headroom: *c.Schedule.Headroom, NoRecompute: c.Role == fleet.Decode,
	}
	if c.Schedule.Priority == "prefills-first" {
		s.Priority = sched.PrefillsFirst
	}
	if c.Role == fleet.Both {
		part := func(n int) int { return min(max(1, int(float64(n)*c.Memory.SourceShare)), n-1) }
		s.Source = sched.Share{Blocks: part(shape.Blocks)}
		s.Destination = sched.Share{Blocks: shape.Blocks - s.Source.Blocks}
		if shape.Slots > 0 {
			s.Source.Slots = part(shape.Slots)
			s.Destination.Slots = shape.Slots - s.Source.Slots
		}
	}
	if w.sched, err = sched.New(s, w.kv); err != nil {
		return err
	}
	w.tombs = handoff.NewTombstones(tombstoneLife, epoch, 0)
	w.alive = true
	w.incarnation++
	w.byRef = w.byRef[:0]
	w.joined, w.inStep, w.lost, w.facts = w.joined[:0], 0, 0, w.facts[:0]
	w.seen, w.before, w.seenAt = kv.Snapshot{}, kv.Snapshot{}, h.now
	h.announce(w, false)
	return nil
}

// tombstoneLife is as long as a live worker remembers a released handoff.
const tombstoneLife = 10 * time.Minute

// announce tells the router of a worker.
func (h *host) announce(w *worker, unreachable bool) {
	c := w.pool.cfg
	role := route.Both
	switch c.Role {
	case fleet.Prefill:
		role = route.Prefill
	case fleet.Decode:
		role = route.Decode
	}
	cells := w.pool.blocks * w.pool.block
	slots := c.Schedule.Running
	if c.Memory.Slots > 0 {
		slots = min(slots, c.Memory.Slots)
	}
	context := cells
	if c.Schedule.Context > 0 {
		context = min(context, c.Schedule.Context)
	}
	h.router.Update(route.Worker{Name: w.name, Incarnation: w.incarnation, Role: role, Model: model,
		Slots: slots, Cells: cells, Context: context, Unreachable: unreachable})
}

// goOn tells machines what they are to be told, and starts what can run.
func (h *host) goOn(w *worker) {
	h.settle(w)
	if w.alive {
		h.sample(w) // before a step grows its sequences
		h.run(w)
	}
}

// sample reports where a worker's blocks are, if that may have changed other than by
// growth. What sequences grew by since the last time is reported with it: growth is
// even between two changes, so half of the time with the blocks of either end has
// the same mean. A stretch that is taken at once shows what its steps would.
func (h *host) sample(w *worker) {
	if !w.changed {
		return
	}
	w.changed = false
	w.grown(h.now)
	s := w.kv.Snapshot()
	if w.before != w.seen || s != w.seen {
		w.pool.rep.Memory(w.index, h.now, s)
	}
	if h.trace != nil && s != w.seen {
		h.trace.capacity(w, h.now.Duration(), s)
	}
	w.seen, w.before, w.seenAt = s, s, h.now
}

// grown reports what sequences grew by until something changes at a time.
func (w *worker) grown(at timed.Time) {
	if w.before != w.seen {
		w.pool.rep.Memory(w.index, w.seenAt+(at-w.seenAt)/2, w.before)
	}
}

// busy records that a worker computes in some time. Neighbours of one kind are one.
func (w *worker) busy(from, to timed.Time, kind report.Work) {
	if from == w.busyTo && kind == w.busyKind {
		w.busyTo = to
		return
	}
	w.flushBusy()
	w.busyFrom, w.busyTo, w.busyKind = from, to, kind
}

func (w *worker) flushBusy() {
	if w.busyTo > w.busyFrom {
		w.pool.rep.Busy(w.index, w.busyFrom, w.busyTo, w.busyKind)
	}
	w.busyFrom = w.busyTo
}
