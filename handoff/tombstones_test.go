package handoff

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTombstonesAnswerAndRefuse(t *testing.T) {
	const keep, epoch = time.Minute, 1_700_000_000_000
	ts := NewTombstones(keep, epoch, 0)
	id := Mint(epoch, [10]byte{1})
	if err := ts.Admit(time.Second, id); err != nil {
		t.Fatalf("a fresh id: %v", err)
	}
	ts.Bury(2*time.Second, id, OutcomeExpired)
	ts.Bury(3*time.Second, id, OutcomeFailed) // the first one stays
	var released *ReleasedError
	if err := ts.Admit(4*time.Second, id); !errors.As(err, &released) || released.Outcome != OutcomeExpired {
		t.Errorf("a released id: %v", err)
	}
	if o, ok := ts.Lookup(62*time.Second, id); !ok || o != OutcomeExpired {
		t.Errorf("forgotten %v %v before its time", o, ok)
	}
	if _, ok := ts.Lookup(63*time.Second, id); ok || ts.Len() != 0 {
		t.Error("kept beyond its time")
	}
	var stale *StaleIDError
	if err := ts.Admit(63*time.Second, id); !errors.As(err, &stale) || stale.Future {
		t.Errorf("an old id: %v", err)
	}
	if err := ts.Admit(0, Mint(epoch+60_001, [10]byte{})); !errors.As(err, &stale) || !stale.Future {
		t.Errorf("an id from the future: %v", err)
	}
	if err := ts.Admit(0, Mint(1<<48-1, [10]byte{})); !errors.Is(err, ErrStaleID) {
		t.Errorf("the last id: %v", err)
	}
}

// Whatever is released is never admitted again, and memory is bounded.
func TestINV7TombstonesNeverForgetTooEarly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		r := rand.New(rand.NewPCG(seed, 0))
		const epoch = 1_700_000_000_000
		limit := 1 + r.IntN(20)
		ts := NewTombstones(100*time.Millisecond, epoch, limit)
		var all []ID
		now := time.Duration(0)
		admitted := map[ID]bool{}
		for range 300 {
			now += time.Duration(r.IntN(20)) * time.Millisecond
			if r.IntN(2) == 0 || len(all) == 0 {
				skew := int64(r.IntN(300)) - 150
				all = append(all, Mint(uint64(epoch+now.Milliseconds()+skew), [10]byte{byte(len(all) >> 8), byte(len(all)), 3: byte(len(all))}))
			}
			id := all[r.IntN(len(all))]
			if err := ts.Admit(now, id); err == nil {
				if admitted[id] {
					t.Fatalf("%s was admitted twice", id)
				}
				admitted[id] = true
				ts.Bury(now, id, OutcomeCompleted)
			}
			if ts.Len() > limit || len(ts.queue) > 2*limit+2 {
				t.Fatalf("%d tombstones in %d places, limit %d", ts.Len(), len(ts.queue), limit)
			}
		}
	})
}
