package agenda

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/engine/timed"
	"pgregory.net/rapid"
)

func TestQueueIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type entry struct {
			at timed.Time
			n  int
		}
		var q Queue[int]
		var want []entry
		for n := range rapid.IntRange(0, 300).Draw(t, "n") {
			at := timed.Time(rapid.IntRange(0, 20).Draw(t, "at"))
			q.Push(at, n)
			want = append(want, entry{at, n})
		}
		slices.SortStableFunc(want, func(a, b entry) int { return int(a.at - b.at) })
		for _, w := range want {
			if at, got := q.Next(), 0; at != w.at {
				t.Fatalf("next is at %d, want %d", at, w.at)
			} else if got = q.Pop(); got != w.n {
				t.Fatalf("got value %d, want %d", got, w.n)
			}
		}
		if q.Len() != 0 || q.Next() != timed.Never {
			t.Fatalf("%d are left", q.Len())
		}
	})
}

func TestAlarmsMoveAndEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a Alarms
		want := map[int32]alarm{}
		for n := range rapid.IntRange(0, 400).Draw(t, "n") {
			id := int32(rapid.IntRange(0, 30).Draw(t, "id"))
			if rapid.IntRange(0, 3).Draw(t, "clear") == 0 {
				a.Clear(id)
				delete(want, id)
			} else {
				x := alarm{timed.Time(rapid.IntRange(0, 9).Draw(t, "at")), uint64(n), id}
				a.Set(id, x.at, x.rank)
				want[id] = x
			}
			first := alarm{at: timed.Never, id: -1}
			for _, x := range want {
				if first.id < 0 || x.before(&first) {
					first = x
				}
			}
			if at, got := a.Next(); at != first.at || got != first.id || a.Len() != len(want) {
				t.Fatalf("next is %d at %d of %d, want %d at %d of %d", got, at, a.Len(), first.id, first.at, len(want))
			}
		}
	})
}
