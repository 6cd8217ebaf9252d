package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/bench"
)

// script answers one request; n counts them from 0.
type script func(w http.ResponseWriter, r *http.Request, asked body, n int)

func server(t *testing.T, s script) *httptest.Server {
	t.Helper()
	var n atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"object":"list","data":[{"id":"first"},{"id":"second"}]}`)
	})
	answer := func(w http.ResponseWriter, r *http.Request) {
		var b body
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
			t.Errorf("a request that is no JSON: %v", err)
		}
		s(w, r, b, int(n.Add(1)-1))
	}
	mux.HandleFunc("POST /v1/completions", answer)
	mux.HandleFunc("POST /v1/chat/completions", answer)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv
}

func send(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for _, e := range events {
		io.WriteString(w, e)
		w.(http.Flusher).Flush()
	}
}

const (
	done   = "data: [DONE]\n\n"
	finish = `data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}` + "\n\n"
)

func text(s string) string {
	return `data: {"choices":[{"index":0,"text":"` + s + `","finish_reason":null}],"usage":null}` + "\n\n"
}

func usage(prompt, cached, output int) string {
	return fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`, prompt, output, cached) + "\n\n"
}

// whole answers as a good server does: as many tokens as were asked for.
func whole(w http.ResponseWriter, _ *http.Request, asked body, _ int) {
	events := make([]string, 0, asked.MaxTokens+3)
	for range asked.MaxTokens {
		events = append(events, text("a"))
	}
	send(w, append(events, finish, usage(10, 2, asked.MaxTokens), done)...)
}

func load() Load {
	return Load{Concurrency: 2, Requests: 4, Prompt: Fixed(5), Output: Fixed(3), IgnoreEOS: true, Timeout: 30 * time.Second, Seed: 7}
}

func run(t *testing.T, l Load, targets ...Target) (*bench.Report, error) {
	t.Helper()
	return Run(t.Context(), Config{Targets: targets, Load: l, Plan: bench.Plan{Runs: 1}, Bar: 0.95})
}

// value returns the first side's median of a figure.
func value(t *testing.T, r *bench.Report, name string) float64 {
	t.Helper()
	for _, res := range r.Results {
		if res.Name == name {
			if len(res.Series) == 0 {
				t.Fatalf("%q has no value", name)
			}
			return res.Series[0].Median
		}
	}
	t.Fatalf("no figure %q in %+v", name, r.Results)
	return 0
}

func has(r *bench.Report, name string) bool {
	for _, res := range r.Results {
		if res.Name == name {
			return true
		}
	}
	return false
}

// Each kind of damage is a failure of its kind, beside a good answer that counts.
func TestFailures(t *testing.T) {
	l := load()
	l.Concurrency, l.Requests = 1, 2
	for _, tt := range []struct {
		name string
		kind string // "" for success
		bad  script
	}{
		{"whole", "", whole},
		{"too many requests", "status 429", func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
			http.Error(w, `{"error":{"message":"slow down"}}`, http.StatusTooManyRequests)
		}},
		{"redirect", "status 307", func(w http.ResponseWriter, r *http.Request, _ body, _ int) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}},
		{"no stream", "content type", func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, text("a")+text("a")+text("a")+finish+done)
		}},
		{"cut after text", "cut stream", func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
			send(w, text("a"), text("a"))
		}},
		{"cut before [DONE]", "cut stream", func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
			send(w, text("a"), text("a"), text("a"), finish, usage(10, 0, 3))
		}},
		{"connection dies", "cut stream", func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
			send(w, text("a"))
			panic(http.ErrAbortHandler)
		}},
		{"connection dies at once", "connection", func(http.ResponseWriter, *http.Request, body, int) {
			panic(http.ErrAbortHandler)
		}},
		{"no finish reason", "cut stream", func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
			send(w, text("a"), text("a"), text("a"), usage(10, 0, 3), done)
		}},
		{"not JSON", "malformed stream", func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
			send(w, text("a"), "data: {\n\n", finish, done)
		}},
		{"impossible usage", "malformed stream", func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
			send(w, text("a"), finish, usage(10, 11, 3), done)
		}},
		{"endless line", "malformed stream", func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
			send(w, "data: ")
			for range 40 {
				if _, err := io.WriteString(w, strings.Repeat("x", 64<<10)); err != nil {
					return
				}
			}
		}},
		{"endless event", "malformed stream", func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
			send(w)
			for range 40 {
				if _, err := io.WriteString(w, "data: "+strings.Repeat("x", 64<<10)+"\n"); err != nil {
					return
				}
			}
		}},
		{"error in the stream", "error in stream", func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
			send(w, text("a"), `data: {"error":{"message":"lost the worker"}}`+"\n\n")
		}},
		{"error field", "error in stream", func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
			send(w, `error: {"message":"context is full"}`+"\n\n")
		}},
		{"nothing said", "no text", func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
			send(w, finish, usage(10, 0, 3), done)
		}},
		{"shorter than asked", "short answer", func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
			send(w, text("a"), finish, usage(10, 0, 1), done)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := server(t, func(w http.ResponseWriter, r *http.Request, asked body, n int) {
				if n == 0 {
					tt.bad(w, r, asked, n)
				} else {
					whole(w, r, asked, n)
				}
			})
			report, err := run(t, l, Target{URL: srv.URL + "/v1", Model: "m"}) // no connection is used before the bad answer
			if err != nil {
				t.Fatal(err)
			}
			want := 1.0
			if tt.kind == "" {
				want = 0
			} else if !has(report, "failures: "+tt.kind) {
				t.Errorf("no failure of kind %q: %+v, %v", tt.kind, report.Results, report.Notes)
			}
			if got := value(t, report, "failures"); got != want {
				t.Errorf("%v failures: %v", got, report.Notes)
			}
			if got := value(t, report, "output tokens per request"); got != 3 {
				t.Errorf("%v tokens per good answer", got)
			}
		})
	}
}

// A server may close a connection between two requests: that is no failure, and
// happens to a connection that was used before only.
func TestConnectionClosedBetweenRequests(t *testing.T) {
	l := load()
	l.Concurrency, l.Requests = 1, 3
	srv := server(t, func(w http.ResponseWriter, r *http.Request, asked body, n int) {
		if n == 1 { // the second request, on the first's connection, finds it closed
			panic(http.ErrAbortHandler)
		}
		whole(w, r, asked, n)
	})
	report, err := run(t, l, Target{URL: srv.URL + "/v1", Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	if f, again := value(t, report, "failures"), value(t, report, "requests sent again"); f != 0 || again != 1 {
		t.Errorf("%v failures, %v sent again: %v", f, again, report.Notes)
	}
}

// A server that says nothing more is left after the timeout.
func TestStall(t *testing.T) {
	l := load()
	l.Concurrency, l.Requests, l.Timeout = 1, 2, time.Second
	srv := server(t, func(w http.ResponseWriter, r *http.Request, asked body, n int) {
		if n > 0 {
			whole(w, r, asked, n)
			return
		}
		send(w, text("a"))
		<-r.Context().Done()
	})
	report, err := run(t, l, Target{URL: srv.URL + "/v1"})
	if err == nil && !has(report, "failures: timeout") || err != nil && !strings.Contains(err.Error(), "timeout") {
		t.Errorf("%v, %v", err, report.Notes)
	}
}

func TestEverythingFails(t *testing.T) {
	srv := server(t, func(w http.ResponseWriter, _ *http.Request, _ body, _ int) {
		http.Error(w, `{"error":{"message":"model \u001b[31mnot loaded"}}`, http.StatusServiceUnavailable)
	})
	report, err := run(t, load(), Target{URL: srv.URL + "/v1"})
	if err == nil || !strings.Contains(err.Error(), "status 503: model  [31mnot loaded") {
		t.Errorf("ended with %v", err)
	}
	if report == nil || report.Complete {
		t.Errorf("report %+v", report)
	}
}

// What is sent: both endpoints, text and tokens, key and headers.
func TestRequests(t *testing.T) {
	for _, tt := range []struct {
		name   string
		target Target
		load   func(*Load)
		path   string
		check  func(body) bool
	}{
		{"text", Target{}, func(*Load) {}, "/v1/completions", func(b body) bool {
			s, _ := b.Prompt.(string)
			return len(strings.Fields(s)) == 5 && b.Messages == nil && b.Model == "first" && b.IgnoreEOS
		}},
		{"tokens", Target{Model: "other"}, func(l *Load) { l.Vocab, l.IgnoreEOS = 9, false }, "/v1/completions", func(b body) bool {
			ids, _ := b.Prompt.([]any)
			for _, id := range ids {
				if n, ok := id.(float64); !ok || n < 0 || n >= 9 {
					return false
				}
			}
			return len(ids) == 5 && b.Model == "other" && !b.IgnoreEOS
		}},
		{"chat", Target{}, func(l *Load) { l.Chat = true }, "/v1/chat/completions", func(b body) bool {
			return b.Prompt == nil && len(b.Messages) == 1 && len(strings.Fields(b.Messages[0].Content)) == 5
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := server(t, func(w http.ResponseWriter, r *http.Request, asked body, n int) {
				if r.URL.Path != tt.path || r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("Tandem-Mode") != "colocated" {
					t.Errorf("%s with %v", r.URL.Path, r.Header)
				}
				if asked.MaxTokens != 3 || !asked.Stream || asked.StreamOptions == nil || !asked.StreamOptions.IncludeUsage || !tt.check(asked) {
					t.Errorf("asked %+v", asked)
				}
				whole(w, r, asked, n)
			})
			l := load()
			tt.load(&l)
			tt.target.URL, tt.target.Key, tt.target.Header = srv.URL+"/v1/", "secret", http.Header{"Tandem-Mode": {"colocated"}}
			report, err := run(t, l, tt.target)
			if err != nil {
				t.Fatal(err)
			}
			raw, _ := json.Marshal(report)
			if strings.Contains(string(raw), "secret") {
				t.Error("the key is in the report")
			}
		})
	}
}

// The two targets get the same prompts turn by turn, no prompt comes twice, and
// another seed gives others.
func TestPrompts(t *testing.T) {
	record := func(seed uint64) (a, b []string) {
		var mu sync.Mutex
		keep := func(to *[]string) script {
			return func(w http.ResponseWriter, r *http.Request, asked body, n int) {
				mu.Lock()
				*to = append(*to, asked.Prompt.(string))
				mu.Unlock()
				whole(w, r, asked, n)
			}
		}
		l := load()
		l.Concurrency, l.Seed = 1, seed
		_, err := Run(t.Context(), Config{Load: l, Plan: bench.Plan{Warmup: 1, Runs: 2},
			Targets: []Target{{URL: server(t, keep(&a)).URL + "/v1"}, {URL: server(t, keep(&b)).URL + "/v1"}}})
		if err != nil {
			t.Fatal(err)
		}
		return a, b
	}
	a, b := record(1)
	if d := cmp.Diff(a, b); d != "" {
		t.Errorf("the targets got different prompts: %s", d)
	}
	seen := map[string]bool{}
	for _, p := range a {
		seen[p] = true
	}
	if len(a) != 12 || len(seen) != 12 {
		t.Errorf("%d prompts, %d different", len(a), len(seen))
	}
	if other, _ := record(2); other[0] == a[0] {
		t.Error("another seed gives the same prompt")
	}
}

// A comparison has ratios and judges what the load is made for.
func TestCompare(t *testing.T) {
	srv := server(t, whole)
	for _, tt := range []struct {
		output int
		rate   float64
		judged string
	}{{8, 0, figureDecode}, {1, 0, figurePrefill}, {8, 1e6, ""}} {
		l := load()
		l.Output, l.Rate = Fixed(tt.output), tt.rate
		report, err := run(t, l, Target{URL: srv.URL + "/v1"}, Target{URL: srv.URL + "/v1"})
		if err != nil {
			t.Fatal(err)
		}
		for _, res := range report.Results {
			if (res.Bar != nil) != (res.Name == tt.judged) {
				t.Errorf("%d tokens, rate %v: %s has bar %v", tt.output, tt.rate, res.Name, res.Bar)
			}
			if res.Name == tt.judged && (res.Held == nil || res.Ratio == nil) {
				t.Errorf("%s is not judged: %+v", res.Name, res)
			}
		}
	}
}

// Without usage events are counted instead, and the report says so; more events
// than tokens are noticed.
func TestTokenCounts(t *testing.T) {
	l := load()
	for _, tt := range []struct {
		name                     string
		events                   []string
		output, without, tooMany float64
	}{
		{"no usage", []string{text("a"), text("b"), finish, done}, 2, 4, 0},
		{"fewer events than tokens", []string{text("abc"), finish, usage(10, 0, 3), done}, 3, 0, 0},
		{"more events than tokens", []string{text("a"), text("a"), text("a"), text("a"), finish, usage(10, 0, 3), done}, 3, 0, 4},
	} {
		srv := server(t, func(w http.ResponseWriter, _ *http.Request, _ body, _ int) { send(w, tt.events...) })
		report, err := run(t, l, Target{URL: srv.URL + "/v1"})
		if err != nil {
			t.Fatal(err)
		}
		got := []float64{value(t, report, "output tokens per request"), value(t, report, "answers without usage"), value(t, report, "answers with more events than tokens")}
		if d := cmp.Diff([]float64{tt.output, tt.without, tt.tooMany}, got); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
	}
}

// In an open loop requests come while earlier ones are stuck: the server answers
// none before all have arrived.
func TestOpenLoopDoesNotWait(t *testing.T) {
	var arrived atomic.Int64
	release := make(chan struct{})
	srv := server(t, func(w http.ResponseWriter, r *http.Request, asked body, n int) {
		if arrived.Add(1) == 4 {
			close(release)
		}
		<-release
		whole(w, r, asked, n)
	})
	l := load()
	l.Rate, l.Arrivals, l.Concurrency = 1e6, Constant, 0
	report, err := run(t, l, Target{URL: srv.URL + "/v1"})
	if err != nil || value(t, report, "failures") != 0 {
		t.Errorf("%v, %+v", err, report)
	}
}

// A request that could not be sent when it was due has waited all the same: the
// second one here, for which there was no place while the server held the first.
func TestOpenLoopCountsWaiting(t *testing.T) {
	const held = 200 * time.Millisecond
	srv := server(t, func(w http.ResponseWriter, r *http.Request, asked body, n int) {
		if n == 0 {
			time.Sleep(held)
		}
		whole(w, r, asked, n)
	})
	l := load()
	l.Rate, l.Arrivals, l.MaxInFlight, l.Requests = 1e6, Constant, 1, 2
	report, err := run(t, l, Target{URL: srv.URL + "/v1"})
	if err != nil {
		t.Fatal(err)
	}
	// The median of two is the smaller one; a histogram keeps three digits.
	for _, name := range []string{"TTFT p50", "E2E p50", "late sending p99"} {
		if got := value(t, report, name); got < 0.99*float64(held.Milliseconds()) {
			t.Errorf("%s is %v ms: the wait is missing", name, got)
		}
	}
}

func TestGoodput(t *testing.T) {
	srv := server(t, func(w http.ResponseWriter, r *http.Request, asked body, n int) {
		if n == 0 {
			time.Sleep(150 * time.Millisecond)
		}
		whole(w, r, asked, n)
	})
	l := load()
	l.Concurrency, l.SLO = 1, SLO{TTFT: 100 * time.Millisecond}
	report, err := run(t, l, Target{URL: srv.URL + "/v1"})
	if err != nil {
		t.Fatal(err)
	}
	// At least the first is too slow; on a busy machine others may be.
	if got := value(t, report, "share within SLO"); got > 0.75 {
		t.Errorf("share within SLO %v", got)
	}
}

// An interrupt ends the requests and leaves the completed turns.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	srv := server(t, func(w http.ResponseWriter, r *http.Request, asked body, n int) {
		if n < 4 {
			whole(w, r, asked, n)
			return
		}
		cancel()
		<-r.Context().Done()
	})
	report, err := Run(ctx, Config{Targets: []Target{{URL: srv.URL + "/v1"}}, Load: load(), Plan: bench.Plan{Runs: 3}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	if report == nil || report.Complete || report.Turns != 1 || value(t, report, "failures") != 0 {
		t.Errorf("report %+v", report)
	}
}

func TestLength(t *testing.T) {
	for _, s := range []string{"", "0", "-1", "x", "uniform:", "uniform:5", "uniform:5-4", "uniform:0-4", "lognormal:0:1", "lognormal:5", "lognormal:5:-1", "lognormal:5:NaN", "normal:1:2", "99999999"} {
		if l, err := ParseLength(s); err == nil {
			t.Errorf("%q is read as %+v", s, l)
		}
	}
	for _, tt := range []struct {
		text      string
		low, high int
	}{{"512", 512, 512}, {"uniform:3-5", 3, 5}, {"lognormal:100:0.5", 1, 1600}, {"lognormal:7:0", 7, 7}} {
		l, err := ParseLength(tt.text)
		if err != nil {
			t.Fatal(err)
		}
		p := newPrompts(Load{Prompt: l, Output: l, Vocab: 2}, "", 1)
		below, seen := 0, map[int]bool{}
		for range 1000 {
			n := l.draw(p.rand)
			seen[n] = true
			if n < tt.low || n > tt.high {
				t.Fatalf("%s drew %d", tt.text, n)
			}
			if n < 100 {
				below++
			}
		}
		switch tt.text {
		case "uniform:3-5":
			if len(seen) != 3 {
				t.Errorf("%s drew only %v", tt.text, seen)
			}
		case "lognormal:100:0.5":
			if below < 400 || below > 600 || len(seen) < 50 {
				t.Errorf("%s: %d of 1000 below the median, %d values", tt.text, below, len(seen))
			}
		}
	}
}

// The rate of arrivals is what was asked for; Poisson gaps vary, constant ones do not.
func TestArrivals(t *testing.T) {
	for _, kind := range []Arrivals{Poisson, Constant} {
		l := Load{Rate: 50, Arrivals: kind}
		gap := l.gaps(newPrompts(l, "", 1).rand)
		var sum time.Duration
		seen := map[time.Duration]bool{}
		for range 10000 {
			g := gap()
			seen[g] = true
			sum += g
		}
		if mean := sum / 10000; mean < 19*time.Millisecond || mean > 21*time.Millisecond {
			t.Errorf("%s: mean gap %s", kind, mean)
		}
		if varied := len(seen) > 1; varied != (kind == Poisson) {
			t.Errorf("%s: %d different gaps", kind, len(seen))
		}
	}
}

// Rates are over the time in which something was in the phase, counted once
// however many streams are in it.
func TestPhase(t *testing.T) {
	var p phase
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	p.enter(at(0))
	p.enter(at(1))
	p.leave(at(2))
	p.leave(at(5))
	p.enter(at(10))
	p.leave(at(11))
	if p.total != 6*time.Second {
		t.Errorf("busy for %s", p.total)
	}
}
