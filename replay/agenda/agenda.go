// Package agenda holds what will happen at which virtual time: two priority
// queues whose order depends on nothing but what was put in.
//
// [Queue] takes values and gives the earliest back, equals in the order of
// their insertion. [Alarms] holds at most one time for each small number, which
// can be moved or taken out. Both are heaps of four children a node, keep their
// memory, and belong to one goroutine.
package agenda

import "github.com/tandem-llm/tandem/engine/timed"

// Queue is a queue of values by time, then by insertion. The zero value is
// empty and ready.
type Queue[T any] struct {
	heap []item[T]
	seq  uint64
}

type item[T any] struct {
	at    timed.Time
	seq   uint64
	value T
}

func (a *item[T]) before(b *item[T]) bool {
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

// Len is the number of values.
func (q *Queue[T]) Len() int { return len(q.heap) }

// Next returns the earliest time, timed.Never when there is none.
func (q *Queue[T]) Next() timed.Time {
	if len(q.heap) == 0 {
		return timed.Never
	}
	return q.heap[0].at
}

// Push puts a value in. O(log n), O(1) when it is later than most.
func (q *Queue[T]) Push(at timed.Time, value T) {
	q.seq++
	q.heap = append(q.heap, item[T]{})
	x := item[T]{at, q.seq, value}
	i := len(q.heap) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !x.before(&q.heap[up]) {
			break
		}
		q.heap[i] = q.heap[up]
		i = up
	}
	q.heap[i] = x
}

// Pop takes the earliest value out. There must be one. O(log n).
func (q *Queue[T]) Pop() T {
	top := q.heap[0].value
	n := len(q.heap) - 1
	x := q.heap[n]
	q.heap[n] = item[T]{}
	q.heap = q.heap[:n]
	if n == 0 {
		return top
	}
	i := 0
	for {
		first := 4*i + 1
		if first >= n {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, n); c++ {
			if q.heap[c].before(&q.heap[least]) {
				least = c
			}
		}
		if !q.heap[least].before(&x) {
			break
		}
		q.heap[i] = q.heap[least]
		i = least
	}
	q.heap[i] = x
	return top
}
