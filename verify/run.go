package verify

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/pair"
)

// Plan lists the cells that Run would run or leave out, without loading the model into an engine.
func Plan(o Options) (*Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &runner{o: o}
	if err := r.plan(); err != nil {
		return nil, err
	}
	r.report.count()
	return r.report, nil
}

// Run verifies a model. It returns a report also when ctx ends it early, with what was found until then; an
// error without a report means that nothing could be verified. A mismatch is no error: see Report.OK.
func Run(ctx context.Context, o Options) (*Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &runner{o: o, ctx: ctx, unopened: map[group]error{}}
	if err := r.plan(); err != nil {
		return nil, err
	}
	began := time.Now()
	err = errors.Join(r.run(), r.close())
	r.report.Took = time.Since(began).Seconds()
	r.report.Interrupted = ctx.Err() != nil
	for i := range r.report.Cells {
		if c := &r.report.Cells[i]; c.Status == "" {
			c.Status, c.Reason = Unfinished, "the run ended before it"
		}
	}
	r.report.count()
	if ctx.Err() != nil {
		return r.report, ctx.Err()
	}
	return r.report, err
}

// runner runs a plan. One goroutine uses it.
type runner struct {
	o      Options
	ctx    context.Context
	file   *model.Model
	cells  *plan
	report *Report

	peer *pair.Pair
	// source is the engine of this process, control another one with the destination's settings, opened when
	// it is needed. Both belong to group.
	source, control *pair.Host
	sourceEngine    *llama.Engine
	controlEngine   *llama.Engine
	group           group
	ref             *reference
	unopened        map[group]error // groups that cannot be opened

	done            int
	total           int
	weight, weights float64
	broken          int // peers lost in a row

	refuser  *refuser   // of the group of refusals
	baseline pair.Stats // of the other process, before them
}

// group is what one opening of engines serves.
type group struct {
	tokens, cells int
	kv            string
	threads       int // of the destination
}

func (r *runner) plan() error {
	var err error
	if r.file, err = model.Inspect(r.o.Model); err != nil {
		return err
	}
	if err := r.file.Handoff(); err != nil {
		return err
	}
	memory, known := available()
	if known {
		memory = memory / 10 * 8
	}
	if r.cells, err = newPlan(&r.o, r.file, memory); err != nil {
		return err
	}
	r.report = &Report{
		Schema: ReportSchema, Tandem: r.o.Version, Started: time.Now().UTC(), Quick: r.o.Quick, Match: r.o.Match,
		Steps: r.o.Steps, Seed: r.o.Seed, KVTypes: r.o.KVTypes, Lengths: r.o.Lengths, Caps: r.cells.caps, Cells: r.cells.cells,
		Model: Model{
			File: filepath.Base(r.o.Model), Architecture: r.file.Architecture, Family: string(r.file.Family),
			Layers: r.file.LayerCount,
		},
	}
	for _, l := range r.o.Lanes {
		r.report.Lanes = append(r.report.Lanes, string(l))
	}
	return nil
}

func (r *runner) run() error {
	if _, known := available(); !known && r.o.MaxTokens == 0 {
		r.note("this system does not say how much memory is free; bound prompts with --max-tokens if it is little")
	}
	for _, c := range r.cells.caps {
		r.note(fmt.Sprintf("prompts of %d tokens are left out: %s", c.Tokens, c.Reason))
	}
	list := r.cells.running()
	// Cells that share a prefill lie together.
	slices.SortStableFunc(list, func(a, b int) int { return r.rank(a) - r.rank(b) })
	for _, i := range list {
		r.weights += r.cost(i)
	}
	r.total = len(list)
	for _, i := range list {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		c := &r.report.Cells[i]
		r.tell(c)
		began := time.Now()
		err := r.cell(c)
		c.Took = time.Since(began).Seconds()
		if r.ctx.Err() != nil && c.Status != Passed {
			c.Status, c.Reason = Unfinished, "interrupted"
			return r.ctx.Err()
		}
		if err != nil {
			c.Status, c.Reason = Failed, err.Error()
			if r.lost(err) {
				if r.broken++; r.broken == 3 {
					return fmt.Errorf("verify: the other process was lost three times in a row: %w", err)
				}
			}
		} else {
			r.broken = 0
		}
		r.done++
		r.weight += r.cost(i)
		r.tell(c)
	}
	return nil
}

// lost closes a peer that is of no use any more, so that the next cell starts a new one.
func (r *runner) lost(err error) bool {
	if !errors.Is(err, pair.ErrPeerGone) && !errors.Is(err, pair.ErrTimeout) {
		return false
	}
	_ = r.close()
	return true
}

// rank orders cells: by kind, length, KV type, destination, chunk size.
func (r *runner) rank(i int) int {
	c := &r.report.Cells[i]
	if c.Kind != KindImport {
		return 1<<30 + i
	}
	p, n := c.Params, 0
	n = slices.Index(r.o.Lengths, p.Tokens)
	n = n*8 + slices.Index(r.o.KVTypes, p.KVType)
	n *= 2
	if p.Placement == Threads {
		n++
	}
	chunks, _ := r.o.sizes()
	n = n*8 + slices.Index(chunks, p.Chunk)
	return n
}

// cost is a guess of a cell's time against others', for the expected end.
func (r *runner) cost(i int) float64 {
	p := r.report.Cells[i].Params
	if p == nil {
		return 0.5
	}
	k := float64(p.Tokens) / 1024
	if p.Tokens > pairwiseUpTo || p.Source == Live {
		return 1 + k + k*k/8 // it has a prefill of its own
	}
	return 1 + k
}

func (r *runner) tell(c *Result) {
	if r.o.Progress != nil {
		r.o.Progress(Progress{Result: c, Done: r.done, Total: r.total, Weight: r.weight, Weights: r.weights})
	}
}

func (r *runner) note(text string) {
	if r.o.Progress != nil {
		r.o.Progress(Progress{Note: text, Done: r.done, Total: r.total, Weight: r.weight, Weights: r.weights})
	}
}

func (r *runner) cell(c *Result) error {
	if c.Kind != KindImport {
		return r.refusal(c)
	}
	p := *c.Params
	g := group{tokens: p.Tokens, cells: p.Tokens + r.o.Steps + extraCells(r.o.Steps), kv: p.KVType, threads: r.o.Threads}
	if p.Placement == Threads {
		g.threads = r.o.otherThreads()
	}
	if err := r.open(g); err != nil {
		return err
	}
	return r.importCell(p, c)
}

// open opens both engines for a group, and the other process if there is none.
func (r *runner) open(g group) error {
	if r.peer != nil && r.group == g {
		return nil
	}
	if err := r.unopened[g]; err != nil {
		return err
	}
	err := r.openGroup(g)
	if err != nil && r.ctx.Err() == nil && !errors.Is(err, pair.ErrPeerGone) && !errors.Is(err, pair.ErrTimeout) {
		r.unopened[g] = err // it will not be better with the next cell
	}
	return err
}

func (r *runner) openGroup(g group) error {
	r.closeEngines()
	if r.peer == nil {
		peer, err := pair.Start(r.ctx, r.o.Pair)
		if err != nil {
			return err
		}
		r.peer = peer
	}
	_, pages := r.o.sizes()
	o := r.options(g, g.threads)
	info, err := r.peer.Open(r.ctx, o, pair.Transport{Lanes: r.o.Lanes, PageTokens: min(slices.Max(pages), g.cells), Tokens: g.cells})
	if err != nil {
		return err
	}
	o.Threads = r.o.Threads
	if r.sourceEngine, err = pair.OpenEngine(o); err != nil {
		return err
	}
	r.source, r.group = &pair.Host{Engine: r.sourceEngine}, g
	if why := r.sourceEngine.Info().ColocatedOnly; why != "" {
		return fmt.Errorf("verify: the model's state cannot be handed off: %s", why)
	}
	r.describe(r.sourceEngine.Info(), info)
	return nil
}

// options are an engine's for a group.
func (r *runner) options(g group, threads int) pair.EngineOptions {
	chunks, _ := r.o.sizes()
	batch := min(slices.Max(chunks), g.cells)
	return pair.EngineOptions{
		Lib: r.o.Lib, Model: r.file.Files[0], Slots: slots, Cells: g.cells, BatchTokens: batch, UBatch: batch,
		Threads: threads, KVType: dtype(g.kv), GPULayers: r.o.GPULayers,
	}
}

// describe notes in the report what the engines say of themselves.
func (r *runner) describe(own engine.Info, theirs *pair.Info) {
	m := &r.report.Model
	m.Description = own.Model
	m.Weights, m.Tokenizer = own.Identity.Weights.Hex(), own.Identity.Tokenizer.Hex()
	id := identityOf(own.Identity)
	if !slices.ContainsFunc(r.report.Identities, func(have Identity) bool { return have.Digest == id.Digest }) {
		r.report.Identities = append(r.report.Identities, id)
	}
	if r.group.threads != r.o.Threads {
		r.report.OtherThreads = r.group.threads
	}
	r.report.Source = Side{own.Backend, own.Build, r.o.Threads}
	r.report.Destination = Side{theirs.Backend, theirs.Build, r.o.Threads}
}

// controlHost opens the control engine.
func (r *runner) controlHost() (*pair.Host, error) {
	if r.control != nil {
		return r.control, nil
	}
	e, err := pair.OpenEngine(r.options(r.group, r.group.threads))
	if err != nil {
		return nil, fmt.Errorf("the control engine: %w", err)
	}
	r.controlEngine, r.control = e, &pair.Host{Engine: e}
	return r.control, nil
}

func (r *runner) closeEngines() {
	r.ref, r.source, r.control, r.group = nil, nil, nil, group{}
	if r.sourceEngine != nil {
		_ = r.sourceEngine.Close()
	}
	if r.controlEngine != nil {
		_ = r.controlEngine.Close()
	}
	r.sourceEngine, r.controlEngine = nil, nil
}

func (r *runner) close() error {
	r.closeEngines()
	if r.peer == nil {
		return nil
	}
	err := r.peer.Close()
	r.peer = nil
	return err
}
