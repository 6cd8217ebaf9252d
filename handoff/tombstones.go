package handoff

import "time"

// Tombstones remembers the handoffs that one role of one host has released, so
// that a late or repeated creating message cannot start them again and any other
// late message can be answered with the outcome. It is pure and not safe for
// concurrent use.
//
// An id is forgotten only when it is too old to be admitted anyway, so
// forgetting never lets one back in.
type Tombstones struct {
	keep  time.Duration
	epoch uint64 // Unix milliseconds at the host's time zero
	limit int
	floor ID // ids up to this one are refused: their tombstones were given up for room

	outcomes map[ID]Outcome
	queue    []tombstone // in order of release
	head     int         // first live element of queue
}

type tombstone struct {
	id ID
	at time.Duration // time of release
}

// NewTombstones makes an empty table. Tombstones live at least keep (T in the
// design), counted from release and from the id's minting; ids older than keep,
// or minted more than keep in the future, are refused, so keep must exceed the
// clock difference between gateway and worker plus the longest delivery. epoch is
// the host's wall clock in Unix milliseconds at its time zero. limit bounds the
// memory (about 100 bytes each; 0 means 65536): beyond it the oldest release is
// forgotten early, and every id minted up to that one is refused instead.
func NewTombstones(keep time.Duration, epoch uint64, limit int) *Tombstones {
	if limit <= 0 {
		limit = 1 << 16
	}
	return &Tombstones{keep: max(keep, time.Millisecond), epoch: epoch, limit: limit, outcomes: make(map[ID]Outcome)}
}

// Admit decides whether a creating message may make a machine for id. The error
// is a *ReleasedError (answer with its outcome) or a *StaleIDError (refuse).
func (t *Tombstones) Admit(now time.Duration, id ID) error {
	t.sweep(now)
	if o, ok := t.outcomes[id]; ok {
		return &ReleasedError{ID: id, Outcome: o}
	}
	age := t.age(now, id)
	if age > t.keep || id.Compare(t.floor) <= 0 {
		return &StaleIDError{ID: id}
	}
	if -age > t.keep {
		return &StaleIDError{ID: id, Future: true}
	}
	return nil
}

// Bury records that id was released with outcome. The first outcome stays.
func (t *Tombstones) Bury(now time.Duration, id ID, outcome Outcome) {
	t.sweep(now)
	if _, ok := t.outcomes[id]; ok {
		return
	}
	t.outcomes[id] = outcome
	t.queue = append(t.queue, tombstone{id, now})
	if len(t.outcomes) > t.limit {
		oldest := t.queue[t.head].id
		if oldest.Compare(t.floor) > 0 {
			t.floor = oldest
		}
		t.drop()
	}
}

// Lookup returns the outcome of a released handoff, and false when id is unknown.
func (t *Tombstones) Lookup(now time.Duration, id ID) (Outcome, bool) {
	t.sweep(now)
	o, ok := t.outcomes[id]
	return o, ok
}

// Len returns how many tombstones are held.
func (t *Tombstones) Len() int { return len(t.outcomes) }

// sweep forgets what is old enough, in order of release.
func (t *Tombstones) sweep(now time.Duration) {
	for t.head < len(t.queue) {
		oldest := t.queue[t.head]
		if now-oldest.at <= t.keep || t.age(now, oldest.id) <= t.keep {
			return
		}
		t.drop()
	}
}

// drop forgets the earliest release. The queue's space is reclaimed when half of
// it is dead, so that the cost stays constant per tombstone.
func (t *Tombstones) drop() {
	delete(t.outcomes, t.queue[t.head].id)
	t.head++
	if t.head*2 >= len(t.queue) {
		t.queue = t.queue[:copy(t.queue, t.queue[t.head:])]
		t.head = 0
	}
}

// age returns how long ago id was minted, negative for the future, saturating at
// about a century so that no id can overflow it.
func (t *Tombstones) age(now time.Duration, id ID) time.Duration {
	const century = int64(100 * 365 * 24 * time.Hour / time.Millisecond)
	ms := int64(t.epoch) + now.Milliseconds() - int64(id.UnixMilli())
	return time.Duration(min(max(ms, -century), century)) * time.Millisecond
}
