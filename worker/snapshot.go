package worker

import (
	"fmt"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kv"
)

// Models with window or recurrent state overwrite it as they go on, so a prefix can be
// taken up only at a boundary whose snapshot was kept while the sequence was there. They
// are kept in the host's memory, at ends of pages where a later prompt is likely to part:
// the last one below the end of a prompt, each that an answer reaches, and in long prompts
// every snapshotPages-th. The manager bounds their bytes and says which one is to go, the
// least recently used first; with its block a snapshot goes too. They are content: their
// bytes are zeroed when they go, and when the worker ends.

// snapshotPages is how many pages of a long prompt go by between two snapshots: one of a
// hybrid model can be larger than eight pages.
const snapshotPages = 8

// snapshotDue reports whether the state after so many tokens of a history is to be kept.
func snapshotDue(computed, history, page int) bool {
	return computed > 0 && computed%page == 0 && (computed+page >= history || computed/page%snapshotPages == 0)
}

// boundary notes that a task may have reached a place whose snapshot is to be kept when
// the step is done: only then its block is a hit.
func (w *Worker) boundary(t *task) {
	if m := w.mem; m.marked && t.chain != nil && snapshotDue(t.computed, len(t.gen.history), w.cfg.PageTokens) {
		m.reached = append(m.reached, t)
	}
}

// keepSnapshots takes the snapshots of the boundaries that the last step reached. No
// task has gone on, or let go of its slot, since.
func (w *Worker) keepSnapshots() {
	m := w.mem
	for i, t := range m.reached {
		m.reached[i] = nil
		if err := w.keepSnapshot(t); err != nil {
			w.broken(fmt.Errorf("keeping a snapshot: %w", err))
		}
	}
	m.reached = m.reached[:0]
}

func (w *Worker) keepSnapshot(t *task) error {
	m := w.mem
	w.name(t)
	size, err := w.eng.SnapshotBytes(t.slot)
	if err != nil {
		return err
	}
	seq := m.sched.Info(t.ref).Seq
	// Not taken: there is one, it is larger than all may be, or another sequence's block
	// with the same tokens is the one that is found.
	o := m.kv.Mark(seq, t.computed, int64(size))
	w.follow()
	if o != kv.OK {
		return nil
	}
	buf := make([]byte, size)
	n, _, err := w.eng.ExportSnapshot(t.slot, buf)
	m.blocks = m.kv.Blocks(seq, m.blocks[:0])
	m.snapshots[m.blocks[t.computed/m.block-1]] = buf[:n]
	return err
}

// restoreSnapshot gives an import the state at the end of its shared prefix.
func (w *Worker) restoreSnapshot(imp engine.Import, block int32) error {
	buf, ok := w.mem.snapshots[block]
	if !ok {
		return fmt.Errorf("the prefix that ends with block %d has no snapshot", block)
	}
	imp.Scanned() // this engine wrote it
	return imp.Snapshot(buf)
}

func (m *memory) dropSnapshot(block int32) {
	if buf, ok := m.snapshots[block]; ok {
		clear(buf)
		delete(m.snapshots, block)
	}
}

func (m *memory) dropSnapshots() {
	for block := range m.snapshots {
		m.dropSnapshot(block)
	}
}
