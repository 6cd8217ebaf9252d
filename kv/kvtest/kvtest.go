package kvtest

import (
	"testing"

	"github.com/tandem-llm/tandem/kv"
)

// Suite is what a manager's test gives: how to make one, and how to check its
// inside (every block in exactly one place, every count right).
type Suite struct {
	New   func(kv.Config) (kv.Manager, error)
	Check func(kv.Manager) error
	Ops   int // random operations
}

// Run runs the whole suite.
func Run(t *testing.T, s Suite) {
	t.Run("random", func(t *testing.T) { random(t, s.New, s.Check, s.Ops) })
	t.Run("steady state does not allocate", func(t *testing.T) { steady(t, s.New) })
}
