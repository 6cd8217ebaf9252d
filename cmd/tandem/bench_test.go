package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// endpoint answers every request with three tokens after a delay.
func endpoint(t *testing.T, delay time.Duration, before func(r *http.Request)) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before(r)
		time.Sleep(delay)
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			io.WriteString(w, "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n")
			w.(http.Flusher).Flush()
			time.Sleep(delay)
		}
		io.WriteString(w, "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"+
			"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/v1"
}

func nothing(*http.Request) {}

// TestBenchServeExits: a missed bar is a failure only if that was asked for, an
// interrupt still prints the report, wrong flags are usage errors.
func TestBenchServeExits(t *testing.T) {
	fast, slow := endpoint(t, 0, nothing), endpoint(t, 50*time.Millisecond, nothing)
	short := []string{"--model-name=m", "--compare-model-name=m", "--output-length=3", "--requests=2", "--runs=1", "--warmup=0"}
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"held", []string{"--url=" + fast, "--compare-url=" + slow, "--require-bars"}, exitOK, "run 1 of 1"},
		{"missed", []string{"--url=" + slow, "--compare-url=" + fast}, exitOK, ""},
		{"missed and required", []string{"--url=" + slow, "--compare-url=" + fast, "--require-bars"}, exitFailure, "missed bars: decode"},
		{"no URL", []string{"--url=127.0.0.1:80", "--compare-url=" + fast}, exitUsage, "--url must be like http"},
		{"bad length", []string{"--url=" + fast, "--compare-url=" + fast, "--prompt-length=much"}, exitUsage, "--prompt-length"},
		{"token ids in a chat", []string{"--url=" + fast, "--compare-url=" + fast, "--endpoint=chat", "--prompt-tokens"}, exitUsage, "chats are text"},
		{"bad header", []string{"--url=" + fast, "--compare-url=" + fast, "--header=x"}, exitUsage, "'Name: value'"},
		{"no runs", []string{"--url=" + fast, "--compare-url=" + fast, "--runs=0"}, exitUsage, "at least one turn"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append(append([]string{"--config=", "bench", "serve", "--json"}, short...), tt.args...)
			if code := run(t.Context(), args, &stdout, &stderr); code != tt.code {
				t.Errorf("exit code %d\n%s", code, &stderr)
			}
			if !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("stderr lacks %q:\n%s", tt.stderr, &stderr)
			}
			if tt.code != exitUsage && !json.Valid(stdout.Bytes()) {
				t.Errorf("stdout is no report:\n%s", &stdout)
			}
		})
	}
	if code := run(t.Context(), []string{"--config=", "bench", "serve", "--url=" + fast, "--compare-name=x"}, io.Discard, io.Discard); code != exitUsage {
		t.Errorf("--compare-name without --compare-url: exit code %d", code)
	}
}

func TestBenchServeInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	url := endpoint(t, 0, func(*http.Request) {
		if n++; n == 2 {
			cancel()
		}
	})
	var stdout, stderr bytes.Buffer
	code := run(ctx, []string{"--config=", "bench", "serve", "--url=" + url, "--model-name=m", "--output-length=3", "--requests=1", "--warmup=0"}, &stdout, &stderr)
	if code != exitSignal || !strings.Contains(stdout.String(), "INCOMPLETE") {
		t.Errorf("exit code %d\n%s\n%s", code, &stdout, &stderr)
	}
}
