package soak

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestClient: every way in which an answer can end, or fail to, is told from the others.
func TestClient(t *testing.T) {
	const (
		first = "data: {\"id\":\"a\",\"choices\":[{\"token_ids\":[5],\"finish_reason\":null}]}\n\n"
		last  = "data: {\"id\":\"a\",\"choices\":[{\"token_ids\":[6],\"finish_reason\":\"length\"}]}\n\n"
		usage = "data: {\"id\":\"a\",\"choices\":[],\"usage\":{\"completion_tokens\":2}}\n\n"
		done  = "data: [DONE]\n\n"
		fault = "data: {\"error\":{\"message\":\"m\",\"type\":\"t\",\"code\":\"worker_failed\"}}\n\n"
	)
	whole := func(status int, doc string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { w.WriteHeader(status); io.WriteString(w, doc) }
	}
	stream := func(parts ...string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { io.WriteString(w, strings.Join(parts, "")) }
	}
	for _, tt := range []struct {
		name     string
		q        Request
		patience time.Duration
		answer   func(http.ResponseWriter)
		end      End
		tokens   int
		why      string
	}{
		{name: "stream", q: Request{Stream: true}, answer: stream(first, last, usage, done), end: Finished, tokens: 2},
		{name: "whole", answer: whole(200, `{"id":"a","choices":[{"token_ids":[5,6],"finish_reason":"length"}],"usage":{"completion_tokens":2}}`), end: Finished, tokens: 2},
		{name: "error", answer: whole(503, `{"error":{"message":"m","type":"t","code":"worker_failed"}}`), end: Refused},
		{name: "error in a stream", q: Request{Stream: true}, answer: stream(first, fault), end: Refused, tokens: 1},
		{name: "deadline", answer: whole(504, `{"error":{"message":"m","type":"t","code":"deadline_exceeded"}}`), end: Hung},
		{name: "cut", q: Request{Stream: true}, answer: stream(first, last), end: Broken, why: "before [DONE]"},
		{name: "no finish reason", q: Request{Stream: true}, answer: stream(first, done), end: Broken, why: "without a finish reason"},
		{name: "two ends", q: Request{Stream: true}, answer: stream(first, last, usage, done, first), end: Broken, why: "goes on"},
		{name: "an end and an error", q: Request{Stream: true}, answer: stream(first, last, fault), end: Broken, why: "no clear error"},
		{name: "more after the end", q: Request{Stream: true}, answer: stream(first, last, last, done), end: Broken, why: "more comes"},
		{name: "too few tokens", q: Request{Stream: true}, answer: stream(last, usage, done), end: Broken, why: "1 tokens of 2"},
		{name: "another answer's part", q: Request{Stream: true}, answer: stream(first, strings.Replace(last, `"a"`, `"b"`, 1)), end: Broken, why: "two answers"},
		{name: "usage", q: Request{Stream: true}, answer: stream(first, last, strings.Replace(usage, "2", "3", 1), done), end: Broken, why: "usage"},
		{name: "an unclear error", answer: whole(500, `{"error":{"message":"m"}}`), end: Broken, why: "no clear error"},
		{name: "an error with status 200", answer: whole(200, `{"error":{"message":"m","type":"t","code":"c"}}`), end: Broken, why: "status 200"},
		{name: "no document", answer: whole(200, "<html>"), end: Broken, why: "not of the API"},
		{name: "no end", patience: 50 * time.Millisecond, end: Hung, why: "no end within"},
		{name: "leaves", q: Request{Leave: Leave{After: time.Millisecond}}, end: Left},
		{name: "leaves at a token", q: Request{Stream: true, Leave: Leave{Tokens: 1}}, answer: func(w http.ResponseWriter) {
			io.WriteString(w, first)
			w.(http.Flusher).Flush()
		}, end: Left, tokens: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if tt.answer != nil {
					tt.answer(w)
				}
				if tt.end == Hung && tt.answer == nil || tt.end == Left { // until the client is gone
					<-r.Context().Done()
				}
			}))
			defer srv.Close()
			patience := tt.patience
			if patience == 0 {
				patience = time.Hour
			}
			q := tt.q
			q.Prompt, q.Max = []int32{1}, 2
			a := newClient(&Fleet{URL: srv.URL, Model: "m"}, patience).ask(t.Context(), &q, modeHandedOff, false)
			if a.End != tt.end || a.End != Broken && len(a.Tokens) != tt.tokens || !strings.Contains(a.Why, tt.why) {
				t.Errorf("%s with %d tokens, %q; want %s with %d, %q", a.End, len(a.Tokens), a.Why, tt.end, tt.tokens, tt.why)
			}
		})
	}
}

// TestProcessTable: ends that nobody asked for are found, and a process is only ended
// in the life that was meant.
func TestProcessTable(t *testing.T) {
	sleep := func() *exec.Cmd {
		cmd := exec.Command("sleep", "3600")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	tab := newTable()
	cmd := sleep()
	tab.event(Event{Process: "w", Kind: Started, PID: cmd.Process.Pid})
	tab.event(Event{Process: "w", Kind: Announced, Metrics: "x"})
	at, err := tab.awaitUp(t.Context(), "w")
	if err != nil || at.lives != 1 {
		t.Fatal(at, err)
	}
	if err := tab.signal("w", at.pid+1, os.Kill); err == nil {
		t.Error("a signal for another life was sent")
	}
	if err := tab.signal("w", at.pid, os.Kill); err != nil {
		t.Error(err)
	}
	tab.event(Event{Process: "w", Kind: Exited, Err: cmd.Wait()})
	if odd := tab.oddEnds(); len(odd) > 0 {
		t.Errorf("a kill that was asked for: %q", odd)
	}
	if err := tab.signal("w", at.pid, os.Kill); err == nil {
		t.Error("a signal for a process that is gone was sent")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tab.awaitUp(gone, "w"); err == nil {
		t.Error("a process that is gone is up")
	}
	// One that dies by itself, and one that does not drain.
	cmd = sleep()
	tab.event(Event{Process: "w", Kind: Started, PID: cmd.Process.Pid})
	_ = cmd.Process.Kill()
	tab.event(Event{Process: "w", Kind: Exited, Err: cmd.Wait()})
	cmd = sleep()
	tab.event(Event{Process: "w", Kind: Started, PID: cmd.Process.Pid})
	if err := tab.signal("w", cmd.Process.Pid, drainSignal); err != nil {
		t.Error(err)
	}
	if err := tab.signal("w", cmd.Process.Pid, drainSignal); err == nil {
		t.Error("asked to drain twice")
	}
	tab.event(Event{Process: "w", Kind: Exited, Err: cmd.Wait()}) // sleep dies of it
	tab.event(Event{Process: "w", Kind: Started, PID: 1})
	tab.event(Event{Process: "w", Kind: Exited}) // with status 0, and nobody asked
	odd := strings.Join(tab.oddEnds(), "\n")
	if !strings.Contains(odd, "without being asked") || !strings.Contains(odd, "did not drain") || len(tab.oddEnds()) != 3 {
		t.Errorf("odd ends: %q", odd)
	}
}
