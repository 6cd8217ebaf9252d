package gateway

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem/api/openai"
)

func (r *rig) get(path string, headers ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest("GET", path, nil)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	r.g.Handler().ServeHTTP(w, req)
	return w
}

func TestEndpoints(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		if w := r.get("/healthz"); w.Code != 200 {
			t.Errorf("healthz %d", w.Code)
		}
		var ready readiness
		w := r.get("/readyz")
		if err := json.Unmarshal(w.Body.Bytes(), &ready); err != nil || w.Code != 200 || ready.Status != "ready" || ready.Decode != 1 {
			t.Errorf("readyz %d %s", w.Code, w.Body)
		}
		if w := r.get("/v1/models"); !strings.Contains(w.Body.String(), `"id":"tiny"`) {
			t.Errorf("models %s", w.Body)
		}
		if w := r.get("/v1/models/tiny"); w.Code != 200 {
			t.Errorf("model %d", w.Code)
		}
		r.wantError(r.get("/v1/models/other/name"), 404, openai.CodeModelNotFound)
		if w := r.get("/metrics"); !strings.Contains(w.Body.String(), `tandem_workers{role="decode"} 1`) {
			t.Errorf("metrics %s", w.Body)
		}
		r.wantError(r.get("/v1/chat/completions"), 405, openai.CodeMethodNotAllowed)
		r.wantError(r.get("/v1/embeddings"), 404, openai.CodeUnknownURL)

		r.b.workers["d1"].kill()
		time.Sleep(15 * time.Second)
		w = r.get("/readyz")
		if w.Code != 503 || !strings.Contains(w.Body.String(), "no decode worker") && !strings.Contains(w.Body.String(), "No decode worker") {
			t.Errorf("readyz without decode worker: %d %s", w.Code, w.Body)
		}
	})
}

func TestBadRequests(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) { cfg.MaxBody, cfg.MaxActive = 2000, 8 }, func(r *rig) {
		const path = "/v1/chat/completions"
		r.wantError(r.post(path, `{`), 400, openai.CodeInvalidJSON)
		r.wantError(r.post(path, chatBody[:len(chatBody)-1]+`,"tools":[{"type":"function"}]}`), 400, openai.CodeUnsupported)
		r.wantError(r.post(path, strings.Replace(chatBody, "tiny", "huge", 1)), 404, openai.CodeModelNotFound)
		r.wantError(r.post(path, `{"user":"`+strings.Repeat("x", 3000)+`"}`), 413, openai.CodeTooLarge)
		r.wantError(r.post(path, chatBody, "Content-Type", "text/plain"), 415, openai.CodeMediaType)
		r.wantError(r.post(path, chatBody, "Content-Encoding", "gzip"), 415, openai.CodeMediaType)
		r.wantError(r.post(path, chatBody, "Tandem-Mode", "fast"), 400, openai.CodeUnsupportedHeader)
		r.wantError(r.post(path, chatBody, "X-Request-Id", "a b"), 400, openai.CodeUnsupportedHeader)
		r.wantError(r.post(path, chatBody, "X-Request-Id", strings.Repeat("x", 129)), 400, openai.CodeUnsupportedHeader)
		r.wantError(r.post(path, chatBody[:len(chatBody)-1]+`,"n":9}`), 400, openai.CodeInvalidValue)
		r.wantError(r.post(path, chatBody[:len(chatBody)-1]+`,"logit_bias":{"259":1}}`), 400, openai.CodeInvalidValue)
		r.wantError(r.post("/v1/completions", `{"model":"tiny","prompt":[259]}`), 400, openai.CodeInvalidValue)
		if c := append(r.b.workers["p1"].commands(), r.b.workers["d1"].commands()...); len(c) != 0 {
			t.Errorf("workers were asked: %v", c)
		}
		// And the next request works.
		if got := r.chatText(r.post(path, chatBody)); got != answerText {
			t.Errorf("got %q", got)
		}
	})
}

func TestAPIKeys(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) {
		keys, err := ParseKeys(strings.NewReader("acme sk-aaaaaaaaaaaaaaaa\n"))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Keys = keys
	}, func(r *rig) {
		for _, auth := range []string{"", "Bearer", "Bearer x", "Basic sk-aaaaaaaaaaaaaaaa", "sk-aaaaaaaaaaaaaaaa"} {
			r.wantError(r.post("/v1/chat/completions", chatBody, "Authorization", auth), 401, openai.CodeInvalidAPIKey)
			r.wantError(r.get("/v1/models", "Authorization", auth), 401, openai.CodeInvalidAPIKey)
		}
		if got := r.chatText(r.post("/v1/chat/completions", chatBody, "Authorization", "Bearer sk-aaaaaaaaaaaaaaaa")); got != answerText {
			t.Errorf("got %q", got)
		}
		if got := r.b.workers["d1"].tenant(); got != "acme" {
			t.Errorf("tenant %q", got)
		}
		if w := r.get("/healthz"); w.Code != 200 {
			t.Errorf("healthz needs no key: %d", w.Code)
		}
	})
}

func TestDuplicateRequestID(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		var first *httptest.ResponseRecorder
		done := make(chan struct{})
		go func() {
			defer close(done)
			first = r.post("/v1/chat/completions", chatBody, "X-Request-Id", "same")
		}()
		time.Sleep(20 * time.Millisecond)
		w := r.post("/v1/chat/completions", chatBody, "X-Request-Id", "same")
		r.wantError(w, 409, openai.CodeDuplicateRequest)
		if w.Header().Get("X-Should-Retry") != "false" {
			t.Error("official clients would retry")
		}
		<-done
		if got := r.chatText(first); got != answerText {
			t.Errorf("the first was touched: %q", got)
		}
		if got := first.Header().Get("X-Request-Id"); got != "same" {
			t.Errorf("id %q", got)
		}
		if got := r.chatText(r.post("/v1/chat/completions", chatBody, "X-Request-Id", "same")); got != answerText {
			t.Errorf("an id that is free again: %q", got)
		}
	})
}

func TestQueue(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) {
		cfg.MaxActive, cfg.MaxQueue, cfg.QueueTimeout = 1, 1, 30*time.Millisecond
	}, func(r *rig) {
		var wg sync.WaitGroup
		start := func(f func()) { wg.Go(f); time.Sleep(time.Millisecond) }
		start(func() {
			if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
				t.Errorf("got %q", got)
			}
		})
		start(func() {
			w := r.post("/v1/chat/completions", chatBody)
			r.wantError(w, 503, openai.CodeOverloaded) // it waits too long
			if w.Header().Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		})
		w := r.post("/v1/chat/completions", chatBody)
		r.wantError(w, 503, openai.CodeOverloaded) // the queue is full
		if w.Header().Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		wg.Wait()
	})
}

func TestTenantLimit(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) { cfg.MaxPerTenant = 1 }, func(r *rig) {
		var wg sync.WaitGroup
		wg.Go(func() { r.chatText(r.post("/v1/chat/completions", chatBody)) })
		time.Sleep(time.Millisecond)
		w := r.post("/v1/chat/completions", chatBody)
		r.wantError(w, 429, openai.CodeRateLimit)
		if w.Header().Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		wg.Wait()
	})
}

// serveHTTP runs a real server with the gateway's handler on pipes until the test ends.
func (r *rig) serveHTTP() (*pipes, func()) {
	p := newPipes()
	s := &http.Server{Handler: r.g.Handler()}
	go s.Serve(p)
	return p, func() { s.Close() }
}

// TestFirstTokenAtOnce: the token that prefill sampled is at the client before the destination has
// committed.
func TestFirstTokenAtOnce(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		p, closeServer := r.serveHTTP()
		defer closeServer()
		var got time.Duration
		began := time.Now()
		d := r.b.workers["d1"]
		committed := time.Duration(0)
		at(d, 1, "Committed", func() { committed = time.Since(began) })
		res, err := p.client().Post("http://gateway/v1/chat/completions", "application/json", strings.NewReader(streamBody))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		for s := bufio.NewScanner(res.Body); s.Scan(); {
			if strings.Contains(s.Text(), `"content":"H"`) {
				got = time.Since(began)
			}
		}
		if got == 0 || committed == 0 || got >= committed {
			t.Errorf("first token after %v, commit after %v", got, committed)
		}
	})
}

// TestStuckClient: a client that stops reading loses its request when a write takes too long, and
// the workers are told.
func TestStuckClient(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) { cfg.WriteTimeout = 3 * time.Second }, func(r *rig) {
		p, closeServer := r.serveHTTP()
		defer closeServer()
		conn, err := p.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		req := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
		body := `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stream":true}`
		if _, err := io.WriteString(conn, req+strconv.Itoa(len(body))+"\r\n\r\n"+body); err != nil {
			t.Fatal(err)
		}
		// Nothing is read: the pipe takes nothing.
		time.Sleep(2 * time.Second)
		if n := len(r.b.workers["d1"].reservations()); n != 1 {
			t.Fatalf("%d reservations", n)
		}
		time.Sleep(2 * time.Second)
		r.g.gate.mu.Lock()
		free := r.g.gate.free == r.g.gate.places
		r.g.gate.mu.Unlock()
		if !free {
			t.Error("a stuck client still holds its place after the write timeout")
		}
	})
}

// TestSlowClientBounded: what a client has not read is bounded, and then its request is cancelled.
func TestSlowClientBounded(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) { cfg.MaxBuffered, cfg.WriteTimeout = 300, time.Hour }, func(r *rig) {
		p, closeServer := r.serveHTTP()
		conn, err := p.dial()
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "+
			strconv.Itoa(len(streamBody))+"\r\n\r\n"+streamBody)
		time.Sleep(2 * time.Second)
		if n := r.b.workers["d1"].count("Cancel"); n != 1 {
			t.Errorf("decode worker was cancelled %d times", n)
		}
		if n := len(r.g.openRequests()); n != 0 {
			t.Errorf("%d requests are open", n)
		}
		conn.Close()
		closeServer()
		synctest.Wait()
	})
}

// TestSlowBody: a body that does not come is not waited for.
func TestSlowBody(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) { cfg.ReadTimeout = 2 * time.Second }, func(r *rig) {
		p, closeServer := r.serveHTTP()
		defer closeServer()
		conn, err := p.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
		began := time.Now()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != http.StatusRequestTimeout || time.Since(began) > 3*time.Second {
			t.Errorf("%v %v after %v", res, err, time.Since(began))
		}
	})
}
