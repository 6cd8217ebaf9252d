package gateway

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/telemetry"
)

// rig is a running gateway on a scripted bus, inside a synctest bubble.
type rig struct {
	t      *testing.T
	g      *Gateway
	b      *scripted
	events *telemetry.Events
	stop   func()
}

// inBubble runs f with a gateway and workers p1 (prefill) and d1 (decode), unless prepare adds
// others, and then checks that everything was given back.
func inBubble(t *testing.T, prepare func(cfg *Config, b *scripted), f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newScripted()
		cfg := Config{
			Name: "g1", Incarnation: 1, Version: "test", Model: "tiny", Vocab: newTestVocab(), Mode: Disaggregated,
		}
		if prepare != nil {
			prepare(&cfg, b)
		}
		if len(b.workers) == 0 {
			b.add("p1", "prefill")
			b.add("d1", "decode")
		}
		start := handoffClock()
		cfg.Events = telemetry.NewEvents("g1", 1<<16, start)
		g, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		b.g = g
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- g.Run(ctx, b, nil) }()
		busCtx, busCancel := context.WithCancel(context.Background())
		go b.run(busCtx)
		synctest.Wait()
		r := &rig{t: t, g: g, b: b, events: cfg.Events}
		stopped := false
		r.stop = func() {
			if stopped {
				return
			}
			stopped = true
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
			busCancel()
		}
		f(r)
		r.stop()
		time.Sleep(time.Minute) // scripted workers end what they do
		r.checkClean()
	})
}

// checkClean finds what was not given back, and replays every machine.
func (r *rig) checkClean() {
	r.t.Helper()
	if n := r.g.fleet.bookings(); n != 0 {
		r.t.Errorf("%d bookings are left", n)
	}
	if n := len(r.g.openRequests()); n != 0 {
		r.t.Errorf("%d requests are open", n)
	}
	r.g.gate.mu.Lock()
	if r.g.gate.free != r.g.gate.places || len(r.g.gate.tenants) != 0 || r.g.gate.queue.Len() != 0 {
		r.t.Errorf("admission: %d of %d places free, tenants %v", r.g.gate.free, r.g.gate.places, r.g.gate.tenants)
	}
	r.g.gate.mu.Unlock()
	r.g.live.mu.Lock()
	if len(r.g.live.ids) != 0 {
		r.t.Errorf("live ids: %v", r.g.live.ids)
	}
	r.g.live.mu.Unlock()
	if n := r.g.sending(); n != 0 {
		r.t.Errorf("%d senders are left", n)
	}
	r.g.mu.Lock()
	for _, c := range r.g.closed {
		if q := c.request; q.prompt != nil || q.emitted != nil || q.asm != nil || q.params != nil || q.out != nil {
			r.t.Errorf("request %s ended and keeps content", q.key)
		}
	}
	r.g.mu.Unlock()
	finished := make(map[string]int)
	records := r.records()
	for _, rec := range records {
		if rec.Err != "" {
			r.t.Errorf("a machine refused: %s", rec.Err)
		}
		for _, a := range rec.RequestActions {
			if a.Kind == handoff.ActionFinish {
				finished[rec.Request]++
			}
		}
	}
	for key, n := range finished {
		if n != 1 {
			r.t.Errorf("request %s finished %d times", key, n)
		}
	}
	if err := handoff.Replay(func(yield func(handoff.Record, error) bool) {
		for _, rec := range records {
			if !yield(rec, nil) {
				return
			}
		}
	}); err != nil {
		r.t.Errorf("replay: %v", err)
	}
}

func (r *rig) records() []handoff.Record {
	var out []handoff.Record
	for _, ev := range r.events.Since(0) {
		if ev.Kind == telemetry.Transition {
			out = append(out, *ev.Record)
		}
	}
	return out
}

// post sends a JSON body to the handler and returns the whole answer.
func (r *rig) post(path, body string, headers ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	return r.postCtx(context.Background(), path, body, headers...)
}

func (r *rig) postCtx(ctx context.Context, path, body string, headers ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	req := httptest.NewRequestWithContext(ctx, "POST", path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	r.g.Handler().ServeHTTP(w, req)
	return w
}

const (
	chatBody   = `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`
	streamBody = `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}`
)

// chatText returns the content of a chat answer, and fails the test when it is an error.
func (r *rig) chatText(w *httptest.ResponseRecorder) string {
	r.t.Helper()
	if w.Code != http.StatusOK {
		r.t.Fatalf("%d: %s", w.Code, w.Body)
	}
	var a struct {
		Choices []struct {
			Message struct{ Content string }
			Text    string
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || len(a.Choices) == 0 {
		r.t.Fatalf("%v: %s", err, w.Body)
	}
	return a.Choices[0].Message.Content + a.Choices[0].Text
}

// wantError checks an error answer's status and code.
func (r *rig) wantError(w *httptest.ResponseRecorder, status int, code string) string {
	r.t.Helper()
	var a struct {
		Error struct{ Message, Type, Code, Param string }
	}
	body, _ := io.ReadAll(w.Body)
	if err := json.Unmarshal(body, &a); err != nil {
		r.t.Errorf("%d: %s", w.Code, body)
		return ""
	}
	if w.Code != status || a.Error.Code != code {
		r.t.Errorf("got %d %s, want %d %s: %s", w.Code, a.Error.Code, status, code, a.Error.Message)
	}
	return a.Error.Message
}

// streamed puts the text of a chat stream together and returns it with the finish reason.
func streamed(body string) (text, finish string, done bool) {
	for line := range strings.Lines(body) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			done = true
			continue
		}
		var c struct {
			Choices []struct {
				Delta        struct{ Content string }
				FinishReason string `json:"finish_reason"`
			}
		}
		if json.Unmarshal([]byte(data), &c) == nil && len(c.Choices) > 0 {
			text += c.Choices[0].Delta.Content
			finish += c.Choices[0].FinishReason
		}
	}
	return text, finish, done
}

func handoffClock() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

var update = flag.Bool("update", false, "rewrite golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s: run go test -update if the change is meant\n%s", name, d)
	}
}

var variable = regexp.MustCompile(`"id":"(chatcmpl|cmpl)-[A-Z0-9]+"|"created":[0-9]+|fp_[0-9a-f]+`)

// normalize replaces what differs from run to run.
func normalize(s string) string {
	return variable.ReplaceAllStringFunc(s, func(m string) string {
		switch {
		case strings.HasPrefix(m, `"created`):
			return `"created":0`
		case strings.HasPrefix(m, "fp_"):
			return "fp_0"
		}
		return strings.TrimRight(m, `ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"`) + `1"`
	})
}
