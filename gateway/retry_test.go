package gateway

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
)

// busy makes a worker refuse the first n commands that would begin something, and returns when they came.
func busy(w *worker, n int, code buspb.Code) *[]time.Time {
	var asked []time.Time
	w.onCommand = func(cmd *buspb.Command) (*buspb.Reply, bool) {
		if cmd.GetReserve() == nil && cmd.GetPrefill() == nil && cmd.GetRun() == nil {
			return nil, false
		}
		asked = append(asked, time.Now())
		if len(asked) > n {
			return nil, false
		}
		return &buspb.Reply{Verdict: buspb.Verdict_VERDICT_REFUSED, Code: code, Retry: true}, true
	}
	return &asked
}

// TestBackoff: a worker that refuses is asked again after pauses that double, and at once where
// there is another.
func TestBackoff(t *testing.T) {
	for _, code := range []buspb.Code{buspb.Code_CODE_OVERLOADED, buspb.Code_CODE_DRAINING} {
		for _, name := range []string{"d1", "p1"} {
			inBubble(t, nil, func(r *rig) {
				asked := busy(r.b.workers[name], 3, code)
				if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
					t.Fatalf("%s: %q", name, got)
				}
				if len(*asked) != 4 {
					t.Fatalf("%s was asked %d times", name, len(*asked))
				}
				least := 125 * time.Millisecond
				for i, at := range (*asked)[1:] {
					// Scripted workers take milliseconds for the rest of an attempt.
					if gap := at.Sub((*asked)[i]); gap < least || gap > 2*least+20*time.Millisecond {
						t.Errorf("%s: pause %d is %v, want %v to %v", name, i, gap, least, 2*least)
					}
					least *= 2
				}
			})
		}
	}
	inBubble(t, twoPairs, func(r *rig) {
		began := time.Now()
		for _, name := range []string{"d1", "p1"} {
			busy(r.b.workers[name], 1, buspb.Code_CODE_OVERLOADED)
		}
		others := []*[]time.Time{busy(r.b.workers["d2"], 0, 0), busy(r.b.workers["p2"], 0, 0)}
		if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
			t.Fatal(got)
		}
		for _, asked := range others {
			if took := (*asked)[0].Sub(began); took > 50*time.Millisecond {
				t.Errorf("another worker was asked after %v", took)
			}
		}
	})
}

// TestBackoffEnds: who waits in a pause is told of the deadline and can leave, and goes on at once
// when another worker joins.
func TestBackoffEnds(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		asked := busy(r.b.workers["d1"], 9, buspb.Code_CODE_OVERLOADED)
		began := time.Now()
		var other *[]time.Time
		time.AfterFunc(20*time.Millisecond, func() {
			d2 := r.b.add("d2", "decode")
			other = busy(d2, 0, 0)
			d2.announce()
		})
		if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
			t.Fatal(got)
		}
		if took := (*other)[0].Sub(began); took > 50*time.Millisecond || len(*asked) != 1 {
			t.Errorf("the other was asked after %v, the full worker %d times", took, len(*asked))
		}
	})
	inBubble(t, nil, func(r *rig) {
		asked := busy(r.b.workers["d1"], 9, buspb.Code_CODE_OVERLOADED)
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		r.postCtx(ctx, "/v1/chat/completions", chatBody)
		if took := time.Since(began); took > 60*time.Millisecond {
			t.Errorf("left after %v", took)
		}
		time.Sleep(time.Second)
		if len(*asked) != 1 {
			t.Errorf("the worker was asked %d times for a client that left", len(*asked))
		}
	})
	inBubble(t, func(cfg *Config, _ *scripted) { cfg.RequestTimeout = 300 * time.Millisecond; cfg.Retries = 100 }, func(r *rig) {
		busy(r.b.workers["d1"], 1000, buspb.Code_CODE_OVERLOADED)
		began := time.Now()
		r.wantError(r.post("/v1/chat/completions", chatBody), 504, openai.CodeDeadline)
		if took := time.Since(began); took > 310*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

// TestRetryPolicy: what becomes of a request whose decode worker dies, at three points and by policy.
func TestRetryPolicy(t *testing.T) {
	for _, tc := range []struct {
		policy, kind string
		n            int
		text         string // "" where the request fails without output
		computed     int    // prompts computed
	}{
		{"recompute", "Reserved", 1, answerText, 1},
		{"recompute", "Committed", 1, answerText, 2},
		{"recompute", "Tokens", 3, answerText, 2},
		{"rebind", "Reserved", 1, answerText, 1},
		{"rebind", "Committed", 1, answerText[:1], 1},
		{"rebind", "Tokens", 3, answerText[:2], 1},
		{"none", "Reserved", 1, "", 1},
		{"none", "Committed", 1, answerText[:1], 1},
		{"none", "Tokens", 3, answerText[:2], 1},
	} {
		t.Run(tc.policy+"-"+tc.kind, func(t *testing.T) {
			for _, byHeader := range []bool{true, false} {
				inBubble(t, func(cfg *Config, b *scripted) {
					twoPairs(cfg, b)
					if !byHeader {
						cfg.Retry, _ = ParseRetry(tc.policy)
					}
				}, func(r *rig) {
					d := r.b.workers["d1"]
					at(d, tc.n, tc.kind, d.kill)
					for _, p := range []string{"p1", "p2"} {
						r.b.workers[p].keeps = true
					}
					headers := []string{"Tandem-Retry", tc.policy}
					if !byHeader {
						headers = nil
					}
					w := r.post("/v1/chat/completions", streamBody, headers...)
					text, _, done := streamed(w.Body.String())
					if done != (tc.text == answerText) || strings.Count(w.Body.String(), `"error"`) != 1-map[bool]int{true: 1}[done] {
						t.Fatalf("%q %v\n%s", text, done, w.Body)
					}
					if tc.kind != "Reserved" && text != tc.text || done && text != answerText {
						t.Errorf("got %q, want %q", text, tc.text)
					}
					computed := 0
					for _, p := range []string{"p1", "p2"} {
						w := r.b.workers[p]
						for _, reuse := range w.reused {
							if reuse == "" {
								computed++
							}
						}
					}
					if computed > tc.computed {
						t.Errorf("%d prompts were computed, want %d", computed, tc.computed)
					}
				})
			}
		})
	}
}

// TestRebindOnly: the state that the source holds is taken over when the destination is lost after the
// pin; a source that is lost with it ends the request.
func TestRebindOnly(t *testing.T) {
	inBubble(t, twoPairs, func(r *rig) {
		p, d := r.b.workers["p1"], r.b.workers["d1"]
		p.keeps = true
		at(p, 1, "Pinned", d.kill)
		if text, _, done := streamed(r.post("/v1/chat/completions", streamBody, "Tandem-Retry", "rebind").Body.String()); text != answerText || !done {
			t.Errorf("%q %v", text, done)
		}
		if len(p.reused) != 2 || p.reused[1] == "" {
			t.Errorf("prefills took over %x", p.reused)
		}
	})
	inBubble(t, func(_ *Config, b *scripted) {
		b.add("p1", "prefill")
		b.add("p2", "prefill")
		b.add("d1", "decode")
	}, func(r *rig) {
		p, d := r.b.workers["p1"], r.b.workers["d1"]
		p.keeps = true
		at(p, 1, "Pinned", func() {
			d.kill()
			time.AfterFunc(time.Millisecond, d.leave)
			time.AfterFunc(3*time.Second, func() { p.kill(); p.leave() })
			time.AfterFunc(4*time.Second, d.restart)
		})
		began := time.Now()
		// Auto would serve it whole on the other worker, which is to compute it again.
		text, _, done := streamed(r.post("/v1/chat/completions", streamBody, "Tandem-Retry", "rebind", "Tandem-Mode", "auto").Body.String())
		if took := time.Since(began); text != answerText[:1] || done || took > 3100*time.Millisecond {
			t.Errorf("%q %v after %v", text, done, took)
		}
		if n := r.b.workers["p2"].count("Prefill") + r.b.workers["p2"].count("Run"); n != 0 {
			t.Error("another worker computed the prompt again")
		}
	})
}

// TestSourceFirstExpiresBetween: a kept source whose lease runs out before the next placement bars
// source-first as well.
func TestSourceFirstExpiresBetween(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		d := r.b.workers["d1"]
		reserves := pulls(r, func(_ *worker, id string, _ int) time.Duration {
			d.kill()
			time.AfterFunc(time.Millisecond, d.leave)
			time.AfterFunc(2*time.Second, func() { r.b.workers["p1"].status(id, buspb.Side_SIDE_SOURCE, ended(buspb.Outcome_OUTCOME_EXPIRED)) })
			time.AfterFunc(3*time.Second, d.restart)
			return -1
		})
		text, _, done := streamed(r.post("/v1/chat/completions", streamBody, "Tandem-Order", "source-first").Body.String())
		if text != answerText || !done || len(*reserves) != 1 {
			t.Errorf("%q %v, %d reservations to be pulled", text, done, len(*reserves))
		}
	})
}

// TestPhaseOfEarlyEnd: a destination that ends before it has reserved failed to reserve, in both orders.
func TestPhaseOfEarlyEnd(t *testing.T) {
	for _, order := range []string{"destination-first", "source-first"} {
		inBubble(t, twoPairs, func(r *rig) {
			end := func(d *worker, id string) {
				d.later(func() { d.status(id, buspb.Side_SIDE_DESTINATION, ended(buspb.Outcome_OUTCOME_FAILED)) })
			}
			if order == "source-first" {
				pulls(r, func(d *worker, id string, n int) time.Duration {
					if n == 1 {
						end(d, id)
						return -1
					}
					return 0
				})
			} else {
				d := r.b.workers["d1"]
				d.onCommand = func(cmd *buspb.Command) (*buspb.Reply, bool) {
					if cmd.GetReserve() != nil {
						end(d, string(cmd.GetHandoff()))
					}
					return accepted, cmd.GetReserve() != nil
				}
			}
			if text, _, _ := streamed(r.post("/v1/chat/completions", streamBody, "Tandem-Order", order).Body.String()); text != answerText {
				t.Fatalf("%s: %q", order, text)
			}
			var phases []handoff.Phase
			for _, rec := range r.records() {
				if f := rec.RequestFact; f.Kind == handoff.FactFailed {
					phases = append(phases, f.Phase)
				}
			}
			if !slices.Equal(phases, []handoff.Phase{handoff.PhaseReserve}) {
				t.Errorf("%s: failed in %v", order, phases)
			}
		})
	}
}
