package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/bus/buspb"
)

func TestDisaggregated(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		w := r.post("/v1/chat/completions", chatBody)
		if got := r.chatText(w); got != answerText {
			t.Errorf("got %q", got)
		}
		if got := w.Header().Get("Tandem-Served"); got != "disaggregated" {
			t.Errorf("served %q", got)
		}
		if d := cmp.Diff([]string{"Reserve"}, r.b.workers["d1"].commands()); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]string{"Prefill", "ReaderCompleted"}, r.b.workers["p1"].commands()); d != "" {
			t.Error(d)
		}
	})
}

func TestColocated(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		w := r.post("/v1/chat/completions", chatBody, "Tandem-Mode", "colocated")
		if got := r.chatText(w); got != answerText {
			t.Errorf("got %q", got)
		}
		if got := w.Header().Get("Tandem-Served"); got != "colocated" {
			t.Errorf("served %q", got)
		}
		if d := cmp.Diff([]string{"Run"}, r.b.workers["p1"].commands()); d != "" {
			t.Error(d)
		}
		if c := r.b.workers["d1"].commands(); len(c) != 0 {
			t.Errorf("decode worker was asked: %v", c)
		}
	})
}

// TestNoPair: without workers that can hand over, auto serves colocated and disaggregated says why
// not, at once.
func TestNoPair(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) {
		b.add("p1", "prefill")
	}, func(r *rig) {
		if got := r.chatText(r.post("/v1/chat/completions", chatBody, "Tandem-Mode", "auto")); got != answerText {
			t.Errorf("got %q", got)
		}
		msg := r.wantError(r.post("/v1/chat/completions", chatBody), 503, openai.CodeNoWorkers)
		if !strings.Contains(msg, "p1 has another role") {
			t.Errorf("no reason: %s", msg)
		}
	})
}

func TestIncompatiblePair(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) {
		b.add("p1", "prefill")
		b.add("d1", "decode").older = true
	}, func(r *rig) {
		if got := r.chatText(r.post("/v1/chat/completions", chatBody, "Tandem-Mode", "auto")); got != answerText {
			t.Errorf("got %q", got)
		}
		msg := r.wantError(r.post("/v1/chat/completions", chatBody), 503, openai.CodeNoCompatiblePair)
		if !strings.Contains(msg, "d1 lacks handoff/1") {
			t.Errorf("no reason: %s", msg)
		}
		if c := r.b.workers["d1"].commands(); len(c) != 0 {
			t.Errorf("an incompatible worker was asked: %v", c)
		}
	})
}

// TestStreamGolden pins what a client receives, byte for byte but for id and time.
func TestStreamGolden(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		w := r.post("/v1/chat/completions", streamBody)
		if ct := w.Header().Get("Content-Type"); ct != "text/event-stream" {
			t.Errorf("content type %q", ct)
		}
		if w.Header().Get("X-Request-Id") == "" {
			t.Error("no X-Request-Id")
		}
		if !w.Flushed {
			t.Error("not flushed")
		}
		golden(t, "chat.sse", normalize(w.Body.String()))
		w = r.post("/v1/completions", `{"model":"tiny","prompt":"hi","stream":true,"max_tokens":3}`)
		golden(t, "completion.sse", normalize(w.Body.String()))
	})
}

// TestSamples: each sample is a request of its own, with seed + i; the prompt counts once.
func TestSamples(t *testing.T) {
	var mu sync.Mutex
	var seeds []uint64
	inBubble(t, nil, func(r *rig) {
		r.b.workers["p1"].onCommand = func(cmd *buspb.Command) (*buspb.Reply, bool) {
			if p := cmd.GetPrefill(); p != nil {
				mu.Lock()
				seeds = append(seeds, p.GetGeneration().GetSampling().GetSeed())
				mu.Unlock()
			}
			return nil, false
		}
		w := r.post("/v1/completions", `{"model":"tiny","prompt":["hi",[1,2,3]],"n":2,"seed":40,"max_tokens":4}`)
		var a struct {
			Choices []struct {
				Index        int
				Text         string
				FinishReason string `json:"finish_reason"`
			}
			Usage struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
				Details    struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != 200 {
			t.Fatal(err, w.Body)
		}
		for i, c := range a.Choices {
			if c.Index != i || c.Text != answerText[:4] || c.FinishReason != "length" {
				t.Errorf("choice %d: %+v", i, c)
			}
		}
		// "hi" has BOS in front; token ids are taken as they are.
		if len(a.Choices) != 4 || a.Usage.Prompt != 3+3 || a.Usage.Completion != 16 || a.Usage.Details.Cached != 4 {
			t.Errorf("%+v", a)
		}
		slices.Sort(seeds)
		if d := cmp.Diff([]uint64{40, 40, 41, 41}, seeds); d != "" {
			t.Error(d)
		}
	})
}

func TestStopString(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		for _, stream := range []string{"false", "true"} {
			body := `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stop":["wö","zzz"],"stream":` + stream + `}`
			w := r.post("/v1/chat/completions", body)
			text, finish := "", "stop"
			if stream == "true" {
				text, finish, _ = streamed(w.Body.String())
			} else {
				text = r.chatText(w)
			}
			if text != "Hello, " || finish != "stop" {
				t.Errorf("stream %s: %q %s", stream, text, finish)
			}
		}
	})
}

// TestLogprobs: one entry for each token whose text was sent, streaming or not, with the bytes.
func TestLogprobs(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		w := r.post("/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":2}`)
		var a struct {
			Choices []struct {
				Logprobs struct {
					Content []struct {
						Token string
						Bytes []byte
						Top   []struct{ Token string } `json:"top_logprobs"`
					}
				}
			}
		}
		// encoding/json wants bytes as base64; the API has numbers.
		doc := strings.ReplaceAll(w.Body.String(), `"bytes":[`, `"numbers":[`)
		if err := json.Unmarshal([]byte(doc), &a); err != nil {
			t.Fatal(err)
		}
		list := a.Choices[0].Logprobs.Content
		if len(list) != len(answerTokens()) || list[0].Token != "H" || len(list[0].Top) != 2 || list[0].Top[1].Token != "b" {
			t.Errorf("%d entries: %s", len(list), w.Body)
		}
	})
}

func TestMaxTokensAndFirstTokenEnd(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		w := r.post("/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":1}`)
		if got := r.chatText(w); got != "H" || !strings.Contains(w.Body.String(), `"finish_reason":"length"`) {
			t.Errorf("%s", w.Body)
		}
		time.Sleep(time.Second)
		// It ended at the source: the reservation is not needed any more.
		if n := r.b.workers["d1"].count("Cancel"); n != 1 {
			t.Errorf("decode worker was cancelled %d times", n)
		}
		if n := r.b.workers["p1"].count("Cancel"); n != 0 {
			t.Errorf("prefill worker, which ended by itself, was cancelled %d times", n)
		}
	})
}

func TestContextLength(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		long := strings.Repeat("x", 250)
		for _, body := range []string{
			`{"model":"tiny","messages":[{"role":"user","content":"` + long + `"}]}`,
			`{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":199}`,
		} {
			msg := r.wantError(r.post("/v1/chat/completions", body), 400, openai.CodeContextLength)
			if !strings.Contains(msg, "maximum context length is 200 tokens") {
				t.Error(msg)
			}
		}
		if c := r.b.workers["d1"].commands(); len(c) != 0 {
			t.Errorf("asked anyway: %v", c)
		}
		// What fits exactly is served.
		if w := r.post("/v1/completions", `{"model":"tiny","prompt":"hi","max_tokens":197}`); w.Code != http.StatusOK {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

func TestDisconnectCancels(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		ctx, cancel := context.WithCancel(context.Background())
		d1 := r.b.workers["d1"]
		n := 0
		d1.onStatus = func(st *buspb.Status) []*buspb.Status {
			if n++; n == 5 {
				cancel() // in the middle of decoding
			}
			return []*buspb.Status{st}
		}
		r.postCtx(ctx, "/v1/chat/completions", streamBody)
		r.stop()
		id := d1.handoffOf(t)
		if got := d1.reason(id); got != buspb.Reason_REASON_CLIENT {
			t.Errorf("decode worker: cancelled for %v", got)
		}
	})
}
