package bus_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/mesh"
)

// benchWorlds runs a benchmark for the ways that gateway and worker can be connected.
func benchWorlds(b *testing.B, fn func(b *testing.B, g *gateway, k *worker)) {
	b.Run("server=embedded", func(b *testing.B) { w := embedded(b); fn(b, w.gateway(b, "gw", nil), w.worker(b, "w1", nil)) })
	b.Run("server=external", func(b *testing.B) { w := external(b); fn(b, w.gateway(b, "gw", nil), w.worker(b, "w1", nil)) })
}

func quantiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "µs/p50")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "µs/p99")
}

// BenchmarkCommand is one command and its reply.
func BenchmarkCommand(b *testing.B) {
	benchWorlds(b, func(b *testing.B, g *gateway, k *worker) {
		go func() {
			for c := range k.commands {
				c.reply(&buspb.Reply{Verdict: buspb.Verdict_VERDICT_ACCEPTED})
			}
		}()
		defer close(k.commands)
		took := make([]time.Duration, 0, b.N)
		for b.Loop() {
			start := time.Now()
			_, err := g.Command(context.Background(), "w1", &buspb.Command{Handoff: handoffID(1), Body: &buspb.Command_Query{Query: &buspb.Query{}}})
			if err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		quantiles(b, took)
	})
}

// BenchmarkToken is one token from a worker to its gateway and the acknowledgement back: two one-way trips.
func BenchmarkToken(b *testing.B) {
	benchWorlds(b, func(b *testing.B, g *gateway, k *worker) {
		go func() {
			for s := range g.statuses {
				st := s.Statuses[0]
				ack := &buspb.Ack{Handoff: st.Handoff, Side: st.Side, Seq: st.Seq, NextIndex: st.GetTokens().From + 1}
				_ = g.Post("w1", &buspb.Command{Body: &buspb.Command_Acks{Acks: &buspb.Acks{Acks: []*buspb.Ack{ack}}}})
			}
		}()
		defer close(g.statuses)
		took := make([]time.Duration, 0, b.N)
		i := uint32(0)
		for b.Loop() {
			start := time.Now()
			if err := k.Statuses("gw", &buspb.Statuses{GatewayIncarnation: 7, Statuses: []*buspb.Status{tokens(i, " token")}}); err != nil {
				b.Fatal(err)
			}
			if got := (<-k.commands).GetAcks().Acks[0].NextIndex; got != i+1 {
				b.Fatalf("ack %d, want %d", got, i+1)
			}
			i++
			took = append(took, time.Since(start))
		}
		quantiles(b, took)
	})
}

// BenchmarkTokens streams tokens as fast as they go, in messages of one step of a batch of several requests each.
func BenchmarkTokens(b *testing.B) {
	for _, batch := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			benchWorlds(b, func(b *testing.B, g *gateway, k *worker) {
				s := &buspb.Statuses{GatewayIncarnation: 7}
				for i := range batch {
					s.Statuses = append(s.Statuses, tokens(uint32(i), " token"))
				}
				const window = 1024 // messages on the way
				sem := make(chan struct{}, window)
				done := make(chan int)
				go func() {
					n := 0
					for range g.statuses {
						<-sem
						n++
						if n == b.N {
							break
						}
					}
					done <- n
				}()
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					sem <- struct{}{}
					if err := k.Statuses("gw", s); err != nil {
						b.Fatal(err)
					}
				}
				<-done
				b.ReportMetric(float64(b.N)*float64(batch)/b.Elapsed().Seconds(), "tokens/s")
			})
		})
	}
}

// BenchmarkBarePing is the floor under BenchmarkToken: the same bytes there and back over two mutual TLS connections that a
// relay joins, as any server must.
func BenchmarkBarePing(b *testing.B) {
	w := newWorld(b)
	server := w.issue(b, mesh.RoleBus, "bus").ServerTLS(nil, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	pair := func(name string) (near, far net.Conn) {
		client := w.issue(b, mesh.RoleWorker, name).ClientTLS(nil, mesh.Peer{Role: mesh.RoleBus})
		errs := make(chan error, 1)
		go func() {
			c, err := ln.Accept()
			far = tls.Server(c, server)
			errs <- errors.Join(err, far.(*tls.Conn).Handshake())
		}()
		c, err := net.Dial("tcp", ln.Addr().String())
		near = tls.Client(c, client)
		if err := errors.Join(err, near.(*tls.Conn).Handshake(), <-errs); err != nil {
			b.Fatal(err)
		}
		return near, far
	}
	a, aFar := pair("a")
	z, zFar := pair("z")
	forward := func(from, to net.Conn) {
		buf := make([]byte, 128)
		for {
			if _, err := io.ReadFull(from, buf); err != nil {
				to.Close()
				return
			}
			if _, err := to.Write(buf); err != nil {
				return
			}
		}
	}
	go forward(aFar, zFar)
	go forward(zFar, aFar)
	go forward(z, z) // the peer echoes
	defer z.Close()
	defer a.Close()
	buf := make([]byte, 128)
	took := make([]time.Duration, 0, b.N)
	for b.Loop() {
		start := time.Now()
		if _, err := a.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(a, buf); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	quantiles(b, took)
}

// BenchmarkRegistry is one announcement among 1,000 workers.
func BenchmarkRegistry(b *testing.B) {
	r := bus.NewRegistry(0, 0)
	var regs []*buspb.Registration
	for i := range 1000 {
		regs = append(regs, announced(fmt.Sprintf("w%d", i), 1, 0))
	}
	var dst []bus.Change
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		reg := regs[i%len(regs)]
		reg.Seq++
		// The registry keeps reg, so its own seq moves with it: announce a life of its own each time.
		reg.Incarnation++
		var err error
		if dst, err = r.Announce(time.Duration(i), reg, dst[:0]); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
