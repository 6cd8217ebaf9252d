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
// that its chunks end where those of a cold run do; it is exported like any other. What is
// cached of a reservation does not have to come.
//
// Where a model has window or recurrent state as well, a prompt can begin only where that
// was kept too (snapshot.go). A model without pages has nothing else: it is given the
// snapshot and no pages. That of a reservation always comes from its source.

// errLostPrefix ends a request that was to begin where an engine failed meanwhile.
var errLostPrefix = errors.New("worker: the engine lost the beginning of the prompt; send the request again")

// newSecret makes what block names are derived from.
func newSecret() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return b
}

// keys names the full blocks of a task's prompt, which is known or not. Without a prefix
// cache there are none.
func (m *memory) keys(t *task, prompt []int32) []kv.Key {
	if m.secret == nil || len(prompt) == 0 {
		return nil
	}
	t.chain = kv.NewChain(kv.SaltFor(m.secret, t.tenant), m.block)
	t.keys, t.named = t.chain.Tokens(prompt, nil), len(prompt)
	return t.keys
}

// name names the blocks of a task's history up to what is computed too, so that the next
// turn of a conversation finds its answer.
func (w *Worker) name(t *task) {
	if t.chain == nil || t.computed <= t.named {
		return
	}
	t.keys = t.chain.Tokens(t.gen.history[t.named:t.computed], t.keys)
	t.named = t.computed
	w.mem.sched.Keys(w.now(), t.id, t.keys)
	w.sync()
}

// place gives a sequence one of the engine's slots, with the prefix that is cached of
// it. Slots that only keep prefixes give way. The session of a reservation that begins
// with a prefix stays open: the rest of its state is to come. errLostPrefix: the engine
// lost the prefix; the slot is the sequence's all the same.
func (w *Worker) place(t *task, n sched.Notice) (int32, error) {
	m := w.mem
	tokens, pages, reservation := int(n.Tokens), int(n.Tokens), n.Kind == sched.NoteGranted
	if reservation {
		tokens = t.prompt
	}
	if !m.paged {
		pages = 0
	}
	slot, ops, err := m.mirror.Open(n.Seq, m.blocks, pages, m.ops[:0])
	for errors.Is(err, mirror.ErrNoSlot) && w.evict(1) {
		slot, ops, err = m.mirror.Open(n.Seq, m.blocks, pages, m.ops[:0])
	}
	if err != nil {
		return 0, err
	}
	m.ops = ops
	var imp engine.Import
	lost := false
	for _, op := range ops { // in this order: later ones may empty slots that are shared from
		switch {
		case op.Kind != mirror.Share || op.Slot != slot:
			err = w.do(op)
		case m.lost[op.From]:
			lost = true
		case imp == nil:
			if imp, err = w.eng.BeginImport(slot, tokens); err == nil {
				err = imp.Share(op.From, op.First, op.End)
			}
		default:
			err = imp.Share(op.From, op.First, op.End)
		}
		if err != nil {
			return 0, fmt.Errorf("%v into slot %d: %w", op.Kind, op.Slot, err)
		}
	}
	if lost {
		if imp != nil {
			if err := imp.Discard(); err != nil {
				return 0, err
			}
		}
		return slot, errLostPrefix
	}
	if reservation {
		t.imp = imp
		return slot, err
	}
	if tokens > 0 && imp == nil {
		imp, err = w.eng.BeginImport(slot, tokens)
	}
	if imp == nil || err != nil {
		return slot, err
	}
	if m.marked {
		if err := w.restoreSnapshot(imp, m.blocks[tokens/m.block-1]); err != nil {
			return 0, err
		}
	}
	return slot, imp.Commit()
}

// evict forgets cached blocks, and reports whether there were any.
func (w *Worker) evict(blocks int) bool {
	gone := w.mem.kv.Evict(blocks)
	w.follow()
	return gone > 0
}
