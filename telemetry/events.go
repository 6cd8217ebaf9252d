package telemetry

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/handoff"
)

const (
	// DefaultRing is the number of newest events that a process keeps.
	DefaultRing = 4_096
	// sinkQueue is the most events that wait for a slow sink. Later ones are
	// dropped and counted: a full disk must not stop a request.
	sinkQueue = 16_384
	// maxEventLine bounds one line that ReadEvents takes.
	maxEventLine = 1 << 20
)

// Events is a process's lifecycle event stream. A nil *Events drops everything, so a host needs no
// check. It is safe for concurrent use.
type Events struct {
	process string
	now     func() time.Duration

	mu      sync.Mutex
	seq     uint64  // of the newest event
	ring    []Event // event n is at (n-1) % len
	sink    *sink   // nil: ring only
	dropped uint64  // events that the sink was too slow for
}

// NewEvents makes a stream that keeps the newest size events, DefaultRing of them when size is not
// positive. process names the process in every event, now gives its host time.
func NewEvents(process string, size int, now func() time.Duration) *Events {
	if size <= 0 {
		size = DefaultRing
	}
	return &Events{process: process, now: now, ring: make([]Event, 0, size)}
}

// Emit appends an event; Seq, Now and Process are filled in. It does not block. The event's Record
// must not be changed afterwards.
func (e *Events) Emit(ev Event) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seq++
	ev.Seq, ev.Now, ev.Process = e.seq, e.now(), e.process
	if len(e.ring) < cap(e.ring) {
		e.ring = append(e.ring, ev)
	} else {
		e.ring[int((ev.Seq-1)%uint64(cap(e.ring)))] = ev
	}
	if e.sink != nil && !e.sink.offer(ev) {
		e.dropped++
	}
}

// Transition appends a recorded application of a fact. The record must not be changed afterwards.
func (e *Events) Transition(r handoff.Record) {
	if e == nil {
		return
	}
	e.Emit(Event{Kind: Transition, Record: &r, Handoff: r.Handoff, Request: r.Request})
}

// Since returns the kept events with a larger sequence number, oldest first. The first one's number
// shows whether older ones were overwritten.
func (e *Events) Since(seq uint64) []Event {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	first := e.seq - uint64(len(e.ring)) + 1
	if seq >= first {
		first = seq + 1
	}
	var out []Event
	for n := first; n <= e.seq; n++ {
		out = append(out, e.ring[int((n-1)%uint64(cap(e.ring)))])
	}
	return out
}

// Dropped is the number of events that did not reach the sink because it was too slow or failed.
func (e *Events) Dropped() uint64 {
	if e == nil {
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dropped
}

// Attach starts writing every event from now on to w, one JSON document a line. A stream has at
// most one sink. Close ends it.
func (e *Events) Attach(w io.Writer) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sink != nil {
		return errors.New("telemetry: the event stream has a sink already: close it first")
	}
	e.sink = newSink(w)
	return nil
}

// Close writes what is queued, flushes, and detaches the sink, if there is one. It returns the first
// error that the sink met. Events emitted later stay in the ring.
func (e *Events) Close() error {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	s := e.sink
	e.sink = nil
	e.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.close()
}

// sink writes events on a goroutine of its own.
type sink struct {
	queue chan Event // closed by close, after the last offer
	done  chan error
}

func newSink(w io.Writer) *sink {
	s := &sink{queue: make(chan Event, sinkQueue), done: make(chan error, 1)}
	go func() { s.done <- s.run(w) }()
	return s
}

// offer queues an event, or reports false when the sink is behind.
func (s *sink) offer(ev Event) bool {
	select {
	case s.queue <- ev:
		return true
	default:
		return false
	}
}

// run writes until the queue is closed. After an error it only drains. It flushes whenever it has
// caught up, so a reader sees events soon.
func (s *sink) run(w io.Writer) error {
	buf := bufio.NewWriter(w)
	enc := json.NewEncoder(buf)
	var failed error
	for ev := range s.queue {
		if failed == nil {
			failed = enc.Encode(ev)
		}
		if failed == nil && len(s.queue) == 0 {
			failed = buf.Flush()
		}
	}
	if failed == nil {
		failed = buf.Flush()
	}
	if failed != nil {
		return fmt.Errorf("telemetry: writing the event stream: %w", failed)
	}
	return nil
}

func (s *sink) close() error {
	close(s.queue)
	return <-s.done
}

// ReadEvents reads an event stream that Attach wrote, calling f for each event until f returns
// false. A last line that is cut short, as a killed process leaves it, ends the stream without an
// error.
func ReadEvents(r io.Reader, f func(Event) bool) error {
	br := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := readLine(br)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("telemetry: event stream line %d: %w", n, err)
		}
		var ev Event
		if err := json.Unmarshal(line, &ev); err != nil {
			return fmt.Errorf("telemetry: event stream line %d is damaged: %w", n, err)
		}
		if !f(ev) {
			return nil
		}
	}
}

var errLongLine = fmt.Errorf("longer than %d bytes", maxEventLine)

// readLine returns a line of bounded length; io.EOF also for one without an end.
func readLine(br *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := br.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxEventLine:
			return nil, errLongLine
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
