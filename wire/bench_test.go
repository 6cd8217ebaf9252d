package wire

import (
	"testing"
	"time"

	"github.com/tandem-llm/tandem/state"
)

// What the lanes move is measured by `tandem bench lane`, in two processes.

// BenchmarkHandoff is a whole empty handoff on a warm pair: open, grant, manifest, commit, both ends quiet.
func BenchmarkHandoff(b *testing.B) {
	x, y := netNodes(b, nil)
	start(b, x, y, false, false).run(b, 1)
	b.ReportAllocs()
	for b.Loop() {
		start(b, x, y, false, false).run(b)
	}
}

// BenchmarkUnit counts what one unit costs beyond its bytes.
func BenchmarkUnit(b *testing.B) {
	x, y := netNodes(b, func(c *Config) { c.Lane = LaneTLS })
	f := start(b, x, y, false, false)
	f.rcv.onUnit = (*Unit).Release
	f.rcv.Grant()
	f.src.await(b, "room")
	page := make([]byte, 256<<10)
	sum := state.UpdateChecksum(0, page)
	b.ReportAllocs()
	b.SetBytes(256 << 10)
	i := 0
	for b.Loop() {
		buf, ok := f.snd.Buffer(256 << 10)
		for !ok {
			time.Sleep(10 * time.Microsecond)
			buf, ok = f.snd.Buffer(256 << 10)
		}
		h := header(f.b.Handoff, i, nil)
		h.Length, h.Checksum = 256<<10, sum
		if err := f.snd.Send(h, buf); err != nil {
			b.Fatal(err)
		}
		i++
	}
	f.rcv.Abort("")
	f.src.await(b, "quiesced")
	f.dst.await(b, "quiesced")
}
