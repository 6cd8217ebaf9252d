package sched

import (
	"errors"
	"fmt"

	"github.com/tandem-llm/tandem/kv"
)

// Priority says what of a step is planned first.
type Priority uint8

// Priorities.
const (
	// DecodesFirst: every running decode is in every step, and chunks get what is
	// left of the budget (vLLM's order).
	DecodesFirst Priority = iota
	// PrefillsFirst: while there is a prompt to compute, steps have chunks only
	// (SGLang's order).
	PrefillsFirst
)

// String returns a stable name.
func (p Priority) String() string {
	if p == PrefillsFirst {
		return "prefills-first"
	}
	return "decodes-first"
}

// Share is what one side of a worker may have at once. A worker that computes
// prompts for peers and receives state from them needs one per side, or two such
// workers wait for each other in a circle: a prompt here keeps its memory until
// the peer took the state over, and the peer's reservation must not wait for that.
type Share struct {
	Blocks int // shared blocks count for each sequence
	Slots  int // sequences; 0 where the manager has no slots
}

// Config is how an engine is scheduled.
type Config struct {
	Budget   int // most tokens of a step, one for each decode
	Chunk    int // most tokens of one prompt in a step; 0: Budget
	Page     int // chunks end at multiples of it, except at the prompt's end; 0: 1
	Running  int // most requests that prefill or decode; 0: as many as the manager has slots
	Priority Priority
	Headroom int // tokens of growth promised to a request when it is admitted, as far as it may grow

	// NoRecompute fails requests that would have to be preempted, because this
	// worker computes no prompts.
	NoRecompute bool

	// Shares of the side that computes prompts and of the side that receives state.
	// Both or neither; together they are at most what the manager has.
	Source, Destination Share
}

// ErrConfig is what every *ConfigError wraps.
var ErrConfig = errors.New("sched: impossible configuration")

// ConfigError says which field of a Config cannot be.
type ConfigError struct {
	Field string
	Value int
	Want  string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("sched: %s is %d, want %s", e.Field, e.Value, e.Want)
}

// Unwrap returns ErrConfig.
func (e *ConfigError) Unwrap() error { return ErrConfig }

// check validates a Config and fills in defaults.
func (c Config) check(m kv.Config) (Config, error) {
	if c.Chunk == 0 {
		c.Chunk = c.Budget
	}
	if c.Page == 0 {
		c.Page = 1
	}
	rows := c.Running
	if rows == 0 {
		rows = m.Slots
	}
	least := c.Page
	if c.Priority == DecodesFirst {
		least += rows
	}
	split := c.Source != Share{} || c.Destination != Share{}
	bad := func(field string, value int, want string) (Config, error) {
		return c, &ConfigError{Field: field, Value: value, Want: want}
	}
	switch {
	case c.Running < 0 || rows == 0 || rows > kv.MaxSequences:
		return bad("Running", c.Running, "1 or more, or a manager with slots")
	case c.Page < 1:
		return bad("Page", c.Page, "1 or more")
	case c.Budget < max(least, rows) || c.Budget > kv.MaxTokens:
		return bad("Budget", c.Budget, fmt.Sprintf("%d or more, so that all decodes and a page fit", max(least, rows)))
	case c.Chunk < c.Page:
		return bad("Chunk", c.Chunk, "a page or more")
	case c.Headroom < 0 || c.Headroom > kv.MaxTokens:
		return bad("Headroom", c.Headroom, "0 or more")
	case split && (c.Source.Blocks < 1 || c.Destination.Blocks < 1 || c.Source.Blocks+c.Destination.Blocks > m.Blocks):
		return bad("Source.Blocks", c.Source.Blocks, fmt.Sprintf("1 or more on both sides, together at most %d", m.Blocks))
	case split && m.Slots > 0 && (c.Source.Slots < 1 || c.Destination.Slots < 1 || c.Source.Slots+c.Destination.Slots > m.Slots):
		return bad("Source.Slots", c.Source.Slots, fmt.Sprintf("1 or more on both sides, together at most %d", m.Slots))
	}
	return c, nil
}
