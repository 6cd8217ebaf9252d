package handoff

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func randomRequestFact(r *rand.Rand, now time.Duration, m *Request) RequestFact {
	return RequestFact{
		Kind: mostly(r, oneOf(r, FactTokenOut, FactPlaced, FactBooked, FactBooked, FactReserved, FactPrefillPinned, FactCommitted),
			FactAdmitted, FactFinished, FactFailed, FactFailed, FactWorkerLost, FactSourceReleased, FactReserveRefused, FactDeadlineReached,
			FactClientGone, FactDispatched, FactRouted, 200),
		Policy: mostly(r, oneOf(r, DestinationFirst, SourceFirst, Disabled), 9), Side: mostly(r, oneOf(r, RoleSource, RoleDestination), RoleRequest, 0),
		Phase: oneOf(r, PhaseTransfer, PhasePrefill, PhaseDecode, PhaseBook, PhasePlace), Outcome: oneOf(r, 0, OutcomeFailed, OutcomeExpired, OutcomeHandedOff),
		Finish: mostly(r, 0, FinishStop), Booking: mostly(r, oneOf(r, BookPrefill, BookSource, BookDecode, BookRun), 9), Never: r.IntN(8) == 0,
		Rebind: r.IntN(2) == 0, Refused: r.IntN(4) == 0, Retry: mostly(r, oneOf(r, RetryRecompute, RetryRebind, 0), RetryNone, 9), Retries: uint8(r.IntN(4)),
		Handoff: mostly(r, m.handoff, m.reuse, attemptID(uint8(r.IntN(6)))),
		Index:   mostly(r, m.next, m.next+1, r.IntN(6), -1), MaxTokens: mostly(r, oneOf(r, 0, 5), 1, -1),
		Deadline: now + time.Duration(mostly(r, 200, 0, 1<<62)), Patience: time.Duration(mostly(r, 50, 0, -1, 1<<62)), Backoff: time.Duration(mostly(r, 8, 0, -1, 1<<62)), Lease: time.Duration(mostly(r, 30, 0, 1, -1)),
	}
}

func TestINV9ArbitraryFactsToARequest(t *testing.T) {
	arbitrarily(t, func(t *rapid.T, r *rand.Rand) {
		var m Request
		booked := map[Booking]bool{}
		cancelled := map[ID]int{}
		var woke, now time.Duration
		forwarded, finished, attempts := 0, 0, 0
		for i := range 80 {
			if now += time.Duration(r.IntN(2)); r.IntN(40) == 0 {
				now = max(now, m.until)
			}
			before, f := m, randomRequestFact(r, now, &m)
			switch {
			case i == 0:
				f.Kind = FactAdmitted
			case f.Kind == FactPlaced && f.Handoff == m.handoff:
				f.Handoff = attemptID(uint8(10 + i))
			}
			acts, res, err := m.Apply(now, f, nil)
			answered(t, before, m, before.state == RequestDone, 0, res, err)
			if err != nil && len(acts) > 0 {
				t.Fatal("a refused fact has actions")
			}
			for _, a := range acts {
				if res == NoOp && f.Kind != FactDeadlineReached && (a.Kind != ActionCancel || a.Handoff == m.reuse && a.Side == RoleSource) {
					t.Fatalf("a no-op asked for %s of %v", a.Kind, a.Handoff)
				}
				switch a.Kind {
				case ActionWakeAt:
					woke = a.At
				case ActionBook:
					if booked[a.Booking] {
						t.Fatalf("%s booked twice (INV-5)", a.Booking)
					}
					booked[a.Booking] = true
				case ActionUnbook:
					if !booked[a.Booking] {
						t.Fatalf("%s unbooked twice (INV-5)", a.Booking)
					}
					booked[a.Booking] = false
				case ActionForward:
					if a.Index != forwarded || finished > 0 {
						t.Fatalf("token %d forwarded after %d, finished %d (INV-9)", a.Index, forwarded, finished)
					}
					if f.Handoff != before.handoff || f.Index != a.Index {
						t.Fatal("token of another attempt forwarded (INV-9)")
					}
					forwarded++
				case ActionRetry:
					attempts++
				case ActionFinish:
					finished++
				case ActionCancel:
					cancelled[a.Handoff]++
				case ActionRenewLease:
					if a.Seq == 0 || a.For <= 0 {
						t.Fatal("a renewal that renews nothing")
					}
				}
			}
			if finished > 1 || (m.state == RequestDone) != (finished == 1) {
				t.Fatalf("%d final statuses in %s (INV-6)", finished, m.state)
			}
			if at, armed := m.Deadline(); armed && at != woke {
				t.Fatalf("waits for %v, host was told %v", at, woke)
			}
			for b, on := range booked {
				if on && (m.state == RequestDone || m.state == RequestAdmitted) {
					t.Fatalf("%s still booked in %s (INV-5)", b, m.state)
				}
			}
			if attempts > 3 {
				t.Fatal("more retries than allowed")
			}
		}
	})
}
