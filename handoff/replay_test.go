package handoff

import (
	"bytes"
	"errors"
	"iter"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// recorded walks the model and returns what its hosts would have written.
func recorded(t *testing.T, cfg config, seed uint64) []Record {
	t.Helper()
	r := walk(cfg, seed%2 == 1, 40, rand.New(rand.NewPCG(seed, 1)))
	if r.err != nil {
		t.Fatal(r.err)
	}
	for i := range r.records {
		r.records[i].Host = "worker-1"
	}
	return r.records
}

func yields(records []Record) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
}

var replayConfigs = []config{
	{policy: DestinationFirst, retry: DestinationFirst, retries: 1, parts: 2, tokens: 3},
	{policy: SourceFirst, retry: DestinationFirst, retries: 1, parts: 1, tokens: 3},
	{policy: Disabled, parts: 1, tokens: 3},
}

// What hosts recorded is decided again by fresh machines, through the encoding.
func TestReplayAgreesWithRecordedRuns(t *testing.T) {
	for _, cfg := range replayConfigs {
		for seed := range uint64(60) {
			records := recorded(t, cfg, seed)
			var lines []byte
			for _, r := range records {
				var err error
				if lines, err = AppendRecord(lines, r); err != nil {
					t.Fatal(err)
				}
			}
			var back []Record
			for r, err := range ReadRecords(bytes.NewReader(lines)) {
				if err != nil {
					t.Fatal(err)
				}
				back = append(back, r)
			}
			if d := cmp.Diff(records, back, cmp.Transformer("nil", func(a []SourceAction) int { return len(a) }),
				cmp.Transformer("nild", func(a []DestinationAction) int { return len(a) }), cmp.Transformer("nilr", func(a []RequestAction) int { return len(a) })); d != "" {
				t.Fatalf("records changed in their encoding:\n%s", d)
			}
			if err := Replay(ReadRecords(bytes.NewReader(lines))); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Every kind of tampering is found, and named.
func TestReplayFindsDifferences(t *testing.T) {
	base := recorded(t, replayConfigs[0], 4)
	applied := -1
	for i, r := range base {
		if r.Result == Applied && r.Role == RoleSource && len(r.SourceActions) > 0 {
			applied = i
		}
	}
	if applied < 0 {
		t.Fatal("the run has no applied source fact with actions; take another seed")
	}
	for _, c := range []struct {
		what   string
		change func(*Record)
	}{
		{"result", func(r *Record) { r.Result = NoOp }},
		{"state", func(r *Record) { r.State = "Computing?" }},
		{"error", func(r *Record) { r.Err = "x" }},
		{"actions", func(r *Record) { r.SourceActions = r.SourceActions[1:] }},
		{"actions", func(r *Record) {
			r.SourceActions = append([]SourceAction{}, r.SourceActions...)
			r.SourceActions[0].Part++
		}},
	} {
		records := append([]Record{}, base...)
		c.change(&records[applied])
		var diff *ReplayError
		if err := Replay(yields(records)); !errors.As(err, &diff) || diff.What != c.what || diff.Index != applied {
			t.Errorf("changed %s of record %d: %v", c.what, applied, err)
		}
	}
	// A fact that the host hid from its record shows, too.
	if err := Replay(yields(append(append([]Record{}, base[:applied]...), base[applied+1:]...))); err == nil {
		t.Error("a missing record was not found")
	}
	// Another host's machine of the same id is another machine.
	two := append([]Record{}, base...)
	for _, r := range base {
		r.Host = "worker-2"
		two = append(two, r)
	}
	if err := Replay(yields(two)); err != nil {
		t.Errorf("two hosts: %v", err)
	}
}

func TestDecodeRecordIsStrict(t *testing.T) {
	good, err := AppendRecord(nil, SourceRecord(attemptID(0), 0, SourceFact{Kind: FactCancelled}, nil, Applied, nil, &Source{}))
	if err != nil {
		t.Fatal(err)
	}
	line := strings.TrimSpace(string(good))
	for _, bad := range []string{"", "{}", line + "{}", strings.Replace(line, "Cancelled", "Canceled", 1), strings.Replace(line, `"source"`, `"request"`, 1),
		strings.Replace(line, `"role"`, `"extra":1,"role"`, 1), strings.Replace(line, "NotStarted", strings.Repeat("x", MaxRecordBytes), 1)} {
		if _, err := DecodeRecord([]byte(bad)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%.80s: %v", bad, err)
		}
	}
	long := append([]byte(strings.Repeat("x", 2*MaxRecordBytes)), '\n')
	for _, err := range ReadRecords(bytes.NewReader(long)) {
		if err == nil {
			t.Error("an overlong line was accepted")
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	for _, cfg := range replayConfigs {
		r := walk(cfg, true, 40, rand.New(rand.NewPCG(5, 1)))
		for _, rec := range r.records {
			line, err := AppendRecord(nil, rec)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(line)
		}
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		rec, err := DecodeRecord(line)
		if err != nil {
			return
		}
		// What decodes also encodes and replays without a panic, whatever it says.
		again, err := AppendRecord(nil, rec)
		if err != nil {
			t.Fatalf("a decoded record cannot be encoded: %v", err)
		}
		if back, err := DecodeRecord(again); err != nil || !cmp.Equal(rec, back) {
			t.Fatalf("record changed: %v\n%s", err, cmp.Diff(rec, back))
		}
		_ = Replay(yields([]Record{rec, rec}))
	})
}
