package worker

import (
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestAlarmsFireInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var a alarms
		times := rapid.SliceOfN(rapid.IntRange(0, 20), 1, 50).Draw(rt, "times")
		type fired struct{ at, order int }
		var got []fired
		for i, at := range times {
			a.set(time.Duration(at), func() { got = append(got, fired{at, i}) })
		}
		for now := time.Duration(0); now <= 20; now++ {
			if at, ok := a.earliest(); ok && at < now {
				rt.Fatalf("alarm of %d is late at %d", at, now)
			}
			for fn := a.due(now); fn != nil; fn = a.due(now) {
				fn()
			}
		}
		if len(got) != len(times) {
			rt.Fatalf("%d of %d alarms fired", len(got), len(times))
		}
		if !slices.IsSortedFunc(got, func(x, y fired) int {
			if x.at != y.at {
				return x.at - y.at
			}
			return x.order - y.order
		}) {
			rt.Fatalf("fired in the order %v", got)
		}
	})
}

func TestMailboxLosesAndReordersNothing(t *testing.T) {
	m := newMailbox()
	const posters, each = 4, 500
	var wg sync.WaitGroup
	var mu sync.Mutex
	next := map[int]int{}
	for p := range posters {
		wg.Go(func() {
			for i := range each {
				m.post(func() {
					mu.Lock()
					defer mu.Unlock()
					if next[p] != i {
						t.Errorf("poster %d: event %d ran as number %d", p, i, next[p])
					}
					next[p]++
				})
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	var spent []func()
	for ran := 0; ran < posters*each; {
		<-m.wake
		events := m.take(spent)
		for _, fn := range events {
			fn()
		}
		ran += len(events)
		spent = events
	}
	<-done
	m.close()
	if m.post(func() { t.Error("an event ran after close") }) {
		t.Error("post after close reported success")
	}
	if len(m.take(nil)) != 0 {
		t.Error("a closed mailbox gave an event")
	}
}
