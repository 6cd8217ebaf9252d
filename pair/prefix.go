package pair

import (
	"context"
	"fmt"

	"github.com/tandem-llm/tandem/engine"
)

// A prefix cache keeps pages of sequences that ended, in slots that are not decoded any
// more (worker/prefix.go). Here one prefix is kept, in the last slot.

// KeepPrefix ends the sequence in Slot and keeps the pages of its first tokens. Families
// without pages keep nothing.
func (h *Host) KeepPrefix(tokens int) error {
	info := h.Engine.Info()
	if have := h.Engine.Tokens(Slot); tokens < 1 || tokens > have || h.layout.Sequences()+2 > info.Slots {
		return fmt.Errorf("%w: a prefix of %d tokens of %d, with %d of %d slots taken", ErrCall, tokens, have, h.layout.Sequences()+1, info.Slots)
	}
	if h.Engine.Paged() {
		imp, err := h.Engine.BeginImport(h.store(), tokens)
		if err == nil {
			err = imp.Share(Slot, 0, tokens)
		}
		if err == nil {
			err = imp.Discard() // which leaves a slot that keeps what it shared
		}
		if err != nil {
			return err
		}
	}
	h.sampler = nil
	return h.Engine.Drop(Slot)
}

// store is the slot of the prefix that is kept.
func (h *Host) store() int32 { return int32(h.Engine.Info().Slots - 1) }

// begin starts an import into Slot that shares the first tokens with the prefix that is kept.
func (h *Host) begin(tokens, kept int) (engine.Import, error) {
	imp, err := h.Engine.BeginImport(Slot, tokens)
	if err != nil || kept == 0 || !h.Engine.Paged() {
		return imp, err
	}
	if err := imp.Share(h.store(), 0, kept); err != nil {
		_ = h.Engine.Drop(Slot)
		return nil, err
	}
	return imp, nil
}

// PrefillFrom is Prefill of a prompt whose first tokens, cached of them, are found in a
// prefix cache. They are computed before, as another sequence, of which pages and snapshot
// are kept as a worker keeps them.
func (h *Host) PrefillFrom(tokens []engine.Token, chunk, cached int) (engine.Token, error) {
	if cached < 1 || cached >= len(tokens) {
		return 0, fmt.Errorf("%w: %d tokens cached of %d", ErrCall, cached, len(tokens))
	}
	if _, err := prefill(h.Engine, Slot, tokens[:cached], 0, chunk, nil); err != nil {
		return 0, err
	}
	size, err := h.Engine.SnapshotBytes(Slot)
	if err != nil {
		return 0, err
	}
	snapshot := make([]byte, size)
	if size > 0 {
		if size, _, err = h.Engine.ExportSnapshot(Slot, snapshot); err != nil {
			return 0, err
		}
	}
	if err := h.KeepPrefix(cached); err != nil {
		return 0, err
	}
	imp, err := h.begin(cached, cached)
	if err == nil && size > 0 {
		err = imp.Snapshot(snapshot[:size])
	}
	if err == nil {
		err = imp.Commit()
	}
	if err != nil {
		return 0, err
	}
	return h.prefill(tokens, cached, chunk, nil)
}

// KeepPrefix ends the child's sequence and keeps the pages of its first tokens for Sending.Skip,
// until Place or Clear.
func (p *Pair) KeepPrefix(ctx context.Context, tokens int) error {
	_, err := p.call(ctx, request{Keep: tokens})
	return err
}
