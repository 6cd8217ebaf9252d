package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/place"
	"go.yaml.in/yaml/v3"
)

// ErrConfig is wrapped by every error about a description.
var ErrConfig = errors.New("fleet description")

// MaxBytes bounds a description.
const MaxBytes = 1 << 20

// Limits of a fleet.
const (
	MaxWorkers = 1 << 14
	MaxPools   = 256
	MaxBlocks  = 1 << 27 // of all workers, at about 56 bytes each
)

// Files reads a file that a description names.
type Files func(name string) ([]byte, error)

// Parse reads a description, fills in its defaults and makes its cost models. files
// may be nil. The error wraps ErrConfig.
func Parse(text []byte, files Files) (*Config, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrConfig, len(text), MaxBytes)
	}
	var c Config
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it is empty: give a mode and at least one pool")
		}
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows its end", ErrConfig)
	}
	var doc any
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := zeros(doc, "", ""); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := c.fill(files); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return &c, nil
}

// FromAny takes a description that was decoded into maps, lists and scalars.
func FromAny(v any, files Files) (*Config, error) {
	text, err := yaml.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return Parse(text, files)
}

func or[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func orNew[T any](v **T, d T) {
	if *v == nil {
		*v = &d
	}
}

// fill checks everything and fills in defaults.
func (c *Config) fill(files Files) error {
	if _, err := place.ParseMode(string(c.Mode)); err != nil {
		return fmt.Errorf("mode: %w", err)
	}
	or(&c.Order, DestinationFirst)
	if c.Order != DestinationFirst && c.Order != SourceFirst {
		return fmt.Errorf("order is %q, want destination-first or source-first", c.Order)
	}
	or(&c.Speedup, 1)
	if !(c.Speedup > 0 && c.Speedup <= 1e9) {
		return fmt.Errorf("speedup is %g, want above 0", c.Speedup)
	}
	if len(c.Pools) == 0 || len(c.Pools) > MaxPools {
		return fmt.Errorf("there are %d pools, want 1 to %d", len(c.Pools), MaxPools)
	}
	workers, blocks := 0, 0
	for i := range c.Pools {
		p := &c.Pools[i]
		if err := p.fill(files); err != nil {
			return fmt.Errorf("pools[%d] (%s): %w", i, p.Name, err)
		}
		for j := range i {
			if c.Pools[j].Name == p.Name {
				return fmt.Errorf("pools[%d]: there is another pool %q", i, p.Name)
			}
		}
		workers += p.Count
		blocks += p.Count * p.blocks
	}
	if workers > MaxWorkers {
		return fmt.Errorf("there are %d workers, the limit is %d", workers, MaxWorkers)
	}
	if blocks > MaxBlocks {
		return fmt.Errorf("all workers have %d blocks, the limit is %d: make memory.block_tokens larger", blocks, MaxBlocks)
	}
	if err := c.fillLinks(); err != nil {
		return err
	}
	if !(c.Route.Affinity >= 0 && c.Route.Affinity < 1) {
		return errors.New("route.affinity is from 0 to below 1")
	}
	if err := c.Gateway.fill(); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	or(&c.Worker.Lease, 30*time.Second)
	or(&c.Worker.Quarantine, 5*time.Second)
	if !times(c.Worker.Lease, c.Worker.Quarantine) {
		return fmt.Errorf("worker: times are from 0 to %v", MaxTime)
	}
	for i := range c.Failures {
		if err := c.failure(&c.Failures[i]); err != nil {
			return fmt.Errorf("failures[%d]: %w", i, err)
		}
	}
	or(&c.Cancels.Within, 10*time.Second)
	if !(c.Cancels.Rate >= 0 && c.Cancels.Rate <= 1) || !times(c.Cancels.Within) {
		return fmt.Errorf("cancels: rate is from 0 to 1, within from 0 to %v", MaxTime)
	}
	for i, q := range c.Cancels.Requests {
		if q.Request < 0 || !times(q.At) {
			return fmt.Errorf("cancels.requests[%d]: request is not negative, at from 0 to %v", i, MaxTime)
		}
	}
	return nil
}

func (p *Pool) fill(files Files) error {
	or(&p.Count, 1)
	or(&p.Role, Prefill)
	switch {
	case p.Name == "":
		return errors.New("name is missing")
	case len(p.Name) > 64:
		return errors.New("name has more than 64 bytes")
	case p.Count < 1 || p.Count > MaxWorkers:
		return fmt.Errorf("count is %d, want 1 to %d", p.Count, MaxWorkers)
	case p.Role != Prefill && p.Role != Decode && p.Role != Both:
		return fmt.Errorf("role is %q, want prefill, decode or both", p.Role)
	case !(p.NICGbps >= 0 && p.NICGbps <= maxGbps) || p.Accelerators < 0 || p.Accelerators > maxAccelerators:
		return fmt.Errorf("nic_gbps is from 0 to %g, accelerators from 0 to %d", maxGbps, maxAccelerators)
	}
	m, s := &p.Memory, &p.Schedule
	or(&m.Kind, Block)
	or(&m.BlockTokens, 16)
	or(&m.Fraction, 0.9)
	or(&m.SourceShare, 0.5)
	or(&s.Budget, 8192)
	or(&s.Running, 256)
	orNew(&s.Headroom, 512)
	or(&s.Priority, "decodes-first")
	or(&s.Waiting, 1<<16)
	if m.Kind == Radix {
		or(&m.Slots, 1024)
	}
	switch {
	case m.Kind != Block && m.Kind != Radix:
		return fmt.Errorf("memory.kind is %q, want block or radix", m.Kind)
	case m.BlockTokens < 1 || m.Blocks < 0 || m.Slots < 0 || !(m.GB >= 0):
		return errors.New("memory: sizes are not negative, and a block has at least one token")
	case !(m.Fraction > 0 && m.Fraction <= 1):
		return fmt.Errorf("memory.fraction is %g, want more than 0, at most 1", m.Fraction)
	case !(m.SourceShare > 0 && m.SourceShare < 1):
		return fmt.Errorf("memory.source_share is %g, want between 0 and 1", m.SourceShare)
	case s.Priority != "decodes-first" && s.Priority != "prefills-first":
		return fmt.Errorf("schedule.priority is %q, want decodes-first or prefills-first", s.Priority)
	case s.Budget < 1 || s.Chunk < 0 || s.Running < 1 || *s.Headroom < 0 || s.Context < 0 || s.Waiting < 1:
		return errors.New("schedule: budget, running and waiting are at least 1, the rest is not negative")
	}
	if err := p.time(files); err != nil {
		return err
	}
	return p.size()
}

func (c *Config) fillLinks() error {
	for i := -1; i < len(c.Links.Between); i++ {
		l, name := &c.Links.Default, "links.default"
		if i >= 0 {
			l, name = &c.Links.Between[i], fmt.Sprintf("links.between[%d]", i)
			if c.pool(l.From) == nil || c.pool(l.To) == nil {
				return fmt.Errorf("%s: from and to name pools, %q and %q are not two of them", name, l.From, l.To)
			}
			or(&l.RTT, c.Links.Default.RTT)
			or(&l.Convert, c.Links.Default.Convert)
			or(&l.Quiesce, c.Links.Default.Quiesce)
			or(&l.Gbps, c.Links.Default.Gbps)
		} else if l.From != "" || l.To != "" {
			return errors.New("links.default: from and to belong below links.between")
		}
		or(&l.Gbps, 400)
		or(&l.Segment, 1460)
		if !(l.Gbps > 0 && l.Gbps <= maxGbps) || !(l.Loss >= 0 && l.Loss < 1) || !times(l.RTT, l.Convert, l.Quiesce) || l.Segment < 1 {
			return fmt.Errorf("%s: gbps is above 0, at most %g, loss from 0 to below 1, times from 0 to %v", name, maxGbps, MaxTime)
		}
	}
	return nil
}

func (g *Gateway) fill() error {
	orNew(&g.RTT, 200*time.Microsecond)
	or(&g.Timeout, 10*time.Minute)
	or(&g.Patience, g.Timeout/2)
	orNew(&g.Retries, 3)
	or(&g.Retry, handoff.RetryRecompute)
	or(&g.Lease, 10*time.Second)
	or(&g.PlaceWait, 15*time.Second)
	or(&g.Detect, 10*time.Second)
	if !times(*g.RTT, g.Timeout, g.Patience, g.Lease, g.PlaceWait, g.Detect, g.Backoff) {
		return fmt.Errorf("times are from 0 to %v", MaxTime)
	}
	if *g.Retries < 0 || *g.Retries > 255 || g.Active < 0 || g.Queue < 0 {
		return errors.New("retries are 0 to 255, active and queue not negative")
	}
	return nil
}

// MaxTime bounds every time in a description.
const MaxTime = 90 * 24 * time.Hour

// What no network and no worker has.
const (
	maxGbps         = 1e9
	maxAccelerators = 1 << 20
)

// times reports whether all lengths of time are from 0 to MaxTime.
func times(all ...time.Duration) bool {
	for _, d := range all {
		if d < 0 || d > MaxTime {
			return false
		}
	}
	return true
}

// failure checks one entry of failures.
func (c *Config) failure(f *Failure) error {
	if !times(f.At, f.For) || !(f.Gbps >= 0 && f.Gbps <= maxGbps) {
		return fmt.Errorf("at and for are from 0 to %v, gbps from 0 to %g", MaxTime, maxGbps)
	}
	kinds := 0
	if f.Worker != "" {
		kinds++
		if p, _ := c.Find(f.Worker); p < 0 {
			return fmt.Errorf("there is no worker %q: they are named pool-index, as in %s-0", f.Worker, c.Pools[0].Name)
		}
	}
	if f.From != "" || f.To != "" {
		kinds++
		if c.pool(f.From) == nil || c.pool(f.To) == nil {
			return fmt.Errorf("from and to name pools, %q and %q are not two of them", f.From, f.To)
		}
	}
	if f.Stream != nil {
		kinds++
	}
	if kinds != 1 {
		return errors.New("give one of worker, from and to, or stream")
	}
	return nil
}

func (c *Config) pool(name string) *Pool {
	for i := range c.Pools {
		if c.Pools[i].Name == name {
			return &c.Pools[i]
		}
	}
	return nil
}

// Find returns the pool and the index of a worker within it, -1 without one.
func (c *Config) Find(worker string) (pool, index int) {
	for p := range c.Pools {
		for i := range c.Pools[p].Count {
			if WorkerName(c.Pools[p].Name, i) == worker {
				return p, i
			}
		}
	}
	return -1, -1
}

// WorkerName is the name of a pool's worker.
func WorkerName(pool string, index int) string { return fmt.Sprintf("%s-%d", pool, index) }

// Link returns the link between two pools.
func (c *Config) Link(from, to string) Link {
	for _, l := range c.Links.Between {
		if l.From == from && l.To == to {
			return l
		}
	}
	return c.Links.Default
}
