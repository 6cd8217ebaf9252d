package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// lockedBuffer collects a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// TestNothingLeaks: prompts, answers, token ids and tickets are in no log, event, metric or error.
func TestNothingLeaks(t *testing.T) {
	var log lockedBuffer
	inBubble(t, func(cfg *Config, b *scripted) {
		twoPairs(cfg, b)
		cfg.Log = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}, func(r *rig) {
		const secret = "tulip"
		body := strings.Replace(streamBody, `"hi"`, `"`+secret+`"`, 1)
		at(r.b.workers["d1"], 3, "Tokens", r.b.workers["d1"].kill)
		if text, _, _ := streamed(r.post("/v1/chat/completions", body).Body.String()); text != answerText {
			t.Fatalf("%q", text)
		}
		r.post("/v1/completions", `{"model":"tiny","prompt":[71,72,73],"max_tokens":300}`)
		r.post("/v1/completions", `{"model":"tiny","prompt":"`+secret+`","stop":["`+secret+`"],"tools":1}`)
		r.post("/v1/completions", `{"model":"tiny","prompt":"`+secret)
		for _, w := range r.b.all() {
			w.kill()
		}
		failed := r.post("/v1/completions", `{"model":"tiny","prompt":"`+secret+`","stop":["`+secret+`"]}`)
		if failed.Code < 500 {
			t.Errorf("%d", failed.Code)
		}
		r.stop()

		all := log.b.String() + failed.Body.String() + r.get("/metrics").Body.String()
		for _, ev := range r.events.Since(0) {
			doc, err := json.Marshal(ev)
			if err != nil {
				t.Fatal(err)
			}
			all += string(doc) + "\n"
		}
		if !strings.Contains(all, `"Reserve"`) || !strings.Contains(all, "request retried") {
			t.Fatal("nothing was collected")
		}
		prompt := fmt.Sprint([]byte(secret))
		for _, bad := range []string{secret, "wörld", "ticket of", "[71 72 73]", "71,72,73", prompt, strings.ReplaceAll(strings.Trim(prompt, "[]"), " ", ",")} {
			if strings.Contains(all, bad) {
				t.Errorf("%q leaks", bad)
			}
		}
	})
}
