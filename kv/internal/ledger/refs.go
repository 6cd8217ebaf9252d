package ledger

// Refs counts the sequences of each class that have a block: three counters of 21
// bits, so that a block pays 8 bytes. MaxSequences keeps each from overflowing.
type Refs uint64

const refBits = 21

func unit(c Class) Refs { return 1 << (refBits * (c - Active)) }

// Add counts one more sequence of a class.
func (r Refs) Add(c Class) Refs { return r + unit(c) }

// Sub counts one less.
func (r Refs) Sub(c Class) Refs { return r - unit(c) }

// Class is the strongest class that has the block, or Cached when none has. The
// classes are ordered by strength.
func (r Refs) Class() Class {
	const mask = 1<<refBits - 1
	switch {
	case r == 0:
		return Cached
	case r&mask != 0:
		return Active
	case r>>refBits&mask != 0:
		return Pinned
	}
	return Reserved
}
