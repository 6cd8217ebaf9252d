package worker

import "slices"

// admission hands out sequence slots and attention cells, first come first
// served. What a task is given covers everything it may ever need on this
// worker, so an admitted task never meets a full cache; that costs cells that a
// short answer does not use.
//
// A worker that both computes prompts and receives state keeps a share of its
// slots and cells for each, so that two such workers can never wait for each other in a
// circle: a prompt here holds a slot until the peer has taken the state over,
// and the peer's reservation must not wait for that.
type admission struct {
	free  []int32 // sequence ids not in use; as many as the shares have slots left
	share [2]share
}

// share is what one side may hold, and what of it is left.
type share struct {
	slots, allSlots int
	cells, allCells int
}

// side says what a task does on this worker.
type side uint8

const (
	sideSource      side = iota // computes a prompt, or a whole request
	sideDestination             // receives state and decodes
)

// newAdmission divides slots and cells between the sides that the role has.
func newAdmission(role Role, slots, cells int) *admission {
	a := &admission{}
	for id := slots - 1; id >= 0; id-- {
		a.free = append(a.free, int32(id)) // taken from the end: lowest id first
	}
	give := func(s side, slots, cells int) {
		a.share[s] = share{slots: slots, allSlots: slots, cells: cells, allCells: cells}
	}
	switch role {
	case RolePrefill:
		give(sideSource, slots, cells)
	case RoleDecode:
		give(sideDestination, slots, cells)
	default:
		give(sideSource, slots-slots/2, cells-cells/2)
		give(sideDestination, slots/2, cells/2)
	}
	return a
}

// fits reports whether a task of that many cells can ever be admitted.
func (a *admission) fits(s side, cells int) bool {
	return a.share[s].allSlots > 0 && cells <= a.share[s].allCells
}

// cellsLeft is the number of cells that are not given away.
func (a *admission) cellsLeft() int { return a.share[0].cells + a.share[1].cells }

// take gives a slot and cells, or reports that there is no room now.
func (a *admission) take(s side, cells int) (seq int32, ok bool) {
	have := &a.share[s]
	if have.slots == 0 || cells > have.cells {
		return 0, false
	}
	seq = a.free[len(a.free)-1]
	a.free = a.free[:len(a.free)-1]
	have.slots--
	have.cells -= cells
	return seq, true
}

// grow gives a task that has a slot more cells, or reports that there are none.
func (a *admission) grow(s side, cells int) bool {
	if cells > a.share[s].cells {
		return false
	}
	a.share[s].cells -= cells
	return true
}

// give takes them back.
func (a *admission) give(s side, seq int32, cells int) {
	at, _ := slices.BinarySearchFunc(a.free, seq, func(have, want int32) int { return int(want - have) })
	a.free = slices.Insert(a.free, at, seq)
	a.share[s].slots++
	a.share[s].cells += cells
}
