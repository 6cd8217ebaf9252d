package worker

import "slices"

// admission hands out sequence slots and attention cells, first come first
// served. What a task is given covers everything it may ever need on this
// worker, so an admitted task never meets a full cache; that costs cells that a
// short answer does not use.
//
// A worker that both computes prompts and receives state keeps a share of its
// slots for each, so that two such workers can never wait for each other in a
// circle: a prompt here holds a slot until the peer has taken the state over,
// and the peer's reservation must not wait for that.
type admission struct {
	free  []int32 // sequence ids not in use
	cells int     // attention cells not given away
	share [2]share
}

// share is what one side may hold.
type share struct {
	slots int // slots still available to the side
	total int
}

// side says what a task does on this worker.
type side uint8

const (
	sideSource      side = iota // computes a prompt, or a whole request
	sideDestination             // receives state and decodes
)

// newAdmission divides slots between the sides that the role has.
func newAdmission(role Role, slots, cells int) *admission {
	a := &admission{cells: cells}
	for id := slots - 1; id >= 0; id-- {
		a.free = append(a.free, int32(id)) // taken from the end: lowest id first
	}
	var source, destination int
	switch role {
	case RolePrefill:
		source = slots
	case RoleDecode:
		destination = slots
	default:
		destination = slots / 2
		source = slots - destination
	}
	a.share[sideSource] = share{slots: source, total: source}
	a.share[sideDestination] = share{slots: destination, total: destination}
	return a
}

// fits reports whether a task of that many cells can ever be admitted.
func (a *admission) fits(s side, cells, allCells int) bool {
	return a.share[s].total > 0 && cells <= allCells
}

// take gives a slot and cells, or reports that there is no room now.
func (a *admission) take(s side, cells int) (seq int32, ok bool) {
	if a.share[s].slots == 0 || cells > a.cells || len(a.free) == 0 {
		return 0, false
	}
	seq = a.free[len(a.free)-1]
	a.free = a.free[:len(a.free)-1]
	a.share[s].slots--
	a.cells -= cells
	return seq, true
}

// grow gives a task that has a slot more cells, or reports that there are none.
func (a *admission) grow(cells int) bool {
	if cells > a.cells {
		return false
	}
	a.cells -= cells
	return true
}

// give takes them back.
func (a *admission) give(s side, seq int32, cells int) {
	at, _ := slices.BinarySearchFunc(a.free, seq, func(have, want int32) int { return int(want - have) })
	a.free = slices.Insert(a.free, at, seq)
	a.share[s].slots++
	a.cells += cells
}
