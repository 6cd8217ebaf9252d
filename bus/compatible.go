package bus

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/state"
)

// Compatible returns nil if state can be handed over between two workers, in either direction, else an
// *IncompatibleError that names the first difference: identity, then state schema, then capabilities. It does not look at
// roles, load or liveness. Capabilities that this release does not know are ignored.
func Compatible(a, b *buspb.Registration) error {
	if a == nil || b == nil {
		return &IncompatibleError{Field: "registration", Detail: "a worker is not registered"}
	}
	if err := sameIdentity(a, b); err != nil {
		return err
	}
	if max(a.SchemaMin, b.SchemaMin) > min(a.SchemaMax, b.SchemaMax) {
		return &IncompatibleError{
			Field:  "schema",
			Detail: fmt.Sprintf("%s reads versions %d to %d, %s reads %d to %d", a.Worker, a.SchemaMin, a.SchemaMax, b.Worker, b.SchemaMin, b.SchemaMax),
		}
	}
	for _, r := range []*buspb.Registration{a, b} {
		if !slices.Contains(r.Capabilities, CapHandoff) {
			return &IncompatibleError{Field: "capability", Detail: r.Worker + " lacks " + CapHandoff}
		}
		if r.ColocatedOnly != "" {
			return &IncompatibleError{Field: "colocated_only", Detail: r.Worker + ": " + r.ColocatedOnly}
		}
	}
	return nil
}

// sameIdentity compares encodings first: equal bytes are equal identities, also in a schema that this release, which may
// be older than both workers, cannot read.
func sameIdentity(a, b *buspb.Registration) error {
	if bytes.Equal(a.Identity, b.Identity) && len(a.Identity) > 0 {
		return nil
	}
	limits := state.DefaultLimits()
	var ids [2]state.Identity
	for i, r := range []*buspb.Registration{a, b} {
		var err error
		if ids[i], err = state.DecodeIdentity(r.Identity, &limits); err != nil {
			return &IncompatibleError{Field: "identity", Detail: "that of " + r.Worker + " cannot be read", Cause: err}
		}
	}
	err := ids[0].Match(ids[1])
	if err == nil {
		return nil // different bytes of one meaning
	}
	field := "identity"
	var se *state.Error
	if errors.As(err, &se) && se.Field != "" {
		field += "." + se.Field
	}
	return &IncompatibleError{Field: field, Detail: a.Worker + " and " + b.Worker + " differ", Cause: err}
}

// IncompatibleError says why two workers are never paired. Each may still serve alone.
type IncompatibleError struct {
	// Field is what differs: "identity" or "identity.<field>", "schema", "capability" or "colocated_only".
	Field string
	// Detail says what each side has.
	Detail string
	// Cause may be nil.
	Cause error
}

// Error implements error.
func (e *IncompatibleError) Error() string {
	s := "bus: workers cannot hand over to each other: " + e.Field + ": " + e.Detail
	if e.Cause != nil {
		return s + ": " + e.Cause.Error()
	}
	return s + "; run the same model file, release and engine build on both, or serve colocated"
}

// Unwrap returns the cause.
func (e *IncompatibleError) Unwrap() error { return e.Cause }
