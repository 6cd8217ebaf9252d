package replay

import (
	"context"
	"os"
	"testing"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/replay/fleet"
	"github.com/tandem-llm/tandem/workload"
)

// BenchmarkReplay is the cost per output token of 10,000 requests on the fleets of
// the examples (docs/replay.md has figures).
func BenchmarkReplay(b *testing.B) {
	for _, name := range []string{"colocated", "disaggregated"} {
		b.Run(name, func(b *testing.B) {
			raw, err := os.ReadFile("../examples/replay/" + name + ".yaml")
			if err != nil {
				b.Fatal(err)
			}
			cfg, err := fleet.Parse(raw, nil)
			if err != nil {
				b.Fatal(err)
			}
			tokens := 0
			b.ReportAllocs()
			for b.Loop() {
				src, err := workload.New(*cfg.Workload)
				if err != nil {
					b.Fatal(err)
				}
				counted := &counter{Source: src}
				if _, err := Run(context.Background(), cfg, counted, Options{}); err != nil {
					b.Fatal(err)
				}
				tokens += counted.tokens
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(tokens), "ns/token")
		})
	}
}

// counter counts the tokens of what it passes on.
type counter struct {
	workload.Source
	tokens int
}

func (c *counter) Next() (workload.Request, bool, error) {
	q, ok, err := c.Source.Next()
	c.tokens += q.Output
	return q, ok, err
}

func (c *counter) Finished(session uint64, at timed.Time) { c.Source.Finished(session, at) }
