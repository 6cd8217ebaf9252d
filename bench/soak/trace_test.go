package soak

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/telemetry"
)

// stream writes the events of one life.
type stream struct {
	t   *testing.T
	seq uint64
	buf bytes.Buffer
}

func (s *stream) record(r handoff.Record) {
	s.t.Helper()
	s.seq++
	line, err := json.Marshal(telemetry.Event{Seq: s.seq, Kind: telemetry.Transition, Record: &r})
	if err != nil {
		s.t.Fatal(err)
	}
	s.buf.Write(append(line, '\n'))
}

// requestRecords are those of a request that runs whole on one worker and ends after two tokens.
func requestRecords(t *testing.T, request string) []handoff.Record {
	t.Helper()
	id := handoff.Mint(uint64(len(request)), [10]byte{1})
	var m handoff.Request
	var out []handoff.Record
	for i, f := range []handoff.RequestFact{
		{Kind: handoff.FactAdmitted, MaxTokens: 2, Retries: 1, Deadline: time.Hour},
		{Kind: handoff.FactPlaced, Policy: handoff.Disabled, Handoff: id},
		{Kind: handoff.FactBooked, Booking: handoff.BookRun, Handoff: id},
		{Kind: handoff.FactTokenOut, Side: handoff.RoleSource, Handoff: id},
		{Kind: handoff.FactTokenOut, Side: handoff.RoleSource, Handoff: id, Index: 1, Finish: handoff.FinishLength},
	} {
		now := time.Duration(i) * time.Millisecond
		actions, result, err := m.Apply(now, f, nil)
		if err != nil {
			t.Fatalf("fact %d: %v", i, err)
		}
		out = append(out, handoff.RequestRecord(request, now, f, actions, result, err, &m))
	}
	if m.State() != handoff.RequestDone {
		t.Fatalf("the request is %s", m.State())
	}
	return out
}

// sourceRecords are those of a source whose prefill goes on.
func sourceRecords(t *testing.T) []handoff.Record {
	t.Helper()
	id := handoff.Mint(9, [10]byte{2})
	var m handoff.Source
	f := handoff.SourceFact{Kind: handoff.FactDispatched, Policy: handoff.Disabled, PromptTokens: 5, Parts: 1, Readers: 1, Deadline: time.Hour}
	actions, result, err := m.Apply(0, f, nil)
	if err != nil {
		t.Fatal(err)
	}
	return []handoff.Record{handoff.SourceRecord(id, 0, f, actions, result, err, &m)}
}

// TestTracer: lives are told apart, replayed, and what is wrong in one is found there.
func TestTracer(t *testing.T) {
	good := requestRecords(t, "a.0")
	for _, tt := range []struct {
		name    string
		change  func(list []handoff.Record) []handoff.Record
		cut     int // bytes
		skip    bool
		faults  int
		gaps    int
		records int
	}{
		{name: "good", records: len(good)},
		{name: "another state", faults: 1, records: 3, change: func(l []handoff.Record) []handoff.Record { l[2].State = "Elsewhere"; return l }},
		{name: "an action less", faults: 1, records: 2, change: func(l []handoff.Record) []handoff.Record { l[1].RequestActions = nil; return l }},
		{name: "a fact less", faults: 1, records: 2, change: func(l []handoff.Record) []handoff.Record { return append(l[:1:1], l[2:]...) }},
		{name: "cut in a line", cut: 20, records: len(good) - 1},
		{name: "an event dropped", skip: true, gaps: 1, records: len(good)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list := requestRecords(t, "a.0")
			if tt.change != nil {
				list = tt.change(list)
			}
			s := &stream{t: t}
			for _, r := range list {
				s.record(r)
			}
			if tt.skip {
				s.seq++
				s.record(list[0])
			}
			text := s.buf.Bytes()[:s.buf.Len()-tt.cut]
			after := &stream{t: t}
			for _, r := range requestRecords(t, "b.0") {
				after.record(r)
			}
			pipe := append(append(append(bytes.Clone(text), endOfLife), after.buf.Bytes()...), endOfLife)
			for how, r := range map[string]io.Reader{"whole": bytes.NewReader(pipe), "by bytes": iotest.OneByteReader(bytes.NewReader(pipe))} {
				tr := newTracer()
				tr.closing, tr.ends["p"] = true, 2
				tr.read("p", r)
				if len(tr.faults) != tt.faults || len(tr.missing) != tt.gaps || tr.lives != 2 || tr.records != tt.records+len(good) {
					t.Errorf("%s: %d records of %d lives, faults %q, gaps %q", how, tr.records, tr.lives, tr.faults, tr.missing)
				}
			}
		})
	}
}

// TestTracerStates: who is killed leaves the states it was in, and a state that somebody
// waits for is told when it comes.
func TestTracerStates(t *testing.T) {
	s := &stream{t: t}
	s.record(sourceRecords(t)[0])
	tr := newTracer()
	fired, disarm := tr.arm("p", "source/Computing", 1)
	defer disarm()
	other, disarm := tr.arm("q", "source/Pinned", 1)
	defer disarm()
	tr.kills("p")
	tr.life("p", bytes.NewReader(s.buf.Bytes()))
	tr.life("q", bytes.NewReader(s.buf.Bytes()))
	if _, open := <-fired; open || tr.points["source/Computing"] != 1 || len(tr.points) != 1 {
		t.Errorf("killed with %v", tr.points)
	}
	<-other // its process has died: waiting would be for nothing
}

// TestLedger: a request without an end, with two, with tokens out of order, with a
// booking left, and one whose client saw something else, are all found.
func TestLedger(t *testing.T) {
	answer := func(end End, tokens int) *Answer {
		return &Answer{Request: &Request{}, Mode: modeHandedOff, End: end, ID: "a", Tokens: make([]int32, tokens), Code: "worker_failed"}
	}
	for _, tt := range []struct {
		name   string
		change func(list []handoff.Record) []handoff.Record
		seen   *Answer
		fault  string
		open   int
	}{
		{name: "good", seen: answer(Finished, 2)},
		{name: "left and completed", seen: answer(Left, 1)},
		{name: "no end", seen: answer(Finished, 2), open: 1, change: func(l []handoff.Record) []handoff.Record { return l[:4] }},
		{name: "two ends", fault: "terminal statuses", change: func(l []handoff.Record) []handoff.Record { return append(l, l[4]) }},
		{name: "a token twice", fault: "token 0 was forwarded where 1 is next", change: func(l []handoff.Record) []handoff.Record {
			return append(l[:4:4], l[3], l[4])
		}},
		{name: "a booking left", fault: "keeps the booking run", change: func(l []handoff.Record) []handoff.Record {
			kept := l[4].RequestActions[:0:0]
			for _, a := range l[4].RequestActions {
				if a.Kind != handoff.ActionUnbook {
					kept = append(kept, a)
				}
			}
			l[4].RequestActions = kept
			return l
		}},
		{name: "fewer tokens at the client", seen: answer(Finished, 1), fault: "forwarded 2"},
		{name: "an error at the client", seen: answer(Refused, 2), fault: "the client has the error worker_failed"},
		{name: "unknown", seen: &Answer{Request: &Request{}, ID: "x"}, fault: "in no record"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list := requestRecords(t, "a.0")
			if tt.change != nil {
				list = tt.change(list)
			}
			l := newLedger()
			for i := range list {
				l.record(&list[i])
			}
			var seen []*Answer
			if tt.seen != nil {
				seen = append(seen, tt.seen)
			}
			if open := l.settle(seen); open != tt.open || len(l.open(0)) != tt.open {
				t.Errorf("%d open, %q", open, l.open(0))
			}
			if tt.open > 0 && !strings.Contains(l.open(0)[0], list[1].RequestFact.Handoff.String()) {
				t.Errorf("an open request is told without its handoff: %q", l.open(0))
			}
			_, faults := l.summary()
			if got := strings.Join(faults, "\n"); !strings.Contains(got, tt.fault) || (tt.fault == "") != (got == "") {
				t.Errorf("faults %q, want %q", got, tt.fault)
			}
		})
	}
}

// TestLedgerLate: what comes behind the end of a request is no request of its own, unless it
// gives the client something.
func TestLedgerLate(t *testing.T) {
	list := requestRecords(t, "a.0")
	l := newLedger()
	for i := range list {
		l.record(&list[i])
	}
	l.settle(nil)
	late := list[3]
	late.State, late.RequestActions = list[4].State, []handoff.RequestAction{{Kind: handoff.ActionCancel}}
	l.record(&late)
	if _, faults := l.summary(); l.settle(nil) != 0 || len(faults) > 0 {
		t.Errorf("a late message: %q", faults)
	}
	l.record(&list[4])
	if _, faults := l.summary(); len(faults) == 0 {
		t.Error("a second end behind the first was not found")
	}
}
