package openai

import (
	"encoding/json"
	"flag"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	client "github.com/openai/openai-go/v3"
)

var update = flag.Bool("update", false, "rewrite golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s: run go test -update if the change is meant\n%s", name, d)
	}
}

var testHead = Head{ID: "chatcmpl-1", Created: 1700000000, Model: "tiny", Fingerprint: "fp_1"}

var testLogprobs = []Logprob{
	{Piece: []byte("caf"), Logprob: -0.5, Top: []Logprob{
		{Piece: []byte("caf"), Logprob: -0.5}, {Piece: []byte("<b>"), Logprob: -1.25},
	}},
	{Piece: []byte{0xc3}, Logprob: float32(math.Inf(-1))},
	{Piece: []byte{0xa9}, Logprob: float32(math.NaN())},
	{Piece: nil, Logprob: 0},
}

func TestAnswersGolden(t *testing.T) {
	var out []byte
	add := func(doc []byte) { out = append(append(out, doc...), '\n') }
	u := Usage{PromptTokens: 9, CachedTokens: 4, CompletionTokens: 3}
	add(testHead.ChatAnswer([]Choice{
		{Index: 0, Text: "café <&>", Finish: FinishStop, Asked: true, Logprobs: testLogprobs},
		{Index: 1, Text: "", Finish: FinishLength},
	}, u))
	h := testHead
	h.ID = "cmpl-1"
	add(h.TextAnswer([]Choice{
		{Index: 0, Text: "café", Finish: FinishStop, Asked: true, Logprobs: testLogprobs, Offset: 0},
		{Index: 1, Text: "x", Finish: FinishLength},
	}, u))
	add(Models(1700000000, "tiny"))
	add(Model("tiny", 1700000000))
	golden(t, "answers.golden", out)
}

func TestStreamGolden(t *testing.T) {
	var out []byte
	add := func(doc []byte) { out = AppendEvent(out, doc) }
	h := testHead
	h.IncludeUsage = true
	add(h.ChatStart(0))
	add(h.ChatDelta(Delta{Index: 0, Text: "caf"}))
	add(h.ChatDelta(Delta{Index: 0, Text: "é\n", Asked: true, Logprobs: testLogprobs}))
	add(h.ChatDelta(Delta{Index: 0, Finish: FinishStop}))
	add(h.ChatUsage(Usage{PromptTokens: 9, CachedTokens: 4, CompletionTokens: 3}))
	out = append(out, Done...)
	h = testHead
	h.ID = "cmpl-1"
	add(h.TextDelta(Delta{Index: 0, Text: "café", Asked: true, Logprobs: testLogprobs, Offset: 2}))
	add(h.TextDelta(Delta{Index: 0, Finish: FinishLength}))
	out = append(out, Done...)
	h.IncludeUsage = true
	add(h.TextDelta(Delta{Index: 1, Text: "x"}))
	add(h.TextUsage(Usage{PromptTokens: 1, CompletionTokens: 1}))
	add((&Error{Status: 503, Type: TypeServer, Code: CodeWorkerFailed, Message: "The worker failed."}).Body())
	golden(t, "stream.golden", out)
}

// TestClientReads decodes the documents with the official client's types.
func TestClientReads(t *testing.T) {
	var answer client.ChatCompletion
	doc := testHead.ChatAnswer([]Choice{{Text: "hi", Finish: FinishStop, Asked: true, Logprobs: testLogprobs}},
		Usage{PromptTokens: 9, CachedTokens: 4, CompletionTokens: 3})
	if err := json.Unmarshal(doc, &answer); err != nil {
		t.Fatal(err)
	}
	if c := answer.Choices[0]; c.Message.Content != "hi" || c.FinishReason != "stop" || len(c.Logprobs.Content) != 4 ||
		c.Logprobs.Content[0].TopLogprobs[1].Token != "<b>" || c.Logprobs.Content[1].Logprob != -9999 {
		t.Errorf("choice: %+v", c)
	}
	if u := answer.Usage; u.TotalTokens != 12 || u.PromptTokensDetails.CachedTokens != 4 {
		t.Errorf("usage: %+v", u)
	}
	if extra := answer.JSON.ExtraFields; len(extra) != 0 {
		t.Errorf("fields that the client does not know: %v", extra)
	}
	var text client.Completion
	doc = testHead.TextAnswer([]Choice{{Text: "hi", Finish: FinishStop, Asked: true, Logprobs: testLogprobs}}, Usage{})
	if err := json.Unmarshal(doc, &text); err != nil {
		t.Fatal(err)
	}
	lp := text.Choices[0].Logprobs
	if len(lp.Tokens) != 4 || lp.TopLogprobs[0]["<b>"] != -1.25 || lp.TextOffset[1] != 3 {
		t.Errorf("logprobs: %+v", lp)
	}
}

func TestErrorWrite(t *testing.T) {
	w := httptest.NewRecorder()
	(&Error{Status: 503, Type: TypeOverloaded, Code: CodeOverloaded, Message: "Full.", RetryAfter: 2}).Write(w)
	if w.Code != 503 || w.Header().Get("Retry-After") != "2" || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	want := `{"error":{"message":"Full.","type":"overloaded_error","param":null,"code":"overloaded"}}` + "\n"
	if w.Body.String() != want {
		t.Errorf("body %s", w.Body)
	}
	w = httptest.NewRecorder()
	(&Error{Status: http.StatusUnauthorized}).Write(w)
	if w.Header().Get("WWW-Authenticate") == "" {
		t.Error("401 without WWW-Authenticate")
	}
}
