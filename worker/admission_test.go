package worker

import (
	"testing"

	"pgregory.net/rapid"
)

// TestAdmissionGivesEachSlotOnce: whatever is taken and given back in whatever
// order, no slot is held twice, no side passes its share, cells add up, and in
// the end everything is back.
func TestAdmissionGivesEachSlotOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		role := rapid.SampledFrom([]Role{RolePrefill, RoleDecode, RoleBoth}).Draw(rt, "role")
		slots := rapid.IntRange(2, 9).Draw(rt, "slots")
		cells := rapid.IntRange(1, 100).Draw(rt, "cells")
		a := newAdmission(role, slots, cells)
		if got := a.share[sideSource].allSlots + a.share[sideDestination].allSlots; got != slots {
			rt.Fatalf("shares add up to %d of %d slots", got, slots)
		}
		if a.cellsLeft() != cells {
			rt.Fatalf("shares add up to %d of %d cells", a.cellsLeft(), cells)
		}
		type hold struct {
			side  side
			seq   int32
			cells int
		}
		var held []hold
		inUse := map[int32]bool{}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(rt, "give") {
				i := rapid.IntRange(0, len(held)-1).Draw(rt, "which")
				h := held[i]
				held = append(held[:i], held[i+1:]...)
				delete(inUse, h.seq)
				a.give(h.side, h.seq, h.cells)
			} else {
				s := side(rapid.IntRange(0, 1).Draw(rt, "side"))
				n := rapid.IntRange(1, 60).Draw(rt, "cells")
				free := a.share[s].cells
				seq, ok := a.take(s, n)
				if ok {
					if inUse[seq] || seq < 0 || int(seq) >= slots {
						rt.Fatalf("slot %d given twice or out of range", seq)
					}
					inUse[seq] = true
					held = append(held, hold{s, seq, n})
				} else if n <= free && a.share[s].slots > 0 {
					rt.Fatalf("refused %d of %d free cells with %d slots of the side free", n, free, a.share[s].slots)
				}
			}
			used := 0
			bySide := [2]int{}
			for _, h := range held {
				used += h.cells
				bySide[h.side]++
			}
			if a.cellsLeft()+used != cells || len(a.free)+len(held) != slots {
				rt.Fatalf("%d cells free and %d held of %d; %d slots free and %d held of %d", a.cellsLeft(), used, cells, len(a.free), len(held), slots)
			}
			for s := range a.share {
				if bySide[s]+a.share[s].slots != a.share[s].allSlots {
					rt.Fatalf("side %d holds %d, %d free of %d", s, bySide[s], a.share[s].slots, a.share[s].allSlots)
				}
			}
		}
		for _, h := range held {
			a.give(h.side, h.seq, h.cells)
		}
		// A fresh worker and one that is idle again place the next sequence alike:
		// repeated solo requests compute the same bits only then.
		if seq, ok := a.take(sideFor(role), 1); ok && seq != 0 {
			rt.Fatalf("an idle worker gives slot %d first, want 0", seq)
		}
	})
}

func sideFor(r Role) side {
	if r == RoleDecode {
		return sideDestination
	}
	return sideSource
}

func TestAdmissionKeepsSharesApart(t *testing.T) {
	a := newAdmission(RoleBoth, 4, 1000)
	for range 2 {
		if _, ok := a.take(sideSource, 1); !ok {
			t.Fatal("the source's share was refused")
		}
	}
	if _, ok := a.take(sideSource, 1); ok {
		t.Error("local prefill took the slots kept for peers: two such workers could wait for each other in a circle")
	}
	if _, ok := a.take(sideDestination, 1); !ok {
		t.Error("the slots kept for peers are gone")
	}
	a = newAdmission(RoleBoth, 4, 1000)
	if _, ok := a.take(sideSource, 501); ok {
		t.Error("local prefill took the cells kept for peers")
	}
	if a.fits(sideSource, 501) || !a.fits(sideSource, 500) {
		t.Error("what can never fit the side's share is not told from what fits")
	}
	if newAdmission(RoleDecode, 4, 1000).fits(sideSource, 1) {
		t.Error("a decode worker has a share for prompts")
	}
	if a := newAdmission(RoleDecode, 4, 1000); a.fits(sideDestination, 1001) || !a.fits(sideDestination, 1000) {
		t.Error("what can never fit is not told from what fits")
	}
}

func TestCellsFor(t *testing.T) {
	for _, c := range []struct {
		name                                string
		history, emitted, maxTokens, ctx, n int
	}{
		{"every token but the last is computed", 10, 0, 5, 100, 14},
		{"one token needs the prompt only", 10, 0, 1, 100, 10},
		{"forced tokens count as history", 12, 2, 5, 100, 14},
		{"never beyond the context", 90, 0, 50, 100, 100},
		{"never below the prompt", 10, 5, 5, 100, 10},
	} {
		if got := cellsFor(c.history, c.emitted, c.maxTokens, c.ctx); got != c.n {
			t.Errorf("%s: %d cells, want %d", c.name, got, c.n)
		}
	}
}
