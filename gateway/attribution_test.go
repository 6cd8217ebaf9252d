package gateway

import (
	"encoding/json"
	"math"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/telemetry"
)

// attributed makes a scripted worker send numbers with its Committed and Ended.
func attributed(w *worker, m *buspb.Attribution) {
	w.onStatus = func(st *buspb.Status) []*buspb.Status {
		if e := st.GetEnded(); e != nil {
			e.Attribution = m
		}
		if c := st.GetCommitted(); c != nil {
			c.Attribution = m
		}
		return []*buspb.Status{st}
	}
}

// list asks for records, newest first.
func (r *rig) list(query string) []*telemetry.Handoff {
	r.t.Helper()
	synctest.Wait() // what workers said at once is here
	w := httptest.NewRecorder()
	r.g.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/tandem/handoffs"+query, nil))
	var out telemetry.HandoffList
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != 200 {
		r.t.Fatalf("%d %v: %s", w.Code, err, w.Body)
	}
	return out.Handoffs
}

const ms = time.Millisecond

func nanos(d time.Duration) uint64 { return uint64(d) }

func TestRecordJoinsBothSides(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) {
		cfg.SLO = telemetry.SLO{TTFT: 50 * ms, TPOT: 5 * ms}
		attributed(b.add("p1", "prefill"), &buspb.Attribution{
			Role: "prefill", NowNs: nanos(10 * ms), SlotNs: nanos(1 * ms), PromptedNs: nanos(4 * ms), SentNs: nanos(8 * ms), CommittedNs: nanos(10 * ms),
			Compute: &buspb.Work{Count: 2, BusyNs: nanos(3 * ms), Spans: []*buspb.Span{{BeginNs: nanos(1 * ms), EndNs: nanos(4 * ms), BusyNs: nanos(3 * ms)}}},
			Export:  &buspb.Work{Count: 2, BusyNs: nanos(2 * ms)}, Seal: &buspb.Work{Count: 2, BusyNs: nanos(ms)},
			BeforeSentBytes: 250, BeforeExportNs: nanos(ms),
			Stream: &buspb.Stream{Lane: "quic", Bytes: 1000, Units: 2, BusyNs: nanos(4 * ms), RttNs: 100_000}, Pages: 1, Snapshots: 1,
			Components:   []*buspb.ComponentBytes{{Kind: 1, Bytes: 800}, {Kind: 3, Bytes: 200}, {Kind: 16, Bytes: 9}, {Kind: 999, Bytes: 9}},
			PromptTokens: 2, ComputedTokens: 2, SkippedTokens: 1, SkippedBytes: 70, Mtp: &buspb.MTP{Reason: "not built"},
		})
		attributed(b.add("d1", "decode"), &buspb.Attribution{
			Role: "decode", NowNs: nanos(60 * ms), SlotNs: nanos(2 * ms), OpenedNs: nanos(3 * ms), CompleteNs: nanos(18 * ms), ReadyNs: nanos(19 * ms),
			Import: &buspb.Work{Count: 2, BusyNs: nanos(3 * ms)}, PromptTokens: 2, CachedTokens: 1, Mtp: &buspb.MTP{Reason: "not built"},
		})
	}, func(r *rig) {
		r.chatText(r.post("/v1/chat/completions", chatBody))
		list := r.list("")
		if len(list) != 1 {
			t.Fatalf("%d records", len(list))
		}
		h := list[0]
		want := telemetry.Handoff{
			Seq: 1, Attempt: 1, Why: telemetry.RetryNone, Mode: telemetry.Disaggregated, Policy: handoff.DestinationFirst,
			Chosen: telemetry.ChosenPair, Ending: telemetry.EndedHandedOff, Target: telemetry.TargetCommitted,
			MTP: telemetry.MTPNotBuilt, MTPWhy: "not built",
			Request: telemetry.Request{
				Mode: telemetry.Disaggregated, Outcome: telemetry.Stopped, Attempts: 1, Prompt: h.Request.Prompt,
				Cached: 2, Completion: 15, TTFT: 10 * ms, TPOT: h.Request.TPOT, Total: h.Request.Total,
				SLO: telemetry.Verdicts{TTFT: telemetry.VerdictWithin, TPOT: telemetry.VerdictOutside},
			},
			// Commands are answered at once here, which is when their clocks began: at 0 and, with the
			// ticket, at 5 ms. A destination that commits within 30 ms of the gateway's clock cannot
			// have begun 60 ms before; the command bounds it.
			Source: telemetry.Part{
				Worker: "p1", Incarnation: 1, Role: "prefill", Reported: true, At: 5 * ms,
				Slot: ms, Prompted: 4 * ms, Sent: 8 * ms, Committed: 10 * ms,
				Compute: telemetry.Work{Count: 2, Busy: 3 * ms, Spans: []telemetry.Span{{Begin: ms, End: 4 * ms, Busy: 3 * ms}}},
				Export:  telemetry.Work{Count: 2, Busy: 2 * ms}, Seal: telemetry.Work{Count: 2, Busy: ms},
				Before: telemetry.Before{Sent: 250, Export: ms},
				Stream: telemetry.Stream{Lane: "quic", Bytes: 1000, Units: 2, Busy: 4 * ms, RTT: ms / 10}, Pages: 1, Snapshots: 1,
				Components: []telemetry.Component{{Name: "attention_kv", Bytes: 800}, {Name: "recurrent", Bytes: 200}},
				Prompt:     2, Computed: 2, Skipped: 1, SkippedBytes: 70,
			},
			Destination: &telemetry.Part{
				Worker: "d1", Incarnation: 1, Role: "decode", Reported: true, Slot: 2 * ms, Opened: 3 * ms, Complete: 18 * ms, Ready: 19 * ms,
				Import: telemetry.Work{Count: 2, Busy: 3 * ms}, Stream: telemetry.Stream{Lane: "none"}, Prompt: 2, Cached: 1,
			},
			Gateway: h.Gateway, Summary: h.Summary, ID: h.ID,
		}
		// Offsets are never 0 where something happened: the first instant is 1 ns.
		about := cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() <= 1 })
		if d := cmp.Diff(&want, h, about, cmpopts.IgnoreFields(telemetry.Request{}, "Key", "Arrived")); d != "" {
			t.Error(d)
		}
		g := h.Gateway
		if !(g.Placed > 0 && g.Placed <= g.Reserve && g.Reserve < g.Reserved && g.Reserved <= g.Dispatched && g.Dispatched < g.Tokens[0] &&
			g.Tokens[0] < g.Committed && g.Committed <= g.Tokens[1] && g.Tokens[7] < g.Ended) || len(g.Tokens) != telemetry.MaxTokenTimes {
			t.Errorf("the gateway's times: %+v", g)
		}
		if s := h.Summary; s.Tail != 6*ms || s.Overlap.Bytes != .25 || s.Second != g.Tokens[1]-g.Tokens[0] || s.Bandwidth != 250_000 {
			t.Errorf("summary %+v", s)
		}
		if !strings.HasPrefix(h.Request.Key, "chatcmpl-") || h.Request.Arrived.IsZero() {
			t.Errorf("request %q at %v", h.Request.Key, h.Request.Arrived)
		}
		r.metric(`tandem_handoffs_total{ending="handed-off",lane="quic",mode="disaggregated"} 1`)
		r.metric(`tandem_slo_requests_total{result="outside",slo="tpot"} 1`)
		r.metric(`tandem_goodput_requests_total 0`)
		r.metric(`tandem_handoff_skipped_bytes_total 70`)
		r.metric(`tandem_handoff_tokens_total{kind="cached",side="destination"} 1`)
	})
}

// metric looks for a line in what the gateway serves.
func (r *rig) metric(line string) {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.g.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if !strings.Contains(w.Body.String(), "\n"+line+"\n") {
		r.t.Errorf("not in the metrics: %s", line)
	}
}

func TestRecordsOfColocatedRequests(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) { b.add("p1", "prefill") }, func(r *rig) {
		r.chatText(r.post("/v1/chat/completions", chatBody, "Tandem-Mode", "auto"))
		r.chatText(r.post("/v1/chat/completions", chatBody, "Tandem-Mode", "colocated"))
		list := r.list("")
		if len(list) != 2 {
			t.Fatalf("%d records", len(list))
		}
		for i, chosen := range []telemetry.Choice{telemetry.ChosenAsked, telemetry.ChosenFallback} {
			h := list[i]
			if h.Chosen != chosen || h.Mode != telemetry.Colocated || h.Ending != telemetry.EndedColocated || h.Target != telemetry.TargetNone ||
				h.Destination != nil || h.Source.Role != "prefill" || !h.Request.SLO.Good || h.MTP != telemetry.MTPUnknown {
				t.Errorf("record %+v", h)
			}
		}
		r.metric(`tandem_placements_total{choice="fallback"} 1`)
	})
}

// TestRecordsOfRetries: each attempt has a record with its number, what made it necessary and what
// ended it; a worker that died leaves its name only, and holds nothing up for long.
func TestRecordsOfRetries(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) {
		b.add("p1", "prefill")
		b.add("d1", "decode").onStatus = func(st *buspb.Status) []*buspb.Status {
			if st.GetCommitted() != nil {
				b.workers["d1"].kill()
				return nil
			}
			return []*buspb.Status{st}
		}
		b.add("d2", "decode")
	}, func(r *rig) {
		if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
			t.Fatalf("got %q", got)
		}
		time.Sleep(2 * lateReports)
		list := r.list("")
		if len(list) != 2 {
			t.Fatalf("%d records", len(list))
		}
		second, first := list[0], list[1]
		if first.Attempt != 1 || first.Why != telemetry.RetryNone || first.Ending != telemetry.EndedFailed || first.Target != telemetry.TargetReserved ||
			first.Failure == nil || first.Failure.Code != "worker_lost" || first.Failure.Side != telemetry.Destination || first.Destination.Worker != "d1" || first.Destination.Reported {
			t.Errorf("first attempt: %+v, failure %+v, destination %+v", first, first.Failure, first.Destination)
		}
		if second.Attempt != 2 || second.Why != telemetry.RetryWorkerLost || second.Ending != telemetry.EndedHandedOff || second.Failure != nil ||
			second.Destination.Worker != "d2" || second.Request != first.Request || second.Request.Attempts != 2 {
			t.Errorf("second attempt: %+v", second)
		}
		if d := cmp.Diff(list[1:], r.list("?id="+first.ID.String())); d != "" {
			t.Errorf("by the handoff's id: %s", d)
		}
		if n := len(r.list("?id=" + first.Request.Key)); n != 2 {
			t.Errorf("by the request's id: %d records", n)
		}
	})
}

// TestRecordsSayWhoGaveUp: an attempt that no worker failed has the gateway's reason.
func TestRecordsSayWhoGaveUp(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(cfg *Config, b *scripted)
		want    telemetry.Failure
	}{
		"silent": {func(_ *Config, b *scripted) { b.workers["d1"].silent = true }, telemetry.Failure{Side: telemetry.Destination, Phase: "reserve", Code: "worker_failed"}},
		"idle": {func(_ *Config, b *scripted) {
			b.workers["d1"].onCommand = func(cmd *buspb.Command) (*buspb.Reply, bool) { return accepted, cmd.GetReserve() != nil }
		}, telemetry.Failure{Phase: "transfer", Code: "no_progress"}},
		"refuses": {func(_ *Config, b *scripted) {
			b.workers["d1"].onCommand = func(cmd *buspb.Command) (*buspb.Reply, bool) {
				return &buspb.Reply{Verdict: buspb.Verdict_VERDICT_REFUSED, Code: buspb.Code_CODE_OVERLOADED, Retry: true}, cmd.GetReserve() != nil
			}
		}, telemetry.Failure{Side: telemetry.Destination, Phase: "reserve", Code: "overloaded"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(cfg *Config, b *scripted) {
				twoPairs(cfg, b)
				c.prepare(cfg, b)
			}, func(r *rig) {
				r.chatText(r.post("/v1/chat/completions", chatBody))
				time.Sleep(2 * lateReports)
				list := r.list("")
				if len(list) != 2 || list[1].Failure == nil || *list[1].Failure != c.want || list[0].Ending != telemetry.EndedHandedOff {
					t.Fatalf("records %+v, failure %+v", list, list[len(list)-1].Failure)
				}
			})
		})
	}
	inBubble(t, func(cfg *Config, b *scripted) {
		cfg.ShutdownGrace = time.Millisecond
		b.add("p1", "prefill")
		b.add("d1", "decode")
	}, func(r *rig) {
		stopped := make(chan struct{})
		time.AfterFunc(20*ms, func() { r.stop(); close(stopped) })
		r.wantError(r.post("/v1/chat/completions", chatBody), 503, "shutting_down")
		<-stopped
		if list := r.list(""); len(list) != 1 || list[0].Failure == nil || list[0].Failure.Code != "shutting_down" || list[0].Failure.Side != "" || list[0].Ending != telemetry.EndedFailed {
			t.Errorf("records %+v", list)
		}
	})
}

// TestRecordWaitsForReports: the last token may overtake what a worker measured.
func TestRecordWaitsForReports(t *testing.T) {
	for name, lost := range map[string]bool{"late": false, "lost": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(cfg *Config, b *scripted) {
				b.add("p1", "prefill")
				d := b.add("d1", "decode")
				d.onStatus = func(st *buspb.Status) []*buspb.Status {
					if st.GetEnded() == nil {
						return []*buspb.Status{st}
					}
					st.GetEnded().Attribution = &buspb.Attribution{Role: "decode", Pages: 7}
					if !lost {
						time.AfterFunc(time.Second/2, func() { d.deliver(st) })
					}
					return nil
				}
			}, func(r *rig) {
				r.chatText(r.post("/v1/chat/completions", chatBody))
				if n := len(r.list("")); n != 0 {
					t.Fatalf("%d records before the destination's report", n)
				}
				time.Sleep(time.Second)
				if n := len(r.list("")); n == 0 != lost {
					t.Fatalf("%d records a second later", n)
				}
				time.Sleep(lateReports)
				list := r.list("")
				if len(list) != 1 || list[0].Destination.Reported == lost || list[0].Ending != telemetry.EndedHandedOff {
					t.Errorf("records %+v", list)
				}
			})
		})
	}
}

// TestRecordsAreLostByNobody: shutting down publishes what still waits.
func TestRecordsAreLostByNobody(t *testing.T) {
	inBubble(t, func(cfg *Config, b *scripted) {
		b.add("p1", "prefill")
		b.add("d1", "decode").onStatus = func(st *buspb.Status) []*buspb.Status {
			if st.GetEnded() != nil {
				return nil
			}
			return []*buspb.Status{st}
		}
	}, func(r *rig) {
		r.chatText(r.post("/v1/chat/completions", chatBody))
		r.stop()
		if n := len(r.list("")); n != 1 {
			t.Errorf("%d records", n)
		}
	})
}

// TestHostileNumbers: whatever a worker says it measured, the record stays within bounds and the
// request unharmed.
func TestHostileNumbers(t *testing.T) {
	huge := &buspb.Work{Count: math.MaxUint32, BusyNs: math.MaxUint64}
	for range 100 {
		huge.Spans = append(huge.Spans, &buspb.Span{BeginNs: math.MaxUint64, EndNs: 1, BusyNs: math.MaxUint64})
	}
	m := &buspb.Attribution{
		Role: strings.Repeat("x", 1000), NowNs: math.MaxUint64, SlotNs: math.MaxUint64, PromptedNs: math.MaxUint64, CommittedNs: 1, ReadyNs: math.MaxUint64,
		CompleteNs: math.MaxUint64, Compute: huge, Export: huge, Import: huge, Decode: huge, Verify: huge,
		Stream: &buspb.Stream{Lane: "<script>", Bytes: math.MaxUint64, Units: math.MaxUint32, BusyNs: 1, RttNs: math.MaxUint64},
		Mtp:    &buspb.MTP{Reason: strings.Repeat("é", 1000)}, BeforeSentBytes: math.MaxUint64, ComputedTokens: math.MaxUint64,
		SkippedTokens: math.MaxUint32, SkippedBytes: math.MaxUint64,
	}
	for range 1000 {
		m.Components = append(m.Components, &buspb.ComponentBytes{Kind: 1, Bytes: math.MaxUint64})
	}
	inBubble(t, func(cfg *Config, b *scripted) {
		attributed(b.add("p1", "prefill"), m)
		attributed(b.add("d1", "decode"), m)
	}, func(r *rig) {
		if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
			t.Errorf("got %q", got)
		}
		list := r.list("")
		doc, err := json.Marshal(list)
		if err != nil || len(list) != 1 || len(doc) > 10_000 || strings.Contains(string(doc), "script") {
			t.Errorf("%d records, %v: %s", len(list), err, doc)
		}
		r.metric(`tandem_handoffs_total{ending="handed-off",lane="other",mode="disaggregated"} 1`)
	})
}

func TestHandoffsQuery(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		for range 3 {
			r.chatText(r.post("/v1/chat/completions", chatBody))
		}
		for query, want := range map[string]int{
			"": 3, "?limit=2": 2, "?after=2": 1, "?after=3": 0, "?limit=999999999": 3, "?id=nobody": 0, "?after=1&limit=1": 1,
		} {
			if n := len(r.list(query)); n != want {
				t.Errorf("%q: %d records, want %d", query, n, want)
			}
		}
		for _, query := range []string{"?limit=0", "?limit=x", "?limit=-1", "?after=-1", "?id=" + strings.Repeat("a", 200)} {
			w := httptest.NewRecorder()
			r.g.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/tandem/handoffs"+query, nil))
			r.wantError(w, 400, "invalid_value")
		}
		w := httptest.NewRecorder()
		r.g.Handler().ServeHTTP(w, httptest.NewRequest("POST", "/tandem/handoffs", nil))
		r.wantError(w, 405, "method_not_allowed")
	})
}

// TestClocksArePlaced: a worker's clock began after its command and before all that was heard of it.
func TestClocksArePlaced(t *testing.T) {
	dest := &telemetry.Part{Ready: 50 * ms, Decode: telemetry.Work{Count: 1, Spans: []telemetry.Span{{Begin: 51 * ms, End: 60 * ms}}}}
	for _, c := range []struct {
		name    string
		side    handoff.Role
		sent    time.Duration
		heard   []time.Duration // now less what the worker's clock said
		tokens  []time.Duration
		sampled bool
		want    time.Duration
	}{
		{"nothing heard", handoff.RoleSource, 3 * ms, nil, nil, false, 3 * ms},
		{"the quickest message", handoff.RoleSource, 3 * ms, []time.Duration{9 * ms, 5 * ms, 7 * ms}, nil, false, 5 * ms},
		{"not before the command", handoff.RoleSource, 3 * ms, []time.Duration{2 * ms}, nil, false, 3 * ms},
		{"its first token", handoff.RoleSource, 3 * ms, []time.Duration{9 * ms}, []time.Duration{44 * ms}, true, 4 * ms},
		{"its first token, from the destination", handoff.RoleSource, 3 * ms, []time.Duration{9 * ms}, []time.Duration{44 * ms}, false, 4 * ms},
		{"its first step", handoff.RoleDestination, ms, []time.Duration{9 * ms}, []time.Duration{50 * ms, 65 * ms}, true, 5 * ms},
		{"the other's token", handoff.RoleDestination, ms, []time.Duration{9 * ms}, []time.Duration{50 * ms}, true, 9 * ms},
		{"its copy of the first token", handoff.RoleDestination, ms, []time.Duration{9 * ms}, []time.Duration{56 * ms, 60 * ms}, false, 6 * ms},
	} {
		d := &draft{}
		d.Source.Prompted, d.Destination = 40*ms, dest
		d.sent[c.side], d.Gateway.Tokens, d.Gateway.Sampled = c.sent, c.tokens, c.sampled
		for _, at := range c.heard {
			d.hear(c.side, at)
		}
		if got := d.began(c.side); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
