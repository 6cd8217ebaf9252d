package route

import (
	"errors"
	"fmt"
	"strings"
)

// Reason is why a worker was not chosen.
type Reason string

const (
	WrongModel   Reason = "serves another model"
	WrongRole    Reason = "has another role"
	Draining     Reason = "is draining"
	Unreachable  Reason = "cannot be reached"
	Excluded     Reason = "refused this request for good"
	NotHolder    Reason = "does not hold the request's state"
	TooLong      Reason = "cannot hold so many tokens"
	Incompatible Reason = "has no compatible partner"
)

// ErrRefused is wrapped by every RefusedError.
var ErrRefused = errors.New("no worker can take the request")

// Refusal is one worker's reason. Detail, where there is one, says more: which partner and what
// differs.
type Refusal struct {
	Worker string
	Reason Reason
	Detail string
}

// RefusedError says that no worker, or no pair, can take a request, with every worker's reason in
// the order of their names.
type RefusedError struct {
	Side     Role // the role nobody was left for
	Refusals []Refusal
}

// Error names the role and each worker's reason.
func (e *RefusedError) Error() string {
	if len(e.Refusals) == 0 {
		return fmt.Sprintf("route: no %s worker is registered: start one, or wait for it to register", e.Side)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "route: no %s worker can take the request:", e.Side)
	for i, r := range e.Refusals {
		if i > 0 {
			b.WriteByte(';')
		}
		fmt.Fprintf(&b, " %s %s", r.Worker, r.Reason)
		if r.Detail != "" {
			fmt.Fprintf(&b, " (%s)", r.Detail)
		}
	}
	return b.String()
}

// Unwrap returns ErrRefused.
func (e *RefusedError) Unwrap() error { return ErrRefused }

// Only reports whether every worker that could have had the role was refused for this reason, so
// that waiting for other requests to end would not help. Workers of another role or model do not
// count.
func (e *RefusedError) Only(reason Reason) bool {
	found := false
	for _, r := range e.Refusals {
		switch r.Reason {
		case WrongRole, WrongModel:
		case reason:
			found = true
		default:
			return false
		}
	}
	return found
}

// Has reports whether some worker was refused for this reason.
func (e *RefusedError) Has(reason Reason) bool {
	for _, r := range e.Refusals {
		if r.Reason == reason {
			return true
		}
	}
	return false
}
