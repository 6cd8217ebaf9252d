package telemetry

import (
	"slices"
	"sync/atomic"
)

// memo keeps the members of a vector of metrics with one label, for what is counted with each token: to
// find one costs a hash and a lock each time. A member exists from its first use, as in the vector. It is
// safe for concurrent use.
type memo[M any] struct {
	values  []string
	members []atomic.Pointer[M]
	find    func(values ...string) M
}

func newMemo[M any](find func(values ...string) M, values ...string) *memo[M] {
	return &memo[M]{values, make([]atomic.Pointer[M], len(values)), find}
}

// of returns the member of a label's value.
func (m *memo[M]) of(value string) M {
	i := slices.Index(m.values, value)
	if i < 0 {
		return m.find(value)
	}
	if known := m.members[i].Load(); known != nil {
		return *known
	}
	member := m.find(value)
	m.members[i].Store(&member)
	return member
}
