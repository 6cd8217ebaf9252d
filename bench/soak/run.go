package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/engine"
)

// Values of the header Tandem-Mode.
const (
	modeHandedOff = "disaggregated"
	modeColocated = "colocated"
)

// roundSize is how many requests are handed off before the fleet comes to rest and a part
// of them is served colocated.
const roundSize = 250

// run is one soak on its way.
type run struct {
	cfg    Config
	gen    *Generator
	table  *table
	tracer *tracer
	fleet  *Fleet
	client *client
	judge  *judge

	answers chan judged // to the goroutine that checks
	began   time.Time
	total   int // requests of all phases; guarded by mu
	done    atomic.Int64

	mu     sync.Mutex
	report *Report // guarded by mu
	failed bool    // guarded by mu

	footprints footprints // of the goroutine of Run
}

type judged struct {
	*Answer
	kind kind
}

// Run soaks a fleet. It returns a report also when ctx ends it early; an error without
// a report means that nothing could be checked. What does not hold is no error: see
// Report.Failed.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	r := &run{cfg: cfg, table: newTable(), tracer: newTracer(), began: time.Now()}
	say := cfg.Say
	r.cfg.Say = func(line string) { say(fmt.Sprintf("%4.0fs  %s", time.Since(r.began).Seconds(), line)) }
	machine := bench.NewReport("soak")
	r.report = &Report{Command: "soak", Settings: cfg.Settings, Points: map[string]int{}, Divergence: Divergence{Orders: map[Order]Share{}}}
	for _, name := range checkNames {
		r.report.Checks = append(r.report.Checks, &Check{Name: name})
	}
	eng, crowd, err := r.measure(ctx)
	if err != nil {
		return nil, err
	}
	defer eng.Close()
	defer crowd.Close()
	dir, err := os.MkdirTemp("", "tandem-soak-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for _, process := range r.processes() {
		if err := r.tracer.follow(process, filepath.Join(dir, process+".jsonl")); err != nil {
			r.tracer.close()
			return nil, err
		}
	}
	r.cfg.Say("starting the fleet")
	if r.fleet, err = cfg.Start(ctx, dir, r.event); err != nil {
		r.tracer.close()
		return nil, err
	}
	r.client = newClient(r.fleet, cfg.Patience)
	bound := r.report.Noise.Bound
	ctl := newControl(newReference(crowd, cfg.Page), r.gen, bound)
	r.judge = &judge{explain: ctl.explain, follow: newReference(eng, cfg.Page).follow, bound: bound, mu: &r.mu, report: r.report, check: r.check}
	r.answers = make(chan judged, 2*roundSize)
	var checking sync.WaitGroup
	checking.Go(func() {
		for a := range r.answers {
			if ctx.Err() == nil {
				r.judge.answer(ctx, a.Answer, a.kind)
				r.sawFailure()
			}
		}
	})
	said, stop := context.WithCancel(ctx)
	checking.Go(func() { r.saying(said) })
	complete := r.phases(ctx)
	close(r.answers)
	stop()
	stopErr := r.stop()
	r.cfg.Say("checking the last answers")
	checking.Wait()
	r.conclude(stopErr)
	machine.Finish(true)
	r.report.Machine = machine.Machine
	r.report.Complete = complete && ctx.Err() == nil
	r.report.Took = time.Since(r.began).Seconds()
	return r.report, ctx.Err()
}

func (r *run) processes() []string {
	all := []string{Gateway}
	for _, w := range r.cfg.Workers {
		all = append(all, w.Name)
	}
	return all
}

func (r *run) event(e Event) {
	r.table.event(e)
	if e.Kind == Exited {
		r.tracer.ended(e.Process)
	}
}

// measure opens the reference engine and another one, and measures the noise of
// batching.
func (r *run) measure(ctx context.Context) (eng, crowd engine.Engine, err error) {
	if eng, err = r.cfg.Open(); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = eng.Close()
		}
	}()
	if crowd, err = r.cfg.Open(); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = crowd.Close()
		}
	}()
	v := eng.Vocab()
	shape := Shape{Page: r.cfg.Page, Context: min(r.cfg.Context, eng.Info().ContextTokens)}
	for t := range int32(v.Size()) {
		if !v.IsEOG(t) && !v.IsControl(t) && len(v.Piece(t)) > 0 {
			shape.Vocab = append(shape.Vocab, t)
		}
	}
	if len(shape.Vocab) == 0 {
		return nil, nil, fmt.Errorf("%w: the model has no tokens to make prompts of", ErrConfig)
	}
	r.gen = NewGenerator(r.cfg.Seed, shape)
	r.cfg.Say("measuring the noise of batching")
	r.report.Noise, err = measureNoise(ctx, eng, crowd, r.cfg.Page, r.gen, noiseFor(r.cfg.Requests))
	return eng, crowd, err
}

// check returns a check of the report. The caller holds mu.
func (r *run) check(name string) *Check {
	for _, c := range r.report.Checks {
		if c.Name == name {
			return c
		}
	}
	panic("soak: no check " + name)
}

// with changes the report.
func (r *run) with(fn func(*Report)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(r.report)
}

// sawFailure looks whether the judge found one.
func (r *run) sawFailure() {
	r.with(func(*Report) {
		r.failed = r.failed || r.check(checkTokens).Failures+r.check(checkAlone).Failures > 0
	})
}

// over reports whether no more requests are to be sent.
func (r *run) over(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return ctx.Err() != nil || r.failed && !r.cfg.KeepGoing
}

// phases runs the load and reports whether all of it was sent.
func (r *run) phases(ctx context.Context) bool {
	n := r.cfg.Requests
	warm := 2 * len(r.cfg.Workers)
	r.with(func(*Report) { r.total = warm + n + (n+r.cfg.Compare-1)/r.cfg.Compare + max(0, r.cfg.Alone) })
	// Every worker has served, and knows its peers, before the first rest.
	r.settle(r.load(ctx, handedOff, r.span(2<<20, warm, 1), nil))
	r.rest(ctx)
	for first := 0; first < n && !r.over(ctx); first += roundSize {
		size := min(roundSize, n-first)
		seen := r.load(ctx, handedOff, r.span(first, size, 1), r.disruptions(first, size))
		r.rest(ctx)
		r.settle(seen)
		if r.over(ctx) {
			break
		}
		seen = r.load(ctx, colocated, r.span(first, size, r.cfg.Compare), nil)
		r.rest(ctx)
		r.settle(seen)
	}
	if r.over(ctx) {
		r.finalRest(ctx)
		return false
	}
	if k := r.alone(ctx, r.cached(ctx)); k == aloneCached && !r.over(ctx) {
		r.finalRest(ctx)
		r.cfg.Say("starting the workers anew, without caches")
		r.fleet.Plain()
		for _, w := range r.cfg.Workers {
			r.drain(ctx, w.Name)
		}
		r.rest(ctx)
		r.alone(ctx, false)
	}
	r.finalRest(ctx)
	return !r.over(ctx)
}

// alone sends the requests that run alone, and returns what they are judged as.
func (r *run) alone(ctx context.Context, cached bool) kind {
	k := alone
	if cached {
		k = aloneCached
		r.with(func(*Report) { r.total += max(0, r.cfg.Alone) })
	}
	for i := range max(0, r.cfg.Alone) {
		if r.over(ctx) {
			break
		}
		r.settle(r.load(ctx, k, r.span(1<<20+i, 1, 1), nil))
	}
	return k
}

// cached reports whether any worker keeps prefixes.
func (r *run) cached(ctx context.Context) bool {
	for _, w := range r.cfg.Workers {
		if _, m, err := r.scrape(ctx, w.Name); err == nil && m[`tandem_worker_cells{state="cached"}`] > 0 {
			return true
		}
	}
	return false
}

// finalRest says what is left at the end.
func (r *run) finalRest(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	held := r.rest(ctx)
	if ctx.Err() != nil {
		return
	}
	r.with(func(*Report) {
		c := r.check(checkHeld)
		c.judged()
		for _, h := range held {
			c.fail("%s", h)
		}
	})
}

// span makes the requests first, first+step, … below first+n.
func (r *run) span(first, n, step int) []*Request {
	var all []*Request
	for i := first; i < first+n; i += step {
		q := r.gen.Request(i)
		all = append(all, &q)
	}
	return all
}

// load sends requests, as many at once as there are clients, ends workers' lives as they
// are due, and returns all answers when everything has ended.
func (r *run) load(ctx context.Context, k kind, requests []*Request, due []Disruption) []*Answer {
	mode := modeHandedOff
	if k == colocated {
		mode = modeColocated
	}
	var clients, deaths sync.WaitGroup
	over := make(chan struct{})
	var mu sync.Mutex
	var seen []*Answer
	next := 0
	take := func() *Request {
		mu.Lock()
		defer mu.Unlock()
		if next == len(requests) || r.over(ctx) {
			return nil
		}
		q := requests[next]
		next++
		for len(due) > 0 && due[0].At <= q.Index {
			d := due[0]
			due = due[1:]
			deaths.Go(func() { r.disrupt(ctx, d, over) })
		}
		return q
	}
	for range min(r.cfg.Concurrency, len(requests)) {
		clients.Go(func() {
			for q := take(); q != nil; q = take() {
				a := r.client.ask(ctx, q, mode, k != handedOff)
				if ctx.Err() != nil {
					return // it did not end by itself
				}
				r.ended(a, k)
				mu.Lock()
				seen = append(seen, a)
				mu.Unlock()
				if a.End == Finished {
					r.answers <- judged{a, k}
				}
			}
		})
	}
	clients.Wait()
	close(over)
	deaths.Wait()
	return seen
}

// allowed are the errors that the death of workers explains.
var allowed = map[string]bool{"503 worker_failed": true, "503 no_workers": true, "503 overloaded": true}

// ended counts a request.
func (r *run) ended(a *Answer, k kind) {
	open := []string(nil)
	if a.End == Hung {
		open = r.tracer.ledger.open(r.cfg.Patience / 2)
	}
	r.done.Add(1)
	r.with(func(rep *Report) {
		c := r.check(checkEnds)
		c.judged()
		if a.End == Hung || a.End == Broken {
			c.fail("request %d (%s, %s): %s%s", a.Request.Index, a.ID, where(a), a.Why, list(open))
			r.failed = true
		}
		if a.End == Finished && a.Served != "" && a.Served != a.Mode {
			c.fail("request %d (%s) was served %s, not %s", a.Request.Index, a.ID, a.Served, a.Mode)
		}
		errs := r.check(checkErrors)
		errs.judged()
		if code := fmt.Sprintf("%d %s", a.Status, a.Code); a.End == Refused && (k != handedOff || r.cfg.Every < 0 || !allowed[code]) {
			errs.fail("request %d (%s, %s): %s", a.Request.Index, a.ID, where(a), code)
			r.failed = true
		}
		switch k {
		case handedOff:
			rep.HandedOff.add(a)
		case colocated:
			rep.Colocated.add(a)
		case alone:
			rep.Alone.add(a)
		case aloneCached:
			rep.AloneCached.add(a)
		}
	})
}

func list(lines []string) string {
	out := ""
	for _, l := range lines[:min(len(lines), 16)] {
		out += "\n        " + l
	}
	return out
}

// settle holds what clients saw against the gateway's records.
func (r *run) settle(seen []*Answer) { r.tracer.ledger.settle(seen) }

// saying prints progress until ctx ends.
func (r *run) saying(ctx context.Context) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	begun := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			done := r.done.Load()
			r.mu.Lock()
			left := "?"
			if done > 0 {
				per := time.Since(begun) / time.Duration(done)
				left = (per * time.Duration(max(0, int64(r.total)-done))).Round(time.Second).String()
			}
			line := fmt.Sprintf("%d of %d requests, %d workers killed, %d drained, %d errors, %d checks failed, %s left",
				done, r.total, r.report.Kills, r.report.Drains, r.report.HandedOff.Ends[Refused], len(r.report.Failed()), left)
			r.mu.Unlock()
			r.cfg.Say(line)
		}
	}
}

// stop ends the fleet and reads what it still says.
func (r *run) stop() error {
	r.table.expectEnd()
	r.cfg.Say("stopping the fleet")
	err := r.fleet.Stop()
	r.tracer.close()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return err
}

// conclude judges what is known when everything has ended.
func (r *run) conclude(stopErr error) {
	rep := r.report
	var faults []string
	rep.Attempts, faults = r.tracer.ledger.summary()
	ledger := r.check(checkLedger)
	ledger.judged()
	for _, f := range faults {
		ledger.fail("%s", f)
	}
	t := r.tracer
	replay := r.check(checkReplay)
	if rep.Records, rep.Lives, rep.Gaps = t.records, t.lives, t.missing; rep.Records > 0 {
		replay.judged()
	}
	for _, f := range t.faults {
		replay.fail("%s", f)
	}
	rep.Points = t.points
	for _, id := range r.judge.differed {
		if t.ledger.retried(id) {
			rep.Divergence.Retried.Count++
		}
	}
	rep.Divergence.Retried.Of = t.ledger.retriedGreedy
	rep.Divergence.judge(r.check(checkRate))
	errs := r.check(checkErrors)
	refused := Share{rep.HandedOff.Ends[Refused], rep.HandedOff.Requests}
	errs.Note = fmt.Sprintf("%s refused, below %.2f%% with a confidence of 95%%, limit %.2f%%", refused, 100*atMost(refused), 100*r.cfg.MostErrors)
	if refused.Rate() > r.cfg.MostErrors {
		errs.fail("%s of the requests were refused while workers died", refused)
	}
	rep.Footprints = r.footprints.list
	growth := r.check(checkGrowth)
	for _, f := range rep.Footprints {
		if len(f.Goroutines) > 1 {
			growth.judged()
		}
		if s := f.grown(); s != "" {
			growth.fail("%s", s)
		}
	}
	processes := r.check(checkProcesses)
	processes.judged()
	for _, s := range r.table.oddEnds() {
		processes.fail("%s", s)
	}
	if stopErr != nil {
		processes.fail("the fleet does not stop: %v", stopErr)
	}
}
