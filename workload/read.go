package workload

import (
	"container/heap"
	"errors"
	"fmt"
	"io"

	"github.com/tandem-llm/tandem/engine/timed"
)

// Format is how a trace is written.
type Format string

// The formats. All may be compressed with gzip.
const (
	Auto     Format = ""         // told from the first line
	Mooncake Format = "mooncake" // JSON lines: timestamp [ms], input_length, output_length, hash_ids
	JSONL    Format = "jsonl"    // JSON lines: arrival [s], input, output, and optionally hashes, hash_tokens, session, turn, tenant
	Azure    Format = "azure"    // CSV: TIMESTAMP, ContextTokens, GeneratedTokens
	BurstGPT Format = "burstgpt" // CSV: Timestamp [s], Request tokens, Response tokens
)

// MooncakeBlock is the number of tokens of a block in Mooncake's traces, and
// what is assumed where a trace does not say (FAST25-release/traces/README of
// kvcache-ai/Mooncake).
const MooncakeBlock = 512

// ErrFormat says that a trace is not of the format it should be, or of none
// that is known.
var ErrFormat = errors.New("unknown trace format")

// ReadOptions say how to read a trace. The zero value is a good start.
type ReadOptions struct {
	Format Format
	// Strict makes the first malformed line an error, instead of skipping and
	// counting it.
	Strict bool
	// LineLimit is the longest line in bytes; longer ones are malformed. 0: 1 MiB.
	LineLimit int
	// Reorder is how many requests may be held back to put them in order of
	// arrival. A request that comes later than that is malformed. 0: the trace
	// must be in order. Equal arrivals keep the order of their lines.
	Reorder int
	// HashTokens is the number of tokens of a block where the trace does not
	// say. 0: MooncakeBlock.
	HashTokens int
}

// parser reads one line. It quotes nothing of it in its error.
type parser interface {
	parse(line []byte, into *record) *LineError
}

// Reader is a Source that reads a trace as it is asked for requests. Arrivals
// count from the trace's first request. Its memory is one line's and that of
// the requests held back.
type Reader struct {
	lines   *lines
	parser  parser
	format  Format
	strict  bool
	reorder int

	held    held      // in order of (nanos, line)
	free    []*record // not in held and not handed out
	current *record   // what Peek showed; nil: not looked for yet
	out     *record   // what Next handed out last
	started bool      // something was handed out: base and last count
	base    int64     // nanos of the first request
	last    int64     // nanos of the last one looked at

	malformed Malformed
	err       error // final
	ended     bool  // no further line
}

// Read returns a reader of r, which it reads to its end but does not close. The
// error is one of reading the first line, or wraps ErrFormat.
func Read(r io.Reader, o ReadOptions) (*Reader, error) {
	if o.LineLimit <= 0 {
		o.LineLimit = 1 << 20
	}
	if o.HashTokens <= 0 {
		o.HashTokens = MooncakeBlock
	}
	text, err := newLines(r, o.LineLimit)
	if err != nil {
		return nil, err
	}
	t := &Reader{lines: text, format: o.Format, strict: o.Strict, reorder: max(o.Reorder, 0)}
	first, _, err := text.next()
	switch {
	case errors.Is(err, io.EOF):
		t.ended = true
		return t, nil
	case err != nil:
		return nil, err
	}
	asJSON := &jsonParser{hashTokens: o.HashTokens, tenants: map[string]string{}}
	switch {
	case o.Format == Mooncake, o.Format == JSONL:
		t.parser = asJSON
		text.unread()
	case o.Format == Auto && first[0] == '{':
		t.parser, t.format = asJSON, JSONL
		if isMooncake(first) {
			t.format = Mooncake
		}
		text.unread()
	case o.Format == Auto, o.Format == Azure, o.Format == BurstGPT:
		csv, err := newCSV(first, o.Format)
		if err != nil {
			return nil, err
		}
		t.parser, t.format = csv, csv.table.format
	default:
		return nil, fmt.Errorf("workload: %w %q: choose %s, %s, %s or %s", ErrFormat, o.Format, Mooncake, JSONL, Azure, BurstGPT)
	}
	return t, nil
}

// Format returns the trace's format, which may have been told from its first
// line. It is empty for an empty trace.
func (t *Reader) Format() Format { return t.format }

// Lines returns the number of lines read so far, blank ones and the header
// included.
func (t *Reader) Lines() int { return t.lines.number }

// Malformed returns what was skipped so far. Its list is the reader's own.
func (t *Reader) Malformed() Malformed { return t.malformed }

// Finished does nothing: a trace's arrivals wait for nobody.
func (t *Reader) Finished(uint64, timed.Time) {}

// Peek returns the next request's arrival, like Source. Looking takes the line
// in: hashes of the last request are no longer valid.
func (t *Reader) Peek() (timed.Time, bool, error) {
	if t.current == nil && !t.look() {
		return 0, false, t.err
	}
	return t.current.request.Arrival, true, nil
}

// Next takes the next request, like Source. The error is a *LineError when the
// reader is strict, and otherwise one of reading.
func (t *Reader) Next() (Request, bool, error) {
	if t.current == nil && !t.look() {
		return Request{}, false, t.err
	}
	t.out, t.current = t.current, nil
	return t.out.request, true, nil
}

// look finds the next request in order, and reports whether there is one.
func (t *Reader) look() bool {
	if t.out != nil {
		t.free = append(t.free, t.out)
		t.out = nil
	}
	for t.err == nil {
		for !t.ended && len(t.held) <= t.reorder {
			if !t.read() {
				return false
			}
		}
		if len(t.held) == 0 {
			return false
		}
		next := heap.Pop(&t.held).(*record)
		if !t.started {
			t.started, t.base = true, next.nanos
		}
		// The difference is right even where the signed one would overflow.
		if since := uint64(next.nanos) - uint64(t.base); since <= uint64(timed.Never/timed.Nanosecond) {
			t.last = next.nanos
			next.request.Arrival = timed.Time(since) * timed.Nanosecond
			t.current = next
			return true
		}
		t.free = append(t.free, next)
		t.skip(next.line, malformed(OutOfRange, "arrives more than 106 days after the first request"))
	}
	return false
}

// read holds the next line's request, or counts what is wrong with the line. It
// reports false when reading ends with an error.
func (t *Reader) read() bool {
	line, tooLong, err := t.lines.next()
	switch {
	case errors.Is(err, io.EOF):
		t.ended = true
		return true
	case err != nil:
		t.err = err
		return false
	}
	r := t.take()
	var bad *LineError
	if tooLong {
		bad = malformed(TooLong, "split it, or raise the limit of a line")
	} else if bad = t.parser.parse(line, r); bad == nil && t.started && r.nanos < t.last {
		bad = malformed(Disorder, "a later request is ahead of it; sort the trace, or hold more requests back")
	}
	if bad == nil {
		r.line = t.lines.number
		heap.Push(&t.held, r)
		return true
	}
	t.free = append(t.free, r)
	return t.skip(t.lines.number, bad)
}

// skip counts a malformed line, and reports whether reading goes on.
func (t *Reader) skip(line int, bad *LineError) bool {
	bad.Line = line
	t.malformed.add(*bad)
	if t.strict {
		t.err = bad
	}
	return !t.strict
}

// take returns a record to fill.
func (t *Reader) take() *record {
	if n := len(t.free); n > 0 {
		r := t.free[n-1]
		t.free = t.free[:n-1]
		return r
	}
	return &record{}
}

// record is one line's request with the memory it points to.
type record struct {
	request Request
	nanos   int64 // arrival by the trace's clock
	line    int
	hashes  []uint64
	hashed  bool
}

// reset forgets all but the memory.
func (r *record) reset(hashTokens int) {
	*r = record{hashes: r.hashes[:0], request: Request{HashTokens: hashTokens}}
}

// check completes a record whose line was read.
func (r *record) check() *LineError {
	q := &r.request
	if !r.hashed {
		q.HashTokens = 0
		return nil
	}
	if len(r.hashes) != blocks(q.Input, q.HashTokens) {
		return malformed(Blocks, "there is one id for each block of the prompt, the last possibly partial")
	}
	q.Hashes = r.hashes
	return nil
}

// blocks is how many blocks of size tokens hold n tokens.
func blocks(n, size int) int { return (n + size - 1) / size }

// held is a heap of records.
type held []*record

func (h held) Len() int { return len(h) }
func (h held) Less(i, j int) bool {
	if h[i].nanos != h[j].nanos {
		return h[i].nanos < h[j].nanos
	}
	return h[i].line < h[j].line
}
func (h held) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *held) Push(x any)   { *h = append(*h, x.(*record)) }
func (h *held) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
