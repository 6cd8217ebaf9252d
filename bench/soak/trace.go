package soak

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/telemetry"
)

// endOfLife is written to a process's pipe when it has exited. Event streams are JSON,
// which has no such byte.
const endOfLife = 0

// lives cuts a pipe into the streams of the lives of the processes that wrote to it.
type lives struct {
	r    io.Reader
	buf  []byte // read and not yet given out
	at   []byte // of buf
	over bool   // the present life has ended
	err  error  // of r
}

func newLives(r io.Reader) *lives { return &lives{r: r, buf: make([]byte, 64<<10)} }

// next begins the next life and reports whether there is any.
func (l *lives) next() bool {
	l.over = false
	return l.err == nil || len(l.at) > 0
}

// Read reads of the present life.
func (l *lives) Read(p []byte) (int, error) {
	if l.over {
		return 0, io.EOF
	}
	if len(l.at) == 0 {
		if l.err != nil {
			return 0, io.EOF
		}
		var n int
		n, l.err = l.r.Read(l.buf)
		l.at = l.buf[:n]
		if n == 0 {
			return 0, io.EOF
		}
	}
	part := l.at
	if i := bytes.IndexByte(part, endOfLife); i >= 0 {
		part = part[:i]
		if len(part) == 0 {
			l.at, l.over = l.at[1:], true
			return 0, io.EOF
		}
	}
	n := copy(p, part)
	l.at = l.at[n:]
	return n, nil
}

// trigger waits for a process's report of a state.
type trigger struct {
	state string
	nth   int
	fired chan struct{}
}

// tracer follows the event streams of a fleet's processes, replays them while they come,
// and remembers what they say about requests. It is safe for concurrent use.
type tracer struct {
	ledger *ledger
	pipes  map[string]*os.File
	all    sync.WaitGroup

	mu       sync.Mutex
	ends     map[string]int      // ends of lives written to each pipe; guarded by mu
	closing  bool                // guarded by mu
	triggers map[string]*trigger // by process; guarded by mu
	killed   map[string]bool     // processes whose present life ends by SIGKILL; guarded by mu
	points   map[string]int      // states of handoffs in killed processes; guarded by mu
	records  int                 // replayed; guarded by mu
	lives    int                 // that ended, or were read to the end; guarded by mu
	missing  []string            // lives whose stream has gaps; guarded by mu
	faults   []string            // what is wrong with a stream; guarded by mu
}

func newTracer() *tracer {
	return &tracer{
		ledger: newLedger(), pipes: map[string]*os.File{}, ends: map[string]int{}, triggers: map[string]*trigger{}, killed: map[string]bool{},
		points: map[string]int{},
	}
}

// follow makes the pipe of a process and reads it until close.
func (t *tracer) follow(process, path string) error {
	f, err := makePipe(path)
	if err != nil {
		return err
	}
	t.pipes[process] = f
	t.all.Go(func() { t.read(process, f) })
	return nil
}

// ended says that a process has exited: what it wrote is complete.
func (t *tracer) ended(process string) { t.end(process, false) }

func (t *tracer) end(process string, closing bool) {
	f := t.pipes[process]
	if f == nil {
		return
	}
	t.mu.Lock()
	t.ends[process]++
	t.closing = t.closing || closing
	t.mu.Unlock()
	_, _ = f.Write([]byte{endOfLife}) // fails on a closed pipe, which nobody reads
}

// close returns when all that was written has been read. No process may write any more.
func (t *tracer) close() {
	for process := range t.pipes {
		t.end(process, true)
	}
	t.all.Wait()
	for _, f := range t.pipes {
		_ = f.Close()
	}
}

// read reads lives until close has written the last end.
func (t *tracer) read(process string, r io.Reader) {
	l := newLives(r)
	for n := 1; l.next(); n++ {
		t.life(process, l)
		t.mu.Lock()
		last := t.closing && n == t.ends[process]
		t.mu.Unlock()
		if last {
			return
		}
	}
}

// life reads one life.
func (t *tracer) life(process string, r io.Reader) {
	events := uint64(0)
	last := map[string]string{} // state of each machine that is not released, by role and handoff
	gap := false
	records := 0
	fault := func(what string) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.faults = append(t.faults, process+": "+what)
	}
	each := func(yield func(handoff.Record, error) bool) {
		err := telemetry.ReadEvents(r, func(e telemetry.Event) bool {
			events++
			if e.Seq != events { // the process dropped some: what follows cannot be replayed
				gap = true
				return false
			}
			if e.Kind != telemetry.Transition || e.Record == nil {
				return true
			}
			records++
			t.saw(process, e.Record, last)
			if e.Record.Err != "" {
				fault("the host told its machine what cannot be: " + e.Record.Err)
			}
			return yield(*e.Record, nil)
		})
		if err != nil {
			yield(handoff.Record{}, err)
		}
	}
	if err := handoff.Replay(each); err != nil {
		fault(err.Error())
	}
	// After a gap or a fault the rest must still be taken from the pipe.
	_, _ = io.Copy(io.Discard, r)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.records += records
	if events > 0 {
		t.lives++
	}
	if gap {
		t.missing = append(t.missing, fmt.Sprintf("%s after event %d", process, events))
	}
	if t.killed[process] && events > 0 {
		delete(t.killed, process)
		at := map[string]bool{}
		for _, s := range last {
			at[s] = true
		}
		if len(at) == 0 {
			at["idle"] = true
		}
		for s := range at {
			t.points[s]++
		}
	}
	if tr := t.triggers[process]; tr != nil { // it died of something else
		close(tr.fired)
		delete(t.triggers, process)
	}
}

// saw takes a record.
func (t *tracer) saw(process string, r *handoff.Record, last map[string]string) {
	if r.Role == handoff.RoleRequest {
		t.ledger.record(r)
		return
	}
	state := r.Role.String() + "/" + r.State
	key := r.Role.String() + r.Handoff.String()
	if r.State == handoff.SourceReleased.String() {
		delete(last, key)
	} else {
		last[key] = state
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if tr := t.triggers[process]; tr != nil && tr.state == state {
		if tr.nth--; tr.nth <= 0 {
			close(tr.fired)
			delete(t.triggers, process)
		}
	}
}

// arm returns a channel that closes when the process reports the state for the nth
// time from now on, or dies. disarm forgets it.
func (t *tracer) arm(process, state string, nth int) (fired <-chan struct{}, disarm func()) {
	tr := &trigger{state, nth, make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.triggers[process] = tr
	return tr.fired, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.triggers[process] == tr {
			delete(t.triggers, process)
		}
	}
}

// kills says that the process is about to be killed.
func (t *tracer) kills(process string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.killed[process] = true
}
