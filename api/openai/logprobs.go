package openai

import (
	"bytes"
	"math"
	"strings"
	"unicode/utf8"
)

// Logprob is one token with its log probability.
type Logprob struct {
	Piece   []byte  // the token's bytes; may end inside a character
	Logprob float32 // natural logarithm
	Top     []Logprob
}

// minLogprob stands for "never": JSON has no infinity, and clients know this value.
const minLogprob = -9999

func (l Logprob) value() float32 {
	if v := l.Logprob; !math.IsNaN(float64(v)) && v > minLogprob {
		return v
	}
	return minLogprob
}

func (l Logprob) token() string { return strings.ToValidUTF8(string(l.Piece), "\uFFFD") }

type chatLogprobs struct {
	Content []tokenLogprob `json:"content"`
	Refusal *string        `json:"refusal"`
}

type tokenLogprob struct {
	Token   string       `json:"token"`
	Logprob float32      `json:"logprob"`
	Bytes   []int        `json:"bytes"`
	Top     []topLogprob `json:"top_logprobs"`
}

type topLogprob struct {
	Token   string  `json:"token"`
	Logprob float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// newChatLogprobs returns nil, rendered as null, when logprobs were not asked for.
func newChatLogprobs(asked bool, list []Logprob) *chatLogprobs {
	if !asked {
		return nil
	}
	out := &chatLogprobs{Content: make([]tokenLogprob, 0, len(list))}
	for _, l := range list {
		t := tokenLogprob{l.token(), l.value(), ints(l.Piece), make([]topLogprob, 0, len(l.Top))}
		for _, o := range l.Top {
			t.Top = append(t.Top, topLogprob{o.token(), o.value(), ints(o.Piece)})
		}
		out.Content = append(out.Content, t)
	}
	return out
}

// ints makes bytes render as an array of numbers.
func ints(b []byte) []int {
	out := make([]int, len(b))
	for i, c := range b {
		out[i] = int(c)
	}
	return out
}

// TextOffset is a position in a completion's text, counted in characters.
type TextOffset int

// After returns the offset behind the given tokens.
func (o TextOffset) After(list []Logprob) TextOffset {
	for _, l := range list {
		o += TextOffset(utf8.RuneCountInString(l.token()))
	}
	return o
}

type textLogprobs struct {
	Tokens  []string     `json:"tokens"`
	Values  []float32    `json:"token_logprobs"`
	Top     []topByToken `json:"top_logprobs"`
	Offsets []int        `json:"text_offset"`
}

// topByToken renders as an object from token to log probability, in the given order; where two
// tokens have the same text, the first and more likely one stays.
type topByToken []Logprob

func (t topByToken) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	seen := make(map[string]bool, len(t))
	b.WriteByte('{')
	for _, l := range t {
		name := l.token()
		if seen[name] {
			continue
		}
		if len(seen) > 0 {
			b.WriteByte(',')
		}
		seen[name] = true
		b.Write(encode(name))
		b.WriteByte(':')
		b.Write(encode(l.value()))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// newTextLogprobs renders the older form. The chosen token is always among the top ones, as
// OpenAI's reference says, so there may be one more than was asked for.
func newTextLogprobs(asked bool, list []Logprob, from TextOffset) *textLogprobs {
	if !asked {
		return nil
	}
	out := &textLogprobs{Tokens: []string{}, Values: []float32{}, Top: []topByToken{}, Offsets: []int{}}
	for _, l := range list {
		out.Tokens = append(out.Tokens, l.token())
		out.Values = append(out.Values, l.value())
		top := append(topByToken{}, l.Top...)
		out.Top = append(out.Top, append(top, Logprob{Piece: l.Piece, Logprob: l.Logprob}))
		out.Offsets = append(out.Offsets, int(from))
		from = from.After([]Logprob{l})
	}
	return out
}
