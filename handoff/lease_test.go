package handoff

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A lease is what a few lines say it is: only a larger number renews, progress of
// an open stream renews, nothing goes beyond the handoff's deadline, and it
// expires when it is due and not before.
func TestINV6LeaseFollowsItsRules(t *testing.T) {
	arbitrarily(t, func(t *rapid.T, r *rand.Rand) {
		const deadline = 150
		var m Source
		f := dispatched(SourceFirst)
		f.Deadline = deadline
		for _, f := range []SourceFact{f, {Kind: FactPrefillPinned, Blocks: 1, For: 50}} {
			if _, _, err := m.Apply(0, f, nil); err != nil {
				t.Fatal(err)
			}
		}
		var now, until time.Duration = 0, 50
		var seq uint64
		open := false
		for range 60 {
			now += time.Duration(r.IntN(12))
			switch r.IntN(6) {
			case 0, 1, 2:
				f := SourceFact{Kind: FactLeaseRenewed, Seq: r.Uint64N(12), For: time.Duration(1 + r.IntN(100))}
				if f.Seq > seq || f.Seq == 0 && open {
					until = min(deadline, max(until, now+f.For))
				}
				seq = max(seq, f.Seq)
				if _, _, err := m.Apply(now, f, nil); err != nil {
					t.Fatal(err)
				}
			case 3:
				if r.IntN(4) == 0 {
					open = true
					if _, _, err := m.Apply(now, SourceFact{Kind: FactStreamOpened}, nil); err != nil {
						t.Fatal(err)
					}
				}
			default:
				_, res, err := m.Apply(now, SourceFact{Kind: FactLeaseExpired}, nil)
				if due := now >= until; err != nil || (res == Applied) != due {
					t.Fatalf("at %d, lease until %d: %v %v", now, until, res, err)
				}
				if now >= until {
					return
				}
			}
			if at, armed := m.Deadline(); !armed || at != until {
				t.Fatalf("at %d the machine says %d, the rules say %d", now, at, until)
			}
		}
	})
}
