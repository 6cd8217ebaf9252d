package kvtest

import (
	"cmp"
	"slices"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

// class of a model's sequence.
type class int

const (
	active class = iota
	pinned
	reserved
)

// mblock is a block. The model has no numbers for blocks and no lists: what is
// free, cached or shared is found by looking at everything.
type mblock struct {
	key  kv.Key
	used int // when the last sequence let go of it
	mark int64
	seen int // when the mark was used last

	count  int // of the snapshot that last met the block, and the strongest class in it
	counts class
}

type mseq struct {
	class     class
	blocks    []*mblock
	published int
	limit     int
	headroom  int
	prefix    int
	full      int // blocks that its first tokens fill
	touched   int
	draining  bool
	id        handoff.ID
	last      int // order of making, to go through sequences in the same order
}

// model is the reference: every question is answered by a search.
type model struct {
	cfg    kv.Config
	index  map[kv.Key]*mblock
	seqs   map[kv.Seq]*mseq
	tick   int
	count  int        // snapshots made
	events []kv.Event // only Kind, Index and Key
}

func newModel(cfg kv.Config) *model {
	return &model{cfg: cfg, index: map[kv.Key]*mblock{}, seqs: map[kv.Seq]*mseq{}}
}

func (m *model) emit(kind kv.EventKind, index int, key kv.Key) {
	m.events = append(m.events, kv.Event{Kind: kind, Index: int32(index), Key: key})
}

func (m *model) ceil(tokens int) int { return (tokens + m.cfg.BlockTokens - 1) / m.cfg.BlockTokens }

// users are the sequences that have a block.
func (m *model) users(b *mblock) (n int) {
	for _, q := range m.seqs {
		if slices.Contains(q.blocks, b) {
			n++
		}
	}
	return n
}

func (m *model) snapshot() kv.Snapshot {
	s := kv.Snapshot{Blocks: m.cfg.Blocks, SlotsAll: m.cfg.Slots, Slots: len(m.seqs)}
	m.count++
	var used [3]int
	for _, q := range m.seqs {
		s.Headroom += q.headroom
		for _, b := range q.blocks {
			switch {
			case b.count != m.count:
				b.count, b.counts = m.count, q.class
				used[q.class]++
			case q.class < b.counts: // shared: the strongest counts
				used[b.counts]--
				b.counts = q.class
				used[q.class]++
			}
		}
	}
	s.Active, s.Pinned, s.Reserved = used[active], used[pinned], used[reserved]
	for _, b := range m.index {
		if b.count != m.count {
			s.Cached++
		}
		s.Marks += b.mark
	}
	s.Free = s.Blocks - s.Used() - s.Cached
	return s
}

// find returns the blocks of the longest usable prefix.
func (m *model) find(n kv.Need, reserve bool) (hit []*mblock) {
	most := n.Tokens
	if !reserve {
		most--
	}
	var run []*mblock
	for i := 0; i < len(n.Keys) && (i+1)*m.cfg.BlockTokens <= most; i++ {
		b := m.index[n.Keys[i]]
		if b == nil {
			break
		}
		run = append(run, b)
		if (i+1)%m.cfg.Align == 0 && (!m.cfg.Marked || reserve || b.mark > 0) {
			hit = slices.Clone(run)
		}
	}
	return hit
}

func (m *model) begin(s kv.Seq, n kv.Need, c class) (int, kv.Outcome) {
	limit := max(n.Limit, n.Tokens)
	if n.Limit == 0 {
		limit = n.Tokens
	}
	if n.Tokens < 1 || limit > kv.MaxTokens || n.Headroom < 0 || n.Limit != 0 && n.Limit < n.Tokens {
		return 0, kv.Invalid
	}
	if m.ceil(limit) > m.cfg.Blocks {
		return 0, kv.Never
	}
	if m.cfg.Slots > 0 && len(m.seqs) == m.cfg.Slots {
		return 0, kv.LackSlots
	}
	hit := m.find(n, c == reserved)
	idle := 0
	for _, b := range hit {
		if m.users(b) == 0 {
			idle++
		}
	}
	now := m.snapshot()
	missing := m.ceil(n.Tokens) - len(hit)
	headroom := m.ceil(min(n.Tokens+n.Headroom, limit)) - m.ceil(n.Tokens)
	if missing > now.Free+now.Cached-idle {
		return 0, kv.LackMemory
	}
	if missing+headroom > now.Free+now.Cached-idle-now.Headroom {
		return 0, kv.LackHeadroom
	}
	m.tick++
	q := &mseq{class: c, limit: m.ceil(limit), headroom: headroom, prefix: len(hit) * m.cfg.BlockTokens, published: len(hit), full: n.Tokens / m.cfg.BlockTokens, last: m.tick}
	q.blocks = hit
	m.seqs[s] = q
	m.take(q, missing)
	if m.cfg.Marked && c == active && len(hit) > 0 {
		m.tick++
		hit[len(hit)-1].seen = m.tick
	}
	return q.prefix, kv.OK
}

// take gives q n blocks of its own, evicting when nothing is free.
func (m *model) take(q *mseq, n int) {
	for range n {
		if m.snapshot().Free == 0 {
			m.evict()
		}
		q.blocks = append(q.blocks, &mblock{})
	}
}

// evict drops the cached block that was let go longest ago.
func (m *model) evict() bool {
	var old *mblock
	for _, b := range m.index {
		if m.users(b) == 0 && (old == nil || b.used < old.used) {
			old = b
		}
	}
	if old == nil {
		return false
	}
	m.unmark(old)
	m.emit(kv.Removed, 0, old.key)
	delete(m.index, old.key)
	return true
}

func (m *model) unmark(b *mblock) {
	if b.mark > 0 {
		m.emit(kv.Unmarked, 0, b.key)
		b.mark = 0
	}
}

func (m *model) grow(q *mseq, tokens int) (int, kv.Outcome) {
	switch {
	case q == nil:
		return 0, kv.Unknown
	case q.class != active || q.draining:
		return 0, kv.Conflict
	case tokens < 0 || tokens > q.limit*m.cfg.BlockTokens:
		return 0, kv.Invalid
	}
	if n := m.ceil(tokens) - len(q.blocks); n > 0 {
		now := m.snapshot()
		have := now.Free + now.Cached
		if n > have {
			return 0, kv.LackMemory
		}
		if n > have-now.Headroom+q.headroom {
			return 0, kv.LackHeadroom
		}
		q.headroom -= max(0, n-(have-now.Headroom))
		m.take(q, n)
		q.headroom = min(q.headroom, q.limit-len(q.blocks))
	}
	return len(q.blocks) * m.cfg.BlockTokens, kv.OK
}

func (m *model) publish(q *mseq, keys []kv.Key) {
	for i := q.published; i < len(keys); i++ {
		if keys[i] == (kv.Key{}) {
			return
		}
		if b := m.index[keys[i]]; b == nil {
			q.blocks[i].key = keys[i]
			m.index[keys[i]] = q.blocks[i]
			m.emit(kv.Stored, i, keys[i])
		} else if q.touched > 0 || m.cfg.Fixed {
			return
		} else {
			q.blocks[i] = b
			m.emit(kv.Adopted, i, keys[i])
		}
		q.published = i + 1
	}
}

func (m *model) free(s kv.Seq) kv.Outcome {
	q := m.seqs[s]
	if q == nil {
		return kv.Unknown
	}
	q.headroom = 0
	if q.touched > 0 {
		q.draining = true
		return kv.Quarantined
	}
	delete(m.seqs, s)
	for _, b := range slices.Backward(q.blocks) { // the last goes first
		m.tick++
		b.used = m.tick
	}
	return kv.OK
}

func (m *model) byID(id handoff.ID) (kv.Seq, *mseq) {
	for s, q := range m.seqs {
		if !id.IsZero() && q.id == id {
			return s, q
		}
	}
	return 0, nil
}

func (m *model) hold(id handoff.ID, s kv.Seq) kv.Outcome {
	q := m.seqs[s]
	_, other := m.byID(id)
	switch {
	case q == nil:
		return kv.Unknown
	case id.IsZero():
		return kv.Invalid
	case other != nil && other == q && q.class == pinned && !q.draining:
		return kv.Duplicate
	case other != nil || q.class != active || q.draining || !q.id.IsZero():
		return kv.Conflict
	}
	q.class, q.id, q.headroom = pinned, id, 0
	return kv.OK
}

func (m *model) resume(q *mseq, n kv.Need) kv.Outcome {
	switch {
	case q == nil:
		return kv.Unknown
	case q.class != pinned || q.draining:
		return kv.Conflict
	case n.Tokens < 1 || n.Limit < n.Tokens || n.Limit > kv.MaxTokens || n.Headroom < 0:
		return kv.Invalid
	case m.ceil(n.Limit) > m.cfg.Blocks:
		return kv.Never
	case m.ceil(n.Tokens) < len(q.blocks):
		return kv.Invalid
	}
	more := m.ceil(n.Tokens) - len(q.blocks)
	headroom := m.ceil(min(n.Tokens+n.Headroom, n.Limit)) - m.ceil(n.Tokens)
	now := m.snapshot()
	if more > now.Free+now.Cached {
		return kv.LackMemory
	}
	if more+headroom > now.Available() {
		return kv.LackHeadroom
	}
	q.class, q.id, q.limit, q.headroom = active, handoff.ID{}, m.ceil(n.Limit), headroom
	m.take(q, more)
	return kv.OK
}

func (m *model) rekey(old, id handoff.ID) kv.Outcome {
	_, q := m.byID(old)
	_, other := m.byID(id)
	switch {
	case id.IsZero() || old == id:
		return kv.Invalid
	case q == nil && other != nil:
		return kv.Duplicate
	case q == nil:
		return kv.Unknown
	case other != nil || q.draining:
		return kv.Conflict
	}
	q.id = id
	return kv.OK
}

func (m *model) activate(id handoff.ID, keys []kv.Key) kv.Outcome {
	_, q := m.byID(id)
	switch {
	case q == nil:
		return kv.Unknown
	case q.draining || q.class == pinned:
		return kv.Conflict
	case q.class == active:
		return kv.Duplicate
	case q.touched > 0:
		return kv.Quarantined
	}
	q.class = active
	m.publish(q, keys[:min(len(keys), q.full)])
	return kv.OK
}

func (m *model) mark(q *mseq, tokens int, bytes int64) kv.Outcome {
	step := m.cfg.Align * m.cfg.BlockTokens
	switch {
	case q == nil:
		return kv.Unknown
	case !m.cfg.Marked || bytes < 1 || tokens < 1 || tokens%step != 0 || tokens > q.published*m.cfg.BlockTokens:
		return kv.Invalid
	}
	b := q.blocks[tokens/m.cfg.BlockTokens-1]
	m.tick++
	if b.mark > 0 {
		b.seen = m.tick
		return kv.Duplicate
	}
	if bytes > m.cfg.MarkBytes {
		return kv.LackMemory
	}
	for m.snapshot().Marks+bytes > m.cfg.MarkBytes {
		var marked []*mblock
		for _, b := range m.index {
			if b.mark > 0 {
				marked = append(marked, b)
			}
		}
		m.unmark(slices.MinFunc(marked, func(a, b *mblock) int { return cmp.Compare(a.seen, b.seen) }))
	}
	b.mark, b.seen = bytes, m.tick
	return kv.OK
}

func (m *model) reset() kv.Outcome {
	for _, q := range m.seqs {
		if q.touched > 0 {
			return kv.Quarantined
		}
	}
	if len(m.seqs) > 0 {
		return kv.Busy
	}
	for m.evict() {
	}
	return kv.OK
}
