package handoff

import "time"

// Request is the gateway's machine for one client request; it owns one handoff
// attempt at a time. The zero value is ready; it is not safe for concurrent
// use, and a plain copy is a snapshot.
type Request struct {
	state  RequestState
	status Status
	next   int
}

// State returns the current state.
func (m *Request) State() RequestState { return m.state }

// Status returns the terminal status, or 0 before RequestDone.
func (m *Request) Status() Status { return m.status }

// Next returns the index of the next token to forward: the number of tokens the
// client has.
func (m *Request) Next() int { return m.next }

// Apply tells the machine one fact at host time now and appends the resulting
// actions to dst, to be executed in order. It allocates only if dst has no room.
// On error the machine is unchanged, dst is returned as given and the error is
// a *FactError.
func (m *Request) Apply(now time.Duration, f RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	return dst, NoOp, nil
}
