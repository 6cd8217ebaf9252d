package handoff

import "fmt"

// Every enum of this package is a uint8 whose zero value means "unset" and
// whose names are stable: they are written to records, events and messages.

// nameOf returns the stable name of k, or a description of an unknown value.
func nameOf[K ~uint8](what string, names []string, k K) string {
	if int(k) < len(names) && names[k] != "" {
		return names[k]
	}
	return fmt.Sprintf("%s(%d)", what, uint8(k))
}

// textOf encodes k, refusing values that have no stable name.
func textOf[K ~uint8](what string, names []string, k K) ([]byte, error) {
	if int(k) >= len(names) || names[k] == "" {
		return nil, fmt.Errorf("handoff: %s %d has no name: use one of the declared constants: %w", what, uint8(k), ErrInvalid)
	}
	return []byte(names[k]), nil
}

// fromText decodes a stable name.
func fromText[K ~uint8](what string, names []string, text []byte) (K, error) {
	for i, n := range names {
		if n != "" && n == string(text) {
			return K(i), nil
		}
	}
	if len(text) > 40 {
		text = text[:40]
	}
	return 0, fmt.Errorf("handoff: unknown %s %q: the record is damaged or from a newer version: %w", what, text, ErrInvalid)
}
