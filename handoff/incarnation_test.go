package handoff

import (
	"errors"
	"testing"
)

// feedSource applies facts that must all be accepted.
func feedSource(t *testing.T, m *Source, facts ...SourceFact) (acts []SourceAction) {
	t.Helper()
	for _, f := range facts {
		got, _, err := m.Apply(0, f, nil)
		if err != nil {
			t.Fatal(err)
		}
		acts = got
	}
	return acts
}

func feedDestination(t *testing.T, m *Destination, facts ...DestinationFact) (acts []DestinationAction) {
	t.Helper()
	for _, f := range facts {
		got, _, err := m.Apply(0, f, nil)
		if err != nil {
			t.Fatal(err)
		}
		acts = got
	}
	return acts
}

func feedRequest(t *testing.T, m *Request, facts ...RequestFact) (acts []RequestAction) {
	t.Helper()
	for _, f := range facts {
		got, _, err := m.Apply(0, f, nil)
		if err != nil {
			t.Fatal(err)
		}
		acts = got
	}
	return acts
}

func dispatched(p Policy) SourceFact {
	return SourceFact{Kind: FactDispatched, Policy: p, Parts: 1, Readers: 1, PromptTokens: 8, MaxTokens: 4, Deadline: sourceDeadline, Quarantine: quarantineTime}
}

func routed(p Policy) DestinationFact {
	return DestinationFact{Kind: FactRouted, Policy: p, Parts: 1, PromptTokens: 8, Headroom: 4, Deadline: sourceDeadline, Quarantine: quarantineTime}
}

// A new incarnation of a worker invalidates every handle of the old one, and news
// of an old one does not hurt the new one.
func TestINV7Incarnations(t *testing.T) {
	const bound, other = 7, 8
	t.Run("source", func(t *testing.T) {
		var m Source
		feedSource(t, &m, dispatched(DestinationFirst), SourceFact{Kind: FactDestinationReady, Incarnation: bound})
		if _, _, err := m.Apply(0, SourceFact{Kind: FactStreamOpened, Incarnation: other}, nil); !errors.Is(err, ErrIncarnation) {
			t.Errorf("stream of another incarnation: %v", err)
		}
		feedSource(t, &m, SourceFact{Kind: FactStreamOpened, Incarnation: bound}, SourceFact{Kind: FactPrefillPinned, Blocks: 1, For: pinLease})
		if _, _, err := m.Apply(0, SourceFact{Kind: FactReaderCompleted, Incarnation: other}, nil); !errors.Is(err, ErrIncarnation) {
			t.Errorf("commit of another incarnation: %v", err)
		}
		if _, res, _ := m.Apply(0, SourceFact{Kind: FactPeerLost, Incarnation: other}, nil); res != NoOp || m.State() != SourcePinned {
			t.Errorf("the loss of another incarnation: %v in %v", res, m.State())
		}
		if _, res, _ := m.Apply(0, SourceFact{Kind: FactPeerLost, Incarnation: bound}, nil); res != Applied || m.Outcome() != OutcomePeerLost {
			t.Errorf("the loss of the bound incarnation: %v, %v", res, m.Outcome())
		}
	})
	t.Run("source-first binds at the first open", func(t *testing.T) {
		var m Source
		feedSource(t, &m, dispatched(SourceFirst), SourceFact{Kind: FactPrefillPinned, Blocks: 1, For: pinLease},
			SourceFact{Kind: FactStreamOpened, Incarnation: bound})
		if _, _, err := m.Apply(0, SourceFact{Kind: FactReaderCompleted, Incarnation: other}, nil); !errors.Is(err, ErrIncarnation) {
			t.Errorf("commit of another incarnation: %v", err)
		}
	})
	t.Run("destination", func(t *testing.T) {
		var m Destination
		f := routed(DestinationFirst)
		f.Incarnation = bound
		feedDestination(t, &m, f, DestinationFact{Kind: FactReserved})
		if _, _, err := m.Apply(0, DestinationFact{Kind: FactStreamOpened, Incarnation: other}, nil); !errors.Is(err, ErrIncarnation) {
			t.Errorf("stream of another incarnation: %v", err)
		}
		if _, res, _ := m.Apply(0, DestinationFact{Kind: FactPeerLost, Incarnation: other}, nil); res != NoOp {
			t.Errorf("the loss of another incarnation: %v", res)
		}
		if _, res, _ := m.Apply(0, DestinationFact{Kind: FactPeerLost, Incarnation: bound}, nil); res != Applied || m.Outcome() != OutcomePeerLost {
			t.Errorf("the loss of the bound incarnation: %v, %v", res, m.Outcome())
		}
	})
}

// Late facts of every kind leave a released machine as it is.
func TestINV7ReleasedStaysReleased(t *testing.T) {
	var s Source
	var d Destination
	var q Request
	feedSource(t, &s, dispatched(Disabled), SourceFact{Kind: FactFinishedAtSource, Finish: FinishStop})
	feedDestination(t, &d, routed(DestinationFirst), DestinationFact{Kind: FactReserveRefused})
	feedRequest(t, &q, RequestFact{Kind: FactAdmitted, Deadline: requestDeadline}, RequestFact{Kind: FactClientGone})
	if s.State() != SourceReleased || d.State() != DestinationReleased || q.State() != RequestDone {
		t.Fatal(s.State(), d.State(), q.State())
	}
	sb, db := s, d
	for k := FactKind(1); k < factKinds; k++ {
		sf := dispatched(DestinationFirst)
		sf.Kind = k
		if acts, res, err := s.Apply(sourceDeadline, sf, nil); sourceTakes(k) && (err != nil || res != NoOp || len(acts) > 0) || s != sb {
			t.Errorf("released source and %s: %v %v %v", k, acts, res, err)
		}
		df := routed(DestinationFirst)
		df.Kind = k
		if acts, res, err := d.Apply(sourceDeadline, df, nil); destinationTakes(k) && (err != nil || res != NoOp || len(acts) > 0) || d != db {
			t.Errorf("released destination and %s: %v %v %v", k, acts, res, err)
		}
	}
}
