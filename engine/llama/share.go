package llama

import (
	"fmt"

	"github.com/tandem-llm/tandem/engine"
)

// Share implements engine.Import.
func (t *transfer) Share(from int32, first, end int) error {
	if err := t.enter(); err != nil {
		return err
	}
	e := t.e
	defer e.leave()
	if !e.schema.Memory.Attention() {
		return t.fail(fmt.Errorf("%w: a %v memory has no pages", engine.ErrUnsupported, e.schema.Memory))
	}
	if err := e.holds(from, first, end); err != nil {
		return t.fail(err)
	}
	if end > t.tokens || t.snapshot || !t.covered.add(first, end) {
		return t.fail(fmt.Errorf("%w: [%d,%d) of %d", engine.ErrCoverage, first, end, t.tokens))
	}
	e.native.copySeq(from, t.seq, first, end)
	if !e.slots[from].retired {
		// Window and recurrent state came along. Until the snapshot replaces them, the
		// other slot's old window cells could not be used again.
		e.stripFrom(t.seq)
	}
	t.shared.add(first, end)
	return nil
}

// abandon empties the slot of an import that failed or was discarded. What it
// shares stays, in a retired slot: others may have let go of it meanwhile, so that
// it is the only copy of a cached prefix.
func (t *transfer) abandon() error {
	e := t.e
	if len(t.shared) == 0 {
		return e.drop(t.seq)
	}
	e.stripFrom(t.seq)
	end := e.info.ContextTokens
	for i := len(t.shared) - 1; i >= -1; i-- {
		first := 0
		if i >= 0 {
			first = t.shared[i].end
		}
		if first < end && !e.native.removeRange(t.seq, first, end) {
			return e.fatal("llama.cpp does not free [%d,%d) of slot %d", first, end, t.seq)
		}
		if i >= 0 {
			end = t.shared[i].first
		}
	}
	e.slots[t.seq] = slot{tokens: t.tokens, retired: true, kept: t.shared}
	return nil
}

// holds reports, as an error, whether a slot does not hold positions.
func (e *Engine) holds(seq int32, first, end int) error {
	if err := e.checkSlot(seq); err != nil {
		return err
	}
	s := &e.slots[seq]
	covered := coverage{{0, s.tokens}}
	switch {
	case s.retired:
		covered = s.kept
	case s.importing != nil:
		covered = s.importing.shared
	}
	if first < 0 || first >= end || !covered.has(first, end) {
		return fmt.Errorf("%w: slot %d does not hold [%d,%d)", engine.ErrSequence, seq, first, end)
	}
	return nil
}

// Retire implements engine.Engine.
func (e *Engine) Retire(seq int32) error {
	if err := e.enterMovable(); err != nil {
		return err
	}
	defer e.leave()
	if e.checkSlot(seq) == nil && e.slots[seq].retired {
		return nil
	}
	tokens, err := e.held(seq)
	if err != nil {
		return err
	}
	if !e.schema.Memory.Attention() {
		return e.drop(seq) // all it has
	}
	// Without its recurrent part a slot may lose any positions; with it llama.cpp
	// refuses most.
	e.stripFrom(seq)
	s := &e.slots[seq]
	s.retired, s.kept = true, append(s.kept[:0], span{0, tokens})
	return nil
}

// Keep implements engine.Engine.
func (e *Engine) Keep(to, from int32, first, end int) error {
	if err := e.enterMovable(); err != nil {
		return err
	}
	defer e.leave()
	if err := e.checkSlot(to); err != nil {
		return err
	}
	if err := e.holds(from, first, end); err != nil {
		return err
	}
	s := &e.slots[to]
	if to == from || !s.retired || !s.kept.add(first, end) {
		return fmt.Errorf("%w: slot %d is not retired, or holds a part of [%d,%d)", engine.ErrSequence, to, first, end)
	}
	e.native.copySeq(from, to, first, end)
	if !e.slots[from].retired {
		e.stripFrom(to) // what came along
	}
	return nil
}

// Trim implements engine.Engine.
func (e *Engine) Trim(seq int32, first, end int) error {
	if err := e.enterMovable(); err != nil {
		return err
	}
	defer e.leave()
	if err := e.checkSlot(seq); err != nil {
		return err
	}
	s := &e.slots[seq]
	if !s.retired || first < 0 || end >= 0 && first >= end {
		return fmt.Errorf("%w: [%d,%d) of slot %d, which must be retired", engine.ErrSequence, first, end, seq)
	}
	if end < 0 {
		end = max(e.info.ContextTokens, first+1)
	}
	s.kept.remove(first, end)
	if len(s.kept) == 0 {
		return e.drop(seq)
	}
	if !e.native.removeRange(seq, first, end) {
		e.logNew(true)
		return e.fatal("llama.cpp does not free [%d,%d) of slot %d", first, end, seq)
	}
	return nil
}

// has reports whether [first, end) is in the set.
func (c coverage) has(first, end int) bool {
	for _, s := range c {
		if s.first <= first && end <= s.end {
			return true
		}
	}
	return false
}

// remove takes [first, end) out of the set.
func (c *coverage) remove(first, end int) {
	var left coverage
	for _, s := range *c {
		if s.first < min(first, s.end) {
			left = append(left, span{s.first, min(first, s.end)})
		}
		if max(end, s.first) < s.end {
			left = append(left, span{max(end, s.first), s.end})
		}
	}
	*c = left
}
