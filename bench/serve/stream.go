package serve

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// Bounds of what is read from a server.
const (
	maxLine  = 1 << 20 // bytes of one line of a stream
	maxError = 4 << 10 // bytes of an answer that is no stream
)

var (
	errCut       = errors.New("the stream ended before [DONE]")
	errLine      = errors.New("a line of the stream is longer than 1 MiB")
	errMalformed = errors.New("not an event of the API")
)

// events reads server-sent events as the HTML standard describes them: lines
// that end with LF or CRLF, comments and unknown fields skipped, the data lines
// of an event joined.
type events struct {
	r    *bufio.Reader
	line []byte // scratch, for lines longer than r's buffer
	data []byte
}

func newEvents(r io.Reader) *events { return &events{r: bufio.NewReaderSize(r, 16<<10)} }

// next returns the data of the next event that has any, valid until the next
// call. errorField is true if it came in a field named error, as some versions of
// llama-server send it. The end of the input is errCut: the protocol has an end of
// its own.
func (e *events) next() (data []byte, errorField bool, err error) {
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
			if len(e.data)+len(value) > maxLine {
				return nil, false, errLine
			}
			e.data = append(e.data, value...)
			has = true
		}
	}
}

// readLine returns a line without its end.
func (e *events) readLine() ([]byte, error) {
	e.line = e.line[:0]
	for {
		part, err := e.r.ReadSlice('\n')
		if len(e.line)+len(part) > maxLine {
			return nil, errLine
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
			return nil, errCut
		default:
			return nil, err
		}
	}
}

func trimEnd(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r"))
}
