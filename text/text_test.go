package text

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func mustStream(t testing.TB, stops ...string) *Stream {
	t.Helper()
	s, err := NewStream(stops)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFeed(t *testing.T) {
	tests := []struct {
		name   string
		stops  []string
		pieces []string
		want   []string // released by each Feed, then by Finish
		stop   int
	}{
		{"plain text passes at once", nil, []string{"ab", "c"}, []string{"ab", "c", ""}, -1},
		{"a character over four tokens", nil, []string{"\xf0", "\x9f", "\x92", "\xa1!"}, []string{"", "", "", "💡!", ""}, -1},
		{"an unfinished character at the end", nil, []string{"a\xe2\x82"}, []string{"a", "\uFFFD"}, -1},
		{"a broken character is one replacement", nil, []string{"\xe2\x82", "z"}, []string{"", "\uFFFDz", ""}, -1},
		{"bytes that begin nothing", nil, []string{"\x80\xff"}, []string{"\uFFFD\uFFFD", ""}, -1},
		{"a surrogate", nil, []string{"\xed\xa0\x80"}, []string{"\uFFFD\uFFFD\uFFFD", ""}, -1},
		{"a stop string inside a token", []string{"END"}, []string{"oneENDtwo"}, []string{"one", ""}, 0},
		{"a stop string over tokens", []string{"END"}, []string{"oneE", "N", "Dtwo"}, []string{"one", "", "", ""}, 0},
		{"a beginning that turns out not to be one", []string{"END"}, []string{"E", "N", "T"}, []string{"", "", "ENT", ""}, -1},
		{"a beginning inside a beginning", []string{"aab"}, []string{"aa", "a", "b"}, []string{"", "a", "", ""}, 0},
		{"a beginning at the end of the text", []string{"END"}, []string{"xEN"}, []string{"x", "EN"}, -1},
		{"the stop string that ends first", []string{"abc", "b"}, []string{"abc"}, []string{"a", ""}, 1},
		{"the longest of those that end together", []string{"bc", "abc"}, []string{"xabc"}, []string{"x", ""}, 1},
		{"twice the same", []string{"x", "x"}, []string{"ax"}, []string{"a", ""}, 0},
		{"after a broken character", []string{"!"}, []string{"\xe2", "!"}, []string{"", "\uFFFD", ""}, 0},
		{"a broken character before a possible stop", []string{"!?"}, []string{"\xe2", "!"}, []string{"", "\uFFFD", "!"}, -1},
		{"a stop string of several bytes per character", []string{"€"}, []string{"\xe2", "\x82", "\xac"}, []string{"", "", "", ""}, 0},
		{"nothing after the stop", []string{"."}, []string{"a.", "b"}, []string{"a", "", ""}, 0},
		{"nothing at all", []string{"."}, nil, []string{""}, -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := mustStream(t, tt.stops...)
			var got []string
			for _, p := range tt.pieces {
				out, stopped := s.Feed(nil, []byte(p))
				if stopped != s.Stopped() {
					t.Errorf("Feed says stopped %v, Stopped %v", stopped, s.Stopped())
				}
				got = append(got, string(out))
			}
			got = append(got, string(s.Finish(nil)))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("released (-want +got):\n%s", diff)
			}
			if s.Stop() != tt.stop {
				t.Errorf("Stop() = %d, want %d", s.Stop(), tt.stop)
			}
			if s.Held() != 0 {
				t.Errorf("%d bytes held after Finish", s.Held())
			}
			if out := s.Finish(nil); len(out) != 0 {
				t.Errorf("second Finish released %q", out)
			}
			if out, _ := s.Feed(nil, []byte("late")); len(out) != 0 {
				t.Errorf("Feed after Finish released %q", out)
			}
		})
	}
}

func TestNewStreamRefuses(t *testing.T) {
	many := make([]string, MaxStops+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for name, stops := range map[string][]string{
		"empty":    {"a", ""},
		"long":     {strings.Repeat("secret", MaxStopBytes)},
		"not UTF8": {"secret\xff"},
		"too many": many,
	} {
		_, err := NewStream(stops)
		if !errors.Is(err, ErrStop) {
			t.Errorf("%s: error %v, want ErrStop", name, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows the stop string: %v", name, err)
		}
	}
	if _, err := NewStream(many[:MaxStops]); err != nil {
		t.Errorf("at the limit: %v", err)
	}
}

// decode is the reference: the WHATWG's UTF-8 decoder, state by state. It
// returns the text and the length of the unfinished character at the end, for
// which the text has nothing.
func decode(p []byte) (text string, unfinished int) {
	var out strings.Builder
	var point rune
	var need, seen int
	lo, hi := byte(0x80), byte(0xbf)
	for i := 0; i < len(p); i++ {
		c := p[i]
		if need == 0 {
			switch {
			case c < 0x80:
				out.WriteByte(c)
			case c >= 0xc2 && c <= 0xdf:
				need, point = 1, rune(c&0x1f)
			case c >= 0xe0 && c <= 0xef:
				if c == 0xe0 {
					lo = 0xa0
				}
				if c == 0xed {
					hi = 0x9f
				}
				need, point = 2, rune(c&0xf)
			case c >= 0xf0 && c <= 0xf4:
				if c == 0xf0 {
					lo = 0x90
				}
				if c == 0xf4 {
					hi = 0x8f
				}
				need, point = 3, rune(c&7)
			default:
				out.WriteRune(0xfffd)
			}
			continue
		}
		if c < lo || c > hi {
			need, seen, lo, hi = 0, 0, 0x80, 0xbf
			out.WriteRune(0xfffd)
			i-- // the byte may begin something
			continue
		}
		lo, hi = 0x80, 0xbf
		point = point<<6 | rune(c&0x3f)
		if seen++; seen == need {
			out.WriteRune(point)
			need, seen = 0, 0
		}
	}
	if need > 0 {
		return out.String(), seen + 1
	}
	return out.String(), 0
}

// naive is the reference for what may have been released once all of p has been
// fed, and after Finish.
func naive(p []byte, stops []string) (soFar, finally string, stopped bool) {
	for end := 1; end <= len(p); end++ {
		longest := -1
		for _, s := range stops {
			if bytes.HasSuffix(p[:end], []byte(s)) {
				longest = max(longest, len(s))
			}
		}
		if longest > 0 {
			text, unfinished := decode(p[:end-longest])
			if unfinished > 0 {
				text += "\uFFFD"
			}
			return text, text, true
		}
	}
	hold := 0
	for _, s := range stops {
		for n := 1; n < len(s); n++ {
			if bytes.HasSuffix(p, []byte(s[:n])) {
				hold = max(hold, n)
			}
		}
	}
	soFar, unfinished := decode(p[:len(p)-hold])
	if unfinished > 0 && hold > 0 {
		soFar += "\uFFFD" // what follows begins a character, so this one is broken
	}
	finally, unfinished = decode(p)
	if unfinished > 0 {
		finally += "\uFFFD"
	}
	return soFar, finally, false
}

// Every byte is released at the first moment it may be and the outcome does not
// depend on token boundaries.
func TestStreamIsTheReference(t *testing.T) {
	alphabet := []string{"a", "b", "aa", "ab", "é", "€", "💡", "\xc3", "\xe2\x82", "\x82", "\xf0\x9f", "\xff", "\xed", "\xa0"}
	piece := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(alphabet), 0, 4).Draw(t, "parts"), "")
	})
	stop := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(alphabet[:7]), 1, 4).Draw(t, "stop"), "")
	})
	rapid.Check(t, func(t *rapid.T) {
		stops := rapid.SliceOfN(stop, 0, 3).Draw(t, "stops")
		s, err := NewStream(stops)
		if err != nil {
			t.Fatal(err)
		}
		var fed, got []byte
		stopped := false
		for _, p := range rapid.SliceOfN(piece, 0, 8).Draw(t, "pieces") {
			fed = append(fed, p...)
			got, stopped = s.Feed(got, []byte(p))
			want, _, wantStopped := naive(fed, stops)
			if string(got) != want || stopped != wantStopped {
				t.Fatalf("after %q: released %q, stopped %v; want %q, %v", fed, got, stopped, want, wantStopped)
			}
			if limit := MaxStopBytes + 3; s.Held() > limit || cap(s.buf) > 4*limit {
				t.Fatalf("holds %d bytes in %d", s.Held(), cap(s.buf))
			}
		}
		got = s.Finish(got)
		if _, want, _ := naive(fed, stops); string(got) != want {
			t.Fatalf("finally %q, want %q", got, want)
		}
	})
}

// A long possible stop string fed byte by byte must not be copied at every byte:
// the buffer stays within a constant factor of what is held.
func TestHeldBytesAreBounded(t *testing.T) {
	s := mustStream(t, strings.Repeat("a", MaxStopBytes-1)+"b")
	var out []byte
	for range 50_000 {
		out, _ = s.Feed(out[:0], []byte("a"))
		if s.Held() > MaxStopBytes {
			t.Fatalf("holds %d bytes", s.Held())
		}
	}
	if c := cap(s.buf); c > 4*MaxStopBytes {
		t.Errorf("buffer grew to %d bytes", c)
	}
	if n := testing.AllocsPerRun(1000, func() { out, _ = s.Feed(out[:0], []byte("a")) }); n != 0 {
		t.Errorf("%v allocations per piece", n)
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte("hello \xe2\x82\xac END tail"), "END", uint8(1))
	f.Add([]byte("aaaaab\xf0\x9f\x92"), "aab", uint8(3))
	f.Add([]byte("\xed\xa0\x80\xff"), "é", uint8(2))
	f.Fuzz(func(t *testing.T, p []byte, stop string, step uint8) {
		if len(p) > 1<<10 {
			return
		}
		stops := []string{stop}
		s, err := NewStream(stops)
		if err != nil {
			stops = nil
			s = new(Stream)
		}
		var got []byte
		for rest := p; len(rest) > 0; {
			n := min(len(rest), int(step)+1)
			got, _ = s.Feed(got, rest[:n])
			rest = rest[n:]
		}
		got = s.Finish(got)
		if _, want, stopped := naive(p, stops); string(got) != want || s.Stopped() != stopped {
			t.Errorf("released %q, stopped %v; want %q, %v", got, s.Stopped(), want, stopped)
		}
	})
}

func BenchmarkFeed(b *testing.B) {
	for _, stops := range []int{0, 1, 4, MaxStops} {
		b.Run(fmt.Sprintf("stops=%d", stops), func(b *testing.B) {
			list := make([]string, stops)
			for i := range list {
				list[i] = fmt.Sprintf("\n\nStop %d:", i)
			}
			s := mustStream(b, list...)
			piece := []byte(" word\n")
			var out []byte
			b.SetBytes(int64(len(piece)))
			b.ReportAllocs()
			for b.Loop() {
				out, _ = s.Feed(out[:0], piece)
			}
		})
	}
}
