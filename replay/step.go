package replay

import (
	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/replay/report"
	"github.com/tandem-llm/tandem/sched"
)

// Bounds of a stretch in steps, and in time summed over its rows, so that it stays
// countable.
const (
	maxStretch                = 1 << 16
	longestStretch timed.Time = 1 << 62
)

// run starts a worker's next step, or a stretch of steps, if it has something to
// compute and nothing is running.
func (h *host) run(w *worker) {
	if w.stepping || w.stretch > 0 || w.sched.Idle() {
		return
	}
	if !h.opt.StepByStep && len(w.joined) == 0 && w.lastDecode == h.now && w.pool.cost.stretches() {
		if n := w.sched.Steady(maxStretch); n > 1 {
			l := w.sched.Load()
			if took := w.pool.cost.stretch(l.Decoding, l.Context, n); took < longestStretch/timed.Time(l.Decoding) && took < timed.Never-h.now {
				w.stretch, w.decodes, w.context = n, l.Decoding, l.Context
				w.begun, w.ends = h.now, h.now+took
				h.steps.Set(w.number, w.ends, uint64(w.number))
				return
			}
		}
	}
	h.plan(w, h.now)
	h.sample(w) // if something was preempted
	if !w.stepping && len(w.facts) > 0 {
		h.goOn(w) // nothing is left to run, and something ended for want of memory
	}
}

// plan starts one step, which begins at a time.
func (h *host) plan(w *worker, at timed.Time) {
	step := w.sched.Plan(at.Duration())
	h.sync(w) // what was preempted has no row
	if step.Empty() {
		return
	}
	w.step, w.stepping, w.begun, w.lost = step, true, at, 0
	w.inStep = 0
	if len(step.Decodes) > 0 {
		w.inStep = len(w.joined)
	}
	b := &h.batch
	b.Decodes, b.Context, b.Drafts, b.Chunks = len(step.Decodes), step.Context, 0, b.Chunks[:0]
	for i := range step.Chunks {
		c := &step.Chunks[i]
		b.Chunks = append(b.Chunks, timed.Chunk{New: int(c.End - c.First), Past: int(c.First)})
		if a := h.attemptOf(w, c.Ref); a != nil && a.m.began == never {
			a.m.began = at
		}
	}
	w.ends = at + w.pool.cost.step(b)
	h.steps.Set(w.number, w.ends, uint64(w.number))
}

func (h *host) attemptOf(w *worker, ref sched.Ref) *attempt {
	if t := h.taskOf(w, ref); t != nil {
		return h.attempts.at(t.attempt)
	}
	return nil
}

// taskOf returns the task of a ref, nil when it was released.
func (h *host) taskOf(w *worker, ref sched.Ref) *task {
	if int(ref) < len(w.byRef) && w.byRef[ref] >= 0 {
		return h.tasks.at(w.byRef[ref])
	}
	return nil
}

// catchUp takes the steps of a stretch that have ended by now, and lets the one that
// runs go on as a step of its own: something may change that a stretch does not
// allow for.
func (h *host) catchUp(w *worker) {
	defer func() { w.before = w.kv.Snapshot() }()
	if w.stretch == 0 {
		return
	}
	n := w.pool.cost.within(w.decodes, w.context, h.now-w.begun, w.stretch)
	h.skip(w, n)
	w.stretch = 0
	h.plan(w, w.begun)
}

// skip takes so many steps of a stretch; w.begun is then when the next one begins.
func (h *host) skip(w *worker, n int) {
	if n == 0 {
		return
	}
	if w.sched.Skip(n) != n {
		h.defect(errSkip)
	}
	took := w.pool.cost.stretch(w.decodes, w.context, n)
	rows := w.decodes
	w.pool.cost.gaps(w.decodes, w.context, n, func(shortest, longest timed.Time, count int, sum timed.Time) {
		h.rec.GapRun(shortest, longest, count*rows, sum*timed.Time(rows))
	})
	w.busy(w.begun, w.begun+took, report.Decode)
	w.context += int64(n) * int64(w.decodes)
	w.begun += took
	w.lastDecode = w.begun
}

// stepEnds handles the end of a worker's step or stretch.
func (h *host) stepEnds(w *worker) {
	h.steps.Clear(w.number)
	if n := w.stretch; n > 0 {
		h.skip(w, n)
		w.stretch = 0
		w.before = w.kv.Snapshot()
		h.run(w)
		return
	}
	w.before = w.kv.Snapshot()
	step := w.step
	w.stepping = false
	w.busy(w.begun, w.ends, workOf(&step))
	if n := len(step.Decodes); n > 0 {
		h.decoded(w, n)
	}
	for i := range step.Chunks {
		h.computed(w, &step.Chunks[i])
	}
	w.sched.Done(h.now.Duration(), sched.Results{})
	if len(step.Chunks) > 0 {
		w.changed = true
	}
	h.sync(w)
	h.goOn(w)
}

// workOf is the kind of work that a step is.
func workOf(s *sched.Step) report.Work {
	switch {
	case len(s.Decodes) == 0:
		return report.Prefill
	case len(s.Chunks) > 0:
		return report.Mixed
	}
	return report.Decode
}

// decoded accounts for the tokens of a step's decodes.
func (h *host) decoded(w *worker, rows int) {
	together := rows - w.lost
	for i := range w.inStep {
		t := h.tasks.at(w.joined[i])
		h.sampledToken(t, h.attempts.at(t.attempt).forced+w.sched.Info(t.ref).Tokens)
		t.joined, t.decoding = false, true
		together--
	}
	w.joined = w.joined[:copy(w.joined, w.joined[w.inStep:])]
	w.inStep = 0
	if together > 0 {
		h.rec.Gaps(h.now-w.lastDecode, together)
	}
	w.lastDecode = h.now
}

// computed handles a chunk that is done, before the scheduler knows.
func (h *host) computed(w *worker, c *sched.Chunk) {
	t := h.taskOf(w, c.Ref)
	if t == nil || t.stopped {
		return
	}
	a := h.attempts.at(t.attempt)
	t.computed = int(c.End)
	if a.m.ready == never && t.side == handoff.RoleSource && a.policy != handoff.Disabled && h.cfg.StreamsPages() &&
		h.pageBytes(a, t.computed, t.prompt) > 0 { // else the destination has it
		a.m.ready = h.now
	}
	if !c.Last {
		h.export(t, a)
		return
	}
	a.m.prompted = h.now
	if a.flowing {
		a.m.overlapped = h.net.Moving(h.now, a.flow)
	}
	have := a.forced + w.sched.Info(c.Ref).Tokens
	h.sampledToken(t, have)
	if !t.sampled {
		t.sampled = true
		finish := handoff.Finish(0)
		if have+1 >= h.requests.at(a.request).output {
			finish = handoff.FinishLength
		}
		h.send(h.now+h.oneWay, event{kind: evTokens, side: handoff.RoleSource, subject: t.attempt, n: int64(have + 1), finish: finish})
	}
	if (t.side == handoff.RoleDestination || a.policy == handoff.Disabled) && have+1 < h.requests.at(a.request).output {
		h.join(w, t)
	}
	h.export(t, a)
}

// join notes that a task's next token does not come one step after its last one.
func (h *host) join(w *worker, t *task) {
	if !t.joined {
		t.joined = true
		w.joined = append(w.joined, t.number)
	}
}

// unjoin forgets that, and when its last token came if it is one of those that get
// them together.
func (h *host) unjoin(w *worker, t *task) {
	if !t.joined {
		if t.decoding {
			t.decoding = false
			q := h.requests.at(h.attempts.at(t.attempt).request)
			q.lastAt = max(q.lastAt, w.lastDecode+h.oneWay)
		}
		return
	}
	t.joined = false
	for i, n := range w.joined {
		if n == t.number {
			w.joined = append(w.joined[:i], w.joined[i+1:]...)
			if i < w.inStep {
				w.inStep--
				w.lost++
			}
			return
		}
	}
}

// sampledToken notes that a request's token came, at whatever distance from the one
// before. Times are those at which the gateway has it.
func (h *host) sampledToken(t *task, index int) {
	q := h.requests.at(h.attempts.at(t.attempt).request)
	at := h.now + h.oneWay
	switch {
	case index == 0:
		if q.firstAt == 0 {
			q.firstAt = at
		}
	case index == 1 && q.secondAt == 0:
		q.secondAt = at
	}
	if index > 0 && at > q.lastAt && q.lastAt > 0 {
		h.rec.Gaps(at-q.lastAt, 1)
	}
	q.lastAt = at
}
