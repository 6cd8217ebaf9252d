package gateway

import (
	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/text"
)

// assembler turns the tokens of one sample into text that is safe to send, and lines up log
// probabilities with it. It stops at the same byte as the worker, because both run text.Stream over
// the same pieces. It is used by one goroutine at a time.
type assembler struct {
	stream *text.Stream
	stops  []string
	asked  bool // log probabilities are wanted

	fed     int    // bytes of all pieces
	cut     int    // where the text ends, valid once the stream stopped
	scratch []byte // reused
	pending []pendingToken
	offset  openai.TextOffset // of the first pending token
}

// pendingToken is a token whose text has not been released whole.
type pendingToken struct {
	start, end int // bytes of its piece, counted over all pieces
	logprob    openai.Logprob
}

func newAssembler(stops []string, logprobs bool) (*assembler, error) {
	s, err := text.NewStream(stops)
	if err != nil {
		return nil, err
	}
	return &assembler{stream: s, stops: stops, asked: logprobs}, nil
}

// released is what one more token made safe to send.
type released struct {
	text     string
	logprobs []openai.Logprob
	offset   openai.TextOffset // of the first of logprobs
	ids      []int32           // the token itself, when the client asked for ids
}

func (r released) empty() bool { return r.text == "" && len(r.logprobs) == 0 && len(r.ids) == 0 }

// feed takes the next token. piece is not kept unless log probabilities are wanted, where l holds it.
func (a *assembler) feed(piece []byte, l openai.Logprob) released {
	start := a.fed
	out := a.scratch[:0]
	if len(a.stops) == 0 {
		out, _ = a.stream.Feed(out, piece)
		piece, a.fed = nil, a.fed+len(piece)
	}
	// Byte by byte, so that the position where a stop string ended is known.
	for i := range piece {
		if a.stream.Stopped() {
			break
		}
		var stopped bool
		out, stopped = a.stream.Feed(out, piece[i:i+1])
		if stopped {
			a.cut = start + i + 1 - len(a.stops[a.stream.Stop()])
		}
	}
	a.scratch = out
	a.fed += len(piece)
	if a.asked {
		a.pending = append(a.pending, pendingToken{start, a.fed, l})
	}
	if a.stream.Stopped() {
		return a.release(out, a.cut, true)
	}
	return a.release(out, a.fed-a.stream.Held(), false)
}

// finish returns what was held back, at the end of the completion.
func (a *assembler) finish() released {
	if a.stream.Stopped() {
		return released{}
	}
	return a.release(a.stream.Finish(nil), a.fed, true)
}

// release takes the tokens off the pending ones whose text ends at or before end. At the end of the
// text a token that is cut in the middle goes too, and those behind the cut are dropped: their text
// was never sent.
func (a *assembler) release(out []byte, end int, final bool) released {
	r := released{text: string(out), offset: a.offset}
	for len(a.pending) > 0 {
		t := a.pending[0]
		if t.end > end && (!final || t.start >= end) {
			break
		}
		r.logprobs = append(r.logprobs, t.logprob)
		a.pending = a.pending[1:]
	}
	if final {
		a.pending = nil
	}
	a.offset = a.offset.After(r.logprobs)
	return r
}
