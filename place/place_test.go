package place

import (
	"errors"
	"testing"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/route"
)

func target(name string) route.Target { return route.Target{Worker: name, Incarnation: 1} }

// router has workers by name: p prefill, d decode, b both.
func router(names ...string) *route.Router {
	r := route.New(func(route.Target, route.Target) error { return nil })
	for _, n := range names {
		role := map[byte]route.Role{'p': route.Prefill, 'd': route.Decode, 'b': route.Both}[n[0]]
		r.Update(route.Worker{Name: n, Incarnation: 1, Role: role, Slots: 4, Cells: 100, Context: 100})
	}
	return r
}

func TestDecide(t *testing.T) {
	pair := Decision{handoff.DestinationFirst, target("p1"), target("d1"), false}
	for _, c := range []struct {
		name    string
		workers []string
		ask     Ask
		want    Decision
		fails   bool
	}{
		{"colocated", []string{"p1", "d1"}, Ask{Mode: Colocated}, Decision{Policy: handoff.Disabled, Source: target("p1")}, false},
		{"a pair", []string{"p1", "d1"}, Ask{Mode: Disaggregated}, pair, false},
		{"source-first", []string{"p1", "d1"}, Ask{Mode: Auto, Order: handoff.SourceFirst}, Decision{handoff.SourceFirst, target("p1"), target("d1"), false}, false},
		{"no pair", []string{"p1"}, Ask{Mode: Disaggregated}, Decision{}, true},
		{"auto falls back", []string{"p1"}, Ask{Mode: Auto}, Decision{Policy: handoff.Disabled, Source: target("p1")}, false},
		{"auto without anybody", []string{"d1"}, Ask{Mode: Auto}, Decision{}, true},
		{"a holder", []string{"p1", "p2", "d1"}, Ask{Mode: Auto, Holder: target("p2")}, Decision{handoff.DestinationFirst, target("p2"), target("d1"), true}, false},
		{"a holder that is gone", []string{"p1", "d1"}, Ask{Mode: Auto, Holder: target("p2")}, pair, false},
		{"only a holder that is gone", []string{"p1", "d1"}, Ask{Mode: Auto, Holder: target("p2"), Only: true}, Decision{handoff.DestinationFirst, route.Target{}, route.Target{}, true}, true},
	} {
		got, err := Decide(router(c.workers...), c.ask)
		if (err != nil) != c.fails || !c.fails && got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, err, c.want)
		}
		if c.ask.Holder.IsZero() && (Check(router(c.workers...), c.ask.Mode, c.ask.Request) != nil) != c.fails {
			t.Errorf("%s: Check says otherwise", c.name)
		}
	}
}

func TestGoesBack(t *testing.T) {
	failed := []route.Target{target("p1"), target("d1")}
	for _, c := range []struct {
		d       Decision
		refuser route.Target
		want    bool
	}{
		{Decision{Source: target("p2"), Destination: target("d2")}, route.Target{}, false},
		{Decision{Source: target("p1"), Destination: target("d2")}, route.Target{}, true},
		{Decision{Source: target("p2"), Destination: target("d1")}, route.Target{}, true},
		{Decision{Source: target("p1"), Destination: target("d2"), Rebind: true}, route.Target{}, false},
		{Decision{Source: target("p1"), Destination: target("d2"), Rebind: true}, target("p1"), true},
		{Decision{Source: target("p2"), Policy: handoff.Disabled}, route.Target{}, false},
	} {
		if got := c.d.GoesBack(failed, c.refuser); got != c.want {
			t.Errorf("%+v after %v: %v", c.d, c.refuser, got)
		}
	}
}

func TestHopeless(t *testing.T) {
	_, long := Decide(router("p1", "d1"), Ask{Mode: Auto, Request: route.Request{Tokens: 101}})
	_, nobody := Decide(router("p1"), Ask{Mode: Disaggregated})
	for _, c := range []struct {
		err   error
		first bool
		want  bool
	}{{long, true, true}, {long, false, false}, {nobody, true, false}, {errors.New("x"), false, true}} {
		if got := Hopeless(c.err, c.first); got != c.want {
			t.Errorf("%v, first %v: %v", c.err, c.first, got)
		}
	}
}

func TestParseMode(t *testing.T) {
	for _, m := range []Mode{Auto, Disaggregated, Colocated} {
		if got, err := ParseMode(string(m)); got != m || err != nil {
			t.Errorf("%s: %v, %v", m, got, err)
		}
	}
	if _, err := ParseMode("both"); !errors.Is(err, ErrMode) {
		t.Error(err)
	}
}
