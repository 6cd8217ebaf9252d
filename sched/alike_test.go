package sched

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/block"
	"github.com/tandem-llm/tandem/kv/radix"
)

// The two managers differ in what they cost. Given the same shape, a scheduler
// over either does the same at every step.
func TestManagersAreScheduledAlike(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 4))
		shape := kv.Config{Blocks: 8 + r.IntN(24), BlockTokens: 1 + r.IntN(3), Slots: 3 + r.IntN(4), Fixed: r.IntN(3) == 0}
		cfg := Config{Budget: 24, Page: 2, Running: 1 + r.IntN(4), Headroom: r.IntN(5), Priority: Priority(r.IntN(2))}
		a, err := block.New(shape)
		if err != nil {
			t.Fatal(err)
		}
		b, err := radix.New(shape)
		if err != nil {
			t.Fatal(err)
		}
		var worlds [2]*world
		for i, m := range []kv.Manager{a, b} {
			if worlds[i], err = newWorldOf(rand.New(rand.NewPCG(seed, 6)), cfg, m); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 200 {
			for _, w := range worlds {
				if err := w.op(); err != nil {
					t.Fatalf("seed %d, operation %d: %s: %v", seed, i, w.what, err)
				}
			}
			x, y := worlds[0], worlds[1]
			if x.m.Snapshot() != y.m.Snapshot() || x.s.Load() != y.s.Load() {
				t.Fatalf("seed %d, operation %d: %s: block %+v %+v, radix %+v %+v", seed, i, x.what, x.m.Snapshot(), x.s.Load(), y.m.Snapshot(), y.s.Load())
			}
			if !slices.Equal(x.step.Decodes, y.step.Decodes) || !slices.Equal(x.step.Chunks, y.step.Chunks) {
				t.Fatalf("seed %d, operation %d: block plans %+v, radix %+v", seed, i, x.step, y.step)
			}
			for _, w := range worlds {
				if err := w.follow(); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(x.notes, y.notes) {
				t.Fatalf("seed %d, operation %d: block %+v, radix %+v", seed, i, x.notes, y.notes)
			}
		}
	}
}
