package llama

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/llama/blob"
	"github.com/tandem-llm/tandem/model/tiny"
)

// samples are durations of one thing; medians of things timed in turn can be
// compared on a machine whose speed drifts.
type samples []time.Duration

func (s *samples) time(f func()) {
	start := time.Now()
	f()
	*s = append(*s, time.Since(start))
}

func (s samples) median() float64 {
	slices.Sort(s)
	return float64(s[len(s)/2])
}

func (s samples) report(b *testing.B, name string, bytes int, memcpy float64) {
	m := s.median()
	b.ReportMetric(m/1e6, name+"-ms")
	b.ReportMetric(float64(bytes)/m, name+"-GB/s")
	b.ReportMetric(m/memcpy, name+"/memcpy")
}

// BenchmarkPage moves pages of real size out and in, beside a copy of the same
// bytes, and times what checking adds: "structure" is everything but the
// numbers, "check" is everything, "check16" one number in sixteen.
func BenchmarkPage(b *testing.B) {
	path := writeWideAttention(b)
	for _, tokens := range []int{64, 256, 1024} {
		b.Run(fmt.Sprintf("%dMiB", tokens/16), func(b *testing.B) {
			e := benchOpen(b, path, 2304)
			prompt := enginetest.Prompt(e.Vocab(), 1024, 1)
			enginetest.Prefill(b, e, 0, prompt, 512, nil)
			page := make([]byte, e.PageBytes(tokens))
			other := make([]byte, len(page))
			var memcpy, out, in, set, structure, check, sampled samples
			at := 0
			for b.Loop() {
				memcpy.time(func() { copy(other, page) })
				out.time(func() {
					if _, err := e.ExportPage(0, at, at+tokens, page); err != nil {
						b.Fatal(err)
					}
				})
				structure.time(func() {
					if err := e.schema.CheckPage(page, at, at+tokens, blob.Structure, &e.scratch); err != nil {
						b.Fatal(err)
					}
				})
				check.time(func() {
					if err := e.schema.CheckPage(page, at, at+tokens, blob.Everything, &e.scratch); err != nil {
						b.Fatal(err)
					}
				})
				sampled.time(func() {
					if err := e.schema.CheckPage(page, at, at+tokens, 16, &e.scratch); err != nil {
						b.Fatal(err)
					}
				})
				imp, err := e.BeginImport(1, 1024)
				if err != nil {
					b.Fatal(err)
				}
				in.time(func() { err = imp.Page(at, at+tokens, page) })
				if err != nil {
					b.Fatal(err)
				}
				if err := imp.Discard(); err != nil {
					b.Fatal(err)
				}
				// The same without the checks.
				set.time(func() {
					e.native.stateSet(page, e.scratchSeq, 0)
					e.native.copySeq(e.scratchSeq, 1, -1, -1)
					e.native.removeSeq(e.scratchSeq)
				})
				e.native.removeSeq(1)
				at = (at + tokens) % 1024
			}
			benchReport(b, len(page), memcpy, out, in, set, structure, check, sampled)
		})
	}
}

// BenchmarkSnapshot is the same for 50 MiB of recurrent state.
func BenchmarkSnapshot(b *testing.B) {
	e := benchOpen(b, writeWideRecurrent(b), 512)
	const tokens = 64
	enginetest.Prefill(b, e, 0, enginetest.Prompt(e.Vocab(), tokens, 1), tokens, nil)
	size, err := e.SnapshotBytes(0)
	if err != nil {
		b.Fatal(err)
	}
	snap, other := make([]byte, size), make([]byte, size)
	var memcpy, out, in, set, structure, check, sampled samples
	for b.Loop() {
		memcpy.time(func() { copy(other, snap) })
		out.time(func() {
			if _, _, err := e.ExportSnapshot(0, snap); err != nil {
				b.Fatal(err)
			}
		})
		structure.time(func() { err = e.schema.CheckSnapshot(snap, tokens, blob.Structure, &e.scratch) })
		check.time(func() { err = e.schema.CheckSnapshot(snap, tokens, blob.Everything, &e.scratch) })
		sampled.time(func() { err = e.schema.CheckSnapshot(snap, tokens, 16, &e.scratch) })
		if err != nil {
			b.Fatal(err)
		}
		imp, err := e.BeginImport(1, tokens)
		if err != nil {
			b.Fatal(err)
		}
		in.time(func() { err = imp.Snapshot(snap) })
		if err != nil {
			b.Fatal(err)
		}
		if err := imp.Discard(); err != nil {
			b.Fatal(err)
		}
		set.time(func() { e.native.stateSet(snap, 1, statePartial) })
		e.native.removeSeq(1)
	}
	benchReport(b, size, memcpy, out, in, set, structure, check, sampled)
}

func benchReport(b *testing.B, bytes int, memcpy, out, in, set, structure, check, sampled samples) {
	m := memcpy.median()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(m/1e6, "memcpy-ms")
	b.ReportMetric(float64(bytes)/m, "memcpy-GB/s")
	out.report(b, "out", bytes, m)
	in.report(b, "in", bytes, m)
	set.report(b, "in-unchecked", bytes, m)
	b.ReportMetric(100*structure.median()/set.median(), "structure-%ofimport")
	b.ReportMetric(100*check.median()/set.median(), "check-%ofimport")
	b.ReportMetric(100*sampled.median()/set.median(), "check16-%ofimport")
}

func benchOpen(b *testing.B, path string, cells int) *Engine {
	b.Helper()
	dir, err := libDir()
	if err != nil {
		b.Fatal(err)
	}
	e, err := Open(Options{Lib: dir, Model: path, Slots: 2, Cells: cells})
	if err != nil {
		b.Fatal(err)
	}
	if reason := e.Info().ColocatedOnly; reason != "" {
		b.Fatal(reason)
	}
	b.Cleanup(func() { e.Close() })
	return e
}

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
