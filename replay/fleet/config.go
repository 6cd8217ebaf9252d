package fleet

import (
	"time"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/place"
	"github.com/tandem-llm/tandem/route"
	"github.com/tandem-llm/tandem/workload"
)

// Config is a fleet, its policy and what goes wrong with it.
type Config struct {
	// Mode is colocated, disaggregated, or auto: disaggregated where a pair of
	// workers can be had.
	Mode place.Mode `yaml:"mode"`
	// Order of handoffs: destination-first (default) or source-first.
	Order Order `yaml:"order,omitempty"`
	// Streaming sends pages while the prompt is computed (default), or false: after
	// it.
	Streaming *bool `yaml:"streaming,omitempty"`
	// Seed of everything random: ids, cancels, random routing.
	Seed uint64 `yaml:"seed,omitempty"`

	// Workload is what arrives, where no trace is given; Speedup makes its time, or the
	// trace's, run faster.
	Workload *workload.Spec `yaml:"workload,omitempty"`
	Speedup  float64        `yaml:"speedup,omitempty"`

	Pools    []Pool    `yaml:"pools"`
	Links    Links     `yaml:"links,omitempty"`
	Route    Route     `yaml:"route,omitempty"`
	Gateway  Gateway   `yaml:"gateway,omitempty"`
	Worker   Worker    `yaml:"worker,omitempty"`
	Failures []Failure `yaml:"failures,omitempty"`
	Cancels  Cancels   `yaml:"cancels,omitempty"`
}

// Order is the order in which the sides of a handoff take their memory.
type Order string

// Orders.
const (
	DestinationFirst Order = "destination-first"
	SourceFirst      Order = "source-first"
)

// Role says what the workers of a pool do.
type Role string

// Roles.
const (
	Prefill Role = "prefill" // prompts, and whole requests
	Decode  Role = "decode"  // continuations only
	Both    Role = "both"    // either, with a share of the memory for each side
)

// Pool is a number of equal workers.
type Pool struct {
	Name  string `yaml:"name"`
	Count int    `yaml:"count,omitempty"` // default 1
	Role  Role   `yaml:"role,omitempty"`  // default prefill

	// Timing says how long steps take: a model on hardware, or one of the other kinds;
	// or else File names a file of it (tandem profile writes one).
	Timing   timed.Spec `yaml:",inline"`
	File     string     `yaml:"timing,omitempty"`
	Split    *Split     `yaml:"split,omitempty"`
	Memory   Memory     `yaml:"memory,omitempty"`
	Schedule Schedule   `yaml:"schedule,omitempty"`

	// NICGbps is what a worker's NIC carries in each direction, in 10^9 bits a
	// second; default: the fastest link of the pool.
	NICGbps float64 `yaml:"nic_gbps,omitempty"`
	// Accelerators of a worker, for figures per accelerator; default: its tensor
	// parallel ways, 1 without any.
	Accelerators int `yaml:"accelerators,omitempty"`

	model, second *timed.Model
	blocks        int
}

// Split gives a part of the model's layers to a second box: every step passes
// through both, one after the other, and its activations travel between them.
type Split struct {
	// Share is the part of the layers that the second box has.
	Share float64 `yaml:"share"`
	// Hardware of the second box; default: that of the first.
	Hardware string `yaml:"hardware,omitempty"`
	// Gbps and RTT of the way between the boxes; default 100 and 0.
	Gbps float64       `yaml:"gbps,omitempty"`
	RTT  time.Duration `yaml:"rtt,omitempty"`
	// ActivationBytes travel for each token of a step; default: two bytes for each
	// element of the model's width.
	ActivationBytes int `yaml:"activation_bytes,omitempty"`
}

// Kind is a shape of memory.
type Kind string

// Kinds of memory.
const (
	Block Kind = "block" // kv/block: fixed blocks under hash chained keys
	Radix Kind = "radix" // kv/radix: a tree of pages, and slots for requests
)

// Memory is a worker's attention memory. Its size is Blocks, or GB, or else what the
// weights leave of Fraction of the hardware's memory.
type Memory struct {
	Kind        Kind    `yaml:"kind,omitempty"`         // default block
	BlockTokens int     `yaml:"block_tokens,omitempty"` // tokens of a block or page; default 16
	Blocks      int     `yaml:"blocks,omitempty"`
	GB          float64 `yaml:"gb,omitempty"`       // 10^9 bytes
	Fraction    float64 `yaml:"fraction,omitempty"` // default 0.9
	// Slots is the most sequences at once, in whatever class; default: no limit,
	// and 1024 for radix, which needs one.
	Slots int `yaml:"slots,omitempty"`
	// PrefixCache finds prompts that begin alike; default true. On the receiving
	// side of a handoff it decides whether pages are skipped.
	PrefixCache *bool `yaml:"prefix_cache,omitempty"`
	// SourceShare is the part of memory and slots that a worker in role both keeps
	// for prompts that it computes; default 0.5.
	SourceShare float64 `yaml:"source_share,omitempty"`
}

// Schedule is how an engine is scheduled; see sched.Config.
type Schedule struct {
	Budget  int `yaml:"budget,omitempty"`  // most tokens of a step; default 8192
	Chunk   int `yaml:"chunk,omitempty"`   // most tokens of one prompt in a step; default: the budget
	Running int `yaml:"running,omitempty"` // most requests that compute; default 256
	// Headroom is tokens of growth promised on admission; default 512, as live. As many
	// as any answer has: nobody is ever preempted.
	Headroom *int `yaml:"headroom,omitempty"`
	// Priority is decodes-first (default) or prefills-first.
	Priority string `yaml:"priority,omitempty"`
	// Context is the most tokens of one sequence; default: what memory holds.
	Context int `yaml:"context,omitempty"`
	// Waiting bounds the requests that wait at a worker for memory; default 65536.
	Waiting int `yaml:"waiting,omitempty"`
}

// Links are the links between workers.
type Links struct {
	Default Link   `yaml:"default,omitempty"`
	Between []Link `yaml:"between,omitempty"` // From and To name pools
}

// Link is the way from a worker that computed a prompt to one that decodes.
type Link struct {
	From string `yaml:"from,omitempty"`
	To   string `yaml:"to,omitempty"`
	// Gbps is 10^9 bits a second; default 400.
	Gbps float64 `yaml:"gbps,omitempty"`
	// Trunk: all workers of the two pools share Gbps; default: each pair of workers
	// has it, within what their NICs carry.
	Trunk bool `yaml:"trunk,omitempty"`
	// RTT is a round trip; default 0.
	RTT time.Duration `yaml:"rtt,omitempty"`
	// Loss is the part of packets that is lost; it bounds each stream as
	// link.Loss says. Segment is bytes of a packet; default 1460.
	Loss    float64 `yaml:"loss,omitempty"`
	Segment int     `yaml:"segment,omitempty"`
	// Convert is time that the destination needs when all bytes are there, beside
	// what its timing says (another layout, another number of ways).
	Convert time.Duration `yaml:"convert,omitempty"`
	// Quiesce is how long an aborted stream can still touch memory; default 0.
	Quiesce time.Duration `yaml:"quiesce,omitempty"`
}

// Route is how workers are chosen.
type Route struct {
	Policy route.Policy `yaml:"policy,omitempty"` // of both sides; default least-loaded
	// Prefill and Decode replace Policy for one role.
	Prefill *route.Policy `yaml:"prefill,omitempty"`
	Decode  *route.Policy `yaml:"decode,omitempty"`
	// Affinity is the weight of a found prefix against load, for kv-aware; default 0.5.
	Affinity float64 `yaml:"affinity,omitempty"`
}

// Gateway is how requests are hosted; defaults are those of the live gateway.
type Gateway struct {
	// RTT between gateway and workers; default 200 µs.
	RTT *time.Duration `yaml:"rtt,omitempty"`
	// Active bounds the requests that are admitted at once, Queue those that wait
	// behind them; beyond it they are refused. Default: no limit.
	Active int `yaml:"active,omitempty"`
	Queue  int `yaml:"queue,omitempty"`

	Timeout  time.Duration `yaml:"timeout,omitempty"`  // life of a request after admission; default 10 min
	Patience time.Duration `yaml:"patience,omitempty"` // placement to commit; default half of timeout
	Retries  *int          `yaml:"retries,omitempty"`  // attempts after the first; default 3
	// Retry is what failed attempts are answered with: recompute (default), rebind or
	// none; see handoff.Retry.
	Retry     handoff.Retry `yaml:"retry,omitempty"`
	Backoff   time.Duration `yaml:"backoff,omitempty"`    // first pause before a worker that failed is asked again; default 250 ms
	Lease     time.Duration `yaml:"lease,omitempty"`      // of one renewal; default 10 s
	PlaceWait time.Duration `yaml:"place_wait,omitempty"` // for a worker to come back; default 15 s
	Detect    time.Duration `yaml:"detect,omitempty"`     // until a dead worker is noticed; default 10 s
	// NoRenewal drops the renewals of leases, to see what they are for.
	NoRenewal bool `yaml:"no_renewal,omitempty"`
}

// Worker is what all workers have in common.
type Worker struct {
	Lease      time.Duration `yaml:"lease,omitempty"`      // of a pinned prompt; default 30 s
	Quarantine time.Duration `yaml:"quarantine,omitempty"` // until an aborted stream is closed by force; default 5 s
}

// Failure is something that goes wrong at a given time.
type Failure struct {
	At time.Duration `yaml:"at"`
	// Worker dies, and comes back empty after For, or never. It is named
	// pool-index.
	Worker string `yaml:"worker,omitempty"`
	// From and To name the pools of a link that carries Gbps (0: nothing) instead,
	// for For, or from then on.
	From string  `yaml:"from,omitempty"`
	To   string  `yaml:"to,omitempty"`
	Gbps float64 `yaml:"gbps,omitempty"`
	// Stream is the number, from 0, of a request whose stream breaks then.
	Stream *int64 `yaml:"stream,omitempty"`

	For time.Duration `yaml:"for,omitempty"`
}

// Cancels are clients that go away.
type Cancels struct {
	// Rate is the part of the requests whose client goes away, at a time drawn
	// evenly from 0 to Within after the arrival.
	Rate   float64       `yaml:"rate,omitempty"`
	Within time.Duration `yaml:"within,omitempty"` // default 10 s
	// Requests go away at a given time.
	Requests []Cancel `yaml:"requests,omitempty"`
}

// Cancel is one client that goes away.
type Cancel struct {
	Request int64         `yaml:"request"` // number, from 0
	At      time.Duration `yaml:"at"`
}

// StreamsPages reports whether pages leave while the prompt is computed.
func (c *Config) StreamsPages() bool { return c.Streaming == nil || *c.Streaming }

// Caches reports whether prompts that begin alike are found.
func (m *Memory) Caches() bool { return m.PrefixCache == nil || *m.PrefixCache }
