package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/workload"
)

// TestScripts runs testdata/*.txt: the timed cases of the lifecycle, whose reports
// are golden. testdata/README.md documents the verbs.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			s := &scene{}
			datadriven.RunTest(t, file, s.verb)
		})
	}
}

// scene is a fleet and what arrives.
type scene struct {
	fleet    string
	requests []workload.Request
}

func (s *scene) verb(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "fleet":
		s.fleet = d.Input
		return ""
	case "requests":
		s.requests = parseRequests(t, d.Input)
		return ""
	case "run":
		return s.run(t, d.Input, d.HasArg("events"))
	case "each":
		return s.each(t, d.Input)
	}
	t.Fatalf("%s: there is no verb %s", d.Pos, d.Cmd)
	return ""
}

// parseRequests reads lines such as "10ms 1000 20 ids=1,2".
func parseRequests(t *testing.T, text string) (list []workload.Request) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		at, err := time.ParseDuration(f[0])
		if err != nil {
			t.Fatal(err)
		}
		q := workload.Request{Arrival: timed.Of(at)}
		q.Input, _ = strconv.Atoi(f[1])
		q.Output, _ = strconv.Atoi(f[2])
		if len(f) > 3 {
			q.HashTokens = 512
			for id := range strings.SplitSeq(strings.TrimPrefix(f[3], "ids="), ",") {
				n, err := strconv.ParseUint(id, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				q.Hashes = append(q.Hashes, n)
			}
		}
		list = append(list, q)
	}
	return list
}

// run shows how requests ended, what was counted, what memory did, and on demand the
// lifecycle.
func (s *scene) run(t *testing.T, more string, events bool) string {
	var out strings.Builder
	requests, counts, all := s.replay(t, more)
	for _, e := range requests {
		fmt.Fprintln(&out, e)
	}
	for _, c := range counts {
		fmt.Fprintf(&out, "%s, %s: %d\n", c.Name, c.Reason, c.N)
	}
	for _, e := range all {
		switch {
		case e.Kind == telemetry.CapacityChanged:
			fmt.Fprintf(&out, "%-10s %-7s memory %s\n", e.Now, e.Process, cells(e.Cells))
		case events && e.Kind == telemetry.Transition:
			if line := transition(e.Record); line != "" {
				fmt.Fprintf(&out, "%-10s %-7s %s\n", e.Now, e.Process, line)
			}
		}
	}
	return out.String()
}

// replay runs the scene, with more lines in the fleet's description.
func (s *scene) replay(t *testing.T, more string) (requests []string, counts []counted, _ []telemetry.Event) {
	var trace bytes.Buffer
	res, lines := simulate(t, s.fleet+"\n"+more, &list{requests: s.requests}, Options{Lifecycle: &trace})
	var o struct{ Counts []counted }
	if err := json.Unmarshal(res, &o); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(lines)) {
		var e each
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("request %d %s", e.Index, e.Status)
		if e.Reason != "" {
			text += " (" + e.Reason + ")"
		}
		text += fmt.Sprintf(" at %s: %d tokens", seconds(e.End), e.Output)
		if e.Output > 0 {
			text += fmt.Sprintf(", first after %s", seconds(e.TTFT))
		}
		if e.Bytes > 0 || e.Skipped > 0 {
			text += fmt.Sprintf(", %d bytes moved in %s, %d tokens not, tail %s", e.Bytes, seconds(e.Wire), e.Skipped, seconds(e.Tail))
		}
		if e.Retries > 0 {
			text += fmt.Sprintf(", %d retries", e.Retries)
		}
		requests = append(requests, text)
	}
	events, err := replayed(&trace)
	if err != nil {
		t.Error(err)
	}
	return requests, o.Counts, events
}

// replayed reads a lifecycle trace and lets fresh machines decide again.
func replayed(trace *bytes.Buffer) (events []telemetry.Event, err error) {
	var records []handoff.Record
	if err := telemetry.ReadEvents(trace, func(e telemetry.Event) bool {
		if e.Record != nil {
			records = append(records, *e.Record)
		}
		events = append(events, e)
		return true
	}); err != nil {
		return nil, err
	}
	return events, handoff.Replay(func(yield func(handoff.Record, error) bool) {
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	})
}

// counted is one count of a report.
type counted struct {
	Name, Reason string
	N            int
}

func seconds(s float64) time.Duration {
	return time.Duration(s*1e9 + 0.5).Round(time.Microsecond)
}

func cells(c *telemetry.Capacity) string {
	return fmt.Sprintf("active %d, pinned %d, reserved %d, cached %d, free %d", c.Active, c.Pinned, c.Reserved, c.Cached, c.Free)
}

// transition is a fact, the state that it led to, and what was asked for. Tokens
// beyond the first are left out.
func transition(r *handoff.Record) string {
	var fact string
	var actions []string
	add := func(kind handoff.ActionKind, report handoff.Report, at time.Duration) {
		text := kind.String()
		switch {
		case report != 0:
			text += "{" + report.String() + "}"
		case at != 0:
			text += "{" + at.String() + "}"
		}
		actions = append(actions, text)
	}
	switch {
	case r.SourceFact != nil:
		fact = r.SourceFact.Kind.String()
		for _, a := range r.SourceActions {
			add(a.Kind, a.Report, a.At)
		}
	case r.DestinationFact != nil:
		fact = r.DestinationFact.Kind.String()
		for _, a := range r.DestinationActions {
			add(a.Kind, a.Report, a.At)
		}
	default:
		f := r.RequestFact
		if fact = f.Kind.String(); f.Kind == handoff.FactTokenOut {
			if f.Index > 0 && f.Finish == 0 {
				return ""
			}
			fact += fmt.Sprintf("{%d}", f.Index)
		}
		for _, a := range r.RequestActions {
			add(a.Kind, 0, a.At)
		}
	}
	text := fmt.Sprintf("%s %s: %s", r.Request, r.Role, fact)
	if r.Result == handoff.NoOp {
		text += " (no effect)"
	}
	text += " → " + r.State
	if len(actions) > 0 {
		text += ": " + strings.Join(actions, ", ")
	}
	return text
}

// each runs the scene once for each line, which is added to the fleet's description,
// and shows how the requests ended and when each worker's memory was back. That
// nothing is left simulate checks.
func (s *scene) each(t *testing.T, lines string) string {
	var out strings.Builder
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		requests, counts, events := s.replay(t, line)
		fmt.Fprintf(&out, "%s\n", line)
		for _, e := range requests {
			fmt.Fprintf(&out, "    %s\n", e)
		}
		for _, c := range counts {
			if c.Name != "placed" && c.Name != "failures" {
				fmt.Fprintf(&out, "    %s, %s: %d\n", c.Name, c.Reason, c.N)
			}
		}
		var names []string
		back, used := map[string]time.Duration{}, map[string]bool{}
		for _, e := range events {
			if c := e.Cells; c != nil {
				if !slices.Contains(names, e.Process) {
					names = append(names, e.Process)
				}
				now := c.Active+c.Pinned+c.Reserved > 0
				if !now && (used[e.Process] || back[e.Process] == 0) {
					back[e.Process] = e.Now
				}
				used[e.Process] = now
			}
		}
		for _, n := range names {
			fmt.Fprintf(&out, "    %s has its memory back at %s\n", n, back[n])
		}
	}
	return out.String()
}
