package handoff

import (
	"flag"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
)

var (
	exploreDepth  = flag.Int("explore.depth", 0, "deepest event sequence of TestExplore; 0 explores each case up to its built-in bound")
	exploreCase   = flag.String("explore.case", "", "explore only the case of this name")
	exploreStates = flag.Int("explore.states", 0, "most states per case of TestExplore; 0 means its built-in bound, negative no bound")
)

// explorer visits every state of a model world that event sequences up to a
// depth can reach, breadth first. From every state it also lets the network die
// for good and checks that both sides then return everything by themselves.
type explorer struct {
	cfg      config
	depth    int // longest sequence seen
	states   int
	moves    int
	cuts     int // states after the network died
	complete bool

	seed    maphash.Seed
	seen    map[uint64]struct{}
	parents map[uint64]step
	run     runner
	reached map[string]bool // machine states
}

// step is how a state was first reached.
type step struct {
	from uint64
	by   event
}

func newExplorer(cfg config) *explorer {
	x := &explorer{cfg: cfg, seed: maphash.MakeSeed(), seen: map[uint64]struct{}{}, parents: map[uint64]step{}, reached: map[string]bool{}}
	return x
}

// explore runs until everything, depth or limit is exhausted and returns the
// first violation with the script that reproduces it.
func (x *explorer) explore(maxDepth, maxStates int) error {
	start := newWorld(x.cfg)
	frontier := []world{start}
	x.visit(&start, 0, event{})
	var events []event
	for d := 0; len(frontier) > 0; d++ {
		if maxDepth > 0 && d == maxDepth {
			return nil
		}
		var next []world
		for i := range frontier {
			from := &frontier[i]
			key := maphash.Comparable(x.seed, *from)
			events = from.enabled(events[:0])
			over := from.cut
			for _, e := range events {
				w := *from
				x.run.w, x.run.err = &w, nil
				x.run.do(e)
				x.run.check()
				w.canonical()
				x.moves++
				if x.run.err != nil {
					return x.explain(fmt.Errorf("%w\nby %s", x.run.err, e), key)
				}
				if w == *from {
					continue // a repetition that changes nothing
				}
				if x.visit(&w, key, e) {
					if maxStates > 0 && x.states > maxStates {
						return nil
					}
					next = append(next, w)
				}
				if from.cut {
					over = false
					break // any order will do: everything left is local
				}
			}
			if over || len(events) == 0 {
				if err := x.leaks(from); err != nil {
					return x.explain(err, key)
				}
			}
		}
		x.depth = d + 1
		frontier = next
	}
	x.complete = true
	return nil
}

// visit notes a state and reports whether it is new.
func (x *explorer) visit(w *world, from uint64, by event) bool {
	key := maphash.Comparable(x.seed, *w)
	if _, ok := x.seen[key]; ok {
		return false
	}
	x.seen[key] = struct{}{}
	x.parents[key] = step{from, by}
	if w.cut {
		x.cuts++
	} else {
		x.states++
	}
	x.reached["request "+w.req.state.String()] = true
	for a := range w.att {
		x.reached["source "+w.att[a].src.state.String()] = true
		x.reached["destination "+w.att[a].dst.state.String()] = true
	}
	return true
}

// leaks reports what is still held when nothing can happen any more.
func (x *explorer) leaks(w *world) error {
	if left := w.held(); len(left) > 0 {
		return &violation{6, "leaked: " + strings.Join(left, ", ")}
	}
	return nil
}

// held lists every resource that somebody still holds.
func (w *world) held() []string {
	var left []string
	add := func(on bool, what string, args ...any) {
		if on {
			left = append(left, fmt.Sprintf(what, args...))
		}
	}
	add(!w.gwDead && w.admitted && w.req.state != RequestDone, "request in %s", w.req.state)
	add(!w.gwDead && w.booked != 0, "bookings %b", w.booked)
	add(!w.gwDead && w.admitted && w.finished != 1, "%d final statuses", w.finished)
	for a := range w.att {
		t := &w.att[a]
		if !t.srcDead {
			add(t.src.state != SourceNotStarted && t.src.state != SourceReleased, "source.%d in %s", a, t.src.state)
			add(t.srcHeld || t.lease, "memory or lease of source.%d", a)
			for p := range t.link {
				add(t.link[p].src != endNone && t.link[p].src != endClosed, "stream %d of source.%d", p, a)
				add(t.jobs[p] == jobRunning, "prefill of source.%d", a)
			}
		}
		if !t.dstDead {
			add(t.dst.state != DestinationNotRouted && t.dst.state != DestinationReleased, "destination.%d in %s", a, t.dst.state)
			add(t.queued || t.reserved || t.active || t.stepping, "slot or memory of destination.%d", a)
			for p := range t.link {
				add(t.link[p].dst != endNone && t.link[p].dst != endClosed, "stream %d of destination.%d", p, a)
			}
		}
		for p := range t.link {
			add(t.link[p].ticket == ticketLive, "ticket %d of handoff %d", p, a)
		}
	}
	return left
}

// explain turns a violation into a script: the events that lead to it.
func (x *explorer) explain(err error, key uint64) error {
	var path []event
	for key != 0 {
		s := x.parents[key]
		if s.by.kind == evNone {
			break
		}
		path = append(path, s.by)
		key = s.from
	}
	slices.Reverse(path)
	lines := make([]string, len(path))
	for i, e := range path {
		lines[i] = e.String()
	}
	return fmt.Errorf("%+v\n%s\nafter\n\n%s", x.cfg, err, strings.Join(lines, "\n"))
}

// TestExplore visits all interleavings of one handoff to a bounded depth, with
// both policies and colocated, with a kill of any process at any point and with
// transports that need force. It prints the states and transitions visited and
// fails on a violation, a leaked resource, or a declared machine state, fact or
// action that was never reached. Go deeper with -explore.states=-1.
func TestExplore(t *testing.T) {
	calm := func(p Policy) config { return config{policy: p, parts: 1, tokens: 2, nokill: true, nofail: true} }
	full := func(p Policy) config { return config{policy: p, parts: 1, tokens: 2} }
	badstep := func(c config) config { c.badstep = true; return c }
	stuck := func(c config) config { c.stuck = true; return c }
	parts := func(c config) config { c.parts = 2; return c }
	retry := func(c config, p Policy) config { c.retries, c.retry = 1, p; return c }
	rebind := func(c config) config { c.onfail = RetryRebind; return c }
	cases := []struct {
		name   string
		cfg    config
		states int // bound of a normal run; 0 = explored completely
	}{
		{"disabled", full(Disabled), 0},
		{"destination-first, no failures", calm(DestinationFirst), 0},
		{"source-first, no failures", calm(SourceFirst), 50_000},
		{"destination-first, only a step fails", badstep(calm(DestinationFirst)), 60_000},
		{"destination-first", full(DestinationFirst), 20_000},
		{"destination-first, stuck", stuck(full(DestinationFirst)), 10_000},
		{"destination-first, 2 parts", parts(full(DestinationFirst)), 10_000},
		{"destination-first, retry", retry(full(DestinationFirst), DestinationFirst), 10_000},
		{"destination-first, then colocated", retry(full(DestinationFirst), Disabled), 10_000},
		{"destination-first, rebind only", rebind(retry(full(DestinationFirst), DestinationFirst)), 10_000},
		{"source-first", full(SourceFirst), 20_000},
		{"source-first, stuck", stuck(full(SourceFirst)), 10_000},
		{"source-first, 2 parts", parts(full(SourceFirst)), 10_000},
		{"source-first, retry", retry(full(SourceFirst), SourceFirst), 10_000},
		{"source-first, then destination-first", retry(full(SourceFirst), DestinationFirst), 10_000},
	}
	reached := map[string]bool{}
	for _, c := range cases {
		if *exploreCase != "" && *exploreCase != c.name {
			continue
		}
		x := newExplorer(c.cfg)
		limit := c.states
		if *exploreStates != 0 {
			limit = *exploreStates
		}
		if err := x.explore(*exploreDepth, limit); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		t.Logf("%-38s %8d states %9d transitions %8d states without network, depth %d, complete %v",
			c.name, x.states, x.moves, x.cuts, x.depth, x.complete)
		for name := range x.reached {
			reached[name] = true
		}
		for role := range x.run.facts {
			for k, seen := range x.run.facts[role] {
				reached[Role(role).String()+" "+FactKind(k).String()] = seen || reached[Role(role).String()+" "+FactKind(k).String()]
			}
			for k, seen := range x.run.actions[role] {
				reached[Role(role).String()+" "+ActionKind(k).String()] = seen || reached[Role(role).String()+" "+ActionKind(k).String()]
			}
		}
	}
	if *exploreDepth != 0 || *exploreCase != "" {
		return
	}
	for _, want := range declared() {
		if !reached[want] {
			t.Errorf("never reached: %s", want)
		}
	}
}

// declared lists every state, fact and action of the three machines.
func declared() []string {
	var all []string
	for s := range sourceStates {
		all = append(all, "source "+s.String())
	}
	for s := range destinationStates {
		all = append(all, "destination "+s.String())
	}
	for s := range requestStates {
		all = append(all, "request "+s.String())
	}
	for k := FactKind(1); k < factKinds; k++ {
		if sourceTakes(k) {
			all = append(all, "source "+k.String())
		}
		if destinationTakes(k) {
			all = append(all, "destination "+k.String())
		}
		if requestTakes(k) {
			all = append(all, "request "+k.String())
		}
	}
	for k := ActionKind(1); k < actionKinds; k++ {
		switch {
		case k <= ActionReleaseSource:
			all = append(all, "source "+k.String())
		case k > ActionWakeAt && k <= ActionReleaseDestination:
			all = append(all, "destination "+k.String())
		case k > ActionReleaseDestination:
			all = append(all, "request "+k.String())
		}
	}
	return all
}
