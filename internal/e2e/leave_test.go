package e2e

import (
	"testing"

	"github.com/tandem-llm/tandem/handoff"
)

// TestClientLeaves lets the client go away in every phase of a request, in both orders and colocated, while a
// worker is held there. The gateway counts the request as cancelled, every worker gives everything
// back, and the next request works.
func TestClientLeaves(t *testing.T) {
	l := newLab(t, false)
	both := []string{"destination-first", sourceFirst}
	for _, k := range []struct {
		name   string
		role   string
		point  fault
		mode   string
		orders []string
		owned  bool // the destination owns the request: the source has handed over
	}{
		{name: "computing", role: "prefill", point: fault{Point: "prefill", N: 2}, orders: both},
		{name: "exporting", role: "prefill", point: fault{Point: "export", N: 2}, orders: both},
		{name: "exporting the snapshot", role: "prefill", point: fault{Point: "snapshot", N: 1}, orders: both},
		{name: "importing", role: "decode", point: fault{Point: "import", N: 2}, orders: both},
		{name: "before the commit", role: "decode", point: fault{Point: "restore", N: 1}, orders: both},
		{name: "after the commit", role: "decode", point: fault{Point: "restored", N: 1}, orders: both},
		{name: "first decode step", role: "decode", point: fault{Point: "decode", N: 1}, orders: both, owned: true},
		{name: "decoding", role: "decode", point: fault{Point: "decode", N: 7}, orders: both, owned: true},
		{name: "colocated, computing", role: "prefill", point: fault{Point: "prefill", N: 3}, mode: "colocated", orders: both[:1]},
		{name: "colocated, decoding", role: "prefill", point: fault{Point: "decode", N: 5}, mode: "colocated", orders: both[:1]},
	} {
		for _, order := range k.orders {
			t.Run(k.name+", "+order, func(t *testing.T) {
				l.during(t, func() {
					l.unclaim()
					f := k.point
					f.Act, f.Claim = "hold", "held"
					l.arm(k.role, f)
					q := victim("disaggregated")
					if k.mode != "" {
						q.mode = k.mode
					}
					q.order = order
					l.leave(l.ask(q), "held")
					l.disarm()
					l.idle()
					// A destination is there from the beginning, or once the prompt is computed.
					asked := q.mode == "disaggregated" && (order != sourceFirst || k.name != "computing")
					l.poll(func() string {
						source, destination := l.victimEnds()
						if source == 0 || asked && destination == 0 {
							return "all ends in the traces"
						}
						// Before the commit either side may hear of the other's abort first.
						cancelled := func(o handoff.Outcome) bool {
							return o == handoff.OutcomeCancelled || o == handoff.OutcomeFailed && !k.owned && asked
						}
						if k.owned && source != handoff.OutcomeHandedOff || !k.owned && !cancelled(source) ||
							asked && !cancelled(destination) || !asked && destination != 0 {
							t.Fatalf("the source ended as %v, the destination as %v", source, destination)
						}
						return ""
					})
				})
			})
		}
	}
	for _, order := range both {
		t.Run("waiting for a slot, "+order, func(t *testing.T) {
			l.during(t, func() {
				l.arm("prefill")
				l.arm("decode")
				others := append(l.crowd(fullTokens), l.fill()...)
				q := victim("disaggregated")
				q.order = order
				v := l.ask(q)
				l.await("a reservation that waits", func() bool {
					for _, r := range l.seen {
						if r.Destination.GetWaiting() > 0 {
							return true
						}
					}
					return false
				})
				l.gone(v)
				l.disarm()
				for _, a := range others {
					if !l.wait(a) {
						t.Errorf("%s: another client's answer was lost", a)
					}
				}
				l.idle()
			})
		})
	}
	l.alone(question{prompt: prompt(400, 77), max: 12})
	l.replay()
}

// victimEnds returns the outcomes that the newest victim's machines have, 0 where
// there is none yet.
func (l *lab) victimEnds() (source, destination handoff.Outcome) {
	l.t.Helper()
	newest := handoff.ID{}
	ends := map[string]handoff.Outcome{}
	for _, r := range l.workerRecords() {
		if r.SourceFact != nil && victimLength(r.SourceFact.PromptTokens) && r.Handoff.Compare(newest) > 0 {
			newest = r.Handoff
		}
		for _, a := range r.SourceActions {
			if a.Kind == handoff.ActionReleaseSource {
				ends["s"+r.Handoff.String()] = a.Outcome
			}
		}
		for _, a := range r.DestinationActions {
			if a.Kind == handoff.ActionReleaseDestination {
				ends["d"+r.Handoff.String()] = a.Outcome
			}
		}
	}
	return ends["s"+newest.String()], ends["d"+newest.String()]
}
