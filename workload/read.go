package workload

import (
	"io"

	"github.com/tandem-llm/tandem/engine/timed"
)

// Format is how a trace is written.
type Format string

// The formats. All may be compressed with gzip.
const (
	Auto     Format = ""         // told from the first line
	Mooncake Format = "mooncake" // JSON lines: timestamp [ms], input_length, output_length, hash_ids of 512 tokens
	JSONL    Format = "jsonl"    // JSON lines: arrival [s], input, output, and optionally hashes, hash_tokens, session, turn, tenant
	Azure    Format = "azure"    // CSV: TIMESTAMP, ContextTokens, GeneratedTokens
	BurstGPT Format = "burstgpt" // CSV: Timestamp [s], Request tokens, Response tokens
)

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
}

// Reader is a Source that reads a trace as it is asked for requests. Arrivals
// count from the trace's first request.
type Reader struct{}

// Read returns a reader of r, which it reads to its end but does not close. The
// error is one of reading the first line, or says that the format is not known.
func Read(r io.Reader, o ReadOptions) (*Reader, error) { return &Reader{}, nil }

// Peek returns the next request's arrival, like Source.
func (r *Reader) Peek() (timed.Time, bool, error) { return 0, false, nil }

// Next takes the next request, like Source. The error is a *LineError when the
// reader is strict, and otherwise one of reading.
func (r *Reader) Next() (Request, bool, error) { return Request{}, false, nil }

// Finished does nothing: a trace's arrivals wait for nobody.
func (r *Reader) Finished(uint64, timed.Time) {}

// Malformed returns what was skipped so far. Its list is the reader's own.
func (r *Reader) Malformed() Malformed { return Malformed{} }
