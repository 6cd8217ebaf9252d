package e2e

import (
	"errors"
	"iter"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/telemetry"
)

// readRecords returns the machine records of an event file, in order. The file of
// a process that was killed may end in the middle of a line.
func readRecords(t *testing.T, file string) []handoff.Record {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []handoff.Record
	seq := uint64(0)
	err = telemetry.ReadEvents(f, func(e telemetry.Event) bool {
		if seq++; e.Seq != seq {
			t.Errorf("%s: event %d where %d was expected: events are missing", filepath.Base(file), e.Seq, seq)
			return false
		}
		if e.Kind == telemetry.Transition {
			all = append(all, *e.Record)
		}
		return true
	})
	if err != nil {
		t.Errorf("%s: %v", filepath.Base(file), err)
	}
	return all
}

func each(records []handoff.Record) iter.Seq2[handoff.Record, error] {
	return func(yield func(handoff.Record, error) bool) {
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// replay feeds the facts that every process of the lab recorded, the killed ones
// included, to fresh machines, which must come to the same states and actions;
// and sees that a trace in which one thing is different is found out.
func (l *lab) replay() {
	l.t.Helper()
	files, err := filepath.Glob(filepath.Join(l.dir, "*.jsonl"))
	if err != nil {
		l.t.Fatal(err)
	}
	var requests []handoff.Record
	records := 0
	for _, file := range files {
		list := readRecords(l.t, file)
		records += len(list)
		if err := handoff.Replay(each(list)); err != nil {
			l.t.Errorf("%s: %v", filepath.Base(file), err)
		}
		for _, r := range list {
			if r.Err != "" {
				l.t.Errorf("%s: the host told its machine what cannot be: %s", filepath.Base(file), r.Err)
			}
			if r.Role == handoff.RoleRequest {
				requests = append(requests, r)
			}
		}
		falsify(l.t, file, list)
	}
	l.t.Logf("replayed %d records of %d processes", records, len(files))
	l.requestsEnded(requests)
}

// falsify changes one record at a time and expects the replay to fail.
func falsify(t *testing.T, file string, list []handoff.Record) {
	t.Helper()
	changes := map[string]func(r *handoff.Record) bool{
		"another state":  func(r *handoff.Record) bool { r.State = "Elsewhere"; return true },
		"another result": func(r *handoff.Record) bool { r.Result = handoff.Applied + handoff.NoOp - r.Result; return r.Err == "" },
		"an action less": func(r *handoff.Record) bool {
			switch {
			case len(r.SourceActions) > 0:
				r.SourceActions = r.SourceActions[1:]
			case len(r.DestinationActions) > 0:
				r.DestinationActions = r.DestinationActions[1:]
			case len(r.RequestActions) > 0:
				r.RequestActions = r.RequestActions[1:]
			default:
				return false
			}
			return true
		},
	}
	for what, change := range changes {
		for i := len(list) / 2; i < len(list); i++ {
			changed := append([]handoff.Record(nil), list...)
			if !change(&changed[i]) {
				continue
			}
			var found *handoff.ReplayError
			if err := handoff.Replay(each(changed)); !errors.As(err, &found) || found.Index != i {
				t.Errorf("%s: record %d has %s, and replay says %v", filepath.Base(file), i, what, err)
			}
			break
		}
	}
}

// requestsEnded sees from the gateway's records that every request has one
// terminal status and got its tokens in order, each once, and that what clients
// got agrees with it.
func (l *lab) requestsEnded(list []handoff.Record) {
	l.t.Helper()
	type story struct {
		tokens   int
		statuses []handoff.Status
		state    string
	}
	all := map[string]*story{}
	for _, r := range list {
		s := all[r.Request]
		if s == nil {
			s = &story{}
			all[r.Request] = s
		}
		s.state = r.State
		for _, a := range r.RequestActions {
			switch a.Kind {
			case handoff.ActionForward:
				if a.Index != s.tokens {
					l.t.Errorf("request %s: token %d was forwarded where %d is next", r.Request, a.Index, s.tokens)
				}
				s.tokens = a.Index + 1
			case handoff.ActionFinish:
				s.statuses = append(s.statuses, a.Status)
			}
		}
	}
	for id, s := range all {
		if killed := l.gatewayDied && len(s.statuses) == 0; !killed && (len(s.statuses) != 1 || s.state != handoff.RequestDone.String()) {
			l.t.Errorf("request %s: state %s, terminal statuses %v", id, s.state, s.statuses)
		}
	}
	for _, a := range l.checked {
		if a.id == "" {
			continue // an error came before anything that names the request
		}
		s := all[a.id+".0"]
		switch {
		case s == nil:
			l.t.Errorf("%s: no record of %s", a, a.id)
		case len(s.statuses) != 1 || (s.statuses[0] == handoff.StatusCompleted) != (a.code == "") || s.tokens != len(a.tokens):
			l.t.Errorf("%s: the client has %d tokens and error %q, the gateway forwarded %d and ended it with %v", a, len(a.tokens), a.code, s.tokens, s.statuses)
		}
	}
}
