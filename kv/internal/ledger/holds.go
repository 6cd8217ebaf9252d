package ledger

import (
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

// Hold is documented at kv.Manager.
func (m *Manager) Hold(id handoff.ID, s kv.Seq) kv.Outcome {
	q := m.seq(s)
	if q == nil {
		return kv.Unknown
	}
	if id.IsZero() {
		return kv.Invalid
	}
	if i, ok := m.b.ids[id]; ok {
		if q.Class == Pinned && !q.draining && m.handle(i) == s {
			return kv.Duplicate
		}
		return kv.Conflict
	}
	if q.Class != Active || q.draining || q.keyed {
		return kv.Conflict
	}
	m.promise(q, 0)
	m.index.Move(q, Pinned)
	q.Class = Pinned
	m.name(uint32(s)-1, id)
	return kv.OK
}

// Resume is documented at kv.Manager.
func (m *Manager) Resume(s kv.Seq, n kv.Need) kv.Outcome {
	q := m.seq(s)
	if q == nil {
		return kv.Unknown
	}
	if q.Class != Pinned || q.draining {
		return kv.Conflict
	}
	p, o := m.plan(n)
	if o != kv.OK {
		return o
	}
	if p.total < len(q.Blocks) {
		return kv.Invalid
	}
	more := p.total - len(q.Blocks)
	room := m.b.counts[Free] + m.b.counts[Cached]
	if more > room {
		return kv.LackMemory
	}
	if more+p.wanted > room-m.b.headroom {
		return kv.LackHeadroom
	}
	m.unname(q)
	m.index.Move(q, Active)
	q.Class = Active
	m.index.Take(q, more)
	q.limit = int32(p.limit)
	m.promise(q, p.wanted)
	return kv.OK
}

// Rekey is documented at kv.Manager.
func (m *Manager) Rekey(old, id handoff.ID) kv.Outcome {
	if id.IsZero() || old == id {
		return kv.Invalid
	}
	i, ok := m.b.ids[old]
	_, taken := m.b.ids[id]
	switch {
	case !ok && taken:
		return kv.Duplicate
	case !ok:
		return kv.Unknown
	case taken || m.b.seqs[i].draining:
		return kv.Conflict
	}
	m.unname(&m.b.seqs[i])
	m.name(i, id)
	return kv.OK
}

// Activate is documented at kv.Manager.
func (m *Manager) Activate(id handoff.ID, keys []kv.Key) (kv.Seq, kv.Outcome) {
	i, ok := m.b.ids[id]
	if !ok {
		return 0, kv.Unknown
	}
	q := &m.b.seqs[i]
	switch {
	case q.draining || q.Class == Pinned:
		return 0, kv.Conflict
	case q.Class == Active:
		return m.handle(i), kv.Duplicate
	case q.Touched > 0:
		return 0, kv.Quarantined
	}
	m.index.Move(q, Active)
	q.Class = Active
	m.publish(q, m.handle(i), keys[:min(len(keys), int(q.full))])
	return m.handle(i), kv.OK
}

// Find is documented at kv.Manager.
func (m *Manager) Find(id handoff.ID) (kv.Seq, bool) {
	i, ok := m.b.ids[id]
	if !ok {
		return 0, false
	}
	return m.handle(i), true
}

// Free is documented at kv.Manager.
func (m *Manager) Free(s kv.Seq) kv.Outcome {
	q := m.seq(s)
	if q == nil {
		return kv.Unknown
	}
	if q.Touched > 0 {
		q.draining = true
		m.promise(q, 0)
		return kv.Quarantined
	}
	m.end(q, uint32(s)-1)
	return kv.OK
}

// end returns a sequence's memory and forgets it.
func (m *Manager) end(q *Seq, i uint32) {
	m.promise(q, 0)
	m.index.Drop(q)
	m.unname(q)
	*q = Seq{gen: q.gen + 1, Blocks: q.Blocks[:0]} // the next life reuses the slice
	m.b.unused = append(m.b.unused, i)
	m.b.alive--
}

// Release is documented at kv.Manager.
func (m *Manager) Release(id handoff.ID) kv.Outcome {
	i, ok := m.b.ids[id]
	if !ok {
		return kv.Unknown
	}
	return m.Free(m.handle(i))
}

// Touch is documented at kv.Manager.
func (m *Manager) Touch(s kv.Seq) kv.Outcome {
	q := m.seq(s)
	switch {
	case q == nil:
		return kv.Unknown
	case q.draining:
		return kv.Quarantined
	}
	q.Touched++
	return kv.OK
}

// Quiet is documented at kv.Manager.
func (m *Manager) Quiet(s kv.Seq) kv.Outcome {
	q := m.seq(s)
	switch {
	case q == nil:
		return kv.Unknown
	case q.Touched == 0:
		return kv.Duplicate
	}
	q.Touched--
	if q.Touched == 0 && q.draining {
		m.end(q, uint32(s)-1)
	}
	return kv.OK
}

// Mark is documented at kv.Manager.
func (m *Manager) Mark(s kv.Seq, tokens int, bytes int64) kv.Outcome {
	q := m.seq(s)
	if q == nil {
		return kv.Unknown
	}
	step := m.b.cfg.Align * m.b.cfg.BlockTokens
	if !m.b.cfg.Marked || bytes < 1 || tokens < 1 || tokens%step != 0 || tokens/m.b.cfg.BlockTokens > q.Published {
		return kv.Invalid
	}
	return m.b.Mark(q.Blocks[tokens/m.b.cfg.BlockTokens-1], bytes)
}

// Mark marks a block that is in the index. Outcomes: OK, Duplicate, LackMemory.
func (b *Book) Mark(block int32, bytes int64) kv.Outcome {
	switch {
	case b.Marks.Has(block):
		b.Marks.use(block)
		return kv.Duplicate
	case bytes > b.Marks.limit:
		return kv.LackMemory
	}
	for b.Marks.used+bytes > b.Marks.limit {
		old := b.Marks.oldest()
		b.Marks.drop(old)
		b.unmarked(old, b.Table.Keys[old])
	}
	b.Marks.add(block, bytes)
	return kv.OK
}
