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
	Transfer // time during which exports, imports or conversions kept the engine from computing
	works
)

// Pool collects memory and utilisation of the workers of one pool.
type Pool struct {
	spec PoolSpec
}

// Pool begins a pool. Pools are reported in the order of these calls.
func (r *Recorder) Pool(spec PoolSpec) *Pool {
	p := &Pool{spec: spec}
	r.pools = append(r.pools, p)
	return p
}

// Memory records where the blocks of a worker, numbered from 0 within its pool,
// are from that time on, until its next call or the end of the run. Calls for
// one worker must come in order of time; workers are independent. Before its
// first call all blocks of a worker are free. Equal snapshots need not be
// repeated, but may be.
func (p *Pool) Memory(worker int, at timed.Time, s kv.Snapshot) {}

// Busy records that a worker did that kind of work from one time to another.
// Spans of one worker must come in order and not overlap.
func (p *Pool) Busy(worker int, from, to timed.Time, kind Work) {}

// Down records that a worker was dead or not yet started in that time. It counts
// neither as busy nor as idle.
func (p *Pool) Down(worker int, from, to timed.Time) {}
