package block

import (
	"testing"

	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/kvtest"
)

func newManager(cfg kv.Config) (kv.Manager, error) { return New(cfg) }

func TestManager(t *testing.T) {
	kvtest.Run(t, kvtest.Suite{New: newManager, Check: check, Ops: 1_000_000})
}

func TestScripts(t *testing.T) { kvtest.Scripts(t, newManager) }

func BenchmarkManager(b *testing.B) { kvtest.Benchmark(b, newManager) }
