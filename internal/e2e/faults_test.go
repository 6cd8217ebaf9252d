package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/telemetry"
)

// What makes a request the victim of a fault: the first token of its prompt (the
// engine of a source sees it) and the length of its prompt, with or without
// tokens that an earlier attempt generated (a destination and the machines see
// it). No background request has either.
const (
	victimToken  = 251
	victimTokens = 700
	victimMax    = 64 // most tokens of its answer
)

func victimLength(tokens int) bool { return tokens >= victimTokens && tokens < victimTokens+victimMax }

// fault is something that happens to a worker when it is somewhere with the
// victim.
type fault struct {
	// Point: "prefill" a prompt chunk, "export" a page, "snapshot", "import" a page,
	// "restore" before and "restored" after an import is committed, "decode" a
	// step; or "state:ROLE/NAME" when that machine has reached that state and the
	// record of it was written.
	Point string
	N     int // the N-th time, from 1; engine points only
	// Act: "kill" with SIGKILL, "stop" with SIGSTOP, "term" with SIGTERM, "hold" the owner goroutine
	// until the faults are replaced.
	Act string
	// Claim is a file; of all workers with this fault only the one that makes the
	// file acts.
	Claim string
}

// orders is what a test tells a worker.
type orders struct {
	Faults []fault
	// Pace is the least time of one decode step. It keeps short answers running
	// until the fault happens; no result depends on it.
	Pace time.Duration
}

// faults are those of one worker process. It serves them over HTTP: POST replaces
// them.
type faults struct {
	events *telemetry.Events

	mu      sync.Mutex
	list    []fault         // guarded by mu
	pace    time.Duration   // guarded by mu
	counts  map[string]int  // guarded by mu; times the victim was at a point since the last POST
	release chan struct{}   // guarded by mu; closed by the next POST
	victims map[string]bool // guarded by mu; handoffs, by "role id"
}

// ServeHTTP implements http.Handler.
func (f *faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var o orders
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.release != nil {
		close(f.release)
	}
	f.list, f.pace, f.counts, f.release = o.Faults, o.Pace, map[string]int{}, make(chan struct{})
}

// slow keeps the pace.
func (f *faults) slow() {
	f.mu.Lock()
	pace, release := f.pace, f.release
	f.mu.Unlock()
	if pace > 0 {
		select {
		case <-time.After(pace):
		case <-release:
		}
	}
}

// at is called with the victim at a point.
func (f *faults) at(point string) {
	f.mu.Lock()
	var due fault
	if f.counts != nil {
		f.counts[point]++
	}
	for _, v := range f.list {
		if v.Point == point && v.N == f.counts[point] {
			due = v
		}
	}
	release := f.release
	f.mu.Unlock()
	if due.Act == "" || !claim(due.Claim) {
		return
	}
	switch due.Act {
	case "hold":
		<-release
	case "stop":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case "term":
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
	case "kill":
		_ = f.events.Close() // so that the trace shows where it was
		die()
	}
}

// die kills this process as the kernel's OOM killer would.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// claim makes a file and reports whether it is new.
func claim(name string) bool {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false
	}
	if err != nil {
		panic(err)
	}
	_ = file.Close()
	return true
}

// stateReached reports whether a fault is due at this record's state.
func (f *faults) stateReached(r *handoff.Record) bool {
	key := r.Role.String() + " " + r.Handoff.String()
	f.mu.Lock()
	if r.SourceFact != nil && r.SourceFact.Kind == handoff.FactDispatched && victimLength(r.SourceFact.PromptTokens) ||
		r.DestinationFact != nil && r.DestinationFact.Kind == handoff.FactRouted && victimLength(r.DestinationFact.PromptTokens) {
		if f.victims == nil {
			f.victims = map[string]bool{}
		}
		f.victims[key] = true
	}
	var due fault
	for _, v := range f.list {
		if f.victims[key] && v.Point == "state:"+r.Role.String()+"/"+r.State {
			due = v
		}
	}
	f.mu.Unlock()
	return due.Act != "" && claim(due.Claim)
}

// faultySink writes events, whole lines only, and dies after the one that shows
// the wanted state.
type faultySink struct {
	file   *os.File
	faults *faults
	line   []byte
}

func (s *faultySink) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		i := bytes.IndexByte(rest, '\n') + 1
		if i == 0 {
			s.line = append(s.line, rest...)
			break
		}
		s.line = append(s.line, rest[:i]...)
		rest = rest[i:]
		if _, err := s.file.Write(s.line); err != nil {
			return 0, err
		}
		var e telemetry.Event
		if err := json.Unmarshal(s.line, &e); err != nil {
			return 0, err
		}
		if e.Record != nil && s.faults.stateReached(e.Record) {
			die()
		}
		s.line = s.line[:0]
	}
	return len(p), nil
}

// faultyEngine passes everything on to a real engine, until it is time.
type faultyEngine struct {
	engine.Engine
	faults *faults
	victim [labSlots]bool // sequences of victims; used by the owner only
}

func (e *faultyEngine) Decode(rows []engine.Row) error {
	if rows[0].Pos == 0 {
		e.victim[rows[0].Seq] = rows[0].Token == victimToken
	}
	prompt := len(rows) > 1 && rows[0].Seq == rows[1].Seq
	if !prompt {
		e.faults.slow()
	}
	for i := range rows {
		if !e.victim[rows[i].Seq] {
			continue
		}
		if prompt {
			e.faults.at("prefill")
		} else {
			e.faults.at("decode")
		}
		break
	}
	return e.Engine.Decode(rows)
}

func (e *faultyEngine) Drop(seq int32) error {
	e.victim[seq] = false
	return e.Engine.Drop(seq)
}

func (e *faultyEngine) ExportPage(seq int32, first, end int, dst []byte) (int, error) {
	if e.victim[seq] {
		e.faults.at("export")
	}
	return e.Engine.ExportPage(seq, first, end, dst)
}

func (e *faultyEngine) ExportSnapshot(seq int32, dst []byte) (int, []state.ComponentRef, error) {
	if e.victim[seq] {
		e.faults.at("snapshot")
	}
	return e.Engine.ExportSnapshot(seq, dst)
}

func (e *faultyEngine) BeginImport(seq int32, tokens int) (engine.Import, error) {
	imp, err := e.Engine.BeginImport(seq, tokens)
	if err != nil {
		return nil, err
	}
	e.victim[seq] = victimLength(tokens)
	return &faultyImport{Import: imp, engine: e, seq: seq}, nil
}

type faultyImport struct {
	engine.Import
	engine *faultyEngine
	seq    int32
}

func (i *faultyImport) at(point string) {
	if i.engine.victim[i.seq] {
		i.engine.faults.at(point)
	}
}

func (i *faultyImport) Page(first, end int, payload []byte) error {
	i.at("import")
	return i.Import.Page(first, end, payload)
}

func (i *faultyImport) Commit() error {
	i.at("restore")
	err := i.Import.Commit()
	i.at("restored")
	return err
}
