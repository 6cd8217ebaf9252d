package profile

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/tandem-llm/tandem/engine"
)

// A measurer takes an engine through the grids.
type measurer struct {
	Config
	e      engine.Engine
	info   engine.Info
	report *Report
	tokens *tokens
	rows   []engine.Row
	values map[string][]float64 // runs of a point by name
	points map[string]Point
	order  []string
}

// tokens draws prompts: ids that are no control tokens.
type tokens struct {
	rng   *rand.Rand
	vocab engine.Vocab
}

func newTokens(seed uint64, v engine.Vocab) *tokens {
	return &tokens{rng: rand.New(rand.NewPCG(seed, 1)), vocab: v}
}

func (t *tokens) next() engine.Token {
	id := engine.Token(0)
	for range 100 { // a vocabulary may be all control tokens: then any does
		id = engine.Token(t.rng.IntN(t.vocab.Size()))
		if !t.vocab.IsControl(id) && !t.vocab.IsEOG(id) {
			break
		}
	}
	return id
}

func (m *measurer) all(ctx context.Context) error {
	if err := m.repeat(ctx, "prefill", m.prefill); err != nil {
		return err
	}
	if err := m.repeat(ctx, "decode", m.decode); err != nil {
		return err
	}
	if why := m.info.ColocatedOnly; why != "" {
		m.Say("exports and imports are not measured: " + why)
		return nil
	}
	return m.repeat(ctx, "moves", m.move)
}

// repeat runs a pass over a grid once for warming up and Runs times that count,
// and reports its points in the order in which they first came.
func (m *measurer) repeat(ctx context.Context, name string, pass func(context.Context) error) error {
	for run := range m.Runs + 1 {
		if run <= 1 { // the first one warms up
			m.values, m.points, m.order = map[string][]float64{}, map[string]Point{}, nil
		}
		if err := pass(ctx); err != nil {
			return err
		}
		m.Say(fmt.Sprintf("%s: run %d of %d", name, run, m.Runs))
	}
	for _, key := range m.order {
		p := m.report.add(m.points[key], m.values[key])
		m.Say(fmt.Sprintf("%s: %.4g ms, quartiles %.4g and %.4g", p.name(), p.MS.Median, p.MS.Q1, p.MS.Q3))
	}
	return nil
}

// note records one measurement of a point, in milliseconds.
func (m *measurer) note(p Point, ms float64) {
	key := p.name()
	if _, ok := m.points[key]; !ok {
		m.points[key] = p
		m.order = append(m.order, key)
	}
	m.values[key] = append(m.values[key], ms)
}

// timed runs f and returns how long it took, in milliseconds.
func (m *measurer) timed(f func() error) (float64, error) {
	start := m.Now()
	err := f()
	return float64((m.Now() - start).Nanoseconds()) / 1e6, err
}

// compute decodes m.rows and waits for the numbers: an accelerator may still be
// at work when Decode returns.
func (m *measurer) compute() error {
	if err := m.e.Decode(m.rows); err != nil {
		return err
	}
	_, err := m.e.Logits(len(m.rows) - 1)
	return err
}

// chunk makes m.rows the next n tokens of a sequence, of which the last gives
// logits.
func (m *measurer) chunk(seq int32, n int) {
	m.rows = m.rows[:0]
	at := m.e.Tokens(seq)
	for i := range n {
		m.rows = append(m.rows, engine.Row{Token: m.tokens.next(), Pos: int32(at + i), Seq: seq, Output: i == n-1})
	}
}

// fill computes a sequence up to that many tokens, in the largest chunks of the
// grid.
func (m *measurer) fill(ctx context.Context, seq int32, tokens int) error {
	for m.e.Tokens(seq) < tokens {
		if err := ctx.Err(); err != nil {
			return err
		}
		m.chunk(seq, min(tokens-m.e.Tokens(seq), last(m.New)))
		if err := m.compute(); err != nil {
			return err
		}
	}
	return nil
}

// prefill grows one sequence: from each past, one chunk of each size. What the
// chunks before it added is part of a chunk's past.
func (m *measurer) prefill(ctx context.Context) error {
	if err := m.e.Drop(0); err != nil {
		return err
	}
	for _, past := range m.Past {
		if err := m.fill(ctx, 0, past); err != nil {
			return err
		}
		for _, n := range m.New {
			if err := ctx.Err(); err != nil {
				return err
			}
			held := m.e.Tokens(0)
			m.chunk(0, n)
			ms, err := m.timed(m.compute)
			if err != nil {
				return err
			}
			m.note(Point{Kind: Prefill, New: n, Past: held}, ms)
		}
	}
	return m.e.Drop(0)
}

// decode grows as many sequences as a batch has, side by side. No others are in the
// engine: some look at the cells of all.
func (m *measurer) decode(ctx context.Context) error {
	for _, batch := range m.Batch {
		if err := m.grow(ctx, batch); err != nil {
			return err
		}
		for seq := range batch {
			if err := m.e.Drop(int32(seq)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *measurer) grow(ctx context.Context, batch int) error {
	for _, each := range m.Context {
		for seq := range batch {
			if err := m.fill(ctx, int32(seq), each); err != nil {
				return err
			}
		}
		// Each step counts by itself, at the mean of what it sees: one that was held
		// up does not spoil its neighbours.
		held := batch * m.e.Tokens(0)
		mean := float64(held) + float64(batch*(m.Steps-1))/2
		for range m.Steps {
			if err := ctx.Err(); err != nil {
				return err
			}
			m.step(batch)
			ms, err := m.timed(m.compute)
			if err != nil {
				return err
			}
			m.note(Point{Kind: Decode, Batch: batch, Context: mean}, ms)
		}
	}
	return nil
}

// step makes m.rows the next token of each of the first sequences.
func (m *measurer) step(batch int) {
	m.rows = m.rows[:0]
	for seq := range int32(batch) {
		m.rows = append(m.rows, engine.Row{Token: m.tokens.next(), Pos: int32(m.e.Tokens(seq)), Seq: seq, Output: true})
	}
}

// move takes a sequence out of one slot and puts it into another, in pages of
// each chunk size of the grid.
func (m *measurer) move(ctx context.Context) error {
	if m.info.Slots < 2 {
		return nil
	}
	tokens := min(last(m.New)*2, m.info.ContextTokens, m.info.Cells/2)
	if err := m.e.Drop(0); err != nil {
		return err
	}
	if err := m.fill(ctx, 0, tokens); err != nil {
		return err
	}
	size, err := m.e.SnapshotBytes(0)
	if err != nil {
		return err
	}
	snapshot := make([]byte, size)
	if size > 0 {
		ms, err := m.timed(func() error {
			_, _, err := m.e.ExportSnapshot(0, snapshot)
			return err
		})
		if err != nil {
			return err
		}
		m.note(Point{Kind: ExportSnapshot, Bytes: size}, ms)
	}
	for _, n := range m.New {
		if n < min(32, last(m.New)) || m.e.Paged() && tokens%n != 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.roundTrip(tokens, n, snapshot); err != nil {
			return err
		}
	}
	return m.e.Drop(0)
}

// roundTrip moves all pages of n tokens. An import counts with the scan that a
// worker does on another thread.
func (m *measurer) roundTrip(tokens, n int, snapshot []byte) error {
	const to = 1
	if err := m.e.Drop(to); err != nil {
		return err
	}
	in, err := m.e.BeginImport(to, tokens)
	if err != nil {
		return err
	}
	in.Scanned()
	if m.e.Paged() {
		page := make([]byte, m.e.PageBytes(n))
		for first := 0; first < tokens; first += n {
			ms, err := m.timed(func() error {
				_, err := m.e.ExportPage(0, first, first+n, page)
				return err
			})
			if err != nil {
				return err
			}
			m.note(Point{Kind: Export, Bytes: len(page)}, ms)
			ms, err = m.timed(func() error {
				if err := m.e.ScanPage(first, first+n, page); err != nil {
					return err
				}
				return in.Page(first, first+n, page)
			})
			if err != nil {
				return err
			}
			m.note(Point{Kind: Import, Bytes: len(page)}, ms)
		}
	}
	if len(snapshot) > 0 {
		ms, err := m.timed(func() error {
			if err := m.e.ScanSnapshot(tokens, snapshot); err != nil {
				return err
			}
			return in.Snapshot(snapshot)
		})
		if err != nil {
			return err
		}
		m.note(Point{Kind: ImportSnapshot, Bytes: len(snapshot)}, ms)
	}
	if err := in.Commit(); err != nil {
		return err
	}
	return m.e.Drop(to)
}
