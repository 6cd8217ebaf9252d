package gateway

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/bus/buspb"
)

// TestShutdown: what is in flight ends within the grace, later requests are refused, workers hear of
// the end, and the listener is closed.
func TestShutdown(t *testing.T) {
	for _, tc := range []struct {
		name  string
		grace time.Duration
		whole bool
	}{{"within grace", 10 * time.Second, true}, {"beyond grace", 50 * time.Millisecond, false}} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newScripted()
				b.add("p1", "prefill")
				d := b.add("d1", "decode")
				g, err := New(Config{
					Name: "g1", Incarnation: 1, Model: "tiny", Vocab: newTestVocab(), Mode: Disaggregated, ShutdownGrace: tc.grace,
				})
				if err != nil {
					t.Fatal(err)
				}
				b.g = g
				ctx, cancel := context.WithCancel(t.Context())
				p := newPipes()
				ended := make(chan error, 1)
				go func() { ended <- g.Run(ctx, b, p) }()
				busCtx, busCancel := context.WithCancel(t.Context())
				go b.run(busCtx)
				synctest.Wait()

				client := p.client()
				body := make(chan string, 1)
				go func() {
					res, err := client.Post("http://gateway/v1/chat/completions", "application/json", strings.NewReader(streamBody))
					if err != nil {
						body <- err.Error()
						return
					}
					defer res.Body.Close()
					all, _ := io.ReadAll(res.Body)
					body <- string(all)
				}()
				time.Sleep(60 * time.Millisecond)
				cancel()
				synctest.Wait()
				if res, err := client.Get("http://gateway/readyz"); err != nil || res.StatusCode != http.StatusServiceUnavailable {
					t.Error("still ready, or not there:", err)
				} else {
					res.Body.Close()
				}
				// Whoever connects now is told, and not refused a connection.
				res, err := client.Post("http://gateway/v1/chat/completions", "application/json", strings.NewReader(chatBody))
				if err != nil {
					t.Fatal(err)
				}
				refusal, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || !strings.Contains(string(refusal), openai.CodeShuttingDown) {
					t.Errorf("%s %v %s", res.Status, res.Header, refusal)
				}

				got := <-body
				text, finish, done := streamed(got)
				if tc.whole && (text != answerText || finish != "stop" || !done) {
					t.Errorf("in flight: %q %q %v", text, finish, done)
				}
				if !tc.whole && (!strings.Contains(got, openai.CodeShuttingDown) || done) {
					t.Errorf("in flight: %s", got)
				}
				if err := <-ended; err != nil {
					t.Errorf("Run: %v", err)
				}
				if !b.left {
					t.Error("no goodbye")
				}
				if !tc.whole && d.reason(d.handoffOf(t)) == buspb.Reason_REASON_UNSPECIFIED {
					t.Error("the decode worker was not cancelled")
				}
				if n := g.fleet.bookings(); n != 0 {
					t.Errorf("%d bookings are left", n)
				}
				busCancel()
				client.CloseIdleConnections()
				time.Sleep(time.Minute)
			})
		})
	}
}

// TestShutdownRefusesQueue: those who wait for admission are told at once.
func TestShutdownRefusesQueue(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) { cfg.MaxActive = 1 }, func(r *rig) {
		first := make(chan struct{})
		go func() {
			defer close(first)
			if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
				t.Errorf("got %q", got)
			}
		}()
		time.Sleep(time.Millisecond)
		second := make(chan struct{})
		go func() {
			defer close(second)
			r.wantError(r.post("/v1/chat/completions", chatBody), 503, openai.CodeShuttingDown)
		}()
		time.Sleep(time.Millisecond)
		r.stop()
		<-first
		<-second
	})
}

func TestRunTwice(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		if err := r.g.Run(r.t.Context(), r.b, nil); err == nil {
			t.Error("ran twice")
		}
	})
}
