package replay

import (
	"bufio"
	"encoding/json"
	"io"
	"strconv"
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/telemetry"
)

// trace writes the lifecycle events of a run as the live hosts write theirs.
type trace struct {
	w   *bufio.Writer
	enc *json.Encoder
	seq []uint64 // of each process: the gateway, then the workers
	err error
}

func newTrace(w io.Writer) *trace {
	b := bufio.NewWriterSize(w, 1<<16)
	return &trace{w: b, enc: json.NewEncoder(b)}
}

func (t *trace) close() error {
	if err := t.w.Flush(); t.err == nil {
		t.err = err
	}
	return t.err
}

// emit writes an event of process n: 0 is the gateway, then come the workers.
func (t *trace) emit(n int32, process string, now time.Duration, e telemetry.Event) {
	for int(n) >= len(t.seq) {
		t.seq = append(t.seq, 0)
	}
	t.seq[n]++
	e.Seq, e.Now, e.Process = t.seq[n], now, process
	if err := t.enc.Encode(&e); t.err == nil {
		t.err = err
	}
}

func (t *trace) transition(n int32, r handoff.Record) {
	t.emit(n, r.Host, r.Now, telemetry.Event{Kind: telemetry.Transition, Record: &r, Handoff: r.Handoff, Request: r.Request})
}

// key names a request.
func (q *request) key() string { return "r" + strconv.FormatInt(q.index, 10) }

func (t *trace) request(q *request, now time.Duration, f handoff.RequestFact, actions []handoff.RequestAction, result handoff.Result, err error) {
	r := handoff.RequestRecord(q.key(), now, f, actions, result, err, &q.machine)
	r.Host = "gateway"
	t.transition(0, r)
}

func (t *trace) source(h *host, k *task, now time.Duration, f handoff.SourceFact, actions []handoff.SourceAction, result handoff.Result, err error) {
	a := h.attempts.at(k.attempt)
	r := handoff.SourceRecord(a.id, now, f, actions, result, err, &k.src)
	r.Host, r.Request = h.workers[k.worker].name, h.requests.at(a.request).key()
	t.transition(k.worker+1, r)
}

func (t *trace) destination(h *host, k *task, now time.Duration, f handoff.DestinationFact, actions []handoff.DestinationAction, result handoff.Result, err error) {
	a := h.attempts.at(k.attempt)
	r := handoff.DestinationRecord(a.id, now, f, actions, result, err, &k.dst)
	r.Host, r.Request = h.workers[k.worker].name, h.requests.at(a.request).key()
	t.transition(k.worker+1, r)
}

func (t *trace) capacity(w *worker, now time.Duration, s kv.Snapshot) {
	n := w.pool.block
	t.emit(w.number+1, w.name, now, telemetry.Event{Kind: telemetry.CapacityChanged, Cells: &telemetry.Capacity{
		Total: s.Blocks * n, Active: s.Active * n, Pinned: s.Pinned * n, Reserved: s.Reserved * n, Cached: s.Cached * n, Free: s.Free * n,
	}})
}
