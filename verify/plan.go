package verify

import (
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/state"
)

// plan is every cell of a run, in the report's order. Those that run have an empty status.
type plan struct {
	o     *Options
	file  *model.Model
	inv   map[string]state.Inventory // by KV type
	cells []Result
	caps  []Cap
	// lengths are the prompt lengths, ascending; within is one that was added for the model's window, or 0.
	lengths []int
	within  int
}

// newPlan makes the matrix for a model. memory is the bytes to stay within, 0 without a bound.
func newPlan(o *Options, file *model.Model, memory int64) (*plan, error) {
	p := &plan{o: o, file: file, inv: map[string]state.Inventory{}, lengths: o.Lengths}
	if w := file.Window; w >= shortest && w < o.Lengths[0] && !o.chosen {
		// Layouts are controlled only while the window holds the whole prompt.
		p.within, p.lengths = w, append([]int{w}, o.Lengths...)
	}
	var kvs []string
	var unfit error
	for _, kv := range o.KVTypes {
		inv, err := file.Inventory(model.Config{KVTypeK: dtype(kv), KVTypeV: dtype(kv)})
		if err != nil {
			p.add(Result{Name: "KV type " + kv, Kind: KindImport, Status: Skipped, Reason: err.Error()})
			unfit = err
			continue
		}
		p.inv[kv] = inv
		kvs = append(kvs, kv)
	}
	if len(kvs) == 0 {
		return nil, fmt.Errorf("%w: no KV type fits the model: %w", ErrOptions, unfit)
	}
	for _, n := range p.lengths {
		if why := p.unfit(n, kvs, memory); why != "" {
			p.caps = append(p.caps, Cap{n, why})
			p.add(Result{Name: fmt.Sprint(n), Kind: KindImport, Status: Skipped, Reason: why})
			continue
		}
		p.length(n, kvs)
	}
	p.refusals()
	for _, l := range []struct{ name, why string }{
		{"MTP", model.MTPNotBuilt},
		{"suffix speculation", model.MTPNotBuilt},
	} {
		p.add(Result{Name: l.name, Kind: KindLater, Status: NotBuilt, Reason: l.why})
	}
	for i := range p.cells {
		if c := &p.cells[i]; c.Status == "" && c.Kind != KindResource && !o.match.MatchString(c.Name) {
			c.Status, c.Reason = Skipped, "not asked for"
		}
	}
	return p, nil
}

func (p *plan) add(r Result) { p.cells = append(p.cells, r) }

// unfit says why prompts of n tokens cannot be verified, or nothing.
func (p *plan) unfit(n int, kvs []string, memory int64) string {
	o := p.o
	if o.MaxTokens > 0 && n > o.MaxTokens {
		return fmt.Sprintf("more than the %d tokens of --max-tokens", o.MaxTokens)
	}
	if most := p.file.Context; most > 0 && n+o.Steps+1 > most {
		return fmt.Sprintf("the model was trained for %d tokens, and %d more are decoded", most, o.Steps)
	}
	if memory <= 0 {
		return ""
	}
	_, pages := o.sizes()
	exports := len(pages)
	if n > pairwiseUpTo {
		exports = 1
	}
	for _, kv := range kvs {
		if b := need(p.file, p.inv[kv], n+o.Steps+extraCells(o.Steps), n, exports); b > memory {
			return fmt.Sprintf("needs about %s with %s state, %s are free to use", gib(b), kv, gib(memory))
		}
	}
	return ""
}

// length adds the cells of one prompt length.
func (p *plan) length(n int, kvs []string) {
	chunks, pages := p.o.sizes()
	a := axes{
		kv: kvs, chunk: chunks, page: pages, order: []string{InOrder, OutOfOrder}, lane: p.o.Lanes,
		placements: []Placement{Alone, Shifted64, Shifted37, Neighbours, Busy, Threads},
	}
	cold := Params{
		Tokens: n, KVType: kvs[0], Chunk: slices.Max(chunks), Page: slices.Max(chunks), Order: InOrder,
		Lane: p.o.Lanes[0], Placement: Alone, Source: Held,
	}
	switch {
	case n <= fullUpTo && !p.o.Quick && n != p.within:
		b := a
		b.placements = a.placements[:len(a.placements)-1]
		for _, v := range product(b.sizes()) {
			p.cell(a.at(n, v))
		}
		b.placements = a.placements[len(a.placements)-1:] // other threads: engines of their own
		for _, v := range pairwise(b.sizes()) {
			p.cell(b.at(n, v))
		}
		p.live(n, a)
		p.sourceFirst(n, a)
		p.prefixes(n, a)
	case n <= pairwiseUpTo:
		p.pairwise(n, a)
		if n <= fullUpTo {
			p.live(n, axes{kv: kvs[:1], chunk: chunks[:1], lane: a.lane})
		}
		// Not an axis of their own, which would make other cells of the covering set and so other names.
		b := axes{kv: kvs[:1], chunk: chunks[:1], page: pages[:1], lane: a.lane}
		if p.o.Quick {
			b.lane = a.lane[:1]
		}
		p.sourceFirst(n, b)
		p.prefixes(n, b)
	case n <= coldUpTo:
		for _, lane := range p.o.Lanes {
			c := cold
			c.Lane = lane
			p.cell(c)
		}
	default:
		if p.file.Family != model.FamilyHybrid && p.file.Family != model.FamilyHybridISWA {
			p.add(Result{Name: cold.Name(), Kind: KindImport, Params: &cold, Status: Skipped, Reason: fmt.Sprintf("prompts of more than %d tokens are verified on hybrid models only", coldUpTo)})
			return
		}
		p.cell(cold)
	}
}

// live adds the cells in which state is sent while the prompt is computed.
func (p *plan) live(n int, a axes) {
	for _, kv := range a.kv {
		for _, chunk := range a.chunk {
			for _, lane := range a.lane {
				p.cell(Params{Tokens: n, KVType: kv, Chunk: chunk, Page: chunk, Order: InOrder, Lane: lane, Placement: Alone, Source: Live})
			}
		}
	}
}

// sourceFirst adds the cells in which the destination comes for the state of a computed prompt.
func (p *plan) sourceFirst(n int, a axes) {
	for _, kv := range a.kv {
		for _, page := range a.page {
			for _, lane := range a.lane {
				p.cell(Params{
					Tokens: n, KVType: kv, Chunk: a.chunk[0], Page: page, Order: InOrder, Lane: lane, Placement: Alone,
					Source: Held, SourceFirst: true,
				})
			}
		}
	}
}

// prefixes adds the cells with hits in prefix caches, which end at whole pages: at the source, at the destination in
// both orders, at both with either one the longer, and of all there is.
func (p *plan) prefixes(n int, a axes) {
	chunk, page := a.chunk[0], a.page[0]
	unit := max(chunk, page) // the smallest of each are equal
	long := (n - 1) / unit * unit
	short := long / 2 / unit * unit
	if short == 0 {
		return
	}
	type hits struct {
		source, destination int
		pull                bool
	}
	list := []hits{
		{source: long}, {destination: short}, {destination: short, pull: true},
		{source: long, destination: short}, {source: short, destination: long},
	}
	if n%unit == 0 {
		list = append(list, hits{destination: n}, hits{destination: n, pull: true})
	}
	for _, kv := range a.kv {
		for _, lane := range a.lane {
			for _, h := range list {
				p.cell(Params{
					Tokens: n, KVType: kv, Chunk: chunk, Page: page, Order: InOrder, Lane: lane, Placement: Alone,
					Source: Held, SourceFirst: h.pull, SourceHit: h.source, DestinationHit: h.destination,
				})
			}
		}
	}
}

// pairwise adds a covering set over the axes that the family has, and one line for each value that it
// has not.
func (p *plan) pairwise(n int, a axes) {
	paged := p.paged()
	if !paged {
		no := func(what string) {
			p.add(Result{Name: fmt.Sprintf("%d/%s", n, what), Kind: KindImport, Status: NotApplicable, Reason: noPages})
		}
		for _, v := range a.kv[1:] {
			no(v)
		}
		for _, v := range a.page[1:] {
			no(fmt.Sprint("page ", v))
		}
		no(OutOfOrder)
		no(string(Shifted64))
		no(string(Shifted37))
		a.kv, a.page, a.order = a.kv[:1], a.page[:1], a.order[:1]
		a.placements = []Placement{Alone, Neighbours, Busy, Threads}
	}
	for _, v := range pairwise(a.sizes()) {
		p.cell(a.at(n, v))
	}
}

// noPages is why cells about attention state do not apply to a family.
const noPages = "the family has no attention: there are no pages, no cells and no KV type"

func (p *plan) paged() bool { return p.inv[p.kv()].Paged() }

// kv is the first KV type that fits.
func (p *plan) kv() string {
	for _, kv := range p.o.KVTypes {
		if p.inv[kv] != nil {
			return kv
		}
	}
	return ""
}

// cell adds one import cell.
func (p *plan) cell(c Params) {
	r := Result{Name: c.Name(), Kind: KindImport, Params: &c}
	if !p.paged() {
		_, pages := p.o.sizes()
		attention := c.KVType != p.kv() || c.Order != InOrder || c.Placement == Shifted64 || c.Placement == Shifted37
		if attention || c.Source == Held && c.Page != pages[0] && c.Tokens <= pairwiseUpTo {
			r.Status, r.Reason = NotApplicable, noPages
		}
		if c.DestinationHit > 0 {
			r.Status, r.Reason = NotApplicable, "the family has no pages, and its snapshot always travels"
		}
	}
	if w := p.file.Window; w > 0 && c.Tokens > w && c.SourceHit > 0 && p.o.Threads > 1 {
		r.Status, r.Reason = NotApplicable, "what is computed behind a hit lies in other cells of the window, which is exact with one thread only"
	}
	p.add(r)
}

// running lists the indices of cells that run.
func (p *plan) running() []int {
	var list []int
	for i := range p.cells {
		if p.cells[i].Status == "" {
			list = append(list, i)
		}
	}
	return list
}
