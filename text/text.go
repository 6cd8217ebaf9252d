// Package text turns the bytes of generated tokens into text that is safe to
// show, and finds stop strings in it.
//
// A token's bytes are neither whole characters nor aligned with stop strings: a
// character may span four tokens and a stop string may begin in the middle of
// one. A [Stream] takes the pieces as they come and releases every byte as soon
// as it can be neither part of an unfinished character nor the beginning of a
// stop string. What it releases, and where it stops, depends only on the bytes,
// never on how they were cut into pieces, so a worker that detects the stop and
// a gateway that emits the text agree by running the same Stream, and a worker
// that takes over a sequence agrees with its predecessor by feeding the tokens
// again.
//
// The package is part of the pure core: no clock, goroutine or I/O.
package text

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Limits on stop strings. They bound the work per byte (every stop string is
// matched at once) and the bytes a Stream holds back.
const (
	MaxStops     = 16
	MaxStopBytes = 1024
)

// ErrStop matches every error about a request's stop strings.
var ErrStop = errors.New("text: bad stop string")

// replacement stands for bytes that are not UTF-8.
const replacement = "\uFFFD"

// Stream assembles the text of one completion. The zero value is a Stream
// without stop strings. It is used by one goroutine at a time.
type Stream struct {
	stops []stop

	// buf[from:] are the bytes fed and not yet released: at most the longest
	// stop string and an unfinished character between calls.
	buf  []byte
	from int

	hit      int // index of the stop string found, valid if stopped
	stopped  bool
	finished bool
}

// stop is one stop string with its Knuth-Morris-Pratt automaton.
type stop struct {
	pattern string
	// border[i] is the length of the longest proper prefix of pattern[:i+1] that
	// is also its suffix: where matching resumes after a mismatch.
	border []int32
	// matched is the length of the longest prefix of pattern that the bytes fed
	// so far end with; less than len(pattern) until the stop is found.
	matched int32
}

// NewStream returns a Stream that stops at the first of the given strings. The
// error matches [ErrStop] and names the position of the offending string, not
// its text. Strings must be nonempty valid UTF-8 within the package's limits;
// duplicates are harmless.
func NewStream(stops []string) (*Stream, error) {
	if len(stops) > MaxStops {
		return nil, fmt.Errorf("%w: %d strings, at most %d", ErrStop, len(stops), MaxStops)
	}
	s := &Stream{stops: make([]stop, len(stops))}
	for i, p := range stops {
		switch {
		case p == "":
			return nil, fmt.Errorf("%w: number %d is empty", ErrStop, i)
		case len(p) > MaxStopBytes:
			return nil, fmt.Errorf("%w: number %d has %d bytes, at most %d", ErrStop, i, len(p), MaxStopBytes)
		case !utf8.ValidString(p):
			return nil, fmt.Errorf("%w: number %d is not valid UTF-8", ErrStop, i)
		}
		s.stops[i] = stop{pattern: p, border: borders(p)}
	}
	return s, nil
}

func borders(p string) []int32 {
	b := make([]int32, len(p))
	for i, k := 1, int32(0); i < len(p); i++ {
		for k > 0 && p[k] != p[i] {
			k = b[k-1]
		}
		if p[k] == p[i] {
			k++
		}
		b[i] = k
	}
	return b
}

// step feeds one byte and returns the new match length.
func (t *stop) step(c byte) int32 {
	for t.matched > 0 && t.pattern[t.matched] != c {
		t.matched = t.border[t.matched-1]
	}
	if t.pattern[t.matched] == c {
		t.matched++
	}
	return t.matched
}

// Feed appends to dst the text that the bytes of one more piece make safe to
// release and reports whether a stop string has been found. The stop string
// that ends first wins; of several that end at the same byte, the longest. Its
// text and everything after it is dropped, and further calls add nothing.
//
// Bytes that are not UTF-8 are released as U+FFFD, one for each maximal broken
// part, as browsers and Python's decoder do. The time is proportional to
// len(piece) times the number of stop strings. Feed neither keeps piece nor
// allocates, dst and the held-back bytes aside.
func (s *Stream) Feed(dst, piece []byte) (out []byte, stopped bool) {
	if s.stopped || s.finished {
		return dst, s.stopped
	}
	if s.from > 0 && s.from >= len(s.buf)-s.from {
		// At least as much was released as must be moved: constant per byte.
		s.buf = s.buf[:copy(s.buf, s.buf[s.from:])]
		s.from = 0
	}
	for i, c := range piece {
		longest := int32(0)
		for j := range s.stops {
			t := &s.stops[j]
			if t.step(c) == int32(len(t.pattern)) && t.matched > longest {
				longest, s.hit, s.stopped = t.matched, j, true
			}
		}
		if s.stopped {
			s.buf = append(s.buf, piece[:i+1]...)
			s.buf = s.buf[:len(s.buf)-int(longest)]
			dst = s.release(dst, len(s.buf), true)
			s.buf, s.from = nil, 0
			return dst, true
		}
	}
	s.buf = append(s.buf, piece...)
	return s.release(dst, len(s.buf)-s.prefix(), false), false
}

// prefix is the number of last bytes that may turn out to begin a stop string.
func (s *Stream) prefix() int {
	n := int32(0)
	for i := range s.stops {
		n = max(n, s.stops[i].matched)
	}
	return int(n)
}

// release appends the text of buf[from:end] to dst. Unless final, a character
// that could still be completed by bytes to come stays. Bytes behind end begin
// a stop string, hence a character, so none straddles end.
func (s *Stream) release(dst []byte, end int, final bool) []byte {
	for s.from < end {
		rest := s.buf[s.from:]
		if rest[0] < utf8.RuneSelf {
			dst = append(dst, rest[0])
			s.from++
			continue
		}
		if !utf8.FullRune(rest) && !final {
			break
		}
		r, n := utf8.DecodeRune(rest)
		if r == utf8.RuneError && n <= 1 {
			dst = append(dst, replacement...)
			s.from += broken(rest)
			continue
		}
		dst = append(dst, rest[:n]...)
		s.from += n
	}
	return dst
}

// broken is the length of the maximal broken part p begins with: the longest
// prefix that could begin a character, or one byte.
func broken(p []byte) int {
	n := 1
	for n < len(p) && n < utf8.UTFMax && !utf8.FullRune(p[:n+1]) {
		n++
	}
	return n
}

// Finish appends what Feed held back, when the completion ends otherwise than
// by a stop string: possible beginnings of stop strings as they are, an
// unfinished character as U+FFFD. Further calls add nothing.
func (s *Stream) Finish(dst []byte) []byte {
	if s.stopped || s.finished {
		return dst
	}
	s.finished = true
	dst = s.release(dst, len(s.buf), true)
	s.buf, s.from = nil, 0
	return dst
}

// Stopped reports whether a stop string has been found.
func (s *Stream) Stopped() bool { return s.stopped }

// Stop returns the index, in NewStream's list, of the stop string found, or -1.
func (s *Stream) Stop() int {
	if !s.stopped {
		return -1
	}
	return s.hit
}

// Held returns the number of bytes fed and not yet released, at most
// MaxStopBytes plus an unfinished character.
func (s *Stream) Held() int { return len(s.buf) - s.from }
