package gateway

import (
	"context"
	"errors"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
)

// slowVocab takes a while for each text and counts how many are read at once.
type slowVocab struct {
	*testVocab
	mu                 sync.Mutex
	calls, now, atOnce int
}

func (v *slowVocab) Tokenize(text string, addSpecial, parseSpecial bool) ([]engine.Token, error) {
	v.mu.Lock()
	v.calls++
	v.now++
	v.atOnce = max(v.atOnce, v.now)
	v.mu.Unlock()
	time.Sleep(20 * time.Millisecond)
	v.mu.Lock()
	v.now--
	v.mu.Unlock()
	return v.testVocab.Tokenize(text, addSpecial, parseSpecial)
}

// TestPromptsWaitUnread: a prompt that waits for its turn, or is refused, is not turned into tokens, and
// those that are, are few at once.
func TestPromptsWaitUnread(t *testing.T) {
	v := &slowVocab{testVocab: newTestVocab()}
	const body = `{"model":"tiny","prompt":"hi","max_tokens":3}`
	inBubble(t, func(cfg *Config, _ *scripted) {
		cfg.Vocab, cfg.MaxActive, cfg.MaxQueue, cfg.QueueTimeout = v, 1, 1, 5*time.Millisecond
	}, func(r *rig) {
		var wg sync.WaitGroup
		wg.Go(func() { r.chatText(r.post("/v1/completions", body)) })
		time.Sleep(time.Millisecond)
		wg.Go(func() { r.wantError(r.post("/v1/completions", body), 503, openai.CodeOverloaded) })
		time.Sleep(time.Millisecond)
		r.wantError(r.post("/v1/completions", body), 503, openai.CodeOverloaded)
		wg.Wait()
		if v.calls != 1 {
			t.Errorf("%d prompts were read, of which one was admitted", v.calls)
		}
	})
	inBubble(t, func(cfg *Config, _ *scripted) { cfg.Vocab = v }, func(r *rig) {
		var wg sync.WaitGroup
		before := v.calls
		for range 5 * runtime.GOMAXPROCS(0) {
			wg.Go(func() { r.chatText(r.post("/v1/completions", body)) })
		}
		synctest.Wait()
		// Nobody reads for one who has left while waiting to be read.
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		wg.Go(func() { r.postCtx(ctx, "/v1/completions", body) })
		wg.Wait()
		if want := runtime.GOMAXPROCS(0); v.atOnce != want {
			t.Errorf("%d prompts were read at once, want %d", v.atOnce, want)
		}
		if n := v.calls - before; n > 5*runtime.GOMAXPROCS(0) {
			t.Errorf("%d prompts were read", n)
		}
	})
}

// TestRetryAfterIsMeasured: clients are told to come back when there is likely room.
func TestRetryAfterIsMeasured(t *testing.T) {
	after := func(w *httptest.ResponseRecorder) int {
		n, err := strconv.Atoi(w.Header().Get("Retry-After"))
		if err != nil {
			t.Errorf("%d: Retry-After is %q", w.Code, w.Header().Get("Retry-After"))
		}
		return n
	}
	inBubble(t, func(cfg *Config, _ *scripted) {
		cfg.MaxActive, cfg.MaxQueue, cfg.QueueTimeout = 1, 2, time.Minute
	}, func(r *rig) {
		for range 20 { // answers take 10 s
			leave, err := r.g.gate.enter(context.Background(), "x", 1)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			leave()
		}
		leave, _ := r.g.gate.enter(context.Background(), "x", 1)
		ctx, cancel := context.WithCancel(context.Background())
		for range 2 {
			go r.postCtx(ctx, "/v1/chat/completions", chatBody)
			synctest.Wait()
		}
		w := r.post("/v1/chat/completions", chatBody)
		r.wantError(w, 503, openai.CodeOverloaded)
		if n := after(w); n != 30 { // two wait, and one place becomes free every 10 s
			t.Errorf("the queue is full: come back in %d s", n)
		}
		cancel()
		leave()
		synctest.Wait()
	})
	inBubble(t, func(cfg *Config, _ *scripted) { cfg.MaxPerTenant = 4 }, func(r *rig) {
		var leave []func()
		for range 4 {
			l, err := r.g.gate.enter(context.Background(), DefaultTenant, 1)
			if err != nil {
				t.Fatal(err)
			}
			leave = append(leave, l)
		}
		time.Sleep(40 * time.Second)
		leave[3]()
		l, _ := r.g.gate.enter(context.Background(), DefaultTenant, 1)
		w := r.post("/v1/chat/completions", chatBody)
		r.wantError(w, 429, openai.CodeRateLimit)
		if n := after(w); n != 10 { // four of 40 s each
			t.Errorf("the tenant has its share: come back in %d s", n)
		}
		l()
		for _, l := range leave[:3] {
			l()
		}
		// Workers that are full, that are going down, that are not there.
		for _, code := range []buspb.Code{buspb.Code_CODE_OVERLOADED, buspb.Code_CODE_DRAINING} {
			busy(r.b.workers["d1"], 1<<20, code)
			w := r.post("/v1/chat/completions", chatBody)
			if n := after(w); w.Code != 503 || code == buspb.Code_CODE_OVERLOADED && n < 10 {
				t.Errorf("%v: %d, come back in %d s", code, w.Code, n)
			}
		}
		r.b.workers["d1"].kill()
		time.Sleep(20 * time.Second)
		w = r.post("/v1/chat/completions", chatBody)
		r.wantError(w, 503, openai.CodeNoWorkers)
		after(w)
	})
}

// TestTimeoutHeader: the client's own deadline counts from its arrival, in the queue and after it, and
// never lengthens the server's.
func TestTimeoutHeader(t *testing.T) {
	took := func(r *rig, headers ...string) (time.Duration, *httptest.ResponseRecorder) {
		began := time.Now()
		w := r.post("/v1/chat/completions", chatBody, headers...)
		return time.Since(began), w
	}
	inBubble(t, func(cfg *Config, _ *scripted) { cfg.MaxActive = 1; cfg.RequestTimeout = 20 * time.Second }, func(r *rig) {
		if _, w := took(r, "Tandem-Timeout", "5"); r.chatText(w) != answerText {
			t.Error(w.Body)
		}
		r.b.workers["d1"].silent = true
		for value, want := range map[string]time.Duration{"1.5": 1500 * time.Millisecond, "60": 20 * time.Second} {
			d, w := took(r, "Tandem-Timeout", value)
			r.wantError(w, 504, openai.CodeDeadline)
			if d != want {
				t.Errorf("Tandem-Timeout %s: %v", value, d)
			}
		}
		leave, err := r.g.gate.enter(context.Background(), "x", 1)
		if err != nil {
			t.Fatal(err)
		}
		d, w := took(r, "Tandem-Timeout", "2")
		r.wantError(w, 504, openai.CodeDeadline)
		if d != 2*time.Second {
			t.Errorf("in the queue: %v", d)
		}
		leave()
		for _, bad := range []string{"0", "-1", "soon", "NaN", "Inf", "1e9", "1s"} {
			_, w := took(r, "Tandem-Timeout", bad)
			if msg := r.wantError(w, 400, openai.CodeUnsupportedHeader); !strings.Contains(msg, "seconds") {
				t.Error(msg)
			}
		}
		for _, bad := range []string{"often", "Recompute!"} {
			_, w := took(r, "Tandem-Retry", bad)
			r.wantError(w, 400, openai.CodeUnsupportedHeader)
		}
	})
}

// TestAdmissionErrors: refusals say why, whatever they carry.
func TestAdmissionErrors(t *testing.T) {
	err := error(&refusedError{errQueueFull, time.Second})
	if !errors.Is(err, errQueueFull) || err.Error() == "" {
		t.Error(err)
	}
	for d, want := range map[time.Duration]int{0: 1, time.Millisecond: 1, 1001 * time.Millisecond: 2, time.Hour: 60} {
		if got := retryAfter(d); got != want {
			t.Errorf("%v: %d s", d, got)
		}
	}
}
