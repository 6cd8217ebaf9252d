package blob

import (
	"fmt"
	"testing"
)

// BenchmarkFinite compares the finiteness scan with a copy of the same bytes,
// in turn.
func BenchmarkFinite(b *testing.B) {
	for _, mib := range []int{1, 4, 16, 64} {
		src, dst := make([]byte, mib<<20), make([]byte, mib<<20)
		for i := range src {
			src[i] = byte(i % 0x3c)
		}
		b.Run(fmt.Sprintf("memcpy/%dMiB", mib), func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				copy(dst, src)
			}
		})
		for _, t := range []Type{F16, F32, Q8_0} {
			rows := src[:len(src)/q8Block*q8Block]
			b.Run(fmt.Sprintf("%v/%dMiB", t, mib), func(b *testing.B) {
				b.SetBytes(int64(len(rows)))
				for b.Loop() {
					if !Finite(t, rows) {
						b.Fatal("not finite")
					}
				}
			})
		}
	}
}
