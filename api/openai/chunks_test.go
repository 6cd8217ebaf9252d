package openai

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var chunkHeads = []Head{
	{ID: "chatcmpl-1", Created: 7, Model: "x", Fingerprint: "fp_x"},
	{ID: "x", Created: 7, Model: `"x"`, Fingerprint: "", IncludeUsage: true},
}

// checkChunk: a framed event is what the encoder writes, byte for byte.
func checkChunk(t *testing.T, text string) {
	t.Helper()
	for _, h := range chunkHeads {
		for _, e := range []Endpoint{Chat, Completion} {
			c := h.Chunks(e, 3)
			for _, d := range []Delta{
				{Index: 2, Text: text}, {Index: 0, Text: text}, {Index: 2, Text: text}, {Index: 1, Text: text, Finish: FinishStop},
				{Index: 1, Text: text, TokenIDs: []int32{1}}, {Index: 1, Text: text, Asked: true, Logprobs: []Logprob{{Piece: []byte(text)}}},
			} {
				want := AppendEvent([]byte("before"), h.ChatDelta(d))
				if e == Completion {
					want = AppendEvent([]byte("before"), h.TextDelta(d))
				}
				if got := c.AppendDelta([]byte("before"), d); !bytes.Equal(got, want) {
					t.Errorf("%q: %s", text, cmp.Diff(string(want), string(got)))
				}
			}
		}
	}
}

func TestChunks(t *testing.T) {
	for _, text := range []string{
		" token", "", "x", "xx", `"`, `\`, "a\nb", "\x00", "\x7f", "<&>", "Wörld 世界 🙂", "\u2028", "a\u2029", "é\n", "é\"", "\xff", "é\xff", "\xe2\x80", "�",
	} {
		checkChunk(t, text)
	}
}

func FuzzChunks(f *testing.F) {
	for _, s := range []string{" token", "é\"", "\u2028", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(checkChunk)
}

// TestChunkAllocations: a token's event costs no allocation.
func TestChunkAllocations(t *testing.T) {
	c := chunkHeads[0].Chunks(Chat, 1)
	buf := c.AppendDelta(nil, Delta{Text: "first and longer"})
	if n := testing.AllocsPerRun(100, func() {
		buf = c.AppendDelta(buf[:0], Delta{Text: " tökén"})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
