package sched

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/block"
	"github.com/tandem-llm/tandem/kv/kvtest"
	"github.com/tandem-llm/tandem/kv/radix"
)

const episode = 250 // commands and steps

// client is what a test knows of a request: what it asked for, and what happened.
type client struct {
	id       handoff.ID
	ref      Ref
	order    int
	prompt   int
	most     int
	held     bool
	receives bool // a reservation

	admitted bool // has memory now
	computed int
	tokens   int
	ended    bool // no row may come any more
	gone     bool
	touched  bool
}

// world is a scheduler and its host: it computes nothing, believes nothing, and
// follows every request.
type world struct {
	rand    *rand.Rand
	s       *Scheduler
	m       kv.Manager
	cfg     Config
	now     time.Duration
	clients map[handoff.ID]*client
	order   []*client
	step    Step
	running bool
	minted  int
	notes   []Notice
	last    [2]int // order of the request that was let in last, by side
	what    string
	events  []kv.Event
}

const universe = 64

var promptKeys = func() (all [universe][]kv.Key) {
	for p := range all {
		c := kv.NewChain(kv.SaltFor(nil, "t"), 1)
		for i := range 8 {
			all[p] = c.Tokens([]int32{int32(p >> (i % 6) & 1)}, all[p])
		}
	}
	return all
}()

func newWorld(seed uint64) (*world, error) {
	r := rand.New(rand.NewPCG(seed, 2))
	shape := kv.Config{Blocks: 6 + r.IntN(30), BlockTokens: 1 + r.IntN(4), Events: true}
	cfg := Config{
		Page: 1 + r.IntN(3), Running: 1 + r.IntN(5), Priority: Priority(r.IntN(2)),
		Headroom: r.IntN(6), NoRecompute: r.IntN(4) == 0,
	}
	useRadix := r.IntN(2) == 0
	if useRadix || r.IntN(3) == 0 {
		shape.Slots = 2 + r.IntN(6)
	}
	cfg.Budget = max(cfg.Page, cfg.Running) + cfg.Running + r.IntN(12)
	cfg.Chunk = cfg.Page + r.IntN(6)
	if r.IntN(2) == 0 {
		cfg.Source.Blocks = 1 + r.IntN(shape.Blocks-1)
		cfg.Destination.Blocks = shape.Blocks - cfg.Source.Blocks
		if shape.Slots > 0 {
			cfg.Source.Slots = 1 + r.IntN(shape.Slots-1)
			cfg.Destination.Slots = shape.Slots - cfg.Source.Slots
		}
	} else if shape.Slots > 0 && r.IntN(3) == 0 {
		cfg.Running = 0
		cfg.Budget += shape.Slots
	}
	var m kv.Manager
	var err error
	if useRadix {
		m, err = radix.New(shape)
	} else {
		m, err = block.New(shape)
	}
	if err != nil {
		return nil, err
	}
	return newWorldOf(r, cfg, m)
}

func newWorldOf(r *rand.Rand, cfg Config, m kv.Manager) (*world, error) {
	s, err := New(cfg, m)
	if err != nil {
		return nil, err
	}
	return &world{rand: r, s: s, m: m, cfg: s.cfg, clients: map[handoff.ID]*client{}}, nil
}

// TestINV6Interleavings interleaves commands, steps and failures, and follows every request.
// At the end nothing may be left, whatever happened.
func TestINV6Interleavings(t *testing.T) {
	first, end := kvtest.Seeds(t, 1_000_000, episode)
	for seed := first; seed < end; seed++ {
		w, err := newWorld(seed)
		if err == nil {
			err = w.run()
		}
		if err != nil {
			t.Fatalf("reproduce with: go test -run %s -seed %d\n%s: %v", t.Name(), seed, w.what, err)
		}
	}
}

func (w *world) run() error {
	for i := range episode {
		w.now += time.Duration(w.rand.IntN(3))
		err := w.op()
		if err == nil {
			err = w.follow()
		}
		if err == nil && (i%4 == 0 || i > episode-10) {
			err = w.s.check()
		}
		if err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
	}
	return w.drain()
}

// pick returns a random request that has not gone, or nil.
func (w *world) pick() *client {
	if len(w.order) == 0 {
		return nil
	}
	return w.order[w.rand.IntN(len(w.order))]
}

func (w *world) mint() handoff.ID {
	w.minted++
	return handoff.Mint(uint64(w.minted), [10]byte{1})
}

func (w *world) op() error {
	switch k := w.rand.IntN(100); {
	case k < 14:
		return w.submit()
	case k < 24:
		return w.reserve()
	case k < 50:
		return w.stepping()
	case k < 60:
		return w.activate()
	case k < 64:
		return w.cancel()
	case k < 78:
		return w.release()
	case k < 84:
		return w.touch()
	case k < 92:
		return w.quiet()
	case k < 96:
		return w.rebind()
	}
	return w.nonsense()
}

func (w *world) tokens() (prompt, most int) {
	return 1 + w.rand.IntN(6*w.m.Config().BlockTokens), 1 + w.rand.IntN(10)
}

func (w *world) came(c *client, ref Ref) {
	c.ref, c.order = ref, w.minted
	w.clients[c.id] = c
	w.order = append(w.order, c)
}

func (w *world) submit() error {
	c := &client{id: w.mint(), held: w.rand.IntN(2) == 0}
	c.prompt, c.most = w.tokens()
	w.what = fmt.Sprintf("submit %d+%d held=%v", c.prompt, c.most, c.held)
	q := Request{Prompt: c.prompt, MaxTokens: c.most, Held: c.held, Keys: w.keys(c.prompt)}
	ref, o := w.s.Submit(w.now, c.id, q)
	if o == Accepted {
		w.came(c, ref)
		if again, o := w.s.Submit(w.now, c.id, q); o != Duplicate || again != ref {
			return fmt.Errorf("repeated: %v", o)
		}
		return nil
	}
	return w.refused(c, o)
}

func (w *world) keys(prompt int) []kv.Key {
	keys := promptKeys[w.rand.IntN(universe)]
	return keys[:min(len(keys), prompt/w.m.Config().BlockTokens)]
}

func (w *world) reserve() error {
	c := &client{id: w.mint(), receives: true}
	c.prompt, c.most = w.tokens()
	q := Reservation{Prompt: c.prompt, MaxTokens: c.most, Keys: w.keys(c.prompt)}
	if w.rand.IntN(3) == 0 {
		q.Deadline = w.now + time.Duration(w.rand.IntN(40))
	}
	w.what = fmt.Sprintf("reserve %d+%d", c.prompt, c.most)
	ref, o := w.s.Reserve(w.now, c.id, q)
	if o == Accepted {
		w.came(c, ref)
		if again, o := w.s.Reserve(w.now, c.id, q); o != Duplicate || again != ref {
			return fmt.Errorf("repeated: %v", o)
		}
		return nil
	}
	if o == Expired && q.Deadline == w.now {
		return nil
	}
	return w.refused(c, o)
}

// refused sees that a refusal is right: the request is larger than its share.
func (w *world) refused(c *client, o Outcome) error {
	need := c.prompt + c.most - 1
	if c.held {
		need = c.prompt
	}
	of := source
	if c.receives {
		of = destination
	}
	bt := w.m.Config().BlockTokens
	if o == Never && (need+bt-1)/bt > min(w.m.Config().Blocks, w.s.share(of).Blocks) {
		return nil
	}
	return fmt.Errorf("refused: %v", o)
}

// stepping plans a step, or ends the one that runs.
func (w *world) stepping() error {
	if w.running {
		return w.done()
	}
	w.what = "plan"
	idle := w.s.Idle()
	w.step = w.s.Plan(w.now)
	if idle && !w.step.Empty() || w.step.Empty() && !w.s.Idle() { // what ran may have been preempted
		return fmt.Errorf("idle %v, and a step of %d decodes and %d chunks", idle, len(w.step.Decodes), len(w.step.Chunks))
	}
	w.running = !w.step.Empty()
	if err := w.follow(); err != nil {
		return err
	}
	return w.stepIsRight()
}

func (w *world) stepIsRight() error {
	budget, context := len(w.step.Decodes), int64(0)
	if w.cfg.Priority == PrefillsFirst && len(w.step.Chunks) > 0 && budget > 0 {
		return fmt.Errorf("decodes beside chunks")
	}
	seen := map[Ref]bool{}
	for _, d := range w.step.Decodes {
		c := w.byRef(d.Ref)
		if c == nil || c.ended || !c.admitted || seen[d.Ref] {
			return fmt.Errorf("a decode of %+v", c)
		}
		seen[d.Ref] = true
		if int(d.Pos) != c.computed || c.tokens == 0 || c.tokens >= c.most || c.computed != c.prompt+c.tokens-1 {
			return fmt.Errorf("a decode at %d of %+v", d.Pos, c)
		}
		if have := len(w.m.Blocks(w.s.requests[d.Ref].seq, nil)) * w.m.Config().BlockTokens; int(d.Pos) >= have {
			return fmt.Errorf("a decode at %d with room for %d", d.Pos, have)
		}
		context += int64(d.Pos)
	}
	if context != w.step.Context {
		return fmt.Errorf("context %d, counted %d", w.step.Context, context)
	}
	for _, k := range w.step.Chunks {
		c := w.byRef(k.Ref)
		if c == nil || c.ended || !c.admitted || seen[k.Ref] {
			return fmt.Errorf("a chunk of %+v", c)
		}
		seen[k.Ref] = true
		target := c.prompt + c.tokens
		if int(k.First) != c.computed || k.End <= k.First || int(k.End) > target || k.Last != (int(k.End) == target) {
			return fmt.Errorf("chunk %+v of %+v", k, c)
		}
		if !k.Last && int(k.End)%w.cfg.Page != 0 || int(k.End-k.First) > w.cfg.Chunk {
			return fmt.Errorf("chunk %+v is not as configured: %+v", k, w.cfg)
		}
		budget += int(k.End - k.First)
	}
	if budget > w.cfg.Budget {
		return fmt.Errorf("%d tokens in a step of %d", budget, w.cfg.Budget)
	}
	return nil
}

func (w *world) byRef(ref Ref) *client {
	for _, c := range w.order {
		if c.ref == ref && !c.gone {
			return c
		}
	}
	return nil
}

// done ends the running step; some answers end, some rows fail.
func (w *world) done() error {
	w.what = "done"
	var res Results
	row := func(ref Ref, sampled bool, to int) {
		c := w.byRef(ref)
		fate := w.rand.IntN(30)
		if fate == 0 {
			res.Failed = append(res.Failed, ref)
			c.ended = true
			return
		}
		c.computed = to
		if !sampled || c.ended {
			return
		}
		c.tokens++
		if fate == 1 {
			res.Finished = append(res.Finished, ref)
		}
		if fate == 1 || c.tokens == c.most {
			c.ended = true
		}
	}
	for _, d := range w.step.Decodes {
		row(d.Ref, true, int(d.Pos)+1)
	}
	for _, k := range w.step.Chunks {
		row(k.Ref, k.Last, int(k.End))
	}
	res.Finished = append(res.Finished, -1, 1000)
	w.running = false
	if o := w.s.Done(w.now, res); o != Accepted {
		return fmt.Errorf("done: %v", o)
	}
	return nil
}

// follow takes the notices and sees that each is possible.
func (w *world) follow() error {
	w.events = w.m.Events(w.events[:0])
	w.notes = w.s.Notices(w.notes[:0])
	for _, n := range w.notes {
		c := w.clients[n.ID]
		if c == nil || c.gone {
			return fmt.Errorf("notice %v of a request that is gone", n.Kind)
		}
		if err := w.note(c, n); err != nil {
			return fmt.Errorf("notice %v of %+v: %w", n.Kind, c, err)
		}
	}
	return nil
}
