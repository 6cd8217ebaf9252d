package ledger

import (
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

// Manager implements kv.Manager over an Index. Managers embed it, so it has the
// methods of the contract and no others.
type Manager struct {
	b     Book
	index Index
}

// Check validates a configuration and fills in defaults.
func Check(cfg kv.Config) (kv.Config, error) {
	bad := func(field string, value int, want string) (kv.Config, error) {
		return cfg, &kv.ConfigError{Field: field, Value: value, Want: want}
	}
	switch {
	case cfg.Blocks < 1 || cfg.Blocks > kv.MaxBlocks:
		return bad("Blocks", cfg.Blocks, "1 to 134217728")
	case cfg.BlockTokens < 1 || cfg.BlockTokens > kv.MaxTokens:
		return bad("BlockTokens", cfg.BlockTokens, "1 to 1073741824")
	case cfg.Slots < 0 || cfg.Slots > kv.MaxSequences:
		return bad("Slots", cfg.Slots, "0 to 1048576")
	case cfg.Align < 0 || cfg.Align > cfg.Blocks:
		return bad("Align", cfg.Align, "0 to Blocks")
	case cfg.MarkBytes < 0:
		return bad("MarkBytes", int(cfg.MarkBytes), "not less than 0")
	}
	cfg.Align = max(cfg.Align, 1)
	return cfg, nil
}

// Init makes m ready for an index, and returns what the index works on. cfg comes
// from Check.
func Init(m *Manager, cfg kv.Config, index Index) *Book {
	b := &m.b
	m.index, b.cfg = index, cfg
	b.counts[Free] = cfg.Blocks
	b.ids = make(map[handoff.ID]uint32)
	b.Table.init(cfg.Blocks)
	if cfg.Marked {
		b.Marks.init(cfg.Blocks, cfg.MarkBytes)
	}
	return b
}

// Config is documented at kv.Manager, like every exported method with its name.
func (m *Manager) Config() kv.Config { return m.b.cfg }

// Snapshot is documented at kv.Manager.
func (m *Manager) Snapshot() kv.Snapshot {
	return kv.Snapshot{
		Blocks: m.b.cfg.Blocks,
		Active: m.b.counts[Active], Pinned: m.b.counts[Pinned], Reserved: m.b.counts[Reserved],
		Cached: m.b.counts[Cached], Free: m.b.counts[Free],
		Slots: m.b.alive, SlotsAll: m.b.cfg.Slots, Headroom: m.b.headroom, Marks: m.b.Marks.used,
	}
}

// Events is documented at kv.Manager.
func (m *Manager) Events(dst []kv.Event) []kv.Event {
	dst = append(dst, m.b.events...)
	m.b.events = m.b.events[:0]
	return dst
}

// Evict is documented at kv.Manager.
func (m *Manager) Evict(n int) (done int) {
	// What is promised to growth may be cached, but evicting it only makes it free.
	for done < n && m.index.Evict() {
		done++
	}
	return done
}

// Reset is documented at kv.Manager.
func (m *Manager) Reset() kv.Outcome {
	if m.b.alive > 0 {
		for i := range m.b.seqs {
			if m.b.seqs[i].Touched > 0 {
				return kv.Quarantined
			}
		}
		return kv.Busy
	}
	m.Evict(m.b.cfg.Blocks)
	return kv.OK
}
