// Package link models a network on a virtual clock: transfers that share NICs
// and links fairly, and slow each other down.
//
// A [Network] has resources, each with a rate, and flows, each over some of the
// resources. At every moment the active flows have max-min fair rates
// (progressive filling): all grow alike until a resource is full, the flows
// over it stay, the others go on. That is processor sharing, which TCP and QUIC
// streams over one bottleneck come close to over the length of a transfer. A flow
// may have a rate of its own that it never exceeds ([Loss]).
//
// The bytes of a flow become available over time ([Network.Add]), as a prompt is
// computed; a flow without available bytes takes no rate. The last bytes are
// flagged ([Network.End]); when they are through, [Network.Advance] reports the
// flow.
//
// Round trips are the host's: it adds them where a message waits for another.
//
// A change touches the flows that share resources with its flow, directly or
// over others, and costs O(flows + resources²) of those. Arithmetic is in
// float64 with every product rounded by itself, so that results are equal on
// every machine. A Network belongs to one goroutine.
package link

import (
	"math"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/replay/agenda"
)

// Resource is a NIC's direction or a link.
type Resource int32

// Flow is one transfer, until Advance reports it or Close ends it; then its number
// is used again.
type Flow int32

// Network is a set of resources and the flows over them. The zero value is empty
// and ready.
type Network struct {
	rates   []float64 // of resources, bytes per second
	members [][]Flow  // of resources: active flows
	flows   []flow
	free    []Flow
	alarms  agenda.Alarms // when each active flow is through with what is available
	visit   uint64        // number of the latest search

	// Of one search: what hangs together.
	group []Flow
	parts []part
	index []int32  // resource to parts
	seen  []uint64 // resource to the search that saw it
}

// MaxPath is the most resources that a flow goes over.
const MaxPath = 4

type flow struct {
	path   [MaxPath]Resource
	places [MaxPath]int32 // in members, while active
	hops   int8
	open   bool
	ended  bool // no more bytes will come
	active bool
	fixed  bool // in the search: its rate is decided
	most   float64
	rate   float64 // now
	left   float64 // bytes available and not sent, at the time below
	since  timed.Time
	moving timed.Time // how long bytes moved, until the time above
	visit  uint64
}

// part is a resource in a search.
type part struct {
	resource Resource
	left     float64 // of its rate
	flows    int     // not fixed
}

// Resource adds a resource of so many bytes per second.
func (n *Network) Resource(rate float64) Resource {
	n.rates = append(n.rates, rate)
	n.members = append(n.members, nil)
	n.index = append(n.index, 0)
	n.seen = append(n.seen, 0)
	return Resource(len(n.rates) - 1)
}

// SetRate changes a resource's rate from time at on. 0 stops what goes over it.
func (n *Network) SetRate(at timed.Time, r Resource, rate float64) {
	n.rates[r] = rate
	n.begin()
	n.reach(r)
	n.share(at)
}

// Open makes a flow over up to MaxPath resources, with a rate of its own that it
// never exceeds, or 0.
func (n *Network) Open(at timed.Time, path []Resource, most float64) Flow {
	var f Flow
	if k := len(n.free); k > 0 {
		f = n.free[k-1]
		n.free = n.free[:k-1]
	} else {
		f = Flow(len(n.flows))
		n.flows = append(n.flows, flow{})
	}
	x := flow{open: true, most: most, since: at}
	x.hops = int8(copy(x.path[:], path))
	if most <= 0 {
		x.most = math.Inf(1)
	}
	x.visit = n.flows[f].visit
	n.flows[f] = x
	return f
}

// Add makes bytes of a flow available.
func (n *Network) Add(at timed.Time, f Flow, bytes int64) {
	x := &n.flows[f]
	if bytes <= 0 || x.ended || !x.open {
		return
	}
	if x.active { // the rates stay
		n.settle(at, x)
		x.left += float64(bytes)
		n.arm(f, x)
		return
	}
	x.left, x.since = float64(bytes), at
	n.start(at, f)
}

// End says that no more bytes will come. A flow that is through already is reported
// by the next Advance.
func (n *Network) End(at timed.Time, f Flow) {
	x := &n.flows[f]
	if x.ended || !x.open {
		return
	}
	x.ended = true
	if !x.active {
		n.alarms.Set(int32(f), at, uint64(f))
	}
}

// Close ends a flow, wherever it is.
func (n *Network) Close(at timed.Time, f Flow) {
	if x := &n.flows[f]; x.open {
		n.stop(at, f)
		n.drop(f)
	}
}

// Left is the number of bytes that are available and not sent.
func (n *Network) Left(at timed.Time, f Flow) int64 {
	x := &n.flows[f]
	if !x.active {
		return 0
	}
	n.settle(at, x)
	return int64(math.Ceil(x.left))
}

// Moving is for how long bytes of a flow have moved; what waits at a rate of 0, or has
// nothing available, does not move. It can be asked until the flow's number is used
// again.
func (n *Network) Moving(at timed.Time, f Flow) timed.Time {
	x := &n.flows[f]
	if x.active && x.rate > 0 {
		return x.moving + at - x.since
	}
	return x.moving
}

// Next is the earliest time for which Advance has something to do, timed.Never
// without any.
func (n *Network) Next() timed.Time {
	at, _ := n.alarms.Next()
	return at
}

// Advance goes to time at, which is not after Next's, and appends the flows that are
// through; they are closed.
func (n *Network) Advance(at timed.Time, through []Flow) []Flow {
	for {
		due, id := n.alarms.Next()
		if id < 0 || due > at {
			return through
		}
		f := Flow(id)
		x := &n.flows[f]
		x.moving = n.Moving(at, f)
		x.left, x.since = 0, at
		if x.active {
			n.stop(at, f)
		}
		n.alarms.Clear(id)
		if x.ended {
			n.drop(f)
			through = append(through, f)
		}
	}
}

func (n *Network) drop(f Flow) {
	n.alarms.Clear(int32(f))
	n.flows[f].open = false
	n.free = append(n.free, f)
}

// settle brings what is left of an active flow up to date.
func (n *Network) settle(at timed.Time, x *flow) {
	if at > x.since {
		sent := float64(x.rate * float64(at-x.since))
		x.left = max(0, x.left-float64(sent*1e-12))
		if x.rate > 0 {
			x.moving += at - x.since
		}
	}
	x.since = at
}

// arm sets the time at which a flow is through. Rounded up: it is never early.
func (n *Network) arm(f Flow, x *flow) {
	if x.rate <= 0 {
		n.alarms.Clear(int32(f))
		return
	}
	ps := math.Ceil(float64(float64(x.left/x.rate) * 1e12))
	if ps > float64(timed.Never-x.since)/2 {
		n.alarms.Clear(int32(f)) // centuries: until a rate changes
		return
	}
	n.alarms.Set(int32(f), x.since+timed.Time(ps), uint64(f))
}

// start makes a flow active.
func (n *Network) start(at timed.Time, f Flow) {
	x := &n.flows[f]
	x.active = true
	n.begin()
	for i := range x.hops {
		r := x.path[i]
		x.places[i] = int32(len(n.members[r]))
		n.members[r] = append(n.members[r], f)
	}
	n.take(f)
	n.share(at)
}

// stop makes a flow inactive.
func (n *Network) stop(at timed.Time, f Flow) {
	x := &n.flows[f]
	if !x.active {
		return
	}
	x.active = false
	n.begin()
	for i := range x.hops {
		r := x.path[i]
		list := n.members[r]
		last := list[len(list)-1]
		place := x.places[i]
		list[place] = last
		y := &n.flows[last]
		for j := range y.hops {
			if y.path[j] == r && y.places[j] == int32(len(list)-1) {
				y.places[j] = place
			}
		}
		n.members[r] = list[:len(list)-1]
		n.reach(r)
	}
	n.share(at)
}

// begin starts a search for what hangs together.
func (n *Network) begin() {
	n.visit++
	n.group, n.parts = n.group[:0], n.parts[:0]
}

// reach adds a resource, and what hangs on it once share looks at it.
func (n *Network) reach(r Resource) {
	if n.seen[r] == n.visit {
		return
	}
	n.seen[r] = n.visit
	n.index[r] = int32(len(n.parts))
	n.parts = append(n.parts, part{resource: r, left: n.rates[r], flows: len(n.members[r])})
}

// take adds a flow and its resources.
func (n *Network) take(f Flow) {
	x := &n.flows[f]
	if x.visit == n.visit {
		return
	}
	x.visit, x.fixed = n.visit, false
	n.group = append(n.group, f)
	for i := range x.hops {
		n.reach(x.path[i])
	}
}

// share completes the search and gives its flows their rates.
func (n *Network) share(at timed.Time) {
	for i := 0; i < len(n.parts); i++ {
		for _, f := range n.members[n.parts[i].resource] {
			n.take(f)
		}
	}
	for open := len(n.group); open > 0; {
		// The next limit: the fullest resource's equal share, or a flow's own rate.
		limit := math.Inf(1)
		for i := range n.parts {
			if p := &n.parts[i]; p.flows > 0 {
				limit = min(limit, max(0, p.left)/float64(p.flows))
			}
		}
		for _, f := range n.group {
			if x := &n.flows[f]; !x.fixed {
				limit = min(limit, x.most)
			}
		}
		bound := float64(limit * (1 + 1e-12)) // equal up to rounding is equal
		fixed := 0
		for _, f := range n.group {
			x := &n.flows[f]
			if x.fixed || !n.limited(x, bound) {
				continue
			}
			n.fix(at, f, x, limit)
			fixed++
		}
		if fixed == 0 {
			return // not possible: some resource or flow is the limit
		}
		// Not before all of this limit are found: each takes from what the others see.
		for _, f := range n.group {
			x := &n.flows[f]
			if !x.fixed || x.visit != n.visit {
				continue
			}
			x.visit-- // counted
			for i := range x.hops {
				p := &n.parts[n.index[x.path[i]]]
				p.left -= limit
				p.flows--
			}
		}
		open -= fixed
	}
}

// limited reports whether the limit is that of a flow or of a resource of it.
func (n *Network) limited(x *flow, bound float64) bool {
	if x.most <= bound || x.hops == 0 && math.IsInf(bound, 1) {
		return true
	}
	for i := range x.hops {
		if p := &n.parts[n.index[x.path[i]]]; max(0, p.left)/float64(p.flows) <= bound {
			return true
		}
	}
	return false
}

func (n *Network) fix(at timed.Time, f Flow, x *flow, rate float64) {
	x.fixed = true
	n.settle(at, x)
	x.rate = rate
	n.arm(f, x)
}

// Loss is the rate in bytes per second to which packet loss holds one stream, by
// Mathis et al., "The Macroscopic Behavior of the TCP Congestion Avoidance
// Algorithm" (1997): MSS/RTT · √(3/2)/√p. 0 means no limit: there is no loss, or no
// round trip.
func Loss(rtt timed.Time, loss float64, segment int) float64 {
	if loss <= 0 || rtt <= 0 {
		return 0
	}
	return float64(segment) / rtt.Seconds() * math.Sqrt(1.5/loss)
}
