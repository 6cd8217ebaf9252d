package agenda

import "github.com/tandem-llm/tandem/engine/timed"

// Alarms holds at most one time for each id. Ids are small numbers from 0; memory
// grows with the largest one. The zero value is empty and ready.
type Alarms struct {
	heap []alarm
	at   []int32 // place in heap of each id, -1: none
}

type alarm struct {
	at   timed.Time
	rank uint64
	id   int32
}

func (a *alarm) before(b *alarm) bool {
	return a.at < b.at || a.at == b.at && a.rank < b.rank
}

// Next returns the earliest time and its id; timed.Never and -1 when there is none.
func (a *Alarms) Next() (timed.Time, int32) {
	if len(a.heap) == 0 {
		return timed.Never, -1
	}
	return a.heap[0].at, a.heap[0].id
}

// Len is the number of ids that have a time.
func (a *Alarms) Len() int { return len(a.heap) }

// Set gives id a time in place of the one that it may have. Of equal times the
// smaller rank is first; ranks of equal times must differ. O(log n).
func (a *Alarms) Set(id int32, at timed.Time, rank uint64) {
	for int(id) >= len(a.at) {
		a.at = append(a.at, -1)
	}
	x := alarm{at, rank, id}
	i := a.at[id]
	if i < 0 {
		i = int32(len(a.heap))
		a.heap = append(a.heap, x)
	} else if a.heap[i].before(&x) {
		a.down(i, x)
		return
	}
	a.up(i, x)
}

// Clear takes id out, if it is in. O(log n).
func (a *Alarms) Clear(id int32) {
	if int(id) >= len(a.at) || a.at[id] < 0 {
		return
	}
	i := a.at[id]
	a.at[id] = -1
	n := int32(len(a.heap) - 1)
	x := a.heap[n]
	a.heap = a.heap[:n]
	if i == n {
		return
	}
	if i > 0 && x.before(&a.heap[(i-1)/4]) {
		a.up(i, x)
	} else {
		a.down(i, x)
	}
}

func (a *Alarms) put(i int32, x alarm) {
	a.heap[i] = x
	a.at[x.id] = i
}

// up puts x at i or above.
func (a *Alarms) up(i int32, x alarm) {
	for i > 0 {
		over := (i - 1) / 4
		if !x.before(&a.heap[over]) {
			break
		}
		a.put(i, a.heap[over])
		i = over
	}
	a.put(i, x)
}

// down puts x at i or below.
func (a *Alarms) down(i int32, x alarm) {
	n := int32(len(a.heap))
	for {
		first := 4*i + 1
		if first >= n {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, n); c++ {
			if a.heap[c].before(&a.heap[least]) {
				least = c
			}
		}
		if !a.heap[least].before(&x) {
			break
		}
		a.put(i, a.heap[least])
		i = least
	}
	a.put(i, x)
}
