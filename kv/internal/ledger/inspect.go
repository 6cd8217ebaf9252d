package ledger

import "fmt"

// Each calls f for every sequence, for checks.
func (m *Manager) Each(f func(q *Seq) error) error {
	for i := range m.seqs {
		if q := &m.seqs[i]; q.Class != Free {
			if err := f(q); err != nil {
				return err
			}
		}
	}
	return nil
}

// Counted compares the classes of all blocks as somebody counted them, and what
// the ledger sums over sequences, with what it says.
func (m *Manager) Counted(counts map[Class]int) error {
	for c := Free; c < classes; c++ {
		if m.counts[c] != counts[c] {
			return fmt.Errorf("%d blocks of class %d, counted %d", m.counts[c], c, counts[c])
		}
	}
	headroom, alive, keyed := 0, 0, 0
	for i := range m.seqs {
		q := &m.seqs[i]
		headroom += int(q.headroom)
		if q.Class != Free {
			alive++
		}
		if q.keyed {
			keyed++
			if at, ok := m.ids[q.id]; !ok || int(at) != i {
				return fmt.Errorf("an id does not lead to its sequence %d", i)
			}
		}
	}
	if headroom != m.headroom || alive != m.alive || keyed != len(m.ids) || alive+len(m.unused) != len(m.seqs) {
		return fmt.Errorf("headroom %d, counted %d; %d sequences, counted %d; %d ids, counted %d", m.headroom, headroom, m.alive, alive, len(m.ids), keyed)
	}
	return nil
}
