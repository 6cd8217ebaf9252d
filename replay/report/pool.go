package report

import (
	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/kv"
)

// PoolSpec describes a pool of equal workers.
type PoolSpec struct {
	Name       string
	Role       string // "prefill", "decode", "both"
	Workers    int
	Blocks     int   // of each worker
	BlockBytes int64 // of attention state in one block
}

// Work is what a worker was busy with.
type Work uint8

// Kinds of work. A step with chunks of prompts and decodes is Mixed.
const (
	Prefill Work = iota
	Decode
	Mixed
	Transfer // exports, imports or conversions kept the engine from computing
	down     // dead or not yet started: neither busy nor idle
	works
)

// classes of blocks, in the order of kv.Snapshot.
const (
	active = iota
	pinned
	reserved
	cached
	free
	classes
)

func classesOf(s *kv.Snapshot) [classes]int {
	return [classes]int{s.Active, s.Pinned, s.Reserved, s.Cached, s.Free}
}

// Pool collects memory and utilisation of the workers of one pool.
type Pool struct {
	spec    PoolSpec
	grid    *grid
	workers []workerState
	memory  [][classes]sum // blocks × picoseconds, by bucket of the grid
	work    [][works]sum   // picoseconds, by bucket of the grid
}

// workerState is what is known of one worker.
type workerState struct {
	since timed.Time   // blocks holds from then on
	held  [classes]int // blocks of each class
	peak  [classes]int
	used  int // peak of active + pinned + reserved
	work  [works]timed.Time
}

// Pool begins a pool. Pools are reported in the order of these calls.
func (r *Recorder) Pool(spec PoolSpec) *Pool {
	p := &Pool{
		spec: spec, grid: &r.grid, workers: make([]workerState, spec.Workers),
		memory: make([][classes]sum, r.grid.points), work: make([][works]sum, r.grid.points),
	}
	for i := range p.workers {
		p.workers[i].held[free] = spec.Blocks
		p.workers[i].peak[free] = spec.Blocks
	}
	r.grid.folders = append(r.grid.folders, func() {
		fold(p.memory, func(into, from *[classes]sum) {
			for c := range into {
				into[c].addSum(from[c])
			}
		})
		fold(p.work, func(into, from *[works]sum) {
			for k := range into {
				into[k].addSum(from[k])
			}
		})
	})
	r.pools = append(r.pools, p)
	return p
}

// Memory records where the blocks of a worker, numbered from 0 within its pool,
// are from that time on, until its next call or the end of the run. Calls for
// one worker must come in order of time; workers are independent. Before its
// first call all blocks of a worker are free. Equal snapshots need not be
// repeated, but may be.
func (p *Pool) Memory(worker int, at timed.Time, s kv.Snapshot) {
	w := &p.workers[worker]
	p.integrate(w, at)
	w.held = classesOf(&s)
	for c, n := range w.held {
		w.peak[c] = max(w.peak[c], n)
	}
	w.used = max(w.used, s.Used())
}

// integrate adds what a worker held until then.
func (p *Pool) integrate(w *workerState, at timed.Time) {
	if at <= w.since {
		return
	}
	p.grid.cover(at)
	for i := p.grid.index(w.since); w.since < at; i++ {
		part := p.grid.part(w.since, at)
		bucket := &p.memory[i]
		for c, n := range w.held {
			bucket[c].addMul(uint64(n), uint64(part))
		}
		w.since += part
	}
}

// Busy records that a worker did that kind of work from one time to another.
// Spans of one worker must come in order and not overlap.
func (p *Pool) Busy(worker int, from, to timed.Time, kind Work) {
	if from >= to {
		return
	}
	p.workers[worker].work[kind] += to - from
	p.grid.cover(to)
	for i := p.grid.index(from); from < to; i++ {
		part := p.grid.part(from, to)
		p.work[i][kind].add(uint64(part))
		from += part
	}
}

// Down records that a worker was dead or not yet started in that time. It counts
// neither as busy nor as idle.
func (p *Pool) Down(worker int, from, to timed.Time) { p.Busy(worker, from, to, down) }
