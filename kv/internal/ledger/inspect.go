package ledger

import "fmt"

// Each calls f for every sequence, for checks.
func (b *Book) Each(f func(q *Seq) error) error {
	for i := range b.seqs {
		if q := &b.seqs[i]; q.Class != Free {
			if err := f(q); err != nil {
				return err
			}
		}
	}
	return nil
}

// Counted compares the classes of all blocks as somebody counted them, and what
// the ledger sums over sequences, with what it says.
func (b *Book) Counted(counts map[Class]int) error {
	for c := Free; c < classes; c++ {
		if b.counts[c] != counts[c] {
			return fmt.Errorf("%d blocks of class %d, counted %d", b.counts[c], c, counts[c])
		}
	}
	headroom, alive, keyed := 0, 0, 0
	for i := range b.seqs {
		q := &b.seqs[i]
		headroom += int(q.headroom)
		if q.Class != Free {
			alive++
		}
		if q.keyed {
			keyed++
			if at, ok := b.ids[q.id]; !ok || int(at) != i {
				return fmt.Errorf("an id does not lead to its sequence %d", i)
			}
		}
	}
	if headroom != b.headroom || alive != b.alive || keyed != len(b.ids) || alive+len(b.unused) != len(b.seqs) {
		return fmt.Errorf("headroom %d, counted %d; %d sequences, counted %d; %d ids, counted %d", b.headroom, headroom, b.alive, alive, len(b.ids), keyed)
	}
	return nil
}
