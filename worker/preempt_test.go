package worker

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/telemetry"
)

// shrink gives a worker that owns nothing the memory of a smaller engine.
func shrink(t *testing.T, w *Worker, cells int) {
	t.Helper()
	info := w.info
	info.Cells = cells
	m := memoryOf(t, w.cfg, info)
	inspect(w, func() { w.mem = m })
}

// preemptions reads a worker's metric.
func preemptions(t *testing.T, w *Worker, p telemetry.Preemption) (n int) {
	t.Helper()
	page := httptest.NewRecorder()
	w.cfg.Metrics.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "tandem_worker_preemptions_total") && strings.Contains(line, `outcome="`+string(p)+`"`) {
			if _, err := fmt.Sscan(line[strings.LastIndex(line, " "):], &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("the metric is missing")
	return 0
}

// chunks returns the chunks that a worker computed, in order.
func chunks(w *Worker, id handoff.ID) (all [][2]int) {
	for _, e := range w.cfg.Events.Since(0) {
		if e.Kind == telemetry.ChunkComputed && (e.Handoff == id || id.IsZero()) {
			all = append(all, [2]int{e.First, e.End})
		}
	}
	return all
}

// judge is an idle engine that reads prompts and answers.
type judge struct {
	t       *testing.T
	eng     engine.Engine
	experts bool
}

func newJudge(t *testing.T, arch tiny.Arch) *judge {
	t.Helper()
	lib, err := install.Ensure(t.Context(), install.Options{})
	if err != nil {
		t.Fatal(err)
	}
	file, err := tiny.Cached(arch)
	if err != nil {
		t.Fatal(err)
	}
	eng, err := llama.Open(llama.Options{Lib: lib.Dir, Model: file, Slots: 1, Cells: 2048, BatchTokens: 64, UBatch: 64, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	return &judge{t, eng, arch == tiny.NemotronHMoE}
}

// noise is how far below the best logit, as a part of their range, one may be that another
// order of additions prefers. Neighbours cost some 0.0005; a wrong prefix far beyond 0.05.
const noise = 0.005

// reads checks a greedy answer token by token: each is what the model says after those
// before it, up to the noise of neighbours and of chunks. Where the noise chooses other
// experts, single tokens are beyond it; after a wrong state nearly all are.
func (j *judge) reads(what string, prompt, answer []int32) {
	j.t.Helper()
	logits := enginetest.Prefill(j.t, j.eng, 0, prompt, 64, nil)
	beyond, allowed := 0, 0
	if j.experts {
		allowed = len(answer) / 20
	}
	for i, token := range answer {
		best, got := logits[enginetest.Argmax(logits)], logits[token]
		if best-got > noise*(best-slices.Min(logits)) {
			if beyond++; beyond > allowed {
				j.t.Errorf("%s: token %d has logit %v, the best one %v; it is number %d of those", what, i, got, best, beyond)
			}
		}
		if err := j.eng.Decode(enginetest.Rows([]int32{token}, len(prompt)+i, 0)); err != nil {
			j.t.Fatal(err)
		}
		var err error
		if logits, err = j.eng.Logits(0); err != nil {
			j.t.Fatal(err)
		}
	}
	if err := j.eng.Drop(0); err != nil {
		j.t.Fatal(err)
	}
}

// request is a greedy request that a test makes.
type request struct {
	id     handoff.ID
	prompt []int32
	tokens int
}

// runAll gives a worker colocated requests all at once, before it computes anything.
func (l *lab) runAll(w *Worker, all []request) {
	l.t.Helper()
	inspect(w, func() {
		for i := range all {
			c := runCommand(all[i].id, 1, all[i].tokens)
			c.GetRun().Generation.Tokens = slices.Clone(all[i].prompt)
			if r := w.execute(c, w.now()); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
				l.t.Errorf("run: %v", r)
			}
		}
	})
}

// checkAll waits for the answers of runAll.
func (l *lab) checkAll(j *judge, all []request) {
	l.t.Helper()
	for i, q := range all {
		if o := l.released(q.id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_FINISHED_AT_SOURCE {
			l.t.Errorf("answer %d ended as %v", i, o)
		}
		got, finish := l.tokens(q.id)
		if len(got) != q.tokens || finish != buspb.Finish_FINISH_LENGTH {
			l.t.Errorf("answer %d has %d tokens, finish %v", i, len(got), finish)
		}
		if u := l.answer(q.id); int(u.cached+u.computed) != len(q.prompt) {
			l.t.Errorf("answer %d: %d cached and %d computed of a prompt of %d", i, u.cached, u.computed, len(q.prompt))
		}
		// What a preemption computes again is not the request's first time: its usage stays.
		if u := l.await(q.id, "the end", func(s *buspb.Status) bool { return s.GetEnded() != nil }).GetEnded().GetUsage(); int(u.GetCached()+u.GetComputed()) != len(q.prompt) {
			l.t.Errorf("answer %d: %d cached and %d computed of a prompt of %d in the end", i, u.GetCached(), u.GetComputed(), len(q.prompt))
		}
		j.reads(fmt.Sprint("answer ", i), q.prompt, got)
	}
}

// Many answers in memory for two or three of them: the younger ones lose theirs, are
// computed again and go on where they were, and their clients notice nothing.
func TestPreemptedAnswersGoOn(t *testing.T) {
	for _, arch := range []tiny.Arch{tiny.Llama, tiny.NemotronHMoE} {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			w := l.worker("p", RolePrefill, arch, func(c *Config) { c.Headroom = 16 })
			shrink(t, w, 6*64)
			var all []request
			for i := range 8 {
				all = append(all, request{newID(), testPrompt(200)[7*i : 90+15*i], 70 + 10*i})
			}
			l.runAll(w, all)
			l.checkAll(newJudge(t, arch), all)
			if n := preemptions(t, w, telemetry.Recomputed); n < 3 || preemptions(t, w, telemetry.Lost) != 0 {
				t.Errorf("%d requests were preempted, %d failed", n, preemptions(t, w, telemetry.Lost))
			}
			again := 0
			for _, q := range all {
				for i, c := range chunks(w, q.id) {
					if i > 0 && c[0] == 0 {
						again++
					}
				}
			}
			if n := preemptions(t, w, telemetry.Recomputed); again != n {
				t.Errorf("%d requests were preempted, %d begun again", n, again)
			}
			if begun := chunks(w, all[0].id); len(begun) != 2 {
				t.Errorf("the oldest one was computed in chunks %v: it lost its memory", begun)
			}
			l.idle(w)
			empty(t, w)
		})
	}
}

// empty checks that a worker that owns nothing holds nothing.
func empty(t *testing.T, w *Worker) {
	t.Helper()
	inspect(w, func() {
		if s := w.mem.kv.Snapshot(); !w.mem.sched.Drained() || s.Free != s.Blocks || w.mem.mirror.Empty() != w.info.Slots {
			t.Errorf("idle, but %+v, %d slots empty, drained %v", s, w.mem.mirror.Empty(), w.mem.sched.Drained())
		}
		for slot := range int32(w.info.Slots) {
			if err := w.eng.Retire(slot); err == nil {
				t.Errorf("slot %d still holds something", slot)
			}
		}
	})
}

// Case 15: a prompt that loses its memory before its last chunk is computed again before it
// is pinned, and its destination gets all of it.
func TestPreemptedPromptIsNotPinned(t *testing.T) {
	for _, arch := range []tiny.Arch{tiny.Llama, tiny.NemotronHMoE} {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			source, dst := l.worker("p", RolePrefill, arch, nil), l.worker("d", RoleDecode, arch, nil)
			shrink(t, source, 6*64)
			// The answer fills its only block when four of the other prompt's five chunks
			// are computed, and needs another.
			older := []request{{newID(), testPrompt(60), 20}}
			a := l.attempt(source, dst, testPrompt(300), 12).sourceFirst()
			a.gen.Sampling = nil
			inspect(source, func() {
				c := runCommand(older[0].id, 60, older[0].tokens)
				p := a.prefillCommand(nil)
				p.Gateway, p.GatewayIncarnation = "gw", 1
				for _, c := range []*buspb.Command{c, p} {
					if r := source.execute(c, source.now()); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
						t.Errorf("%v", r)
					}
				}
			})
			p := l.await(a.id, "the pin", func(s *buspb.Status) bool { return s.GetPinned() != nil }).GetPinned()
			want := [][2]int{{0, 64}, {64, 128}, {128, 192}, {192, 256}, {0, 64}, {64, 128}, {128, 192}, {192, 256}, {256, 300}}
			if got := chunks(source, a.id); !slices.Equal(got, want) {
				t.Errorf("the prompt was computed in chunks %v, want %v", got, want)
			}
			if n := preemptions(t, source, telemetry.Recomputed); n != 1 {
				t.Errorf("%d requests were preempted", n)
			}
			l.command(a.dst, a.pullCommand(p))
			if o := l.released(a.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_COMPLETED {
				t.Errorf("the destination ended as %v", o)
			}
			l.released(a.id, buspb.Side_SIDE_SOURCE)
			j := newJudge(t, arch)
			l.checkAll(j, older)
			got, _ := l.tokens(a.id)
			if len(got) != 12 {
				t.Errorf("%d tokens", len(got))
			}
			j.reads("the handed over answer", a.gen.Tokens, got)
			for _, w := range []*Worker{source, dst} {
				l.idle(w)
				empty(t, w)
			}
		})
	}
}

// Case 16: an answer that was handed over and loses its memory is computed again where it
// is, if prompts may be computed there; the source has nothing any more and is not asked.
func TestPreemptedAfterHandoffIsComputedHere(t *testing.T) {
	for _, arch := range []tiny.Arch{tiny.Llama, tiny.NemotronHMoE} {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			source, dst := l.worker("p", RolePrefill, arch, nil), l.worker("b", RoleBoth, arch, nil)
			shrink(t, dst, 20*64) // half for what peers send, of which each answer needs seven blocks in the end
			var all []*attempt
			for i := range 2 {
				a := l.attempt(source, dst, testPrompt(200 + 20*i)[20*i:], 200)
				a.gen.Sampling = nil
				all = append(all, a)
			}
			to := []*buspb.Reserved{l.reserve(all[0]), l.reserve(all[1])}
			for i, a := range all {
				l.command(a.source, a.prefillCommand(to[i]))
			}
			j := newJudge(t, arch)
			for i, a := range all {
				if o := l.released(a.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_COMPLETED {
					t.Errorf("answer %d ended as %v", i, o)
				}
				l.released(a.id, buspb.Side_SIDE_SOURCE)
				got, finish := l.tokens(a.id)
				if len(got) != 200 || finish != buspb.Finish_FINISH_LENGTH {
					t.Errorf("answer %d has %d tokens, finish %v", i, len(got), finish)
				}
				j.reads(fmt.Sprint("answer ", i), a.gen.Tokens, got)
				if u := l.ended(a, buspb.Side_SIDE_DESTINATION).GetUsage(); u.GetComputed() != 200 {
					t.Errorf("answer %d: %d tokens of its prompt were computed for the request", i, u.GetComputed())
				}
			}
			if n := preemptions(t, dst, telemetry.Recomputed); n != 1 {
				t.Errorf("%d answers were preempted, want 1", n)
			}
			if n := l.computedOn(source); n != 400 {
				t.Errorf("the source computed %d tokens of two prompts of 200", n)
			}
			if n := l.computedOn(dst); n < 200 {
				t.Errorf("%d tokens were computed again", n)
			}
			for _, w := range []*Worker{source, dst} {
				l.idle(w)
				empty(t, w)
			}
		})
	}
}

// A decode worker computes no prompts: an answer that lost its memory there fails alone, as
// one that may be sent again.
func TestDecodeWithoutMemoryFails(t *testing.T) {
	l := newLab(t)
	source, dst := l.worker("p", RolePrefill, tiny.Llama, nil), l.worker("d", RoleDecode, tiny.Llama, nil)
	shrink(t, dst, 640)
	a, b := l.attempt(source, dst, testPrompt(200), 200), l.attempt(source, dst, testPrompt(200), 200)
	toA, toB := l.reserve(a), l.reserve(b) // four of ten blocks each, until they decode
	l.command(a.source, a.prefillCommand(toA))
	if o := l.released(a.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_FAILED {
		t.Errorf("an answer of seven blocks beside a reservation of four ended as %v", o)
	}
	ended := l.await(a.id, "its end", func(s *buspb.Status) bool { return s.Side == buspb.Side_SIDE_DESTINATION && s.GetEnded() != nil }).GetEnded()
	if ended.Code != buspb.Code_CODE_OVERLOADED {
		t.Errorf("it failed with %v: %s", ended.Code, ended.Message)
	}
	if n := preemptions(t, dst, telemetry.Lost); n != 1 {
		t.Errorf("%d answers failed, by the metric", n)
	}
	l.command(b.source, b.prefillCommand(toB))
	if o := l.released(b.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_COMPLETED {
		t.Errorf("the other ended as %v", o)
	}
	if got, _ := l.tokens(b.id); len(got) != 200 {
		t.Errorf("the other has %d tokens", len(got))
	}
	l.idle(source)
	l.idle(dst)
}

// With headroom for whole answers nobody is preempted: who does not fit waits.
func TestHeadroomForWholeAnswers(t *testing.T) {
	l := newLab(t)
	w := l.worker("p", RolePrefill, tiny.Llama, func(c *Config) { c.Headroom = 8192 })
	shrink(t, w, 640)
	all := []request{{newID(), testPrompt(200), 200}, {newID(), testPrompt(200), 200}}
	l.runAll(w, all)
	l.checkAll(newJudge(t, tiny.Llama), all)
	if n := preemptions(t, w, telemetry.Recomputed) + preemptions(t, w, telemetry.Lost); n != 0 {
		t.Errorf("%d requests were preempted", n)
	}
	l.idle(w)
}

// Steps of two pages compute two prompts in turns, each chunk as a batch of its own: both
// answers are those of prompts computed alone.
func TestSeveralPromptsInAStep(t *testing.T) {
	for steps, want := range map[int][][2]int{
		64:  {{0, 64}, {64, 128}, {128, 150}, {0, 64}, {64, 128}, {128, 150}},
		128: {{0, 64}, {0, 64}, {64, 128}, {64, 128}, {128, 150}, {128, 150}},
	} {
		t.Run(fmt.Sprint(steps), func(t *testing.T) {
			l := newLab(t)
			w := l.worker("p", RolePrefill, tiny.NemotronHMoE, func(c *Config) { c.StepTokens = steps })
			all := []request{{newID(), testPrompt(150), 8}, {newID(), testPrompt(170)[20:], 8}}
			l.runAll(w, all)
			l.checkAll(newJudge(t, tiny.NemotronHMoE), all)
			if got := chunks(w, handoff.ID{}); !slices.Equal(got, want) {
				t.Errorf("chunks %v, want %v", got, want)
			}
			l.idle(w)
		})
	}
}
