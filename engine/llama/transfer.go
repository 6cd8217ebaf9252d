package llama

import (
	"errors"
	"fmt"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/llama/blob"
	"github.com/tandem-llm/tandem/state"
)

// transfer is an engine.Import: a slot that state is arriving in.
type transfer struct {
	e      *Engine
	seq    int32
	tokens int

	covered  coverage
	shared   coverage // of it, what came from other slots
	depth    blob.Depth
	snapshot bool
	dead     bool // over: committed, discarded or failed
}

// BeginImport implements engine.Engine.
func (e *Engine) BeginImport(seq int32, tokens int) (engine.Import, error) {
	if err := e.enterMovable(); err != nil {
		return nil, err
	}
	defer e.leave()
	if err := e.checkSlot(seq); err != nil {
		return nil, err
	}
	s := &e.slots[seq]
	switch {
	case s.tokens > 0 || s.importing != nil:
		return nil, fmt.Errorf("%w: slot %d is not empty", engine.ErrSequence, seq)
	case tokens < 1:
		return nil, fmt.Errorf("%w: an import of %d tokens", engine.ErrSequence, tokens)
	case tokens > e.info.ContextTokens:
		return nil, fmt.Errorf("%w: an import of %d tokens, at most %d fit", engine.ErrContext, tokens, e.info.ContextTokens)
	}
	t := &transfer{e: e, seq: seq, tokens: tokens, depth: e.depth}
	s.importing = t
	return t, nil
}

// ScanPage implements engine.Engine.
func (e *Engine) ScanPage(first, end int, payload []byte) error {
	if e.schema == nil {
		return fmt.Errorf("%w: %s", engine.ErrUnsupported, e.info.ColocatedOnly)
	}
	if !e.schema.Memory.Attention() {
		return fmt.Errorf("%w: a %v memory has no pages", engine.ErrUnsupported, e.schema.Memory)
	}
	if first < 0 || first >= end {
		return fmt.Errorf("%w: [%d,%d)", engine.ErrCoverage, first, end)
	}
	var scratch blob.Scratch // the engine's own belongs to the owner
	return e.payloadError("page", e.schema.CheckPage(payload, first, end, e.depth, &scratch))
}

// ScanSnapshot implements engine.Engine.
func (e *Engine) ScanSnapshot(tokens int, payload []byte) error {
	if e.schema == nil {
		return fmt.Errorf("%w: %s", engine.ErrUnsupported, e.info.ColocatedOnly)
	}
	if e.schema.Memory == blob.Dense {
		return fmt.Errorf("%w: a %v memory has no snapshot", engine.ErrUnsupported, e.schema.Memory)
	}
	var scratch blob.Scratch
	return e.payloadError("snapshot", e.schema.CheckSnapshot(payload, tokens, e.depth, &scratch))
}

// Scanned implements engine.Import.
func (t *transfer) Scanned() { t.depth = blob.Structure }

// enter begins every method of a transfer.
func (t *transfer) enter() error {
	if err := t.e.enter(); err != nil {
		return err
	}
	if t.dead {
		t.e.leave()
		return engine.ErrImportDead
	}
	return nil
}

// fail ends the import: T and the slot are emptied, so that no half valid state
// stays. It returns cause, or what went wrong on top of it.
func (t *transfer) fail(cause error) error {
	e := t.e
	e.logNew(true)
	t.dead = true
	if !e.native.removeSeq(e.scratchSeq) {
		return errors.Join(cause, e.fatal("llama.cpp does not free the scratch sequence"))
	}
	if err := t.abandon(); err != nil {
		return errors.Join(cause, err)
	}
	return cause
}

// Page implements engine.Import.
func (t *transfer) Page(first, end int, payload []byte) error {
	if err := t.enter(); err != nil {
		return err
	}
	e := t.e
	defer e.leave()
	if !e.schema.Memory.Attention() {
		return t.fail(fmt.Errorf("%w: a %v memory has no pages", engine.ErrUnsupported, e.schema.Memory))
	}
	if first < 0 || first >= end || end > t.tokens || t.snapshot || !t.covered.add(first, end) {
		return t.fail(fmt.Errorf("%w: [%d,%d) of %d", engine.ErrCoverage, first, end, t.tokens))
	}
	if err := e.schema.CheckPage(payload, first, end, t.depth, &e.scratch); err != nil {
		return t.fail(e.payloadError("page", err))
	}
	// A set replaces what the sequence holds, so pages are set into T and
	// shared with the slot from there.
	e.lib.hush()
	n := e.native.stateSet(payload, e.scratchSeq, 0)
	e.lib.unhush()
	if n != len(payload) {
		return t.fail(fmt.Errorf("%w for a page of %d tokens", engine.ErrNoCells, end-first))
	}
	e.native.copySeq(e.scratchSeq, t.seq, -1, -1)
	if !e.native.removeSeq(e.scratchSeq) {
		return t.fail(e.fatal("llama.cpp does not free the scratch sequence"))
	}
	return nil
}

// Snapshot implements engine.Import. It must be the last write into the slot:
// sharing another page with it would drop its recurrent state.
func (t *transfer) Snapshot(payload []byte) error {
	if err := t.enter(); err != nil {
		return err
	}
	e := t.e
	defer e.leave()
	m := e.schema.Memory
	switch {
	case m == blob.Dense:
		return t.fail(fmt.Errorf("%w: a %v memory has no snapshot", engine.ErrUnsupported, m))
	case t.snapshot:
		return t.fail(fmt.Errorf("%w: a second snapshot", engine.ErrOutOfOrder))
	case m.Attention() && !t.covered.full(t.tokens):
		return t.fail(fmt.Errorf("%w: the snapshot came before the last page", engine.ErrOutOfOrder))
	}
	if err := e.schema.CheckSnapshot(payload, t.tokens, t.depth, &e.scratch); err != nil {
		return t.fail(e.payloadError("snapshot", err))
	}
	if n := e.native.stateSet(payload, t.seq, statePartial); n != len(payload) {
		return t.fail(fmt.Errorf("%w for the snapshot", engine.ErrNoCells))
	}
	t.snapshot = true
	return nil
}

// Commit implements engine.Import.
func (t *transfer) Commit() error {
	if err := t.enter(); err != nil {
		return err
	}
	e := t.e
	defer e.leave()
	m := e.schema.Memory
	if m.Attention() && !t.covered.full(t.tokens) {
		return t.fail(fmt.Errorf("%w: pages are missing of [0,%d)", engine.ErrCoverage, t.tokens))
	}
	if m != blob.Dense && !t.snapshot {
		return t.fail(fmt.Errorf("%w: the snapshot is missing", engine.ErrCoverage))
	}
	// llama.cpp must agree; for hybrid memories this compares both kinds.
	last, err := llama.MemorySeqPosMax(e.native.mem, llama.SeqId(t.seq))
	if err != nil || int(last) != t.tokens-1 {
		return t.fail(fmt.Errorf("%w: the last position is %d, expected %d", engine.ErrCoverage, last, t.tokens-1))
	}
	t.dead = true
	e.slots[t.seq] = slot{tokens: t.tokens}
	return nil
}

// Discard implements engine.Import.
func (t *transfer) Discard() error {
	switch err := t.enter(); {
	case errors.Is(err, engine.ErrImportDead):
		return nil
	case err != nil:
		return err
	}
	defer t.e.leave()
	t.dead = true
	return t.abandon()
}

// payloadError translates a blob's fault; nil stays nil.
func (e *Engine) payloadError(unit string, err error) error {
	var f *blob.Error
	if !errors.As(err, &f) {
		return err
	}
	p := &engine.PayloadError{Unit: unit, Component: f.Kind, Layer: -1, Reason: f.Reason}
	if f.Layer >= 0 {
		var layers []int
		switch f.Kind {
		case state.AttentionKV:
			layers = e.layers.base
		case state.WindowKV:
			layers = e.layers.window
		case state.Conv, state.Recurrent:
			layers = e.layers.recurrent
		}
		if f.Layer < len(layers) {
			p.Layer = layers[f.Layer]
		}
	}
	return p
}

// coverage is a set of token ranges: disjoint, ascending, not touching.
type coverage []span

type span struct{ first, end int }

// add adds [first, end) unless a part of it is covered already.
func (c *coverage) add(first, end int) bool {
	i := len(*c)
	for i > 0 && (*c)[i-1].first >= first { // pages nearly always ascend
		i--
	}
	if i > 0 && (*c)[i-1].end > first || i < len(*c) && (*c)[i].first < end {
		return false
	}
	joinsLeft := i > 0 && (*c)[i-1].end == first
	joinsRight := i < len(*c) && (*c)[i].first == end
	switch {
	case joinsLeft && joinsRight:
		(*c)[i-1].end = (*c)[i].end
		*c = append((*c)[:i], (*c)[i+1:]...)
	case joinsLeft:
		(*c)[i-1].end = end
	case joinsRight:
		(*c)[i].first = first
	default:
		*c = append(*c, span{})
		copy((*c)[i+1:], (*c)[i:])
		(*c)[i] = span{first, end}
	}
	return true
}

// full reports whether the set is exactly [0, tokens).
func (c coverage) full(tokens int) bool {
	return len(c) == 1 && c[0] == span{0, tokens}
}
