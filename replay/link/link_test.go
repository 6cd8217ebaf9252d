package link

import (
	"math"
	"testing"

	"github.com/tandem-llm/tandem/engine/timed"
	"pgregory.net/rapid"
)

// near fails unless got is within 0.1 % of want.
func near(t *testing.T, what string, got, want timed.Time) {
	t.Helper()
	if math.Abs(float64(got-want)) > 0.001*float64(want) {
		t.Errorf("%s took %v, want %v", what, got, want)
	}
}

// drain goes on until nothing is left and returns when each flow was through.
func drain(n *Network, flows int) []timed.Time {
	ends := make([]timed.Time, flows)
	for n.Next() != timed.Never {
		at := n.Next()
		for _, f := range n.Advance(at, nil) {
			ends[f] = at
		}
	}
	return ends
}

func TestFloor(t *testing.T) {
	var n Network
	r := n.Resource(25e9)
	f := n.Open(0, []Resource{r}, 0)
	n.Add(0, f, 2e9)
	n.End(0, f)
	near(t, "2 GB at 25 GB/s", drain(&n, 1)[0], 80*timed.Millisecond)
}

func TestEqualTransfersShare(t *testing.T) {
	for _, k := range []int{1, 2, 3, 7, 64} {
		var n Network
		out, wire, in := n.Resource(100e9), n.Resource(25e9), n.Resource(50e9)
		for range k {
			f := n.Open(0, []Resource{out, wire, in}, 0)
			n.Add(0, f, 2e9)
			n.End(0, f)
		}
		for _, end := range drain(&n, k) {
			near(t, "each of k", end, timed.Time(k)*80*timed.Millisecond)
		}
	}
}

// A flow that joins half way: both have half the rate from then on.
func TestJoining(t *testing.T) {
	var n Network
	r := n.Resource(1e9)
	a := n.Open(0, []Resource{r}, 0)
	n.Add(0, a, 1e9)
	n.End(0, a)
	b := n.Open(timed.Second/2, []Resource{r}, 0)
	n.Add(timed.Second/2, b, 1e9)
	n.End(timed.Second/2, b)
	ends := drain(&n, 2)
	near(t, "the first", ends[a], timed.Second*3/2)
	near(t, "the second", ends[b], 2*timed.Second)
}

// Max-min: what one flow cannot use the others get.
func TestMaxMin(t *testing.T) {
	var n Network
	wide, narrow := n.Resource(10e9), n.Resource(1e9)
	var flows [3]Flow
	for i := range flows {
		path := []Resource{wide}
		if i == 0 {
			path = append(path, narrow)
		}
		flows[i] = n.Open(0, path, 0)
		n.Add(0, flows[i], 9e9)
		n.End(0, flows[i])
	}
	ends := drain(&n, 3)
	near(t, "the narrow one", ends[flows[0]], 9*timed.Second)
	near(t, "a wide one", ends[flows[1]], 2*timed.Second)
	near(t, "a wide one", ends[flows[2]], 2*timed.Second)
}

func TestPagesThatComeWhileOthersTravel(t *testing.T) {
	var n Network
	r := n.Resource(1e9)
	f := n.Open(0, []Resource{r}, 0)
	n.Add(0, f, 1e8)
	if at := n.Next(); at != 100*timed.Millisecond {
		t.Fatalf("through with what there is at %v", at)
	}
	if got := n.Advance(n.Next(), nil); got != nil {
		t.Fatalf("%v is reported before its end", got)
	}
	n.Add(timed.Second, f, 2e8)
	n.Add(timed.Second+50*timed.Millisecond, f, 1e8)
	n.End(timed.Second+60*timed.Millisecond, f)
	near(t, "all of it", drain(&n, 1)[f], timed.Second+300*timed.Millisecond)

	// An end without bytes left is reported at once.
	f = n.Open(2*timed.Second, []Resource{r}, 0)
	n.End(2*timed.Second, f)
	if at := n.Next(); at != 2*timed.Second {
		t.Fatalf("an empty flow ends at %v", at)
	}
	if got := n.Advance(2*timed.Second, nil); len(got) != 1 || got[0] != f {
		t.Fatalf("got %v", got)
	}
}

func TestRateChanges(t *testing.T) {
	var n Network
	r := n.Resource(1e9)
	f := n.Open(0, []Resource{r}, 0)
	n.Add(0, f, 1e9)
	n.End(0, f)
	n.SetRate(timed.Second/2, r, 0)
	if n.Next() != timed.Never {
		t.Fatal("a link that is down carries something")
	}
	n.SetRate(timed.Second, r, 0.5e9)
	near(t, "a transfer over a degraded link", drain(&n, 1)[f], 2*timed.Second)
}

func TestLossBoundsAStream(t *testing.T) {
	// 1460 bytes, 100 ms, 1 %: 1460/0.1·√150 = 178,813 B/s.
	if got := Loss(100*timed.Millisecond, 0.01, 1460); math.Abs(got-178_813) > 1 {
		t.Errorf("got %g", got)
	}
	var n Network
	r := n.Resource(1e9)
	f := n.Open(0, []Resource{r}, 1e6)
	n.Add(0, f, 1e6)
	n.End(0, f)
	near(t, "a bounded stream", drain(&n, 1)[f], timed.Second)
}

// Whatever happens: no resource is overbooked, nobody could have more without
// taking it from somebody who has no more, every byte arrives, nothing is left.
func TestSharesAreFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var n Network
		for range rapid.IntRange(1, 6).Draw(t, "resources") {
			n.Resource(float64(rapid.IntRange(1, 10).Draw(t, "rate")) * 1e6)
		}
		now := timed.Time(0)
		var live []Flow
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += timed.Time(rapid.IntRange(0, 200).Draw(t, "wait")) * timed.Millisecond
			for n.Next() <= now {
				n.Advance(n.Next(), nil)
			}
			switch k := rapid.IntRange(0, 3).Draw(t, "what"); {
			case k == 0 || len(live) == 0:
				var path []Resource
				for r := range n.rates {
					if len(path) < MaxPath && (rapid.Bool().Draw(t, "over") || r == len(n.rates)-1 && path == nil) {
						path = append(path, Resource(r))
					}
				}
				live = append(live, n.Open(now, path, 0))
				n.Add(now, live[len(live)-1], int64(rapid.IntRange(1, 1e6).Draw(t, "bytes")))
			case k == 1:
				n.Add(now, live[rapid.IntRange(0, len(live)-1).Draw(t, "flow")], 1e5)
			default:
				i := rapid.IntRange(0, len(live)-1).Draw(t, "flow")
				if k == 2 {
					n.End(now, live[i])
				} else {
					n.Close(now, live[i])
				}
				live = append(live[:i], live[i+1:]...)
			}
			fair(t, &n)
		}
		for _, f := range live {
			n.End(now, f)
		}
		drain(&n, len(n.flows))
		for f := range n.flows {
			if x := &n.flows[f]; x.open || x.active {
				t.Fatalf("flow %d is left", f)
			}
		}
	})
}

func fair(t *rapid.T, n *Network) {
	used := make([]float64, len(n.rates))
	most := make([]float64, len(n.rates))
	for f := range n.flows {
		if x := &n.flows[f]; x.active {
			for i := range x.hops {
				used[x.path[i]] += x.rate
				most[x.path[i]] = max(most[x.path[i]], x.rate)
			}
		}
	}
	for r := range used {
		if used[r] > n.rates[r]*(1+1e-9) {
			t.Fatalf("resource %d carries %g of %g", r, used[r], n.rates[r])
		}
	}
	for f := range n.flows {
		x := &n.flows[f]
		if !x.active {
			continue
		}
		bottleneck := false
		for i := range x.hops {
			r := x.path[i]
			if used[r] >= n.rates[r]*(1-1e-9) && x.rate >= most[r]*(1-1e-9) {
				bottleneck = true
			}
		}
		if !bottleneck {
			t.Fatalf("flow %d could have more than %g", f, x.rate)
		}
	}
}

// A flow moves only while it has bytes and a rate.
func TestMoving(t *testing.T) {
	var n Network
	r := n.Resource(1e9)
	f := n.Open(0, []Resource{r}, 0)
	n.Add(0, f, 1_000_000) // 1 ms
	ms := timed.Millisecond
	if got := n.Moving(ms/2, f); got != ms/2 {
		t.Errorf("half way it has moved for %v", got)
	}
	n.Advance(ms, nil)
	if got := n.Moving(5*ms, f); got != ms {
		t.Errorf("with nothing to send it has moved for %v", got)
	}
	n.Add(5*ms, f, 2_000_000)
	n.SetRate(6*ms, r, 0)
	n.SetRate(9*ms, r, 1e9)
	n.End(9*ms, f)
	if through := n.Advance(10*ms, nil); len(through) != 1 || n.Moving(10*ms, f) != 3*ms {
		t.Errorf("%v through, moved for %v of 10 ms", through, n.Moving(10*ms, f))
	}
}
