//go:build unix

package wire

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/state"
	"golang.org/x/sys/unix"
)

// The throughput benchmarks run the same bytes in turn over a bare connection of the same kind and over a handoff, in one
// process on loopback, and report the medians of rate and of CPU time of both ends; a ratio over 1 is better than bare:
//
//	go test ./wire -run '^$' -bench Lane -benchtime 10x

const (
	benchPage  = 4 << 20
	benchPages = 48
	benchRing  = 4
)

// bare is a connection without a protocol. Both ends go round benchRing pages, about what a handoff's window makes of
// memory: one page that never leaves the cache would be a copy of other bytes.
type bare struct {
	w    io.Writer
	done chan error
	quit func()
}

// read consumes n bytes at a time from r and says when.
func (b *bare) read(r io.Reader, n int) {
	buf := make([]byte, benchRing*benchPage)
	for {
		for got := 0; got < n; {
			at := got % len(buf)
			k, err := r.Read(buf[at:min(len(buf), at+n-got)])
			if err != nil {
				return
			}
			got += k
		}
		b.done <- nil
	}
}

func bareTLS(b *testing.B, src, dst *mesh.Identity, coalesced bool) *bare {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	x := &bare{done: make(chan error, 1)}
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		x.read(tls.Server(c, dst.ServerTLS([]string{"bare"}, nil)), benchPage*benchPages)
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	conf := src.ClientTLS([]string{"bare"}, mesh.Peer{Role: mesh.RoleWorker, Name: dst.Name()})
	if !coalesced {
		t := tls.Client(c, conf)
		x.w, x.quit = t, func() { c.Close(); ln.Close() }
		return x
	}
	l, err := shakeLane(context.Background(), c, &Config{Timeouts: Timeouts{Handshake: time.Minute}}, func(c net.Conn) *tls.Conn { return tls.Client(c, conf) })
	if err != nil {
		b.Fatal(err)
	}
	x.w, x.quit = flushing{l}, func() { l.stop(); ln.Close() }
	return x
}

// memcopy copies pages in memory, which is what a same-host lane is compared with.
func memcopy() *bare {
	to := &copied{buf: make([]byte, benchRing*benchPage), done: make(chan error, 1)}
	return &bare{w: to, done: to.done, quit: func() {}}
}

type copied struct {
	buf   []byte
	pages int
	done  chan error
}

func (c *copied) Write(p []byte) (int, error) {
	copy(c.buf[c.pages%benchRing*benchPage:], p)
	if c.pages++; c.pages%benchPages == 0 {
		c.done <- nil
	}
	return len(p), nil
}

// flushing flushes every write, as the lane does after a page.
type flushing struct{ *tlsConn }

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.tlsConn.Write(p)
	if err == nil {
		err = f.flush()
	}
	return n, err
}

func bareQUIC(b *testing.B, src, dst *mesh.Identity, gro bool) *bare {
	open := func() *quic.Transport {
		u, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			b.Fatal(err)
		}
		if gro {
			return &quic.Transport{Conn: batched(u)}
		}
		return &quic.Transport{Conn: u}
	}
	cfg, _ := Config{Incarnation: 1, Addr: "x"}.fill()
	s, c := open(), open()
	ln, err := s.Listen(dst.ServerTLS([]string{"bare"}, nil), quicConfig(&cfg))
	if err != nil {
		b.Fatal(err)
	}
	x := &bare{done: make(chan error, 1)}
	go func() {
		q, err := ln.Accept(context.Background())
		if err != nil {
			return
		}
		st, err := q.AcceptUniStream(context.Background())
		if err != nil {
			return
		}
		x.read(st, benchPage*benchPages)
	}()
	q, err := c.Dial(context.Background(), s.Conn.LocalAddr(), src.ClientTLS([]string{"bare"}, mesh.Peer{Role: mesh.RoleWorker, Name: dst.Name()}), quicConfig(&cfg))
	if err != nil {
		b.Fatal(err)
	}
	st, err := q.OpenUniStream()
	if err != nil {
		b.Fatal(err)
	}
	x.w = st
	x.quit = func() {
		q.CloseWithError(0, "")
		s.Close()
		c.Close()
		s.Conn.Close()
		c.Conn.Close()
	}
	return x
}

// round sends all pages over the bare connection.
func (x *bare) round(b *testing.B, ring []byte) time.Duration {
	start := time.Now()
	for i := range benchPages {
		at := i % benchRing * benchPage
		if _, err := x.w.Write(ring[at : at+benchPage]); err != nil {
			b.Fatal(err)
		}
	}
	<-x.done
	return time.Since(start)
}

// handoffRound sends all pages as one handoff, from the grant to the manifest.
func handoffRound(b *testing.B, src, dst *Node, page []byte) time.Duration {
	f := start(b, src, dst, false, false)
	f.rcv.onUnit = (*Unit).Release
	f.src.await(b, "opened")
	sum := state.UpdateChecksum(0, page)
	start := time.Now()
	f.rcv.Grant()
	for i := 0; i < benchPages; {
		f.src.mu.Lock()
		seen := len(f.src.log)
		f.src.mu.Unlock()
		buf, ok := f.snd.Buffer(benchPage)
		if !ok {
			f.src.wait(b, "room", func() bool { return len(f.src.log) > seen || f.src.err != nil })
			continue
		}
		h := header(f.b.Handoff, i, nil)
		h.Length, h.Checksum = benchPage, sum
		if err := f.snd.Send(h, buf); err != nil {
			b.Fatal(err)
		}
		i++
	}
	f.snd.Finish(nil)
	f.dst.await(b, "manifest")
	took := time.Since(start)
	f.rcv.Commit(OutcomeActive)
	f.src.await(b, "quiesced")
	f.dst.await(b, "quiesced")
	return took
}

func BenchmarkLane(b *testing.B) {
	ca, err := mesh.NewCA(nil, 0)
	if err != nil {
		b.Fatal(err)
	}
	ring := make([]byte, benchRing*benchPage)
	page := ring[:benchPage] // zero, as Buffer returns them
	for _, bb := range []struct {
		name string
		lane LaneMode
		bare func(src, dst *mesh.Identity) *bare
	}{
		{"tls", LaneTLS, func(s, d *mesh.Identity) *bare { return bareTLS(b, s, d, false) }},
		{"tls-coalesced", LaneTLS, func(s, d *mesh.Identity) *bare { return bareTLS(b, s, d, true) }},
		{"quic", LaneQUIC, func(s, d *mesh.Identity) *bare { return bareQUIC(b, s, d, false) }},
		{"quic-gro", LaneQUIC, func(s, d *mesh.Identity) *bare { return bareQUIC(b, s, d, true) }},
		{"local", LaneLocal, func(s, d *mesh.Identity) *bare { return memcopy() }},
	} {
		b.Run(bb.name, func(b *testing.B) {
			x, y := netNode(b, ca, "source", func(c *Config) { c.Lane = bb.lane }), netNode(b, ca, "destination", func(c *Config) { c.Lane = bb.lane })
			plain := bb.bare(x.cfg.Identity, y.cfg.Identity)
			defer plain.quit()
			plain.round(b, ring)
			handoffRound(b, x, y, page)
			var bares, wires, ratios, bareCPU, wireCPU, cpuRatios []float64
			rate := func(d time.Duration) float64 { return 8 * benchPage * benchPages / d.Seconds() / 1e9 }
			perGiB := func(d time.Duration) float64 { return d.Seconds() / (benchPage * benchPages) * (1 << 30) }
			for b.Loop() {
				c0 := cpuTime(b)
				p := rate(plain.round(b, ring))
				c1 := cpuTime(b)
				w := rate(handoffRound(b, x, y, page))
				c2 := cpuTime(b)
				bares, wires, ratios = append(bares, p), append(wires, w), append(ratios, w/p)
				bareCPU, wireCPU = append(bareCPU, perGiB(c1-c0)), append(wireCPU, perGiB(c2-c1))
				cpuRatios = append(cpuRatios, (c1-c0).Seconds()/(c2-c1).Seconds())
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(bares), "bare-Gb/s")
			b.ReportMetric(median(wires), "wire-Gb/s")
			b.ReportMetric(median(ratios), "rate-ratio")
			b.ReportMetric(median(bareCPU), "bare-cpu-s/GiB")
			b.ReportMetric(median(wireCPU), "wire-cpu-s/GiB")
			b.ReportMetric(median(cpuRatios), "cpu-ratio")
		})
	}
}

// cpuTime is this process's CPU time, both ends of the benchmark: on a busy machine it says more than the clock.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// BenchmarkPing is the round trip of a 1 KiB control message on an idle pair.
func BenchmarkPing(b *testing.B) {
	x, y := netNodes(b, nil)
	start(b, x, y, false, false).run(b, 1)
	var all []float64
	for b.Loop() {
		d, err := x.Ping(context.Background(), "destination", 1024)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, float64(d.Microseconds()))
	}
	slices.Sort(all)
	b.ReportMetric(all[len(all)/2], "p50-µs")
	b.ReportMetric(all[len(all)*99/100], "p99-µs")
}

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
