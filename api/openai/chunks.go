package openai

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// Chunks renders the events of one answer's stream. Events that carry text alone, nearly all of them, are
// rendered around a frame that is made once for each sample: all that differs between two of them is the text.
// It is not safe for concurrent use.
type Chunks struct {
	head     Head
	endpoint Endpoint
	frames   []frame // by sample
}

// frame is what stands around the text in a sample's event.
type frame struct{ before, after []byte }

// Chunks returns the renderer of a stream with that many samples.
func (h Head) Chunks(e Endpoint, samples int) *Chunks {
	return &Chunks{head: h, endpoint: e, frames: make([]frame, samples)}
}

// AppendDelta appends the event of one part of a sample, which has at least a text, a token or a finish
// reason. It allocates nothing for text alone, but for a sample's first.
func (c *Chunks) AppendDelta(dst []byte, d Delta) []byte {
	if d.Text == "" || d.Asked || d.Finish != "" || len(d.Logprobs) > 0 || len(d.TokenIDs) > 0 {
		return AppendEvent(dst, c.document(d))
	}
	f := &c.frames[d.Index]
	if f.before == nil {
		*f = c.frame(d.Index)
	}
	dst = append(dst, f.before...)
	dst = appendString(dst, d.Text)
	return append(dst, f.after...)
}

func (c *Chunks) document(d Delta) []byte {
	if c.endpoint == Chat {
		return c.head.ChatDelta(d)
	}
	return c.head.TextDelta(d)
}

// frame renders two events that differ in their text only, and takes what they share.
func (c *Chunks) frame(index int) frame {
	one := AppendEvent(nil, c.document(Delta{Index: index, Text: "x"}))
	two := AppendEvent(nil, c.document(Delta{Index: index, Text: "xx"}))
	n := 0
	for one[n] == two[n] {
		n++
	}
	// They part at the quotation mark that ends the shorter text.
	return frame{before: one[:n-len(`"x`)], after: bytes.Clone(one[n+1:])}
}

// appendString appends a JSON string, as encoding/json would write it.
func appendString(dst []byte, s string) []byte {
	plain := true
	for i := range len(s) {
		if b := s[i]; b < ' ' || b == '"' || b == '\\' || b >= utf8.RuneSelf {
			plain = b >= utf8.RuneSelf && !strings.ContainsFunc(s, escaped) && utf8.ValidString(s)
			break
		}
	}
	if plain {
		dst = append(dst, '"')
		dst = append(dst, s...)
		return append(dst, '"')
	}
	return append(dst, encode(s)...)
}

// escaped reports whether JSON or encoding/json writes a character in another way.
func escaped(r rune) bool {
	return r < ' ' || r == '"' || r == '\\' || r == '\u2028' || r == '\u2029'
}
