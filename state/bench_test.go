package state

import (
	"hash/crc32"
	"testing"
	"time"
)

// BenchmarkChecksum sums 16 MiB, more than the caches of one core hold, beside the same in one call of
// hash/crc32.
func BenchmarkChecksum(b *testing.B) {
	p := make([]byte, 16<<20)
	for i := range p {
		p[i] = byte(i * 7)
	}
	var ours, plain time.Duration
	for b.Loop() {
		t0 := time.Now()
		sum := UpdateChecksum(0, p)
		t1 := time.Now()
		if crc32.Update(0, castagnoli, p) != sum {
			b.Fatal("sums differ")
		}
		ours += t1.Sub(t0)
		plain += time.Since(t1)
	}
	rate := func(d time.Duration) float64 { return float64(b.N*len(p)) / d.Seconds() / 1e9 }
	b.ReportMetric(rate(ours), "GB/s")
	b.ReportMetric(rate(plain), "plain-GB/s")
	b.ReportMetric(plain.Seconds()/ours.Seconds(), "ratio")
}
