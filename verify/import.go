package verify

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/pair"
)

// reference is what the source's engine did: one prefill, its exports, and how it went on by itself.
type reference struct {
	chunk   int
	prompt  []engine.Token
	exports map[int]*pair.Export // by page size
	before  pair.StateSum
	steps   []pair.Step
	after   pair.StateSum
	err     error
}

// reference makes the reference of a chunk size, or returns the one that is there.
func (r *runner) reference(chunk int) (*reference, error) {
	if r.ref != nil && r.ref.chunk == chunk {
		return r.ref, r.ref.err
	}
	r.note(fmt.Sprintf("prefilling %d tokens in chunks of %d, %s", r.group.tokens, chunk, r.group.kv))
	r.ref = nil // its exports' memory is wanted
	ref := &reference{chunk: chunk, exports: map[int]*pair.Export{}}
	ref.err = r.makeReference(ref)
	if r.ctx.Err() == nil {
		r.ref = ref
	}
	return ref, ref.err
}

func (r *runner) makeReference(ref *reference) error {
	if err := r.source.Clear(); err != nil {
		return err
	}
	ref.prompt = pair.Prompt(r.sourceEngine.Vocab(), r.group.tokens, r.o.Seed)
	if _, err := r.source.Prefill(ref.prompt, ref.chunk, func(int) error { return r.ctx.Err() }); err != nil {
		return fmt.Errorf("prefill at the source: %w", err)
	}
	var err error
	if ref.before, err = r.source.State(); err != nil {
		return err
	}
	for _, page := range r.pages(ref.chunk) {
		if ref.exports[page], err = r.source.Export(ref.prompt, page); err != nil {
			return fmt.Errorf("export at the source: %w", err)
		}
	}
	if ref.steps, err = r.source.Continue(r.o.Steps); err != nil {
		return fmt.Errorf("decoding at the source: %w", err)
	}
	ref.after, err = r.source.State()
	return err
}

// pages are the page sizes that the group's cells of a chunk size need.
func (r *runner) pages(chunk int) []int {
	var list []int
	for _, i := range r.cells.running() {
		p := r.report.Cells[i].Params
		if p != nil && p.Tokens == r.group.tokens && p.KVType == r.group.kv && p.Chunk == chunk && !slices.Contains(list, p.Page) {
			list = append(list, p.Page)
		}
	}
	return list
}

// importCell runs one cell and fills in its result. An error fails it.
func (r *runner) importCell(p Params, c *Result) error {
	ref, err := r.reference(p.Chunk)
	if err != nil {
		return err
	}
	layout := p.layout(r.o.Seed)
	if err := r.peer.Place(r.ctx, layout); err != nil {
		return fmt.Errorf("placing %s: %w", p.Placement, err)
	}
	order := r.order(p, ref)
	s := pair.Sending{Export: ref.exports[p.Page], Order: order, Lane: p.Lane, Pull: p.SourceFirst, Skip: p.DestinationHit}
	if err := r.hits(p, ref, &s); err != nil {
		return err
	}
	if p.Source == Live {
		if err := r.source.Clear(); err != nil {
			return err
		}
		s = pair.Sending{Host: r.source, Prompt: ref.prompt, PageTokens: p.Page, Chunk: p.Chunk, Lane: p.Lane}
	}
	if r.o.damage != nil {
		s.Damage = r.o.damage(r, p)
	}
	moved, err := r.peer.Send(r.ctx, s)
	if err != nil {
		return err
	}
	c.Timings = timings(moved)
	if moved.Wire.Lane != string(p.Lane) && moved.Units > 0 {
		return fmt.Errorf("the bytes went over lane %q", moved.Wire.Lane)
	}
	before, err := r.peer.State(r.ctx)
	if err != nil {
		return err
	}
	cmp := &Compared{StateBytes: before.Bytes, Controlled: p.controlled(r.file.Window)}
	c.Compared = cmp
	if before != ref.before && !r.o.blind {
		return fmt.Errorf("the state that was re-exported (%d bytes) is not the source's (%d bytes)", before.Bytes, ref.before.Bytes)
	}
	got, err := r.peer.Continue(r.ctx, r.o.Steps)
	if err != nil {
		return fmt.Errorf("decoding at the destination: %w", err)
	}
	after, err := r.peer.State(r.ctx)
	if err != nil {
		return err
	}
	cmp.Steps, cmp.Tokens, cmp.BitEqual = len(got), sameTokens(ref.steps, got), sameBits(ref.steps, got)
	cmp.FinalState = after == ref.after
	if cmp.Tokens < len(got) {
		cmp.Margin = ref.steps[cmp.Tokens].Margin
	}
	if err := r.judge(p, ref, layout, order, got, after, c); err != nil {
		return err
	}
	return r.leaves()
}

// judge decides the status from what both sides computed.
func (r *runner) judge(p Params, ref *reference, layout pair.Layout, order []int, got []pair.Step, after pair.StateSum, c *Result) error {
	cmp := c.Compared
	switch {
	case len(got) != len(ref.steps):
		return fmt.Errorf("%d steps at the destination, %d at the source", len(got), len(ref.steps))
	case cmp.BitEqual == len(got) && cmp.Tokens == len(got) && (cmp.FinalState || !cmp.Controlled):
		c.Status = Passed
		return nil
	case cmp.Controlled && cmp.Tokens < len(got):
		return fmt.Errorf("token %d differs (the source preferred its own by %.3g), logits from step %d on, in a layout that the source had too", cmp.Tokens, cmp.Margin, cmp.BitEqual)
	case cmp.Controlled:
		return fmt.Errorf("logits differ from step %d on, final state equal: %v, in a layout that the source had too", cmp.BitEqual, cmp.FinalState)
	}
	export := ref.exports[p.Page]
	want, wantAfter, err := r.runControl(export, ref, layout, order)
	if err != nil {
		return err
	}
	if n := sameBits(want, got); n < len(got) || sameTokens(want, got) < len(got) || wantAfter != after {
		cmp.Control = "differs"
		return fmt.Errorf("logits differ from the source's from step %d on, and from those of the control run from step %d on (final state equal: %v): the layout does not explain it", cmp.BitEqual, n, wantAfter == after)
	}
	cmp.Control = "equal"
	c.Status = Passed
	if cmp.Tokens < len(got) {
		c.Status = Explained
		c.Reason = fmt.Sprintf("token %d differs, where the source preferred its own by %.3g; a control run of this layout without a handoff gives the same bits", cmp.Tokens, cmp.Margin)
	}
	return nil
}

// runControl restores the same export in this process, in an engine like the destination's with the same
// layout, and lets it go on.
func (r *runner) runControl(export *pair.Export, ref *reference, layout pair.Layout, order []int) ([]pair.Step, pair.StateSum, error) {
	none := pair.StateSum{}
	h, err := r.controlHost()
	if err == nil {
		err = h.Place(layout)
	}
	if err == nil {
		err = h.Restore(export, order)
	}
	if err != nil {
		return nil, none, fmt.Errorf("the control run: %w", err)
	}
	before, err := h.State()
	if err == nil && before != ref.before {
		err = errors.New("it restored another state")
	}
	var steps []pair.Step
	if err == nil {
		steps, err = h.Continue(r.o.Steps)
	}
	after := none
	if err == nil {
		after, err = h.State()
	}
	if err != nil {
		return nil, none, fmt.Errorf("the control run: %w", err)
	}
	return steps, after, h.Clear()
}

// order is a cell's order of pages: shuffled, with the last page never last, so that even two pages change
// places.
func (r *runner) order(p Params, ref *reference) []int {
	if p.Order != OutOfOrder || ref.exports[p.Page] == nil {
		return nil
	}
	n := len(ref.exports[p.Page].Pages)
	order := rand.New(rand.NewPCG(r.o.Seed, uint64(p.Page))).Perm(n)
	if i := slices.Index(order, n-1); i == n-1 && n > 1 {
		order[0], order[i] = order[i], order[0]
	}
	return order
}

// leaves empties the other process and checks that it owns nothing then.
func (r *runner) leaves() error {
	if err := r.peer.Clear(r.ctx); err != nil {
		return err
	}
	return r.peer.Idle(r.ctx)
}

// sameTokens counts the steps with equal tokens, from the first on, sameBits those with equal logits.
func sameTokens(a, b []pair.Step) int {
	return prefix(a, b, func(x, y pair.Step) bool { return x.Token == y.Token })
}

func sameBits(a, b []pair.Step) int {
	return prefix(a, b, func(x, y pair.Step) bool { return x.Logits == y.Logits })
}

func prefix(a, b []pair.Step, equal func(x, y pair.Step) bool) int {
	n := 0
	for n < len(a) && n < len(b) && equal(a[n], b[n]) {
		n++
	}
	return n
}
