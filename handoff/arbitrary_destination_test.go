package handoff

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// destinationLedger is what a careful host would know about one destination.
type destinationLedger struct {
	policy                                                   Policy
	parts                                                    uint8
	stream, open, quiet, done, ticket, aborted, forced, acks map[uint8]bool
	reserved, active, stepping                               bool
	activated, released, ended                               int
	woke                                                     time.Duration
}

func (l *destinationLedger) action(t *rapid.T, a DestinationAction) {
	once := func(set map[uint8]bool, what string) {
		if set[a.Part] {
			t.Fatalf("%s twice for part %d", what, a.Part)
		}
		set[a.Part] = true
	}
	if l.released > 0 && a.Kind != ActionReportStatus {
		t.Fatalf("%s after the release", a.Kind)
	}
	switch a.Kind {
	case ActionWakeAt:
		l.woke = a.At
	case ActionStartReceive:
		if !l.reserved || l.policy == DestinationFirst && !l.open[a.Part] {
			t.Fatal("credit without reservation or accepted stream (INV-1)")
		}
		once(l.stream, "StartReceive")
	case ActionActivateDestination:
		l.activated++
		if l.activated > 1 || len(l.done) != int(l.parts) {
			t.Fatalf("activated %d times with %d of %d parts (INV-8)", l.activated, len(l.done), l.parts)
		}
	case ActionAckCommit:
		if !l.active {
			t.Fatal("commit acknowledged before activation (INV-9)")
		}
		once(l.acks, "AckCommit")
	case ActionAbortStream:
		if a.Force {
			once(l.forced, "AbortStream{Force}")
			break
		}
		once(l.aborted, "AbortStream")
	case ActionRevokeTicket:
		if !l.ticket[a.Part] {
			t.Fatal("a ticket was revoked that is not live (INV-6)")
		}
		l.ticket[a.Part] = false
	case ActionReportStatus:
		switch a.Report {
		case ReportReserved:
			for p := range l.parts {
				l.ticket[p] = l.policy == DestinationFirst
			}
		case ReportEnded:
			l.ended++
		}
	case ActionReleaseDestination:
		l.released++
		if l.stepping || l.ended != 1 {
			t.Fatalf("released while a step reads, or with %d ends (INV-1, INV-6)", l.ended)
		}
		for p := range l.stream {
			if !l.quiet[p] && !l.done[p] {
				t.Fatalf("released while part %d may be written (INV-2)", p)
			}
		}
		for _, live := range l.ticket {
			if live {
				t.Fatal("released with a live ticket (INV-6)")
			}
		}
	}
}

func (l *destinationLedger) fact(f DestinationFact, before DestinationState) {
	switch f.Kind {
	case FactReserved:
		l.reserved = true
	case FactStreamOpened:
		l.open[f.Part], l.ticket[f.Part] = true, false
	case FactReceiveCompleted:
		l.done[f.Part] = true
	case FactTransferQuiesced:
		l.quiet[f.Part] = true
	case FactActivationApplied:
		l.active = true
	case FactStepRetired:
		l.stepping = false
	case FactCancelled, FactCoordinatorLost, FactDecodeFinished, FactDecodeFailed:
		l.stepping = f.Stepping && before == DestinationActive
	}
}

func randomDestinationFact(r *rand.Rand, now time.Duration) DestinationFact {
	return DestinationFact{
		Kind: mostly(r, oneOf(r, FactReserved, FactStreamOpened, FactReceiveCompleted, FactActivationApplied, FactTransferQuiesced, FactStepRetired),
			FactRouted, FactDecodeFinished, FactDecodeFailed, FactReceiveFailed, FactReservationExpired, FactCancelled, FactPeerLost,
			FactActivationFailed, FactCoordinatorLost, FactReserveRefused, FactDispatched, FactTokenOut, 200),
		Policy: mostly(r, oneOf(r, DestinationFirst, SourceFirst), Disabled, 9), Part: mostly(r, oneOf[uint8](r, 0, 0, 1), 2, All),
		Parts: mostly(r, oneOf[uint8](r, 1, 2), 3, 0, 17), Reason: ReasonClient, Finish: FinishStop, Never: r.IntN(2) == 0, Stepping: r.IntN(2) == 0,
		PromptTokens: mostly(r, 10, 0), Headroom: mostly(r, 1, -1), SkipTokens: mostly(r, 0, 10, 11, -1), Bytes: r.Uint64(),
		Deadline: now + time.Duration(mostly(r, 100, 0, 1<<62)), Quarantine: time.Duration(mostly(r, 10, 0, -1, 1<<62)), Incarnation: mostly[uint64](r, 7, 0, 8),
	}
}

func TestINV6ArbitraryFactsToADestination(t *testing.T) {
	arbitrarily(t, func(t *rapid.T, r *rand.Rand) {
		var m Destination
		l := &destinationLedger{stream: map[uint8]bool{}, open: map[uint8]bool{}, quiet: map[uint8]bool{}, done: map[uint8]bool{},
			ticket: map[uint8]bool{}, aborted: map[uint8]bool{}, forced: map[uint8]bool{}, acks: map[uint8]bool{}}
		now := time.Duration(0)
		for i := range 60 {
			if now += time.Duration(r.IntN(2)); r.IntN(40) == 0 {
				now = max(now, m.until)
			}
			before, f := m, randomDestinationFact(r, now)
			if i == 0 {
				f.Kind = mostly(r, FactRouted, FactCancelled)
			}
			acts, res, err := m.Apply(now, f, nil)
			answered(t, before, m, before.state == DestinationReleased, len(acts), res, err)
			if err != nil || res == NoOp {
				if len(acts) != 0 && (err != nil || f.Kind != FactReservationExpired) {
					t.Fatal("actions without an applied fact")
				}
				continue
			}
			if f.Kind == FactRouted {
				l.policy, l.parts = f.Policy, f.Parts
			}
			if before.state == DestinationNotRouted && f.Kind == FactCancelled {
				return // nothing was held
			}
			l.fact(f, before.state)
			for _, a := range acts {
				l.action(t, a)
			}
			if m.MayStep() && (!l.active || l.ended > 0) {
				t.Fatal("a sequence may be stepped that is not active (INV-1)")
			}
			if at, armed := m.Deadline(); armed && at != l.woke {
				t.Fatalf("waits for %v, host was told %v", at, l.woke)
			}
			if (m.state == DestinationReleased) != (l.released == 1) {
				t.Fatal("released without ReleaseDestination, or the reverse")
			}
		}
	})
}
