package handoff

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// These tests tell single machines arbitrary facts, sensible or not, with any
// number of parts and readers, and check the actions against a ledger that knows
// nothing of the machine's inside.

// arbitrarily runs check for many random sequences.
func arbitrarily(t *testing.T, check func(t *rapid.T, r *rand.Rand)) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		for i := range uint64(20) {
			check(t, rand.New(rand.NewPCG(seed, i)))
		}
	})
}

// mostly draws good, or sometimes one of the others.
func mostly[T any](r *rand.Rand, good T, others ...T) T {
	if r.IntN(12) != 0 {
		return good
	}
	return others[r.IntN(len(others))]
}

// oneOf draws an element.
func oneOf[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// answered checks what must hold for every answer of every machine.
func answered[M comparable](t *rapid.T, before, after M, released bool, actions int, res Result, err error) {
	var typed *FactError
	switch {
	case err != nil && !errors.As(err, &typed):
		t.Fatalf("untyped error %v", err)
	case err != nil && (after != before || actions != 0):
		t.Fatalf("refused fact changed the machine: %v", err)
	case err == nil && res != Applied && res != NoOp:
		t.Fatalf("result %d", res)
	case err == nil && res == NoOp && after != before:
		t.Fatal("no-op changed the machine")
	case released && err == nil && res != NoOp:
		t.Fatal("a released machine applied a fact")
	}
}

type streamKey struct{ part, reader uint8 }

// sourceLedger is what a careful host would know about one source.
type sourceLedger struct {
	policy                                           Policy
	parts, readers                                   uint8
	asked, open, done, ticket, aborted, forced, sent map[streamKey]bool
	busy                                             map[uint8]bool
	ended                                            map[uint8]Outcome
	released                                         int
	woke                                             time.Duration
}

func (l *sourceLedger) action(t *rapid.T, a SourceAction) {
	k := streamKey{a.Part, a.Reader}
	once := func(set map[streamKey]bool, what string) {
		if set[k] {
			t.Fatalf("%s twice for %v", what, k)
		}
		set[k] = true
	}
	if l.released > 0 && a.Kind != ActionReportStatus {
		t.Fatalf("%s after the release", a.Kind)
	}
	switch a.Kind {
	case ActionWakeAt:
		l.woke = a.At
	case ActionDispatchPrefill:
		if len(l.busy) > 0 {
			t.Fatal("prefill dispatched twice")
		}
		for p := range l.parts {
			l.busy[p] = true
		}
	case ActionOpenStream:
		once(l.asked, "OpenStream")
		l.ticket[k] = l.policy == SourceFirst
	case ActionSendFinal:
		once(l.sent, "SendFinal")
		if !l.open[k] {
			t.Fatal("SendFinal without an accepted stream (INV-1)")
		}
	case ActionAbortStream:
		if a.Force {
			once(l.forced, "AbortStream{Force}")
			break
		}
		once(l.aborted, "AbortStream")
	case ActionRevokeTicket:
		if !l.ticket[k] {
			t.Fatal("a ticket was revoked that is not live (INV-6)")
		}
		l.ticket[k] = false
	case ActionReportStatus:
		if a.Report == ReportEnded {
			if l.ended[a.Reader] != 0 {
				t.Fatalf("reader %d ended twice (INV-6)", a.Reader)
			}
			l.ended[a.Reader] = a.Outcome
		}
	case ActionReleaseSource:
		l.released++
		for p, b := range l.busy {
			if b {
				t.Fatalf("released while part %d is stepped (INV-2)", p)
			}
		}
		for k := range l.asked {
			if !l.done[k] && (l.open[k] || l.policy != SourceFirst) {
				t.Fatalf("released while stream %v may be read (INV-2)", k)
			}
			if l.ticket[k] {
				t.Fatalf("released with a live ticket (INV-6)")
			}
		}
		if len(l.ended) != int(l.readers) {
			t.Fatalf("released with %d of %d readers ended", len(l.ended), l.readers)
		}
	}
}

// fact notes what an applied fact proves, before the machine's actions count.
func (l *sourceLedger) fact(f SourceFact) {
	k := streamKey{f.Part, f.Reader}
	switch f.Kind {
	case FactStreamOpened:
		l.open[k], l.ticket[k] = true, false
	case FactSendCompleted, FactTransferQuiesced:
		l.done[k] = true
	case FactPrefillPinned, FactStepRetired:
		if l.busy[f.Part] {
			l.busy[f.Part] = false
		}
	case FactPrefillRejected:
		for p := range l.busy {
			l.busy[p] = false
		}
	case FactFinishedAtSource:
		if len(l.ended)+1 >= int(l.readers) {
			for p := range l.busy {
				l.busy[p] = false
			}
		}
	}
}

func randomSourceFact(r *rand.Rand, now time.Duration) SourceFact {
	f := SourceFact{
		Kind: mostly(r, oneOf(r, FactDestinationReady, FactStreamOpened, FactPrefillPinned, FactSendCompleted,
			FactReaderCompleted, FactTransferQuiesced, FactStepRetired, FactLeaseRenewed),
			FactDispatched, FactStreamFailed, FactFinishedAtSource, FactPrefillRejected, FactLeaseExpired, FactPeerLost,
			FactCoordinatorLost, FactCancelled, FactRouted, FactTokenOut, 200),
		Policy: mostly(r, oneOf(r, DestinationFirst, SourceFirst), Disabled, 9), Part: mostly(r, oneOf[uint8](r, 0, 0, 1), 2, 3, All),
		Reader: mostly(r, oneOf[uint8](r, 0, 0, 1), 2, 3, All), Parts: mostly(r, oneOf[uint8](r, 1, 2), 0, 3, 17), Readers: mostly(r, oneOf[uint8](r, 1, 2), 0, 3, 17),
		Reason: ReasonClient, PromptTokens: mostly(r, 10, 0), MaxTokens: mostly(r, 5, 0, 1, -1), SkipTokens: mostly(r, 0, 10, 11, -1),
		Blocks: mostly(r, 3, 0), Seq: r.Uint64N(4), For: time.Duration(mostly(r, 20, 0, -1, 1<<62)),
		Deadline: now + time.Duration(mostly(r, 100, 0, 1<<62)), Quarantine: time.Duration(mostly(r, 10, 0, -1)),
		Incarnation: mostly[uint64](r, 7, 0, 8),
	}
	return f
}

func TestINV6ArbitraryFactsToASource(t *testing.T) {
	arbitrarily(t, func(t *rapid.T, r *rand.Rand) {
		var m Source
		l := &sourceLedger{asked: map[streamKey]bool{}, open: map[streamKey]bool{}, done: map[streamKey]bool{}, ticket: map[streamKey]bool{},
			aborted: map[streamKey]bool{}, forced: map[streamKey]bool{}, sent: map[streamKey]bool{}, busy: map[uint8]bool{}, ended: map[uint8]Outcome{}}
		now := time.Duration(0)
		for i := range 80 {
			if now += time.Duration(r.IntN(2)); r.IntN(40) == 0 {
				now = max(now, m.until) // so that expiries are due sometimes
			}
			before, f := m, randomSourceFact(r, now)
			if i == 0 {
				f.Kind = mostly(r, FactDispatched, FactCancelled)
			}
			acts, res, err := m.Apply(now, f, nil)
			answered(t, before, m, before.state == SourceReleased, len(acts), res, err)
			if err != nil || res == NoOp {
				if len(acts) != 0 && (err != nil || f.Kind != FactLeaseExpired) {
					t.Fatal("actions without an applied fact")
				}
				continue
			}
			if f.Kind == FactDispatched {
				l.policy, l.parts, l.readers = f.Policy, f.Parts, f.Readers
			}
			if before.state == SourceNotStarted && f.Kind == FactCancelled {
				return // nothing was held
			}
			l.fact(f)
			for _, a := range acts {
				l.action(t, a)
			}
			if at, armed := m.Deadline(); armed && at != l.woke {
				t.Fatalf("waits for %v, host was told %v", at, l.woke)
			}
			if (m.state == SourceReleased) != (l.released == 1) {
				t.Fatal("released without ReleaseSource, or the reverse")
			}
		}
	})
}
