package sched

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/block"
)

func TestImpossibleConfigurations(t *testing.T) {
	shape := kv.Config{Blocks: 16, BlockTokens: 4, Slots: 6}
	good := Config{Budget: 16, Page: 4, Running: 4, Source: Share{8, 3}, Destination: Share{8, 3}}
	m, err := block.New(shape)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(good, m); err != nil {
		t.Fatal(err)
	}
	if s, err := New(Config{Budget: 16}, m); err != nil || s.cfg.Running != 6 || s.cfg.Chunk != 16 || s.cfg.Page != 1 {
		t.Errorf("defaults: %v", err)
	}
	tests := []struct {
		field string
		spoil func(c *Config)
	}{
		{"Running", func(c *Config) { c.Running = -1 }},
		{"Page", func(c *Config) { c.Page = -1 }},
		{"Budget", func(c *Config) { c.Budget = 7 }}, // four decodes and a page
		{"Budget", func(c *Config) { c.Budget, c.Priority = 3, PrefillsFirst }},
		{"Chunk", func(c *Config) { c.Chunk = 3 }},
		{"Headroom", func(c *Config) { c.Headroom = -1 }},
		{"Source.Blocks", func(c *Config) { c.Source.Blocks = 9 }},
		{"Source.Blocks", func(c *Config) { c.Destination.Blocks = 0 }},
		{"Source.Slots", func(c *Config) { c.Source.Slots = 4 }},
	}
	for _, test := range tests {
		c := good
		test.spoil(&c)
		_, err := New(c, m)
		var e *ConfigError
		if !errors.As(err, &e) || e.Field != test.field || !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), test.field) {
			t.Errorf("%s: %v", test.field, err)
		}
	}
	c := good
	c.Budget, c.Priority = 4, PrefillsFirst
	if _, err := New(c, m); err != nil {
		t.Errorf("a budget for decodes or for a page: %v", err)
	}
	free, err := block.New(kv.Config{Blocks: 16, BlockTokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Budget: 16}, free); !errors.Is(err, ErrConfig) {
		t.Errorf("without a bound on running requests: %v", err)
	}
}

// Every outcome, state, notice and priority has a name of its own.
func TestNames(t *testing.T) {
	var names []string
	for o := Accepted; o <= Quarantined; o++ {
		names = append(names, "outcome "+o.String())
	}
	for s := StateGone; s <= StateQuarantine; s++ {
		names = append(names, "state "+s.String())
	}
	for k := NoteAdmitted; k <= NoteFreed; k++ {
		names = append(names, "notice "+k.String())
	}
	names = append(names, DecodesFirst.String(), PrefillsFirst.String(), Outcome(99).String(), State(99).String(), NoticeKind(99).String())
	slices.Sort(names)
	if n := len(slices.Compact(slices.Clone(names))); n != len(names) || slices.Contains(names, "") {
		t.Errorf("names: %q", names)
	}
}

// What a host may not know about is answered, not crashed on.
func TestUnknownRefs(t *testing.T) {
	s := newScheduler(t, kv.Config{Blocks: 4, BlockTokens: 4}, Config{Budget: 8, Running: 2})
	for _, ref := range []Ref{-1, 0, 1 << 30} {
		if i := s.Info(ref); i != (Info{}) {
			t.Errorf("ref %d: %+v", ref, i)
		}
	}
	if _, ok := s.Find(nth(1)); ok {
		t.Error("found what never came")
	}
	if o := s.Done(0, Results{Finished: []Ref{5}}); o != Conflict {
		t.Errorf("done without a step: %v", o)
	}
}
