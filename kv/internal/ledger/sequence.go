package ledger

import (
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

// seq returns the sequence that a handle names, or nil.
func (m *Manager) seq(s kv.Seq) *Seq {
	i := uint32(s) - 1
	if uint64(i) >= uint64(len(m.b.seqs)) {
		return nil
	}
	q := &m.b.seqs[i]
	if q.Class == Free || q.gen != uint32(s>>32) {
		return nil
	}
	return q
}

func (m *Manager) handle(i uint32) kv.Seq { return kv.Seq(m.b.seqs[i].gen)<<32 | kv.Seq(i+1) }

// blocks is the number of blocks that tokens take.
func (m *Manager) blocks(tokens int) int {
	return (tokens + m.b.cfg.BlockTokens - 1) / m.b.cfg.BlockTokens
}

// plan is a Need in blocks.
type plan struct{ total, limit, wanted int }

// plan validates a Need.
func (m *Manager) plan(n kv.Need) (plan, kv.Outcome) {
	if n.Limit == 0 {
		n.Limit = n.Tokens
	}
	if n.Tokens < 1 || n.Limit < n.Tokens || n.Limit > kv.MaxTokens || n.Headroom < 0 {
		return plan{}, kv.Invalid
	}
	p := plan{total: m.blocks(n.Tokens), limit: m.blocks(n.Limit)}
	if p.limit > m.b.cfg.Blocks {
		return plan{}, kv.Never
	}
	p.wanted = m.blocks(min(n.Tokens+min(n.Headroom, kv.MaxTokens), n.Limit)) - p.total
	return p, kv.OK
}

// keys are those of a Need that may be found. Start leaves the last token to
// compute; a reservation may find everything, and its recurrent state comes
// from its source.
func (m *Manager) keys(n kv.Need, reserve bool) (keys []kv.Key, marked bool) {
	most := n.Tokens
	if !reserve {
		most--
	}
	most = max(most, 0) / m.b.cfg.BlockTokens
	return n.Keys[:min(len(n.Keys), most)], m.b.cfg.Marked && !reserve
}

// Match is documented at kv.Manager.
func (m *Manager) Match(n kv.Need, reserve bool) int {
	found, _ := m.index.Find(m.keys(n, reserve))
	return found * m.b.cfg.BlockTokens
}

// Start is documented at kv.Manager.
func (m *Manager) Start(n kv.Need) (kv.Seq, int, kv.Outcome) {
	i, o := m.begin(n, Active)
	if o != kv.OK {
		return 0, 0, o
	}
	return m.handle(i), m.cached(&m.b.seqs[i]), o
}

// Reserve is documented at kv.Manager.
func (m *Manager) Reserve(id handoff.ID, n kv.Need) (kv.Seq, int, kv.Outcome) {
	if id.IsZero() {
		return 0, 0, kv.Invalid
	}
	if i, ok := m.b.ids[id]; ok {
		if q := &m.b.seqs[i]; q.Class != Pinned && !q.draining {
			return m.handle(i), m.cached(q), kv.Duplicate
		}
		return 0, 0, kv.Conflict
	}
	i, o := m.begin(n, Reserved)
	if o != kv.OK {
		return 0, 0, o
	}
	m.name(i, id)
	return m.handle(i), m.cached(&m.b.seqs[i]), o
}

func (m *Manager) cached(q *Seq) int { return int(q.prefix) * m.b.cfg.BlockTokens }

// begin makes a sequence, all or nothing.
func (m *Manager) begin(n kv.Need, class Class) (uint32, kv.Outcome) {
	p, o := m.plan(n)
	if o != kv.OK {
		return 0, o
	}
	if m.b.alive >= kv.MaxSequences || m.b.cfg.Slots > 0 && m.b.alive >= m.b.cfg.Slots {
		return 0, kv.LackSlots
	}
	keys, marked := m.keys(n, class == Reserved)
	found, unused := m.index.Find(keys, marked)
	// Locking the prefix makes cached blocks unavailable too.
	room := m.b.counts[Free] + m.b.counts[Cached] - unused
	if p.total-found > room {
		return 0, kv.LackMemory
	}
	if p.total-found+p.wanted > room-m.b.headroom {
		return 0, kv.LackHeadroom
	}
	i := m.entry()
	q := &m.b.seqs[i]
	q.Class = class
	q.prefix, q.limit = int32(found), int32(p.limit)
	q.full = int32(n.Tokens / m.b.cfg.BlockTokens)
	m.promise(q, p.wanted)
	m.index.Lock(q, keys[:found])
	m.index.Take(q, p.total-found)
	if marked && found > 0 {
		m.b.Marks.use(q.Blocks[found-1])
	}
	return i, kv.OK
}

// entry takes an entry of seqs that is not in use.
func (m *Manager) entry() uint32 {
	m.b.alive++
	if n := len(m.b.unused); n > 0 {
		i := m.b.unused[n-1]
		m.b.unused = m.b.unused[:n-1]
		return i
	}
	m.b.seqs = append(m.b.seqs, Seq{})
	return uint32(len(m.b.seqs) - 1)
}

func (m *Manager) name(i uint32, id handoff.ID) {
	q := &m.b.seqs[i]
	q.id, q.keyed = id, true
	m.b.ids[id] = i
}

func (m *Manager) unname(q *Seq) {
	if q.keyed {
		delete(m.b.ids, q.id)
		q.id, q.keyed = handoff.ID{}, false
	}
}

// Grow is documented at kv.Manager.
func (m *Manager) Grow(s kv.Seq, tokens int) (int, kv.Outcome) {
	q := m.seq(s)
	switch {
	case q == nil:
		return 0, kv.Unknown
	case q.Class != Active || q.draining:
		return 0, kv.Conflict
	case tokens < 0 || tokens > int(q.limit)*m.b.cfg.BlockTokens:
		return 0, kv.Invalid
	}
	n := m.blocks(tokens) - len(q.Blocks)
	if n > 0 {
		if o := m.grow(q, n); o != kv.OK {
			return 0, o
		}
	}
	return len(q.Blocks) * m.b.cfg.BlockTokens, kv.OK
}

func (m *Manager) grow(q *Seq, n int) kv.Outcome {
	have := m.b.counts[Free] + m.b.counts[Cached]
	common := have - m.b.headroom // never negative
	own := max(0, n-common)
	if n > have {
		return kv.LackMemory
	}
	if own > int(q.headroom) {
		return kv.LackHeadroom
	}
	m.index.Take(q, n)
	// A sequence that comes near its limit needs less.
	m.promise(q, min(int(q.headroom)-own, int(q.limit)-len(q.Blocks)))
	return kv.OK
}

// promise sets a sequence's headroom.
func (m *Manager) promise(q *Seq, blocks int) {
	m.b.headroom += blocks - int(q.headroom)
	q.headroom = int32(blocks)
}

// Publish is documented at kv.Manager.
func (m *Manager) Publish(s kv.Seq, tokens int, keys []kv.Key) kv.Outcome {
	q := m.seq(s)
	switch {
	case q == nil:
		return kv.Unknown
	case q.Class != Active || q.draining:
		return kv.Conflict
	case tokens < 0 || tokens > len(q.Blocks)*m.b.cfg.BlockTokens:
		return kv.Invalid
	}
	m.publish(q, s, keys[:min(len(keys), tokens/m.b.cfg.BlockTokens)])
	return kv.OK
}

func (m *Manager) publish(q *Seq, s kv.Seq, keys []kv.Key) {
	for i := q.Published; i < len(keys); i++ {
		if keys[i] == (kv.Key{}) {
			keys = keys[:i] // no key, and so nothing after it
		}
	}
	if len(keys) > q.Published {
		m.index.Publish(q, s, keys)
	}
}

// Published is documented at kv.Manager.
func (m *Manager) Published(s kv.Seq) int {
	if q := m.seq(s); q != nil {
		return q.Published * m.b.cfg.BlockTokens
	}
	return 0
}

// Blocks is documented at kv.Manager.
func (m *Manager) Blocks(s kv.Seq, dst []int32) []int32 {
	if q := m.seq(s); q != nil {
		dst = append(dst, q.Blocks...)
	}
	return dst
}
