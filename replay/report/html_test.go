package report

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

// busyRun is a run such as a host reports it: n requests through pools of
// prefill and decode workers, with a rush in the middle.
func busyRun(n, pools int, seed uint64, opts Options) *Recorder {
	rng := rand.New(rand.NewPCG(seed, 7))
	r := New(opts)
	var ps []*Pool
	names := []string{"prefill", "decode", "decode-far", "both"}
	for i := range pools {
		ps = append(ps, r.Pool(PoolSpec{Name: names[i%4] + []string{"", "-b", "-c", "-d", "-e", "-f"}[i/4], Role: names[i%4], Workers: 2, Blocks: 1000, BlockBytes: 2 << 20}))
	}
	at := timed.Time(0)
	load := 0.0
	var qs []Request
	for i := range n {
		rush := 1 + 1.5*math.Exp(-math.Pow((float64(i)/float64(n)-0.55)/0.08, 2))
		last := at
		at += timed.Time(rng.ExpFloat64() / rush * float64(25*ms))
		load = load*0.995 + rush*0.005
		q := Request{Index: int64(i), Arrival: at, Input: 100 + rng.IntN(4000), Output: 1 + rng.IntN(256), Status: handoff.StatusCompleted, Policy: handoff.DestinationFirst, HandedOff: true}
		if rng.IntN(300) == 0 {
			q.Status, q.Reason, q.Output, q.HandedOff, q.End = handoff.StatusRefused, "never fits", 0, false, at
			qs = append(qs, q)
			continue
		}
		queue := timed.Time(rng.ExpFloat64() * load * load * load * float64(60*ms))
		prefill := timed.Time(q.Input) * 20 * timed.Microsecond
		q.First = at + queue + prefill
		tail := timed.Time(rng.ExpFloat64() * float64(4*ms))
		q.Second = q.First + tail + 12*ms
		step := timed.Time((9 + 4*load + rng.Float64()) * float64(ms))
		q.End = q.Second + timed.Time(max(q.Output-2, 0))*step
		if q.Output == 1 {
			q.Second, q.End, q.HandedOff = 0, q.First, false
		}
		q.CachedSource = rng.IntN(q.Input / 2)
		wire := prefill/3 + tail
		q.Handoff = Handoff{Reserve: ms, Queue: queue / 5, Prefill: prefill, Export: wire / 8, Wire: wire, Import: wire / 6, Commit: ms / 2,
			Overlapped: wire - tail, Tail: tail + ms, Bytes: int64(q.Input) * 131072}
		if q.Output > 1 {
			r.Gaps(q.Second-q.First, 1)
			r.Gaps(step, max(q.Output-2, 0))
		}
		for k, p := range ps {
			w := rng.IntN(2)
			used := int(min(200+300*load, 700))
			pin := rng.IntN(60)
			p.Memory(w, at, kv.Snapshot{Active: used, Pinned: pin, Reserved: k % 2 * 40, Cached: 150, Free: 850 - used - pin - k%2*40})
			for w := range 2 {
				p.Busy(w, last, last+timed.Time(float64(at-last)*min(0.3*load, 0.95)), Work((k+rng.IntN(8)/7)%3))
			}
		}
		r.Count("route.prefill", []string{"least loaded", "longest prefix"}[rng.IntN(2)], 1)
		qs = append(qs, q)
	}
	slices.SortStableFunc(qs, func(a, b Request) int { return int((a.End - b.End) / timed.Nanosecond) })
	for i := range qs {
		r.Request(&qs[i])
	}
	return r
}

// TestPageSize: the page stays below a megabyte, however long the run and
// however many pools.
func TestPageSize(t *testing.T) {
	for _, pools := range []int{2, 24} {
		res, _ := busyRun(20_000, pools, 1, Options{Points: pointsMost}).Finish(0)
		var a, b bytes.Buffer
		if err := res.HTML(&a); err != nil {
			t.Fatal(err)
		}
		if a.Len() > 1<<20 {
			t.Errorf("%d pools make %d bytes", pools, a.Len())
		}
		if err := res.HTML(&b); err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Errorf("the page differs the second time: %v", err)
		}
	}
}
