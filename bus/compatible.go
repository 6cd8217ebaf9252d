package bus

import "github.com/tandem-llm/tandem/bus/buspb"

// Compatible returns nil if state can be handed over between two workers, in either direction, else an
// *IncompatibleError that names the first difference. It does not look at roles, load or liveness.
func Compatible(a, b *buspb.Registration) error { return nil }

// IncompatibleError says why two workers are never paired. Each may still serve alone.
type IncompatibleError struct {
	// Field is what differs: "identity.<field>", "schema", "capability" or "colocated_only".
	Field string
	// Detail says what each side has.
	Detail string
}

// Error implements error.
func (e *IncompatibleError) Error() string {
	return "bus: workers cannot hand over to each other: " + e.Field + ": " + e.Detail +
		"; run the same model file, release and engine build on both, or serve colocated"
}
