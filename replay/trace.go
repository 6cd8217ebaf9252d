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
	seq uint64
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

func (t *trace) emit(process string, now time.Duration, e telemetry.Event) {
	t.seq++
	e.Seq, e.Now, e.Process = t.seq, now, process
	if err := t.enc.Encode(&e); t.err == nil {
		t.err = err
	}
}

func (t *trace) transition(r handoff.Record) {
	t.emit(r.Host, r.Now, telemetry.Event{Kind: telemetry.Transition, Record: &r, Handoff: r.Handoff, Request: r.Request})
}

// key names a request.
func (q *request) key() string { return "r" + strconv.FormatInt(q.index, 10) }

func (t *trace) request(q *request, now time.Duration, f handoff.RequestFact, actions []handoff.RequestAction, result handoff.Result, err error) {
	r := handoff.RequestRecord(q.key(), now, f, actions, result, err, &q.machine)
	r.Host = "gateway"
	t.transition(r)
}

func (t *trace) source(h *host, k *task, now time.Duration, f handoff.SourceFact, actions []handoff.SourceAction, result handoff.Result, err error) {
	a := h.attempts.at(k.attempt)
	r := handoff.SourceRecord(a.id, now, f, actions, result, err, &k.src)
	r.Host, r.Request = h.workers[k.worker].name, h.requests.at(a.request).key()
	t.transition(r)
}

func (t *trace) destination(h *host, k *task, now time.Duration, f handoff.DestinationFact, actions []handoff.DestinationAction, result handoff.Result, err error) {
	a := h.attempts.at(k.attempt)
	r := handoff.DestinationRecord(a.id, now, f, actions, result, err, &k.dst)
	r.Host, r.Request = h.workers[k.worker].name, h.requests.at(a.request).key()
	t.transition(r)
}

func (t *trace) capacity(w *worker, now time.Duration, s kv.Snapshot) {
	_ = s
}
