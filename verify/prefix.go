package verify

import (
	"fmt"

	"github.com/tandem-llm/tandem/pair"
)

// hits puts what a cell finds in prefix caches where it finds it, and has it sent.
func (r *runner) hits(p Params, ref *reference, s *pair.Sending) error {
	if p.DestinationHit > 0 { // an earlier handoff of the same prompt, computed without a cache
		if _, err := r.peer.Send(r.ctx, pair.Sending{Export: ref.exports[p.Page], Lane: p.Lane}); err != nil {
			return fmt.Errorf("the handoff before: %w", err)
		}
		if err := r.peer.KeepPrefix(r.ctx, p.DestinationHit); err != nil {
			return fmt.Errorf("keeping a prefix at the destination: %w", err)
		}
	}
	if p.SourceHit == 0 {
		return nil
	}
	export, err := r.assisted(p, ref)
	s.Export = export
	return err
}

// assisted computes the prompt behind a hit, and shows that this is the prompt computed cold: its
// state, and at the source itself every bit of what follows.
func (r *runner) assisted(p Params, ref *reference) (*pair.Export, error) {
	if err := r.source.Clear(); err != nil {
		return nil, err
	}
	if _, err := r.source.PrefillFrom(ref.prompt, p.Chunk, p.SourceHit); err != nil {
		return nil, fmt.Errorf("prefill behind a hit: %w", err)
	}
	before, err := r.source.State()
	if err != nil {
		return nil, err
	}
	if before != ref.before {
		return nil, fmt.Errorf("the state that was computed behind a hit of %d tokens (%d bytes) is not that of the prompt computed cold (%d bytes)",
			p.SourceHit, before.Bytes, ref.before.Bytes)
	}
	export, err := r.source.Export(ref.prompt, p.Page)
	if err != nil {
		return nil, fmt.Errorf("export at the source: %w", err)
	}
	steps, err := r.source.Continue(r.o.Steps)
	if err != nil {
		return nil, fmt.Errorf("decoding at the source: %w", err)
	}
	if n := sameBits(ref.steps, steps); n < len(ref.steps) {
		return nil, fmt.Errorf("logits at the source itself differ behind a hit, from step %d on", n)
	}
	return export, nil
}
