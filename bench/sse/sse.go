// Package sse reads server-sent events as the HTML standard describes them, from a
// server that is not trusted: what it sends is bounded, and an end that the protocol
// does not announce is an error. The benchmarks that ask an endpoint of the OpenAI API
// read its streams with it.
package sse

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// MaxLine is the most bytes of one line of a stream, and of the data of one event.
const MaxLine = 1 << 20

// How a stream ends that cannot be read on.
var (
	ErrCut  = errors.New("the stream ended before [DONE]")
	ErrLine = errors.New("a line of the stream is longer than 1 MiB")
)

// Reader reads events: lines that end with LF or CRLF, comments and unknown fields
// skipped, the data lines of an event joined.
type Reader struct {
	r    *bufio.Reader
	line []byte // scratch, for lines longer than r's buffer
	data []byte
}

// New returns a reader of the events in r.
func New(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 16<<10)} }

// Next returns the data of the next event that has any, valid until the next
// call. errorField is true if it came in a field named error, as some versions of
// llama-server send it. The end of the input is ErrCut: the protocol has an end of
// its own.
func (e *Reader) Next() (data []byte, errorField bool, err error) {
	e.data = e.data[:0]
	has := false
	for {
		line, err := e.readLine()
		if err != nil {
			return nil, false, err
		}
		if len(line) == 0 {
			if has {
				return e.data, errorField, nil
			}
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "error":
			errorField = true
			fallthrough
		case "data":
			if has {
				e.data = append(e.data, '\n')
			}
			if len(e.data)+len(value) > MaxLine {
				return nil, false, ErrLine
			}
			e.data = append(e.data, value...)
			has = true
		}
	}
}

// readLine returns a line without its end.
func (e *Reader) readLine() ([]byte, error) {
	e.line = e.line[:0]
	for {
		part, err := e.r.ReadSlice('\n')
		if len(e.line)+len(part) > MaxLine {
			return nil, ErrLine
		}
		switch {
		case err == nil && len(e.line) == 0:
			return trimEnd(part), nil
		case err == nil:
			e.line = append(e.line, part...)
			return trimEnd(e.line), nil
		case errors.Is(err, bufio.ErrBufferFull):
			e.line = append(e.line, part...)
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, ErrCut
		default:
			return nil, err
		}
	}
}

func trimEnd(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r"))
}
