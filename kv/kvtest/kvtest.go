package kvtest

import (
	"errors"
	"strings"
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
	t.Run("INV-3 random", func(t *testing.T) { random(t, s.New, s.Check, s.Ops) })
	t.Run("steady state does not allocate", func(t *testing.T) { steady(t, s.New) })
	t.Run("keys that are not chained", func(t *testing.T) { hostile(t, s.New, s.Check) })
	t.Run("impossible shapes", func(t *testing.T) { shapes(t, s.New) })
}

// shapes sees that what cannot be is refused by the name of its field.
func shapes(t *testing.T, make func(kv.Config) (kv.Manager, error)) {
	good := kv.Config{Blocks: 4, BlockTokens: 4, Slots: 4, Align: 2, Marked: true, MarkBytes: 1}
	if _, err := make(good); err != nil {
		t.Fatal(err)
	}
	for field, spoil := range map[string]func(c *kv.Config){
		"Blocks":      func(c *kv.Config) { c.Blocks = 0 },
		"BlockTokens": func(c *kv.Config) { c.BlockTokens = kv.MaxTokens + 1 },
		"Slots":       func(c *kv.Config) { c.Slots = -1 },
		"Align":       func(c *kv.Config) { c.Align = 5 },
		"MarkBytes":   func(c *kv.Config) { c.MarkBytes = -1 },
	} {
		bad := good
		spoil(&bad)
		_, err := make(bad)
		var e *kv.ConfigError
		if !errors.As(err, &e) || e.Field != field || !errors.Is(err, kv.ErrConfig) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
