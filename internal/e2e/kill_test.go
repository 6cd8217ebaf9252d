package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-llm/tandem/handoff"
)

// killPoint is one place where a worker is killed with SIGKILL.
type killPoint struct {
	name  string
	at    string // the fault's point
	n     int    // the how manieth time
	role  string // role of the workers that are armed
	mode  string // of the victim
	order string // of its handoff
	state string // of the victim's machine when its worker died
	also  []fault
	hold  string // role that also is armed, and let go after the death or, with leave, before it
	leave bool   // the victim's client goes away while it is held
	full  bool   // all decode slots are taken; the worker is killed when it says that the victim waits
}

// Every state of both machines, and the steps between them.
var killPoints = []killPoint{
	{name: "source computing", at: "prefill", n: 3, role: "prefill", state: "source/Computing"},
	{name: "source exporting", at: "export", n: 2, role: "prefill", state: "source/Computing"},
	{name: "source pinned", at: "state:source/Pinned", role: "prefill", state: "source/Pinned"},
	{name: "source exporting the snapshot", at: "snapshot", n: 1, role: "prefill", state: "source/Pinned"},
	{
		name: "source awaiting its reader", at: "state:source/AwaitingReader", role: "prefill", state: "source/AwaitingReader",
		hold: "decode", also: []fault{{Point: "restore", Act: "hold", Claim: "held"}},
	},
	{
		name: "source draining", at: "state:source/Draining", role: "prefill", state: "source/Draining",
		hold: "prefill", also: []fault{{Point: "export", N: 2, Act: "hold", Claim: "held"}}, leave: true,
	},
	{name: "source released", at: "state:source/Released", role: "prefill", state: "source/Released"},
	{name: "colocated prefill", at: "prefill", n: 3, role: "prefill", mode: "colocated", state: "source/Computing"},
	{name: "colocated decode", at: "decode", n: 5, role: "prefill", mode: "colocated", state: "source/Computing"},
	{name: "destination reserving", at: "state:destination/Reserving", role: "decode", state: "destination/Reserving"},
	{name: "destination reserving while it is full", role: "decode", state: "destination/Reserving", full: true},
	{name: "destination reserved", at: "state:destination/Reserved", role: "decode", state: "destination/Reserved"},
	{name: "destination receiving", at: "import", n: 2, role: "decode", state: "destination/Receiving"},
	{name: "destination before commit", at: "restore", n: 1, role: "decode", state: "destination/Receiving"},
	{name: "destination committed", at: "restored", n: 1, role: "decode", state: "destination/Receiving"},
	{name: "destination active", at: "state:destination/Active", role: "decode", state: "destination/Active"},
	{name: "destination before its first token", at: "decode", n: 1, role: "decode", state: "destination/Active"},
	{name: "destination decoding", at: "decode", n: 7, role: "decode", state: "destination/Active"},
	{
		name: "destination draining", at: "state:destination/Draining", role: "decode", state: "destination/Draining",
		hold: "decode", also: []fault{{Point: "import", N: 2, Act: "hold", Claim: "held"}}, leave: true,
	},
	{name: "destination released", at: "state:destination/Released", role: "decode", state: "destination/Released"},

	{name: "pulled source pinned", at: "state:source/Pinned", role: "prefill", order: sourceFirst, state: "source/Pinned"},
	{name: "pulled source exporting", at: "export", n: 2, role: "prefill", order: sourceFirst, state: "source/Pinned"},
	{
		name: "pulled source awaiting its reader", at: "state:source/AwaitingReader", role: "prefill", order: sourceFirst, state: "source/AwaitingReader",
		hold: "decode", also: []fault{{Point: "restore", Act: "hold", Claim: "held"}},
	},
	{name: "pulling destination reserving", at: "state:destination/Reserving", role: "decode", order: sourceFirst, state: "destination/Reserving"},
	{name: "pulling destination reserved", at: "state:destination/Reserved", role: "decode", order: sourceFirst, state: "destination/Reserved"},
	{name: "pulling destination receiving", at: "import", n: 2, role: "decode", order: sourceFirst, state: "destination/Receiving"},
	{name: "pulling destination before commit", at: "restore", n: 1, role: "decode", order: sourceFirst, state: "destination/Receiving"},
	{name: "pulling destination active", at: "state:destination/Active", role: "decode", order: sourceFirst, state: "destination/Active"},
}

const sourceFirst = "source-first"

// TestKills kills a worker at every point, each time with eight other requests
// running. Every request has one end, the next one works, nothing is left
// anywhere, and the recorded facts of all lives of all processes, replayed, lead
// to the same states and actions.
func TestKills(t *testing.T) {
	l := newLab(t, false)
	for _, k := range killPoints {
		if !t.Run(k.name, func(t *testing.T) { l.during(t, func() { l.killAt(k) }) }) && t.Failed() {
			break // what follows would only repeat it
		}
	}
	l.replay()
}

// during runs part of a test with the lab's failures reported to it.
func (l *lab) during(t *testing.T, fn func()) {
	outer := l.t
	l.t = t
	defer func() { l.t = outer }()
	fn()
}

// crowdTokens is the length of background answers: long enough that all of them
// run when the fault happens.
const crowdTokens = 150

// fullTokens is their length where all slots must still be taken when another
// request's prompt has been computed, beside theirs and on a busy machine.
const fullTokens = 4 * crowdTokens

func (l *lab) killAt(k killPoint) {
	l.unclaim()
	l.arm("prefill")
	l.arm("decode")
	var crowd []*asked
	if k.full {
		crowd = append(l.crowd(fullTokens), l.fill()...)
	} else {
		crowd = l.crowd(crowdTokens)
	}
	dead := l.dead()
	list := append([]fault{{Point: k.at, N: k.n, Act: "kill", Claim: "killed"}}, k.also...)
	switch k.hold {
	case "", k.role:
		l.arm(k.role, list...)
	default:
		l.arm(k.role, list[:1]...)
		l.arm(k.hold, list[1:]...)
	}
	q := victim("disaggregated")
	if k.mode != "" {
		q.mode = k.mode
	}
	q.order = k.order
	v := l.ask(q)
	if k.full {
		l.killWaiting(k.role)
	}
	if k.leave {
		l.leave(v, "held")
		l.arm(k.role, list[0])
	}
	name, trace := l.awaitDeath(dead)
	running := 0
	for _, a := range crowd {
		select {
		case <-a.done:
		default:
			running++
		}
	}
	if running != len(crowd) {
		l.t.Errorf("only %d of %d other requests were running when the worker died", running, len(crowd))
	}
	if roleOf(name) != k.role {
		l.t.Errorf("%s died", name)
	}
	l.disarm()
	if got := lastState(readRecords(l.t, trace)); got != k.state {
		l.t.Errorf("the victim's machine was in %s when its worker died, want %s", got, k.state)
	}
	whole := 0
	if !k.leave {
		if l.wait(v) {
			whole++
		}
	}
	for _, a := range crowd {
		if l.wait(a) {
			whole++
		}
	}
	l.t.Logf("%s died; %d of %d requests were answered", name, whole, len(crowd)+1)
	l.alone(question{prompt: prompt(400, 77), max: 12})
	l.idle()
}

// fill takes the decode slots that the crowd left free.
func (l *lab) fill() []*asked {
	l.t.Helper()
	var more []*asked
	for i := range 2*labSlots - (len(crowdLengths) - 1) {
		q := question{prompt: prompt(20+i, 5), max: fullTokens, mode: "disaggregated", stream: true}
		q.prompt[0] = 1
		more = append(more, l.ask(q))
	}
	l.poll(func() string {
		for _, name := range labWorkers {
			l.mu.Lock()
			free := l.seen[name].GetDestination().GetSlotsFree()
			l.mu.Unlock()
			if free > 0 {
				return name + " has no free slot"
			}
		}
		return ""
	})
	return more
}

// killWaiting kills the worker of a role that says that a reservation waits.
func (l *lab) killWaiting(role string) {
	l.t.Helper()
	name := ""
	l.await("a reservation that waits", func() bool {
		for _, r := range l.seen {
			if roleOf(r.Worker) == role && r.Destination.GetWaiting() > 0 {
				name = r.Worker
			}
		}
		return name != ""
	})
	l.signal(name, syscall.SIGKILL)
}

// leave makes the client of v go away once somebody acted on a fault.
func (l *lab) leave(v *asked, claim string) {
	l.t.Helper()
	l.acted(claim)
	l.gone(v)
}

// gone makes the client of v go away, and returns when the gateway has noticed.
func (l *lab) gone(v *asked) {
	l.t.Helper()
	cancelled := func() float64 {
		m, err := l.scrape("gateway")
		if err != nil {
			l.t.Fatal(err)
		}
		n := 0.0
		for sample, v := range m {
			if strings.HasPrefix(sample, "tandem_requests_total{") && strings.Contains(sample, `outcome="cancelled"`) {
				n += v
			}
		}
		return n
	}
	before := cancelled()
	v.cancel()
	<-v.done
	l.poll(func() string {
		if cancelled() == before {
			return "the gateway notices that the client is gone"
		}
		return ""
	})
}

// lastState returns the role and state that the victim's last record shows.
func lastState(list []handoff.Record) string {
	last := ""
	victims := map[handoff.ID]bool{}
	for _, r := range list {
		if r.SourceFact != nil && victimLength(r.SourceFact.PromptTokens) || r.DestinationFact != nil && victimLength(r.DestinationFact.PromptTokens) {
			victims[r.Handoff] = true
		}
		if victims[r.Handoff] {
			last = r.Role.String() + "/" + r.State
		}
	}
	return strings.TrimSpace(last)
}
