package llama

import (
	"testing"

	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/model/tiny"
)

// Pages and snapshots are measured by `tandem bench handoff`, through the public interface.

// BenchmarkStep is one decode step of one sequence of the smallest model, with
// reading its logits: what calling llama.cpp costs.
func BenchmarkStep(b *testing.B) {
	for _, arch := range []string{"llama", "nemotron_h_moe"} {
		b.Run(arch, func(b *testing.B) {
			e := open(b, tiny.Arch(arch))
			rows := enginetest.Rows(enginetest.Prompt(e.Vocab(), 16, 1), 0, 0)
			b.ReportAllocs()
			for b.Loop() {
				if e.Tokens(0) >= 512 {
					if err := e.Drop(0); err != nil {
						b.Fatal(err)
					}
				}
				r := rows[:1]
				r[0].Pos, r[0].Output = int32(e.Tokens(0)), true
				if err := e.Decode(r); err != nil {
					b.Fatal(err)
				}
				if _, err := e.Logits(0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
