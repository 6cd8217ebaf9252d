package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/telemetry"
)

// recordsServer answers as a gateway with a ring of records does.
type recordsServer struct {
	mu   sync.Mutex
	ring *telemetry.Handoffs
}

func (s *recordsServer) add(worker string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ring.Add(&telemetry.Handoff{
		ID: handoff.Mint(1, [10]byte{byte(s.ring.Newest() + 1)}), Attempt: 1, Policy: handoff.Disabled, Source: telemetry.Part{Worker: worker},
		Ending: telemetry.EndedColocated, Request: telemetry.Request{Key: "cmpl-" + worker, Attempts: 1},
	})
}

func (s *recordsServer) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ring = telemetry.NewHandoffs(0)
}

func (s *recordsServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/base/tandem/handoffs" {
		http.NotFound(w, r)
		return
	}
	q := telemetry.Query{ID: r.FormValue("id")}
	q.Limit, _ = strconv.Atoi(r.FormValue("limit"))
	q.After, _ = strconv.ParseUint(r.FormValue("after"), 10, 64)
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(telemetry.HandoffList{Newest: s.ring.Newest(), Handoffs: s.ring.Find(q)})
}

func handoffsOf(t *testing.T, workers ...string) (*recordsServer, string) {
	t.Helper()
	s := &recordsServer{ring: telemetry.NewHandoffs(0)}
	for _, w := range workers {
		s.add(w)
	}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return s, srv.URL + "/base/"
}

func TestHandoffsCommand(t *testing.T) {
	s, address := handoffsOf(t, "w1", "w2", "w3")
	for _, c := range []struct {
		args []string
		code int
		want []string // in this order
		not  string
	}{
		{nil, exitOK, []string{"workers", "w1", "w2", "w3"}, "handoff "},
		{[]string{"--limit=2"}, exitOK, []string{"w2", "w3"}, "w1"},
		{[]string{"--last"}, exitOK, []string{"#3  handoff", "from w3"}, "w2"},
		{[]string{"--id=2"}, exitOK, []string{"#2  handoff", "from w2"}, "w3"},
		{[]string{"--id=#1"}, exitOK, []string{"from w1"}, "w3"},
		{[]string{"--id=cmpl-w2"}, exitOK, []string{"from w2"}, "w1"},
		{[]string{"--id=" + s.ring.Find(telemetry.Query{})[0].ID.String()}, exitOK, []string{"from w3"}, "w1"},
		{[]string{"--json", "--limit=2"}, exitOK, []string{`"seq":2`, "\n", `"seq":3`}, "workers"},
		{[]string{"--id=7"}, exitFailure, []string{`no handoff "7"`, "tandem handoffs"}, ""},
		{[]string{"--limit=0"}, exitUsage, []string{"--limit"}, ""},
		{[]string{"--last", "--id=1"}, exitUsage, []string{"exclude each other"}, ""},
		{[]string{"--url=ftp://x"}, exitUsage, []string{"--url"}, ""},
		{[]string{"--url=" + address + "elsewhere"}, exitFailure, []string{"404", "not as a gateway"}, ""},
		{[]string{"--url=127.0.0.1:1"}, exitFailure, []string{"no gateway answers at http://127.0.0.1:1", "tandem up", "--url"}, ""},
	} {
		var out bytes.Buffer
		args := append([]string{"handoffs", "--config=", "--url=" + address}, c.args...)
		if code := run(t.Context(), args, &out, &out); code != c.code {
			t.Errorf("%v: exit %d, want %d: %s", c.args, code, c.code, &out)
		}
		rest := out.String()
		for _, want := range c.want {
			_, after, ok := strings.Cut(rest, want)
			if !ok {
				t.Errorf("%v: no %q in\n%s", c.args, want, &out)
			}
			rest = after
		}
		if c.not != "" && strings.Contains(out.String(), c.not) {
			t.Errorf("%v: %q in\n%s", c.args, c.not, &out)
		}
	}
	_, empty := handoffsOf(t)
	var out bytes.Buffer
	if code := run(t.Context(), []string{"handoffs", "--config=", "--url=" + empty, "--last"}, &out, &out); code != exitFailure || !strings.Contains(out.String(), "nothing yet") {
		t.Errorf("exit %d: %s", code, &out)
	}
}

// lines collects output and tells when something is in it.
type lines struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	select {
	case l.changed <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (l *lines) await(t *testing.T, what string) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		l.mu.Lock()
		text := l.text.String()
		l.mu.Unlock()
		if strings.Contains(text, what) {
			return
		}
		select {
		case <-l.changed:
		case <-limit:
			t.Fatalf("no %q in\n%s", what, text)
		}
	}
}

// TestHandoffsFollow: new ones come once each, also after the gateway began to count again.
func TestHandoffsFollow(t *testing.T) {
	s, address := handoffsOf(t, "w1", "w2")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &lines{changed: make(chan struct{}, 1)}
	code := make(chan int)
	go func() { code <- run(ctx, []string{"handoffs", "--config=", "--url=" + address, "-f"}, out, out) }()
	out.await(t, "w2")
	s.add("w3")
	out.await(t, "w3")
	s.restart()
	s.add("w4")
	out.await(t, "w4")
	cancel()
	if c := <-code; c != exitOK {
		t.Errorf("exit %d", c)
	}
	for _, w := range []string{"w1", "w2", "w3", "w4", "workers"} {
		if n := strings.Count(out.text.String(), w); n != 1 {
			t.Errorf("%s comes %d times:\n%s", w, n, &out.text)
		}
	}
}
