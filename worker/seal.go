package worker

import (
	"slices"
	"sync"

	"github.com/tandem-llm/tandem/state"
)

// seal is a source's sealer. The owner seals units, and a goroutine of the wire
// hashes them while they travel; whichever comes last makes the manifest. So the
// manifest never waits for the owner, which by then may be computing a chunk of
// another prompt for as long as that takes. It is the one thing of a task that two
// goroutines share.
type seal struct {
	mu     sync.Mutex
	sealer *state.Sealer   // guarded by mu
	wanted *state.Manifest // guarded by mu; asked for while digests are missing
}

func newSeal(cfg state.SealerConfig) *seal {
	s := &seal{sealer: state.NewSealer(cfg)}
	s.sealer.Defer()
	return s
}

// overChecksum is Sealer.OverChecksum.
func (s *seal) overChecksum() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sealer.OverChecksum()
}

// page is Sealer.Page for attention pages.
func (s *seal) page(tokens state.Range, final bool, payload []byte) (state.UnitHeader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sealer.Page(state.AttentionKV, tokens, final, payload)
}

// snapshot is Sealer.Snapshot for the final unit.
func (s *seal) snapshot(tokens uint32, payload []byte, refs []state.ComponentRef) (state.UnitHeader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sealer.Snapshot(tokens, true, payload, refs)
}

// hashed takes the digest of a unit. It returns the manifest if that was asked for
// and waited for this digest only.
func (s *seal) hashed(unit uint32, d state.Digest) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.sealer.Digest(unit, d); err != nil || s.wanted == nil || s.sealer.Pending() > 0 {
		return nil, err
	}
	m := s.wanted
	s.wanted = nil
	defer clear(m.History)
	return s.sealer.Manifest(m)
}

// manifest asks for the manifest, once, after the last unit. It is returned here or,
// while digests are missing, by the hashed call that brings the last. m's History
// stays the caller's.
func (s *seal) manifest(m state.Manifest) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealer.Pending() > 0 {
		m.History = slices.Clone(m.History) // the task may be released, and its history cleared, before
		s.wanted = &m
		return nil, nil
	}
	return s.sealer.Manifest(&m)
}
