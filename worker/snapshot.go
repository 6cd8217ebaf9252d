package worker

import (
	"fmt"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kv"
)

// Models with window or recurrent state overwrite it as they go on, so a prefix can be
// taken up only at a boundary whose snapshot was kept while the sequence was there. They
// are kept in the host's memory, at ends of pages where a later prompt is likely to part:
// the last one below the end of a prompt, each that an answer reaches, that up to which an
// earlier prompt was the same, and in long prompts every snapshotPages-th. The manager
// bounds their bytes and says which one is to go, the least recently used first; with its
// block a snapshot goes too. They are content: their bytes are zeroed when they go, and
// when the worker ends.

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
	m := w.mem
	if m.marked && t.chain != nil && (t.computed == t.parts || snapshotDue(t.computed, len(t.gen.history), w.cfg.PageTokens)) {
		m.reached = append(m.reached, t)
	}
}

// parts is up to where an earlier prompt was the same as a task's, in whole pages: what
// two prompts have in common a third one may begin with.
func (m *memory) parts(t *task) int {
	if !m.marked {
		return 0
	}
	return m.kv.Match(kv.Need{Tokens: len(t.gen.history), Keys: t.keys}, true)
}

// keepSnapshots takes the snapshots of the boundaries that the last step reached. No
// task has gone on, or let go of its slot, since.
func (w *Worker) keepSnapshots() {
	m := w.mem
	for i, t := range m.reached {
		m.reached[i] = nil
		if m.gone(t) {
			continue
		}
		if err := w.keepSnapshot(t); err != nil {
			w.broken(fmt.Errorf("keeping a snapshot: %w", err))
		}
	}
	m.reached = m.reached[:0]
}

func (w *Worker) keepSnapshot(t *task) error {
	m := w.mem
	w.name(t) // with the blocks of its answer
	size, err := w.eng.SnapshotBytes(t.slot)
	if err != nil {
		return err
	}
	// Not taken: there is one, or it is larger than all may be. The block may be another
	// sequence's, which computed the same before.
	block, o := m.kv.MarkFound(t.keys[:t.computed/m.block], int64(size))
	w.follow()
	if o != kv.OK {
		return nil
	}
	buf := m.snapshotBuffer(size)
	n, _, err := w.eng.ExportSnapshot(t.slot, buf)
	m.snapshots[block] = buf[:n]
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

// snapshotBuffer returns a zeroed buffer: that of the snapshot which went last, where it
// has the size. When the cache is full each snapshot takes the place of one that goes, and
// the collector is left nothing: before it runs there could be as much garbage as is kept.
func (m *memory) snapshotBuffer(size int) []byte {
	buf := m.spare
	if len(buf) != size {
		return make([]byte, size)
	}
	m.spare = nil
	return buf
}

// dropSnapshot zeroes a block's snapshot and keeps the buffer for the next one.
func (m *memory) dropSnapshot(block int32) {
	if buf, ok := m.snapshots[block]; ok {
		clear(buf)
		m.spare = buf
		delete(m.snapshots, block)
	}
}

func (m *memory) dropSnapshots() {
	for block := range m.snapshots {
		m.dropSnapshot(block)
	}
}
