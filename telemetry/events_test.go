package telemetry

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/handoff"
)

func clock() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

func TestEventsRing(t *testing.T) {
	e := NewEvents("w1", 4, func() time.Duration { return 7 })
	seqs := func(since uint64) (out []uint64) {
		for _, ev := range e.Since(since) {
			out = append(out, ev.Seq)
			if ev.Process != "w1" || ev.Now != 7 || ev.First != int(ev.Seq) {
				t.Errorf("event %+v", ev)
			}
		}
		return out
	}
	if got := seqs(0); got != nil {
		t.Errorf("empty ring has %v", got)
	}
	for i := range 10 {
		e.Emit(Event{Kind: PageExported, First: i + 1})
		if got, want := len(e.Since(0)), min(i+1, 4); got != want {
			t.Errorf("after %d events the ring holds %d, want %d", i+1, got, want)
		}
	}
	for since, want := range map[uint64][]uint64{0: {7, 8, 9, 10}, 8: {9, 10}, 10: nil, 99: nil} {
		if d := cmp.Diff(want, seqs(since)); d != "" {
			t.Errorf("since %d: %s", since, d)
		}
	}
	var off *Events
	off.Emit(Event{})
	off.Transition(handoff.Record{})
	if off.Since(0) != nil || off.Dropped() != 0 || off.Close() != nil {
		t.Error("a nil stream is off")
	}
}

func TestEventsSink(t *testing.T) {
	e := NewEvents("g1", 0, clock())
	var out bytes.Buffer
	if err := e.Attach(&out); err != nil {
		t.Fatal(err)
	}
	if e.Attach(io.Discard) == nil {
		t.Error("two sinks")
	}
	id := handoff.Mint(1, [10]byte{1})
	e.Transition(handoff.Record{
		Host: "g1", Role: handoff.RoleRequest, Request: "r1", Handoff: id, Now: 5, Result: handoff.Applied, State: "Placed",
		RequestFact:    &handoff.RequestFact{Kind: handoff.FactPlaced, Policy: handoff.DestinationFirst, Handoff: id},
		RequestActions: []handoff.RequestAction{{Kind: handoff.ActionBook, Booking: handoff.BookDecode, Handoff: id}},
	})
	e.Emit(Event{Kind: PageImported, Handoff: id, First: 64, End: 128, Bytes: 4096})
	want := e.Since(0)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e.Emit(Event{Kind: BusDown}) // after Close: ring only
	text := out.String()
	var got []Event
	// A killed process leaves a cut line.
	if err := ReadEvents(strings.NewReader(text+`{"seq":3,`), func(ev Event) bool { got = append(got, ev); return true }); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if err := ReadEvents(strings.NewReader("x\n"), func(Event) bool { return true }); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("damage: %v", err)
	}
	long := io.MultiReader(strings.NewReader(`"`), io.LimitReader(zeros{}, 2*maxEventLine))
	if err := ReadEvents(long, func(Event) bool { return true }); !errors.Is(err, errLongLine) {
		t.Errorf("endless line: %v", err)
	}
	n := 0
	if err := ReadEvents(strings.NewReader(text), func(Event) bool { n++; return false }); err != nil || n != 1 {
		t.Errorf("stopped reading after %d: %v", n, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestEventsSlowSink shows that a stuck sink neither blocks nor grows: what it cannot take is
// dropped and counted.
func TestEventsSlowSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEvents("w1", 1, clock())
		r, w := io.Pipe()
		if err := e.Attach(w); err != nil {
			t.Fatal(err)
		}
		const extra = 1_000
		for range sinkQueue + extra {
			e.Emit(Event{Kind: PageExported})
		}
		synctest.Wait()
		if e.Dropped() == 0 || e.Dropped() > extra {
			t.Errorf("dropped %d of %d too many", e.Dropped(), extra)
		}
		r.CloseWithError(errors.New("disk full"))
		if err := e.Close(); err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("close: %v", err)
		}
	})
}

func TestEventsConcurrent(t *testing.T) {
	e := NewEvents("w1", 8, clock())
	var out bytes.Buffer
	if err := e.Attach(&out); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				e.Emit(Event{Kind: PageExported})
				e.Since(0)
			}
		})
	}
	wg.Wait()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	next := uint64(1)
	if err := ReadEvents(&out, func(ev Event) bool {
		if ev.Seq != next {
			t.Fatalf("event %d after %d", ev.Seq, next-1)
		}
		next++
		return true
	}); err != nil || next != 401 {
		t.Errorf("%d events, %v", next-1, err)
	}
}

// TestEventFieldsHoldNoContent keeps the type of every field to ids, counts, times and short
// constant text, so that a new field is looked at.
func TestEventFieldsHoldNoContent(t *testing.T) {
	known := map[string]bool{
		"Seq": true, "Now": true, "Process": true, "Kind": true, "Record": true, "Handoff": true, "Request": true,
		"Worker": true, "First": true, "End": true, "Bytes": true, "Took": true, "Detail": true, "Cells": true,
	}
	typ := reflect.TypeFor[Event]()
	for i := range typ.NumField() {
		if !known[typ.Field(i).Name] {
			t.Errorf("new field %s: it must not carry content; then list it here", typ.Field(i).Name)
		}
	}
}
