package telemetry

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-llm/tandem/handoff"
)

const ms = time.Millisecond

func work(count int, spans ...Span) Work {
	w := Work{Count: count, Spans: spans}
	for _, s := range spans {
		w.Busy += s.Busy
	}
	return w
}

// sample is a handoff of two pages and a snapshot. The source's clock begins 10 ms after the
// request's arrival, the destination's at 5 ms. Prefill ends at 110 ms, and the destination is ready
// at 120 ms.
func sample() *Handoff {
	return &Handoff{
		ID: handoff.Mint(1, [10]byte{1}), Attempt: 1, Why: RetryNone, Mode: Disaggregated, Policy: handoff.DestinationFirst,
		Chosen: ChosenPair, Ending: EndedHandedOff, Target: TargetCommitted, MTP: MTPNotBuilt, MTPWhy: "not built",
		Request: Request{
			Key: "cmpl-1.0", Arrived: time.UnixMilli(1).UTC(), Mode: Disaggregated, Outcome: Length, Attempts: 1, Prompt: 1000, Completion: 4,
			Admitted: 1 * ms, TTFT: 112 * ms, TPOT: 15 * ms, Total: 157 * ms,
		},
		Source: Part{
			Worker: "p1", Incarnation: 1, Role: "prefill", Reported: true, At: 10 * ms,
			Slot: 10 * ms, Opened: 12 * ms, Granted: 13 * ms, Prompted: 100 * ms, Sent: 107 * ms, Committed: 111 * ms,
			Compute: work(2, Span{10 * ms, 50 * ms, 40 * ms}, Span{52 * ms, 100 * ms, 48 * ms}),
			Export:  work(3, Span{50 * ms, 51 * ms, 1 * ms}, Span{100 * ms, 104 * ms, 4 * ms}),
			Seal:    work(3, Span{51 * ms, 52 * ms, 1 * ms}, Span{101 * ms, 103 * ms, 2 * ms}),
			Stall:   work(0),
			Before:  Before{Exported: 600, Export: 2 * ms, Sent: 500, Wire: 2 * ms},
			Stream:  Stream{Lane: "tls", Bytes: 1000, Units: 3, Busy: 8 * ms, RTT: ms / 10},
			Pages:   2, Snapshots: 1, Prompt: 1000, Computed: 1000,
			Components: []Component{{"attention_kv", 900}, {"recurrent", 100}},
		},
		Destination: &Part{
			Worker: "d1", Incarnation: 1, Role: "decode", Reported: true, At: 5 * ms,
			Slot: 2 * ms, Opened: 17 * ms, Granted: 17 * ms, Complete: 113 * ms, Ready: 115 * ms,
			// The second import lasts from 103 to 107: half of it before prefill ended at 105.
			Import: work(3, Span{60 * ms, 61 * ms, 1 * ms}, Span{103 * ms, 107 * ms, 4 * ms}),
			Commit: work(1, Span{113 * ms, 115 * ms, 2 * ms}), Decode: work(1, Span{116 * ms, 125 * ms, 9 * ms}),
			Verify: work(3, Span{59 * ms, 60 * ms, 1 * ms}), Wait: work(3, Span{60 * ms, 61 * ms, 1 * ms}),
			Stream: Stream{Lane: "tls", Bytes: 1000, Units: 3}, Pages: 2, Snapshots: 1, Prompt: 1000, Computed: 3,
		},
		Gateway: Times{
			Placed: 2 * ms, Reserve: 3 * ms, Reserved: 8 * ms, Dispatched: 9 * ms, Committed: 121 * ms, Ended: 157 * ms,
			Tokens: []time.Duration{112 * ms, 132 * ms, 145 * ms, 157 * ms}, Sampled: true,
		},
	}
}

func TestSummarize(t *testing.T) {
	h := sample()
	h.Summarize()
	want := Summary{
		Bytes: 1000, Pages: 2, Queue: 12 * ms, Bandwidth: 125_000, RTT: ms / 10, Tail: 10 * ms, First: 2 * ms, Second: 20 * ms,
		Commit: 2 * ms, Covered: 2*ms + 2*ms + 1*ms + 2*ms, Moving: 5*ms + 3*ms + 8*ms + 5*ms, Unhidden: 500,
		Overlap: Overlap{Time: 7. / 21, Bytes: .5},
	}
	if d := cmp.Diff(want, h.Summary); d != "" {
		t.Error(d)
	}

	h.Destination.At += 3 * ms // later than the source heard of it
	if h.Summarize(); h.Summary.Tail != 11*ms {
		t.Errorf("tail as far as the source's clock allows: %v", h.Summary.Tail)
	}
	// Each step takes away what the one before was read from.
	h.Destination.Ready = 0
	if h.Summarize(); h.Summary.Tail != 11*ms {
		t.Errorf("tail by the source's clock: %v", h.Summary.Tail)
	}
	h.Source.Committed = 0
	if h.Summarize(); h.Summary.Tail != 9*ms {
		t.Errorf("tail by the gateway's arrivals: %v", h.Summary.Tail)
	}

	taken := sample()
	taken.Gateway.Sampled = false // its first token at the gateway came from the destination
	if taken.Summarize(); taken.Summary.First != 0 || taken.Summary.Second != 0 {
		t.Errorf("of a source that was taken over: %+v", taken.Summary)
	}

	lost := sample()
	lost.Source = Part{Worker: "p1"}
	lost.Destination = &Part{Worker: "d1"}
	lost.Gateway = Times{}
	lost.Summarize()
	if d := cmp.Diff(Summary{}, lost.Summary); d != "" {
		t.Errorf("of an attempt that nobody reported: %s", d)
	}
}

func TestSLO(t *testing.T) {
	slo := SLO{TTFT: 100 * ms, TPOT: 10 * ms}
	for _, c := range []struct {
		name string
		slo  SLO
		r    Request
		want Verdicts
	}{
		{"met at the limit", slo, Request{Outcome: Stopped, TTFT: 100 * ms, TPOT: 10 * ms}, Verdicts{VerdictWithin, VerdictWithin, true}},
		{"first token late", slo, Request{Outcome: Length, TTFT: 101 * ms, TPOT: ms}, Verdicts{VerdictOutside, VerdictWithin, false}},
		{"slow", slo, Request{Outcome: Length, TTFT: ms, TPOT: 11 * ms}, Verdicts{VerdictWithin, VerdictOutside, false}},
		{"one token", slo, Request{Outcome: Length, TTFT: ms}, Verdicts{VerdictWithin, VerdictWithin, true}},
		{"failed fast", slo, Request{Outcome: Failed, TTFT: ms, TPOT: ms}, Verdicts{VerdictOutside, VerdictOutside, false}},
		{"expired", slo, Request{Outcome: Expired}, Verdicts{VerdictOutside, VerdictOutside, false}},
		{"client gone", slo, Request{Outcome: Cancelled, TTFT: ms}, Verdicts{VerdictNone, VerdictNone, false}},
		{"none configured", SLO{}, Request{Outcome: Stopped, TTFT: time.Hour}, Verdicts{VerdictOff, VerdictOff, true}},
		{"one configured", SLO{TPOT: ms}, Request{Outcome: Stopped, TTFT: time.Hour, TPOT: ms}, Verdicts{VerdictOff, VerdictWithin, true}},
		{"none configured, failed", SLO{}, Request{Outcome: Failed}, Verdicts{VerdictOff, VerdictOff, false}},
	} {
		if d := cmp.Diff(c.want, c.slo.Judge(&c.r)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func TestHandoffsRing(t *testing.T) {
	l := NewHandoffs(3)
	seqs := func(q Query) (out []uint64) {
		for _, h := range l.Find(q) {
			out = append(out, h.Seq)
		}
		return out
	}
	if got := l.Find(Query{}); got == nil || len(got) != 0 {
		t.Errorf("an empty ring finds %v; JSON needs a list", got)
	}
	ids := map[uint64]handoff.ID{}
	for n := range uint64(5) {
		h := &Handoff{ID: handoff.Mint(n+1, [10]byte{9}), Request: Request{Key: "r" + string('0'+rune(n/2))}}
		ids[n+1] = h.ID
		l.Add(h)
	}
	for _, c := range []struct {
		q    Query
		want []uint64
	}{
		{Query{}, []uint64{5, 4, 3}},
		{Query{Limit: 2}, []uint64{5, 4}},
		{Query{After: 4}, []uint64{5}},
		{Query{After: 5}, nil},
		{Query{After: 99}, nil},
		{Query{ID: ids[4].String()}, []uint64{4}},
		{Query{ID: ids[1].String()}, nil}, // overwritten
		{Query{ID: "r1"}, []uint64{4, 3}},
		{Query{ID: "r9"}, nil},
	} {
		if d := cmp.Diff(c.want, seqs(c.q)); d != "" {
			t.Errorf("%+v: %s", c.q, d)
		}
	}
}

// TestHandoffFieldsHoldNoContent lists every text and list of the record, so that a new one is looked
// at: numbers, times and the texts below cannot hold content.
func TestHandoffFieldsHoldNoContent(t *testing.T) {
	known := map[string]bool{
		"Request.Key": true, "MTPWhy": true, "Failure.Phase": true, "Failure.Code": true, "Part.Worker": true, "Part.Role": true,
		"Stream.Lane": true, "Component.Name": true,
		"Times.Tokens": true, "Part.Components": true, "Work.Spans": true, // lists of times and counts
		"Handoff.ID": true,
	}
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			kind, name := f.Type.Kind(), strings.TrimPrefix(typ.Name()+"."+f.Name, "Handoff.")
			if f.Type == reflect.TypeFor[time.Time]() || f.Type == reflect.TypeFor[handoff.ID]() {
				continue
			}
			switch {
			case kind == reflect.Struct:
				walk(f.Type)
			case kind == reflect.Pointer:
				walk(f.Type.Elem())
			case kind == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
				walk(f.Type.Elem())
				fallthrough
			case kind == reflect.Slice, kind == reflect.String && f.Type == reflect.TypeFor[string](), kind == reflect.Map, kind == reflect.Interface:
				if !known[name] {
					t.Errorf("new field %s: it must not carry content; then list it here", name)
				}
			}
		}
	}
	walk(reflect.TypeFor[Handoff]())
}

// TestHandoffJSON keeps the record readable by its own command, and empty parts out of it.
func TestHandoffJSON(t *testing.T) {
	h := sample()
	h.Summarize()
	doc, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	var back Handoff
	if err := json.Unmarshal(doc, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(h, &back); d != "" {
		t.Error(d)
	}
	if strings.Contains(string(doc), `"stall"`) {
		t.Error("work that was not done is in the JSON")
	}
}
