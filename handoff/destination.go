package handoff

import "time"

// Destination is the decode worker's machine for one handoff. The zero value is
// ready; it is not safe for concurrent use, and a plain copy is a snapshot.
type Destination struct {
	state   DestinationState
	outcome Outcome
}

// State returns the current state.
func (m *Destination) State() DestinationState { return m.state }

// Outcome returns how the handoff ended, or 0 while it has not.
func (m *Destination) Outcome() Outcome { return m.outcome }

// Apply tells the machine one fact at host time now and appends the resulting
// actions to dst, to be executed in order. It allocates only if dst has no room.
// On error the machine is unchanged, dst is returned as given and the error is
// a *FactError.
func (m *Destination) Apply(now time.Duration, f DestinationFact, dst []DestinationAction) ([]DestinationAction, Result, error) {
	return dst, NoOp, nil
}
