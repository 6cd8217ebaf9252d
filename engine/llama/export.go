package llama

import (
	"encoding/binary"
	"fmt"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/llama/blob"
	"github.com/tandem-llm/tandem/state"
)

// enterMovable is enter for methods that need state to be movable.
func (e *Engine) enterMovable() error {
	if err := e.enter(); err != nil {
		return err
	}
	if e.schema == nil {
		e.leave()
		return fmt.Errorf("%w: %s", engine.ErrUnsupported, e.info.ColocatedOnly)
	}
	return nil
}

// held returns the tokens of a slot that holds some.
func (e *Engine) held(seq int32) (int, error) {
	if err := e.checkSlot(seq); err != nil {
		return 0, err
	}
	s := &e.slots[seq]
	if s.tokens == 0 || s.retired {
		return 0, fmt.Errorf("%w: slot %d holds no sequence", engine.ErrSequence, seq)
	}
	return s.tokens, nil
}

// Paged implements engine.Engine.
func (e *Engine) Paged() bool { return e.schema != nil && e.schema.Memory.Attention() }

// PageBytes implements engine.Engine.
func (e *Engine) PageBytes(tokens int) int {
	if e.schema == nil {
		return 0
	}
	return e.schema.PageBytes(tokens)
}

// ExportPage implements engine.Engine.
func (e *Engine) ExportPage(seq int32, first, end int, dst []byte) (int, error) {
	if err := e.enterMovable(); err != nil {
		return 0, err
	}
	defer e.leave()
	tokens, err := e.held(seq)
	if err != nil {
		return 0, err
	}
	if !e.schema.Memory.Attention() {
		return 0, fmt.Errorf("%w: a %v memory has no pages", engine.ErrUnsupported, e.schema.Memory)
	}
	if first < 0 || first >= end || end > tokens {
		return 0, fmt.Errorf("%w: [%d,%d) of the %d tokens of slot %d", engine.ErrCoverage, first, end, tokens, seq)
	}
	size := e.schema.PageBytes(end - first)
	if len(dst) < size {
		return 0, fmt.Errorf("%w: %d bytes, the page has %d", engine.ErrBuffer, len(dst), size)
	}
	dst = dst[:size:size]

	e.native.copySeq(seq, e.scratchSeq, first, end)
	e.strip()
	n := e.native.stateGet(dst, e.scratchSeq, 0)
	if !e.native.removeSeq(e.scratchSeq) {
		return 0, e.fatal("llama.cpp does not free the scratch sequence")
	}
	if n != size {
		e.logNew(true)
		return 0, e.fatal("llama.cpp exports a page of %d bytes, expected %d", n, size)
	}
	if err := e.schema.SealPage(dst, first, end, &e.scratch); err != nil {
		return 0, e.fatal("llama.cpp exports a bad page: %v", err)
	}
	return size, nil
}

// strip leaves T its attention cells and takes it out of the window and the
// recurrent memory, so that the blob of T is the page and nothing else, at a
// size known beforehand.
func (e *Engine) strip() { e.stripFrom(e.scratchSeq) }

func (e *Engine) stripFrom(seq int32) {
	if len(e.stripBlobs) == 0 {
		return
	}
	e.lib.hush()
	for _, b := range e.stripBlobs {
		e.native.stateSet(b, seq, statePartial)
	}
	e.lib.unhush()
}

// makeStripBlobs makes what strip sets into T.
func makeStripBlobs(s *blob.Schema) [][]byte {
	var list [][]byte
	if s.Memory.Recurrence() {
		// An empty recurrent section replaces T's state with none.
		b := append32(nil, blob.Magic, 0)
		if s.Memory.Window() {
			b = append32(b, 1, 0) // no window cells: leaves them as they are
		}
		list = append(list, s.AppendEmptyREC(b))
	}
	if s.Memory.Window() {
		// There is no way to ask for this: a window section without cells
		// leaves the cells that are there. One that promises a cell and ends
		// makes llama.cpp empty T's window first, then miss the cell and
		// report failure, with nothing else done. Copying the window out with
		// every page, to be cut away, would be most of the bytes.
		list = append(list, append32(nil, blob.Magic, 0, 1, 1))
	}
	return list
}

func append32(b []byte, vs ...uint32) []byte {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// SnapshotBytes implements engine.Engine.
func (e *Engine) SnapshotBytes(seq int32) (int, error) {
	if err := e.enterMovable(); err != nil {
		return 0, err
	}
	defer e.leave()
	if _, err := e.held(seq); err != nil {
		return 0, err
	}
	return e.snapshotBytes(seq), nil
}

func (e *Engine) snapshotBytes(seq int32) int {
	switch {
	case e.schema.Memory == blob.Dense:
		return 0
	case e.schema.Memory.Window():
		// Whether the window has its oldest cell only llama.cpp knows. Counting
		// costs a walk over the window's cells, not over data.
		return int(llama.StateSeqGetSizeExt(e.ctx, llama.SeqId(seq), statePartial))
	}
	return e.schema.SnapshotBytes(0)
}

// ExportSnapshot implements engine.Engine.
func (e *Engine) ExportSnapshot(seq int32, dst []byte) (int, []state.ComponentRef, error) {
	if err := e.enterMovable(); err != nil {
		return 0, nil, err
	}
	defer e.leave()
	tokens, err := e.held(seq)
	if err != nil {
		return 0, nil, err
	}
	size := e.snapshotBytes(seq)
	if size == 0 {
		return 0, nil, nil
	}
	if len(dst) < size {
		return 0, nil, fmt.Errorf("%w: %d bytes, the snapshot has %d", engine.ErrBuffer, len(dst), size)
	}
	dst = dst[:size:size]
	if n := e.native.stateGet(dst, seq, statePartial); n != size {
		e.logNew(true)
		return 0, nil, e.fatal("llama.cpp exports a snapshot of %d bytes, expected %d", n, size)
	}
	window, err := e.schema.SealSnapshot(dst, tokens, &e.scratch)
	if err != nil {
		return 0, nil, e.fatal("llama.cpp exports a bad snapshot: %v", err)
	}
	trunk := state.Range{End: uint32(e.info.Layers)}
	parts := e.schema.Components(window)
	refs := make([]state.ComponentRef, len(parts))
	for i, p := range parts {
		refs[i] = state.ComponentRef{Kind: p.Kind, Offset: uint64(p.Offset), Length: uint64(p.Length), Layers: trunk}
	}
	return size, refs, nil
}

// Canonical implements engine.Engine.
func (e *Engine) Canonical(seq int32) ([]byte, error) {
	if err := e.enterMovable(); err != nil {
		return nil, err
	}
	defer e.leave()
	tokens, err := e.held(seq)
	if err != nil {
		return nil, err
	}
	full := make([]byte, llama.StateSeqGetSizeExt(e.ctx, llama.SeqId(seq), 0))
	if n := e.native.stateGet(full, seq, 0); n != len(full) {
		e.logNew(true)
		return nil, e.fatal("llama.cpp exports %d of %d bytes", n, len(full))
	}
	out, err := e.schema.Canonical(full, tokens, &e.scratch)
	if err != nil {
		return nil, e.fatal("llama.cpp exports bad state: %v", err)
	}
	return out, nil
}
