package worker

import (
	"container/heap"
	"time"
)

// alarms orders wake-ups by (time, order of setting), so that equal times fire
// in the order in which they were asked for.
type alarms struct {
	heap []alarm
	next uint64
}

type alarm struct {
	at  time.Duration
	seq uint64
	fn  func()
}

// set asks for fn to run at or after the host time at.
func (a *alarms) set(at time.Duration, fn func()) {
	a.next++
	heap.Push(a, alarm{at: at, seq: a.next, fn: fn})
}

// due returns the next alarm that is due at now, nil if there is none.
func (a *alarms) due(now time.Duration) func() {
	if len(a.heap) == 0 || a.heap[0].at > now {
		return nil
	}
	return heap.Pop(a).(alarm).fn
}

// earliest returns the time of the next alarm.
func (a *alarms) earliest() (time.Duration, bool) {
	if len(a.heap) == 0 {
		return 0, false
	}
	return a.heap[0].at, true
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (a *alarms) Len() int { return len(a.heap) }

func (a *alarms) Less(i, j int) bool {
	if a.heap[i].at != a.heap[j].at {
		return a.heap[i].at < a.heap[j].at
	}
	return a.heap[i].seq < a.heap[j].seq
}

func (a *alarms) Swap(i, j int) { a.heap[i], a.heap[j] = a.heap[j], a.heap[i] }

func (a *alarms) Push(x any) { a.heap = append(a.heap, x.(alarm)) }

func (a *alarms) Pop() any {
	last := len(a.heap) - 1
	x := a.heap[last]
	a.heap[last] = alarm{}
	a.heap = a.heap[:last]
	return x
}
