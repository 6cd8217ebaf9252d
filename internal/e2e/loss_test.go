package e2e

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-llm/tandem/handoff"
)

// end waits for an answer that may also break off, because the gateway is killed.
func (l *lab) end(a *asked) {
	l.t.Helper()
	<-a.done
	if a.broken == nil {
		l.wait(a)
	} else if a.odd != nil {
		l.t.Errorf("%s: %v", a, a.odd)
	}
}

// TestGatewayLost kills the gateway, with the bus that it embeds, in several states
// of a request and with eight others running; and freezes it. Workers end what
// they own for it, by its next life's word or by their own grace, come back, and
// the next request works.
func TestGatewayLost(t *testing.T) {
	l := newLab(t, false)
	for _, k := range []struct {
		name  string
		role  string
		point fault
	}{
		{"prefilling", "prefill", fault{Point: "prefill", N: 3, Act: "hold", Claim: "held"}},
		{"handing off", "decode", fault{Point: "restore", Act: "hold", Claim: "held"}},
		{"decoding", "decode", fault{Point: "decode", N: 4, Act: "hold", Claim: "held"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			l.during(t, func() {
				all := l.crowdAnd(k.role, k.point)
				l.acted("held")
				l.kill("gateway")
				l.gatewayDied = true
				for _, a := range all {
					l.end(a)
				}
				l.note(func() { clear(l.seen) })
				l.startGateway()
				l.await("the report of what is still owned", func() bool {
					for _, r := range l.seen {
						if roleOf(r.Worker) == k.role && len(r.Owned) > 0 {
							return true
						}
					}
					return false
				})
				l.disarm()
				l.idle()
				l.alone(question{prompt: prompt(400, 77), max: 12})
			})
		})
	}
	t.Run("for good", func(t *testing.T) {
		l.during(t, func() {
			all := l.crowdAnd("decode", fault{Point: "decode", N: 4, Act: "hold", Claim: "held"})
			l.acted("held")
			l.kill("gateway")
			for _, a := range all {
				l.end(a)
			}
			l.graceEnds()
			l.startGateway()
			l.idle()
			l.alone(question{prompt: prompt(400, 77), max: 12})
		})
	})
	t.Run("frozen", func(t *testing.T) {
		l.during(t, func() {
			all := l.crowdAnd("decode", fault{Point: "decode", N: 4, Act: "hold", Claim: "held"})
			l.acted("held")
			l.signal("gateway", syscall.SIGSTOP)
			l.graceEnds()
			l.signal("gateway", syscall.SIGCONT)
			for _, a := range all {
				l.wait(a)
			}
			l.idle()
			l.alone(question{prompt: prompt(400, 77), max: 12})
		})
	})
	l.replay()
}

// crowdAnd starts the crowd and a victim with one fault.
func (l *lab) crowdAnd(role string, f fault) []*asked {
	l.t.Helper()
	return l.crowdThen(role, f, victim("disaggregated"))
}

// crowdThen starts the crowd and then a question with one fault.
func (l *lab) crowdThen(role string, f fault, q question) []*asked {
	l.t.Helper()
	l.unclaim()
	l.arm("prefill")
	l.arm("decode")
	all := l.crowd(crowdTokens)
	l.arm(role, f)
	return append(all, l.ask(q))
}

// graceEnds lets the workers go on slowly, with nobody there who tells them
// anything, until they give up the gateway and hold nothing.
func (l *lab) graceEnds() {
	l.t.Helper()
	given := func() int { // up, by the records
		n := 0
		for _, r := range l.workerRecords() {
			if r.Result == handoff.Applied &&
				(r.SourceFact != nil && r.SourceFact.Kind == handoff.FactCoordinatorLost ||
					r.DestinationFact != nil && r.DestinationFact.Kind == handoff.FactCoordinatorLost) {
				n++
			}
		}
		return n
	}
	before := given()
	l.arm("prefill")
	l.arm("decode")
	l.poll(func() string {
		for _, name := range labWorkers {
			if s := l.busy(name); s != "" {
				return s
			}
		}
		return ""
	})
	l.disarm()
	if n := given() - before; n < 5 {
		l.t.Errorf("the workers gave up %d handoffs, most of nine requests were expected to run", n)
	}
}

// TestBusLost kills the external bus server mid-request, for a moment and for
// longer than the workers' patience with a silent gateway. Every request survives
// or ends in one clear error.
func TestBusLost(t *testing.T) {
	l := newLab(t, true)
	for _, k := range []struct {
		name string
		long bool
	}{{"for a moment", false}, {"for long", true}} {
		t.Run(k.name, func(t *testing.T) {
			l.during(t, func() {
				all := l.crowdAnd("decode", fault{Point: "decode", N: 4, Act: "hold", Claim: "held"})
				l.acted("held")
				l.kill("bus")
				if k.long {
					l.graceEnds()
				}
				l.disarm()
				l.startBus()
				whole := 0
				for _, a := range all {
					if l.wait(a) {
						whole++
					}
				}
				t.Logf("%d of %d requests were answered", whole, len(all))
				l.idle()
				l.alone(question{prompt: prompt(400, 77), max: 12})
			})
		})
	}
	l.replay()
}

// workerRecords returns the records that workers wrote so far.
func (l *lab) workerRecords() []handoff.Record {
	l.t.Helper()
	files, err := filepath.Glob(filepath.Join(l.dir, "*.jsonl"))
	if err != nil {
		l.t.Fatal(err)
	}
	var all []handoff.Record
	for _, file := range files {
		if !strings.HasPrefix(filepath.Base(file), "gateway") {
			all = append(all, readRecords(l.t, file)...)
		}
	}
	return all
}

// TestSilentPeer freezes one side in the middle of a transfer: its connections are
// up, and it says nothing. The request is answered by others, and the frozen
// worker, when it goes on, gives everything back.
func TestSilentPeer(t *testing.T) {
	l := newLab(t, false)
	for _, k := range []struct {
		role  string
		point fault
	}{
		{"decode", fault{Point: "import", N: 2, Act: "stop", Claim: "frozen"}},
		{"prefill", fault{Point: "export", N: 2, Act: "stop", Claim: "frozen"}},
	} {
		t.Run(k.role, func(t *testing.T) {
			l.during(t, func() {
				l.unclaim()
				l.arm(k.role, k.point)
				v := l.ask(victim("disaggregated"))
				l.acted("frozen")
				if !l.wait(v) {
					t.Errorf("the request failed: %s", v.code)
				}
				for _, name := range labWorkers {
					l.signal(name, syscall.SIGCONT)
				}
				l.disarm()
				l.idle()
				l.alone(question{prompt: prompt(400, 77), max: 12})
			})
		})
	}
	l.replay()
}
