package handoff

import (
	"flag"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A failing random test prints its draws, which reproduce it; files of them would
// only litter testdata.
func TestMain(m *testing.M) {
	flag.Set("rapid.nofailfile", "true")
	m.Run()
}

// drawConfig draws a world. Two parts, a retry and longer completions go beyond
// what the exhaustive exploration covers completely.
func drawConfig(t *rapid.T) config {
	return config{
		policy:  rapid.SampledFrom([]Policy{DestinationFirst, SourceFirst, DestinationFirst, SourceFirst, Disabled}).Draw(t, "policy"),
		retry:   rapid.SampledFrom([]Policy{DestinationFirst, SourceFirst, Disabled}).Draw(t, "retry policy"),
		parts:   rapid.Uint8Range(1, modelParts).Draw(t, "parts"),
		retries: rapid.Uint8Range(0, 1).Draw(t, "retries"),
		tokens:  rapid.Uint8Range(1, 4).Draw(t, "tokens"),
		onfail:  rapid.SampledFrom([]Retry{RetryRecompute, RetryRebind, RetryNone}).Draw(t, "on failure"),
		stuck:   rapid.Bool().Draw(t, "stuck"),
		nofail:  rapid.Bool().Draw(t, "nofail"),
		nokill:  rapid.Bool().Draw(t, "nokill"),
	}
}

// rare lists events that end a handoff early; a walk mostly avoids them, so that
// it gets somewhere.
func (e event) rare() bool {
	switch e.kind {
	case evPlaceFails, evBookFails, evWake, evPatience, evDeadline, evClientGone, evReject, evFinishFirst, evArriveBad, evBreak,
		evRefuse, evRefuseNever, evActivateFails, evStepFails, evSourceExpires, evDestExpires, evKillSource, evKillDest, evKillGateway, evCut:
		return true
	case evDeliver:
		return e.m == mCancelD || e.m == mCancelS
	}
	return false
}

// walker draws events: fresh ones mostly, repeated deliveries sometimes, rare ones
// once in a while.
type walker struct {
	rand      *rand.Rand
	rarity    int // one rare event in so many
	delivered [modelAttempts]uint32
}

func (k *walker) pick(events []event) event {
	var fresh, stale, rare []event
	for _, e := range events {
		switch {
		case e.rare():
			rare = append(rare, e)
		case e.kind == evReopen || e.kind == evDeliver && k.delivered[e.a]&(1<<e.m) != 0:
			stale = append(stale, e)
		default:
			fresh = append(fresh, e)
		}
	}
	from := fresh
	switch {
	case len(rare) > 0 && (len(fresh) == 0 || k.rand.IntN(k.rarity) == 0):
		from = rare
	case len(stale) > 0 && k.rand.IntN(8) == 0:
		from = stale
	}
	if len(from) == 0 {
		from = events
	}
	e := from[k.rand.IntN(len(from))]
	if e.kind == evDeliver {
		k.delivered[e.a] |= 1 << e.m
	}
	return e
}

// walk makes a random sequence of events and checks after each. With noise, facts
// are also dropped, told out of order, and told again later; then only safety is
// checked. Without noise the network dies at the end and everything must come
// back without it. The runner's script is the reproduction.
func walk(cfg config, noise bool, rarity int, random *rand.Rand) *runner {
	w := newWorld(cfg)
	k := &walker{rand: random, rarity: rarity}
	r := &runner{w: &w}
	if noise {
		r.noise = &noiseMaker{rand: k.rand}
	}
	r.record = func(rec Record) { r.records = append(r.records, rec) }
	var events []event
	for range 150 {
		if noise && k.rand.IntN(5) == 0 {
			r.makeNoise()
		}
		events = w.enabled(events[:0])
		if len(events) == 0 || w.cut {
			break
		}
		e := k.pick(events)
		r.script = append(r.script, e)
		r.do(e)
		if !noise {
			r.check()
		}
		if r.err != nil {
			return r
		}
	}
	if noise {
		return r
	}
	if !w.cut {
		r.script = append(r.script, event{kind: evCut})
		r.do(event{kind: evCut})
	}
	for r.err == nil && r.settle() {
	}
	if left := w.held(); r.err == nil && len(left) > 0 {
		r.fail(6, "leaked: %s", strings.Join(left, ", "))
	}
	return r
}

// settle makes the first event happen that changes something, and reports whether
// there was one.
func (r *runner) settle() bool {
	for _, e := range r.w.enabled(nil) {
		before := *r.w
		r.script = append(r.script, e)
		r.do(e)
		r.check()
		if *r.w != before {
			return true
		}
	}
	return false
}

// checkInvariant runs walks and fails on violations of one invariant (or of the
// model's own rules, number 0).
func checkInvariant(t *testing.T, inv int) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		cfg, noise := drawConfig(t), rapid.Bool().Draw(t, "noise")
		rarity := rapid.SampledFrom([]int{10, 40, 150, 400}).Draw(t, "rarity")
		seed := rapid.Uint64().Draw(t, "seed")
		for i := range uint64(30) {
			r := walk(cfg, noise, rarity, rand.New(rand.NewPCG(seed, i)))
			if r.err != nil && (r.err.inv == inv || r.err.inv == 0) {
				t.Fatalf("%v\nafter\n\n%s", r.err, r.scriptText())
			}
		}
	})
}

func TestINV1NoWriteWithoutReservationNoStepUnlessActive(t *testing.T) { checkInvariant(t, 1) }
func TestINV2MemoryReturnsOnlyWhenNothingTouchesIt(t *testing.T)       { checkInvariant(t, 2) }
func TestINV3MemoryIsCountedOnceAtOnce(t *testing.T)                   { checkInvariant(t, 3) }
func TestINV4PublishedOnceByActivation(t *testing.T)                   { checkInvariant(t, 4) }
func TestINV5BookingsEndAtTheirStep(t *testing.T)                      { checkInvariant(t, 5) }
func TestINV6EverythingEndsExactlyOnce(t *testing.T)                   { checkInvariant(t, 6) }
func TestINV7NothingIsResurrected(t *testing.T)                        { checkInvariant(t, 7) }
func TestINV8RestoreIsATransaction(t *testing.T)                       { checkInvariant(t, 8) }
func TestINV9CommitIsVisibleOnce(t *testing.T)                         { checkInvariant(t, 9) }
