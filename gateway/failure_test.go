package gateway

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/bus/buspb"
)

// twoPairs gives every request somewhere else to go.
func twoPairs(cfg *Config, b *scripted) {
	for _, n := range []string{"1", "2"} {
		b.add("p"+n, "prefill")
		b.add("d"+n, "decode")
	}
}

// at calls f once, when a worker of the side reports its nth status of that kind.
func at(w *worker, n int, kind string, f func()) {
	var mu sync.Mutex
	seen := 0
	w.onStatus = func(st *buspb.Status) []*buspb.Status {
		mu.Lock()
		defer mu.Unlock()
		if statusName(st) == kind {
			if seen++; seen == n {
				f()
			}
		}
		return []*buspb.Status{st}
	}
}

func statusName(st *buspb.Status) string {
	return strings.TrimPrefix(fmt.Sprintf("%T", st.GetBody()), "*buspb.Status_")
}

// TestKilled kills a worker at every point of a request's life. The answer is the same, token for
// token, nothing is sent twice, and what was sent is forced on whoever continues.
func TestKilled(t *testing.T) {
	for _, tc := range []struct {
		worker, kind string
		n            int
		forced       int // tokens forced on the last attempt
	}{
		{"d", "Reserved", 1, 0},
		{"p", "Pinned", 1, 0},
		{"p", "Tokens", 1, 0},    // its first token is lost with it
		{"p", "Ended", 1, 1},     // token 0 is with the client, and the destination commits by itself
		{"d", "Committed", 1, 1}, // between commit and first token
		{"d", "Tokens", 1, 1},
		{"d", "Tokens", 5, 4},
		{"d", "Ended", 1, -1}, // after the last token
	} {
		t.Run(fmt.Sprintf("%s-%s-%d", tc.worker, tc.kind, tc.n), func(t *testing.T) {
			inBubble(t, twoPairs, func(r *rig) {
				// The first request goes to p1 and d1.
				w := r.b.workers[tc.worker+"1"]
				at(w, tc.n, tc.kind, w.kill)
				got := r.post("/v1/chat/completions", streamBody)
				text, finish, done := streamed(got.Body.String())
				if text != answerText || finish != "stop" || !done {
					t.Fatalf("got %q %q done=%v\n%s", text, finish, done, got.Body)
				}
				var forced [][]int32
				for _, w := range r.b.all() {
					forced = append(forced, w.forced...)
				}
				longest := 0
				for _, f := range forced {
					longest = max(longest, len(f))
					if !slices.Equal(f, answerTokens()[:len(f)]) {
						t.Errorf("forced %v", f)
					}
				}
				if tc.forced > 0 && tc.worker == "d" && longest < tc.forced {
					t.Errorf("at most %d tokens were forced, want %d", longest, tc.forced)
				}
			})
		})
	}
}

// TestEightOthers: a worker is killed while eight other requests run; all end once and well.
func TestEightOthers(t *testing.T) {
	inBubble(t, twoPairs, func(r *rig) {
		var wg sync.WaitGroup
		for i := range 9 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 7 * time.Millisecond)
				mode := []string{"disaggregated", "colocated", "auto"}[i%3]
				if text, finish, done := streamed(r.post("/v1/chat/completions", streamBody, "Tandem-Mode", mode).Body.String()); text != answerText || finish != "stop" || !done {
					t.Errorf("request %d: %q %q %v", i, text, finish, done)
				}
			})
		}
		time.Sleep(60 * time.Millisecond)
		r.b.workers["d1"].kill()
		time.Sleep(40 * time.Millisecond)
		r.b.workers["p2"].kill()
		wg.Wait()
	})
}

// TestRestartedWorker: a worker comes back under its name before it was missed. Its old handles are
// void, and the request waits for it, as there is nobody else.
func TestRestartedWorker(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		d := r.b.workers["d1"]
		at(d, 3, "Tokens", func() {
			d.kill()
			time.AfterFunc(2*time.Second, d.restart)
		})
		if text, finish, done := streamed(r.post("/v1/chat/completions", streamBody).Body.String()); text != answerText || finish != "stop" || !done {
			t.Fatalf("%q %q %v", text, finish, done)
		}
		if n := d.count("Reserve"); n != 2 {
			t.Errorf("%d reserves", n)
		}
	})
}

// TestNobodyComesBack: the wait for a worker is bounded and ends in one clear error.
func TestNobodyComesBack(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		d := r.b.workers["d1"]
		at(d, 3, "Tokens", d.kill)
		began := time.Now()
		body := r.post("/v1/chat/completions", streamBody).Body.String()
		text, finish, done := streamed(body)
		if text != answerText[:2] || finish != "" || done || strings.Count(body, `"error"`) != 1 {
			t.Errorf("%q %q %v", text, finish, done)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("took %v", took)
		}
		// The next request waits for the worker that is missing, and is served when it is back.
		time.AfterFunc(5*time.Second, d.restart)
		if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
			t.Errorf("next request: %q", got)
		}
	})
}

func TestReservationRefused(t *testing.T) {
	inBubble(t, twoPairs, func(r *rig) {
		refuse := func(never bool) func(st *buspb.Status) []*buspb.Status {
			return func(st *buspb.Status) []*buspb.Status {
				if st.GetReserved() != nil {
					st.Body = &buspb.Status_Refused{Refused: &buspb.Refused{Never: never, Code: buspb.Code_CODE_TOO_LONG}}
				}
				return []*buspb.Status{st}
			}
		}
		r.b.workers["d1"].onStatus = refuse(true)
		// d2 is asked instead, although d1 said never: it speaks for itself only.
		if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
			t.Errorf("got %q", got)
		}
		r.b.workers["d2"].onStatus = refuse(true)
		r.wantError(r.post("/v1/chat/completions", chatBody), 400, openai.CodeContextLength)
		for _, p := range []string{"p1", "p2"} {
			for _, c := range r.b.workers[p].commands()[min(2, len(r.b.workers[p].commands())):] {
				if c == "Prefill" {
					t.Error("prefill was dispatched without a reservation")
				}
			}
		}
	})
}

func TestCommandRefused(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		r.b.workers["d1"].onCommand = func(cmd *buspb.Command) (*buspb.Reply, bool) {
			if cmd.GetReserve() == nil {
				return nil, false
			}
			return &buspb.Reply{Verdict: buspb.Verdict_VERDICT_REFUSED, Code: buspb.Code_CODE_OVERLOADED, Retry: true}, true
		}
		w := r.post("/v1/chat/completions", chatBody)
		r.wantError(w, 503, openai.CodeOverloaded)
		if w.Header().Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		if n := r.b.workers["d1"].count("Reserve"); n != 4 {
			t.Errorf("asked %d times, want the first and 3 retries", n)
		}
	})
}

// TestSilentWorker: a worker that takes commands and never answers is given up after CommandWait.
func TestSilentWorker(t *testing.T) {
	inBubble(t, twoPairs, func(r *rig) {
		r.b.workers["d1"].silent = true
		began := time.Now()
		if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
			t.Errorf("got %q", got)
		}
		if took := time.Since(began); took < 20*time.Second || took > 40*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// TestAcceptsAndStaysSilent: accepted, but no reservation ever comes: patience ends the attempt.
func TestAcceptsAndStaysSilent(t *testing.T) {
	inBubble(t, twoPairs, func(r *rig) {
		d := r.b.workers["d1"]
		d.onCommand = func(cmd *buspb.Command) (*buspb.Reply, bool) { return accepted, cmd.GetReserve() != nil }
		if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
			t.Errorf("got %q", got)
		}
		if n := d.count("Cancel"); n == 0 {
			t.Error("the abandoned reservation was not cancelled")
		}
	})
}

// TestUnreliableStatuses loses, repeats, delays and reorders statuses. Nothing is lost, repeated or
// out of order at the client.
func TestUnreliableStatuses(t *testing.T) {
	for name, unreliable := range map[string]func(w *worker) func(*buspb.Status) []*buspb.Status{
		"doubled": func(*worker) func(*buspb.Status) []*buspb.Status {
			return func(st *buspb.Status) []*buspb.Status { return []*buspb.Status{st, st} }
		},
		"late again": func(w *worker) func(*buspb.Status) []*buspb.Status {
			return func(st *buspb.Status) []*buspb.Status {
				time.AfterFunc(35*time.Millisecond, func() { w.deliver(st) })
				return []*buspb.Status{st}
			}
		},
		"swapped": func(*worker) func(*buspb.Status) []*buspb.Status {
			var kept *buspb.Status
			return func(st *buspb.Status) []*buspb.Status {
				if tok := st.GetTokens(); tok != nil && tok.GetFrom()%3 == 2 && kept == nil {
					kept = st
					return nil
				}
				out := []*buspb.Status{st}
				if kept != nil {
					out, kept = append(out, kept), nil
				}
				return out
			}
		},
		"every third lost": func(*worker) func(*buspb.Status) []*buspb.Status {
			n := 0
			return func(st *buspb.Status) []*buspb.Status {
				// The last one is kept: what follows nothing is repeated by a real
				// worker's timer, which this script has not.
				if n++; n%3 == 0 && st.GetTokens() != nil && st.GetTokens().GetFinish() == 0 {
					return nil
				}
				return []*buspb.Status{st}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(r *rig) {
				for _, w := range r.b.all() {
					w.onStatus = unreliable(w)
				}
				for _, mode := range []string{"disaggregated", "colocated"} {
					text, finish, done := streamed(r.post("/v1/chat/completions", streamBody, "Tandem-Mode", mode).Body.String())
					if text != answerText || finish != "stop" || !done {
						t.Errorf("%s: %q %q %v", mode, text, finish, done)
					}
				}
			})
		})
	}
}

// TestPersistentGap: a token is missing for long, and whatever the worker repeats comes without it.
// The gateway asks now and then, not once for each status behind the gap: every answer is all of
// those statuses, so that questions would multiply.
func TestPersistentGap(t *testing.T) {
	const long, enough = 2 * time.Second, 1000
	inBubble(t, nil, func(r *rig) {
		d := r.b.workers["d1"]
		var mu sync.Mutex
		var lost *buspb.Status
		var behind []*buspb.Status
		asked := 0
		d.onStatus = func(st *buspb.Status) []*buspb.Status {
			mu.Lock()
			defer mu.Unlock()
			if tok := st.GetTokens(); tok != nil && tok.GetFrom() == 3 {
				lost = st
				time.AfterFunc(long, func() { d.deliver(st) })
				return nil
			}
			if lost != nil {
				behind = append(behind, st)
			}
			return []*buspb.Status{st}
		}
		d.onCommand = func(cmd *buspb.Command) (*buspb.Reply, bool) {
			if cmd.GetQuery() == nil {
				return nil, false
			}
			mu.Lock()
			defer mu.Unlock()
			if asked++; asked < enough {
				list := slices.Clone(behind)
				d.later(func() { d.deliver(list...) })
			}
			return accepted, true
		}
		text, finish, done := streamed(r.post("/v1/chat/completions", streamBody).Body.String())
		if text != answerText || finish != "stop" || !done {
			t.Errorf("%q %q %v", text, finish, done)
		}
		if limit := int(long/askPause) + 2; asked == 0 || asked > limit {
			t.Errorf("%d questions in %v, want 1 to %d", asked, long, limit)
		}
	})
}

// TestFenced: a destination that was given up and goes on nevertheless is answered with cancel, and
// feeds nobody.
func TestFenced(t *testing.T) {
	inBubble(t, twoPairs, func(r *rig) {
		d := r.b.workers["d1"]
		var late []func()
		n := 0
		d.onStatus = func(st *buspb.Status) []*buspb.Status {
			if st.GetTokens() == nil {
				return []*buspb.Status{st}
			}
			if n++; n < 3 {
				return []*buspb.Status{st}
			}
			late = append(late, func() { d.deliver(st) })
			if n == 3 {
				// It loses its engine, says so, and then recovers from the dead.
				return []*buspb.Status{{
					Handoff: st.GetHandoff(), Side: st.GetSide(), Seq: st.GetSeq(),
					Body: &buspb.Status_Ended{Ended: &buspb.Ended{Outcome: buspb.Outcome_OUTCOME_FAILED, Code: buspb.Code_CODE_ENGINE}},
				}}
			}
			return nil
		}
		text, finish, done := streamed(r.post("/v1/chat/completions", streamBody).Body.String())
		if text != answerText || finish != "stop" || !done {
			t.Errorf("%q %q %v", text, finish, done)
		}
		before := d.count("Cancel")
		for _, f := range late[1:] {
			f()
		}
		time.Sleep(time.Second)
		if d.count("Cancel") == before {
			t.Error("late tokens of an abandoned attempt were not answered with cancel")
		}
	})
}

// TestUnknownHandoff: what nobody knows is acknowledged, so that it ends.
func TestUnknownHandoff(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		d := r.b.workers["d1"]
		id := string(make([]byte, 16))
		d.status(id, buspb.Side_SIDE_DESTINATION, ended(buspb.Outcome_OUTCOME_EXPIRED))
		d.status("short", buspb.Side_SIDE_DESTINATION, ended(buspb.Outcome_OUTCOME_EXPIRED))
		time.Sleep(time.Second)
		if got, _ := d.known(id, buspb.Side_SIDE_DESTINATION); got != 1 {
			t.Errorf("acknowledged up to %d", got)
		}
	})
}

// TestForeignStatus: a worker that the attempt was not given to cannot feed it.
func TestForeignStatus(t *testing.T) {
	inBubble(t, twoPairs, func(r *rig) {
		d := r.b.workers["d1"]
		liar := r.b.workers["d2"]
		at(d, 2, "Tokens", func() {
			for _, k := range d.reservations() {
				liar.deliver(&buspb.Status{
					Handoff: []byte(k), Side: buspb.Side_SIDE_DESTINATION, Seq: 99,
					Body: &buspb.Status_Tokens{Tokens: &buspb.Tokens{From: 1, Tokens: []*buspb.Token{{Id: 'X', Piece: []byte("X")}}}},
				})
			}
		})
		if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
			t.Errorf("got %q", got)
		}
	})
}

func TestAcksComeBack(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		r.chatText(r.post("/v1/chat/completions", chatBody))
		time.Sleep(time.Second)
		d := r.b.workers["d1"]
		id := d.handoffOf(t)
		if acked, last := d.known(string(id[:]), buspb.Side_SIDE_DESTINATION); acked != last || acked == 0 {
			t.Errorf("acknowledged %d of %d", acked, last)
		}
	})
}

func TestBusOutage(t *testing.T) {
	t.Run("short", func(t *testing.T) {
		inBubble(t, nil, func(r *rig) {
			at(r.b.workers["d1"], 4, "Tokens", func() { r.b.setDown(true) })
			d := r.b.workers["d1"]
			time.AfterFunc(4*time.Second, func() {
				r.b.setDown(false)
				for _, k := range d.reservations() {
					d.repeat(k) // as a real worker does
				}
			})
			text, finish, done := streamed(r.post("/v1/chat/completions", streamBody).Body.String())
			if text != answerText || finish != "stop" || !done {
				t.Errorf("%q %q %v", text, finish, done)
			}
		})
	})
	t.Run("long", func(t *testing.T) {
		inBubble(t, nil, func(r *rig) {
			began := time.Now()
			at(r.b.workers["d1"], 4, "Tokens", func() { r.b.setDown(true) })
			body := r.post("/v1/chat/completions", streamBody).Body.String()
			if !strings.Contains(body, openai.CodeBusUnavailable) || strings.Count(body, `"error"`) != 1 {
				t.Errorf("%s", body)
			}
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("took %v", took)
			}
			r.wantError(r.post("/v1/chat/completions", chatBody), 503, openai.CodeBusUnavailable)
			r.b.setDown(false)
			if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
				t.Errorf("after the outage: %q", got)
			}
		})
	})
}

func TestDeadline(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) { cfg.RequestTimeout = 60 * time.Millisecond }, func(r *rig) {
		r.wantError(r.post("/v1/chat/completions", chatBody), 504, openai.CodeDeadline)
		r.stop()
		d := r.b.workers["d1"]
		id := d.handoffOf(t)
		if got := d.reason(id); got != buspb.Reason_REASON_DEADLINE {
			t.Errorf("cancelled for %v", got)
		}
	})
}

// TestTerms: both sides of an attempt are told the same budget and the same peers.
func TestTerms(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		var terms []*buspb.Terms
		for _, w := range r.b.all() {
			w.onCommand = func(cmd *buspb.Command) (*buspb.Reply, bool) {
				if c := cmd.GetReserve(); c != nil {
					terms = append(terms, c.GetTerms())
				}
				if c := cmd.GetPrefill(); c != nil {
					terms = append(terms, c.GetTerms())
				}
				return nil, false
			}
		}
		r.chatText(r.post("/v1/chat/completions", chatBody))
		if len(terms) != 2 || terms[0].GetBudgetMs() != terms[1].GetBudgetMs() || terms[0].GetBudgetMs() == 0 ||
			terms[1].GetRemainingMs() > terms[0].GetRemainingMs() || terms[0].GetTenant() != DefaultTenant {
			t.Errorf("%v", terms)
		}
		if d := cmp.Diff("p1 d1", terms[0].GetSource().GetWorker()+" "+terms[1].GetDestination().GetWorker()); d != "" {
			t.Error(d)
		}
	})
}
