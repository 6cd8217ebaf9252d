package worker

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/wire"
)

// Role is what a worker may be asked to do.
type Role string

// The roles of a worker.
const (
	// RolePrefill computes prompts and hands their state over; it also serves
	// whole requests (colocated).
	RolePrefill Role = "prefill"
	// RoleDecode receives state and decodes. It never computes a prompt.
	RoleDecode Role = "decode"
	// RoleBoth does both, with a share of the slots for each.
	RoleBoth Role = "both"
)

// computesPrompts reports whether the role may be given a prompt.
func (r Role) computesPrompts() bool { return r == RolePrefill || r == RoleBoth }

// receives reports whether the role may be given a reservation.
func (r Role) receives() bool { return r == RoleDecode || r == RoleBoth }

// Config configures a Worker. Engine, Identity, Incarnation, Role and Wire.Addr
// are required.
type Config struct {
	// Engine computes; the worker's owner goroutine is its only user from Run on,
	// and closes it.
	Engine engine.Engine
	// Identity proves the worker's name.
	Identity *mesh.Identity
	// Incarnation tells this process from earlier ones of the same name; it grows
	// with every start.
	Incarnation uint64
	Role        Role
	// ModelName is what clients ask for.
	ModelName string
	// Version is the build of this program, for registration.
	Version string
	// Wire configures the data plane; identity, incarnation and the sizes that
	// follow from the model are filled in here.
	Wire wire.Config
	// Bus says how to reach the control plane; identity and events are filled in.
	Bus bus.Options
	// ColocatedOnly, if not empty, says why this model's state cannot be handed
	// over; the worker then serves whole requests only.
	ColocatedOnly string
	// PageTokens is the number of tokens of one chunk and one page [512].
	PageTokens int
	// StepTokens is how many prompt tokens one step computes beside the decodes, of
	// one prompt at most a page: from two pages on, several prompts take turns
	// [PageTokens].
	StepTokens int
	// Headroom is how many tokens of its answer a request has room for when it is
	// admitted. What goes beyond takes memory that is free then; without any, the
	// youngest request loses its own. ContextTokens or more: that never happens.
	Headroom int
	// PrefixCache keeps what was computed of prompts and answers for later prompts.
	PrefixCache bool
	// CachedSlots is how many of the engine's slots keep pages of prefixes; the others
	// are for sequences. A prefix cache needs one, where the model has pages.
	CachedSlots int
	// CachedTokens bounds the tokens whose pages are kept beside those of sequences: an
	// engine may look at every cell in use for each token that it computes. 0: only the
	// cells bound them.
	CachedTokens int
	// SnapshotBytes bounds the host memory of the prefix cache: snapshots of the state
	// that pages do not hold, where the model has any.
	SnapshotBytes int64
	// ContextTokens bounds one sequence; 0 is the engine's own bound.
	ContextTokens int
	// GatewayGrace is how long a silent gateway keeps its requests [10 s].
	GatewayGrace time.Duration
	// Quarantine is how long an aborted stream may take to end by itself before
	// its lane is closed [5 s].
	Quarantine time.Duration
	// Lease is how long finished prefill state is kept without news of a reader
	// [30 s].
	Lease time.Duration
	// MaxWaiting bounds the tasks that wait for a slot [256].
	MaxWaiting int
	// CheckState re-exports a sequence's state after prefill and after import and
	// passes it to StateChecked, for verification. It costs a copy of the whole
	// state for each handoff.
	StateChecked func(handoff string, side telemetry.Side, canonical []byte)

	Log     *slog.Logger
	Metrics *telemetry.Worker
	Events  *telemetry.Events
}

func (c *Config) setDefaults() error {
	switch {
	case c.Engine == nil:
		return fmt.Errorf("worker: Config.Engine is missing")
	case c.Identity == nil:
		return fmt.Errorf("worker: Config.Identity is missing; issue one with `tandem mesh issue`")
	case c.Incarnation == 0:
		return fmt.Errorf("worker: Config.Incarnation is zero; use the start time in milliseconds")
	}
	switch c.Role {
	case RolePrefill, RoleDecode, RoleBoth:
	default:
		return fmt.Errorf("worker: role %q is not known; use prefill, decode or both", c.Role)
	}
	info := c.Engine.Info()
	if slots := info.Slots - c.CachedSlots; c.CachedSlots < 0 || slots < 1 || c.Role == RoleBoth && slots < 2 {
		return fmt.Errorf("worker: role %s has %d slots for sequences, and needs 1, or 2 in role both; raise --slots", c.Role, slots)
	}
	switch {
	case c.PrefixCache && c.CachedSlots == 0 && info.Inventory.Paged():
		return fmt.Errorf("worker: a prefix cache needs slots to keep pages in; raise --cached-slots")
	case c.SnapshotBytes < 0 || c.CachedTokens < 0:
		return fmt.Errorf("worker: %d bytes of snapshots and pages of %d tokens; use 0 or more", c.SnapshotBytes, c.CachedTokens)
	}
	if c.PageTokens == 0 {
		c.PageTokens = 512
	}
	if c.PageTokens < 1 || c.PageTokens > info.BatchTokens {
		return fmt.Errorf("worker: pages of %d tokens do not fit batches of %d", c.PageTokens, info.BatchTokens)
	}
	if c.StepTokens == 0 {
		c.StepTokens = c.PageTokens
	}
	if c.StepTokens < c.PageTokens || c.Headroom < 0 {
		return fmt.Errorf("worker: steps of %d tokens with pages of %d, and headroom of %d; a step has a page or more, headroom is not negative", c.StepTokens, c.PageTokens, c.Headroom)
	}
	if c.ContextTokens <= 0 || c.ContextTokens > info.ContextTokens {
		c.ContextTokens = info.ContextTokens
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&c.GatewayGrace, 10*time.Second)
	def(&c.Quarantine, 5*time.Second)
	def(&c.Lease, 30*time.Second)
	if c.MaxWaiting <= 0 {
		c.MaxWaiting = 256
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	// Opens and imports wait for the step that is running: on a slow machine in
	// role both that can be a long prompt chunk. A peer whose connection died is
	// noticed by the wire within seconds all the same.
	def(&c.Wire.Timeouts.FirstByte, 30*time.Second)
	def(&c.Wire.Timeouts.Progress, time.Minute)
	c.Wire.Identity, c.Wire.Incarnation = c.Identity, c.Incarnation
	c.Wire.PageBytes = max(int64(c.Engine.PageBytes(c.PageTokens)), 1<<16) // 0 for families without pages
	_, snapshot := info.Inventory.SnapshotBytes(uint32(c.ContextTokens))
	c.Wire.LargestUnit = max(c.Wire.PageBytes, int64(snapshot), 1<<20)
	return nil
}
