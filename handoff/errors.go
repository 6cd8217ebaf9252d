package handoff

import (
	"errors"
	"fmt"
)

// Sentinels that the typed errors of this package wrap.
var (
	// ErrImpossible: the fact cannot be true in this state. The host has a
	// defect or a peer lies; the machine is unchanged. Drop the fact, count it,
	// and let the deadlines of the handoff end it.
	ErrImpossible = errors.New("fact is impossible in this state")
	// ErrInvalid: a field is out of range or a name is unknown. Refuse the
	// message that carried it.
	ErrInvalid = errors.New("invalid value")
	// ErrIncarnation: the fact speaks for another incarnation of the peer than
	// the one this handoff is bound to. Refuse the peer's message.
	ErrIncarnation = errors.New("fact of another incarnation")
	// ErrLive: a creating fact arrived for something that already lives and
	// disagrees with it (or, for a request, at all). Reject the newcomer; the
	// one that lives is untouched.
	ErrLive = errors.New("already live")
	// ErrReleased: the id was released; *ReleasedError holds the outcome to
	// answer with.
	ErrReleased = errors.New("already released")
	// ErrStaleID: the id is too old or too far in the future to be created.
	ErrStaleID = errors.New("id outside the accepted age")
)

// FactError says that a machine refused a fact. The machine is unchanged.
type FactError struct {
	Role  Role   // machine that refused
	State string // its state's stable name
	Fact  string // fact kind's stable name
	Want  string // what would have been acceptable; constant text
	Err   error  // ErrImpossible, ErrInvalid, ErrIncarnation or ErrLive
}

// Error names role, state, fact and what was expected.
func (e *FactError) Error() string {
	return fmt.Sprintf("handoff: %s in %s refused %s: %v: %s", e.Role, e.State, e.Fact, e.Err, e.Want)
}

// Unwrap returns the sentinel.
func (e *FactError) Unwrap() error { return e.Err }

// ReleasedError says that a message concerns a released handoff.
type ReleasedError struct {
	ID      ID
	Outcome Outcome // to be given as the answer
}

// Error names the id and its outcome.
func (e *ReleasedError) Error() string {
	return fmt.Sprintf("handoff: %s was released (%s): answer with this outcome and do nothing", e.ID, e.Outcome)
}

// Unwrap returns ErrReleased.
func (e *ReleasedError) Unwrap() error { return ErrReleased }

// StaleIDError says that a creating message carries an id that may have been
// forgotten already, or that its minting clock is wrong.
type StaleIDError struct {
	ID     ID
	Future bool // minted further in the future than tombstones live
}

// Error names the id and what to do.
func (e *StaleIDError) Error() string {
	if e.Future {
		return fmt.Sprintf("handoff: %s was minted in the future: compare the clocks of gateway and worker", e.ID)
	}
	return fmt.Sprintf("handoff: %s is older than its tombstone would be: retry with a new id, and compare the clocks of gateway and worker if this repeats", e.ID)
}

// Unwrap returns ErrStaleID.
func (e *StaleIDError) Unwrap() error { return ErrStaleID }
