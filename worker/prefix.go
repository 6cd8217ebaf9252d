package worker

import (
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/mirror"
	"github.com/tandem-llm/tandem/sched"
)

// The prefix cache keeps what was computed, by blocks, as long as nobody needs the
// cells. Blocks have names that follow from all tokens up to their end and from a
// secret of this process and the tenant: they never leave it, and tenants never share.
// A prompt that begins as a cached one is given its state whole pages at a time, so
// that its chunks end where those of a cold run do; it is exported like any other.
//
// Only models whose whole state is pages have one: where there is a recurrent or window
// state as well, that of the boundary would be needed too.

// cacheable reports, as an error, why an engine's state cannot be shared by prefixes.
func cacheable(info engine.Info) error {
	if info.Inventory.Snapshot() {
		return errors.New("worker: this model keeps state beside pages, and its prefixes are not cached yet; use 0 cached slots")
	}
	return nil
}

// newSecret makes what block names are derived from.
func newSecret() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return b
}

// keys names the full blocks of a task's prompt. Without a prefix cache there are none.
func (m *memory) keys(t *task) []kv.Key {
	if m.secret == nil {
		return nil
	}
	t.chain = kv.NewChain(kv.SaltFor(m.secret, t.tenant), m.block)
	t.keys = t.chain.Tokens(t.gen.history, nil)
	return t.keys
}

// keepAnswer names the blocks of a finished answer too, so that the next turn of a
// conversation finds them.
func (w *Worker) keepAnswer(t *task) {
	if t.chain == nil {
		return
	}
	t.keys = t.chain.Tokens(t.gen.history[t.prompt:t.computed], t.keys) // the last token was not computed
	w.mem.sched.Keys(w.now(), t.id, t.keys)
	w.sync()
}

// place gives a sequence one of the engine's slots, with the prefix that is cached of
// it. Slots that only keep prefixes give way.
func (w *Worker) place(n sched.Notice) (int32, error) {
	m := w.mem
	slot, ops, err := m.mirror.Open(n.Seq, m.blocks, int(n.Tokens), m.ops[:0])
	for errors.Is(err, mirror.ErrNoSlot) && w.evict(1) {
		slot, ops, err = m.mirror.Open(n.Seq, m.blocks, int(n.Tokens), m.ops[:0])
	}
	if err != nil {
		return 0, err
	}
	m.ops = ops
	var imp engine.Import
	for _, op := range ops { // in this order: later ones may empty slots that are shared from
		switch {
		case op.Kind != mirror.Share || op.Slot != slot:
			err = w.do(op)
		case imp == nil:
			if imp, err = w.eng.BeginImport(slot, int(n.Tokens)); err == nil {
				err = imp.Share(op.From, op.First, op.End)
			}
		default:
			err = imp.Share(op.From, op.First, op.End)
		}
		if err != nil {
			return 0, fmt.Errorf("%v into slot %d: %w", op.Kind, op.Slot, err)
		}
	}
	if imp != nil {
		err = imp.Commit()
	}
	return slot, err
}

// evict forgets cached blocks, and reports whether there were any.
func (w *Worker) evict(blocks int) bool {
	gone := w.mem.kv.Evict(blocks)
	w.follow()
	return gone > 0
}
