package handoff

import "time"

// Source is the prefill worker's machine for one handoff. The zero value is
// ready; it is not safe for concurrent use, and a plain copy is a snapshot.
type Source struct {
	state   SourceState
	outcome Outcome
}

// State returns the current state.
func (m *Source) State() SourceState { return m.state }

// Outcome returns how the handoff ended, or 0 while it has not.
func (m *Source) Outcome() Outcome { return m.outcome }

// Apply tells the machine one fact at host time now and appends the resulting
// actions to dst, to be executed in order. It allocates only if dst has no room.
// On error the machine is unchanged, dst is returned as given and the error is
// a *FactError.
func (m *Source) Apply(now time.Duration, f SourceFact, dst []SourceAction) ([]SourceAction, Result, error) {
	return dst, NoOp, nil
}
