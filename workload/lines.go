package workload

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// bufferBytes is how much is read ahead, and the longest line that is parsed
// where it was read, without a copy.
const bufferBytes = 64 << 10

// lines reads a text line by line, never holding more than one of them.
type lines struct {
	src    *bufio.Reader
	limit  int
	number int    // of the last line read
	long   []byte // a line that did not fit the buffer of src
	held   []byte // the last line, to be read again
	cut    bool   // its end is missing
	again  bool
}

var (
	gzipMagic = []byte{0x1f, 0x8b}
	byteOrder = []byte{0xef, 0xbb, 0xbf} // mark that some programs begin text files with
)

func newLines(r io.Reader, limit int) (*lines, error) {
	src := bufio.NewReaderSize(r, bufferBytes)
	if head, _ := src.Peek(len(gzipMagic)); bytes.Equal(head, gzipMagic) {
		unzipped, err := gzip.NewReader(src)
		if err != nil {
			return nil, fmt.Errorf("workload: gzip: %w", err)
		}
		src = bufio.NewReaderSize(unzipped, bufferBytes)
	}
	if head, _ := src.Peek(len(byteOrder)); bytes.Equal(head, byteOrder) {
		if _, err := src.Discard(len(byteOrder)); err != nil {
			return nil, fmt.Errorf("workload: %w", err)
		}
	}
	return &lines{src: src, limit: limit}, nil
}

// next returns the next line that is not blank, without the space around it.
// It is valid until the next call. tooLong says that its end is missing. The
// error is io.EOF after the last line.
func (l *lines) next() (line []byte, tooLong bool, err error) {
	if l.again {
		l.again = false
		return l.held, l.cut, nil
	}
	for {
		line, tooLong, err = l.read()
		if err != nil {
			return nil, false, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			l.held, l.cut = line, tooLong
			return line, tooLong, nil
		}
	}
}

// unread makes next return the last line once more.
func (l *lines) unread() { l.again = true }

// read returns the next line, at most limit bytes of it.
func (l *lines) read() (line []byte, tooLong bool, err error) {
	l.long = l.long[:0]
	for {
		part, err := l.src.ReadSlice('\n')
		switch {
		case err == nil:
		case errors.Is(err, bufio.ErrBufferFull):
			room := max(l.limit+1-len(l.long), 0)
			l.long = append(l.long, part[:min(room, len(part))]...)
			continue
		case errors.Is(err, io.EOF):
			if len(part) == 0 && len(l.long) == 0 {
				return nil, false, io.EOF
			}
		default:
			return nil, false, fmt.Errorf("workload: after line %d: %w", l.number, err)
		}
		l.number++
		line = part
		if len(l.long) > 0 {
			room := max(l.limit+1-len(l.long), 0)
			l.long = append(l.long, part[:min(room, len(part))]...)
			line = l.long
		}
		if len(bytes.TrimRight(line, "\r\n")) > l.limit {
			return line[:l.limit], true, nil
		}
		return line, false, nil
	}
}
