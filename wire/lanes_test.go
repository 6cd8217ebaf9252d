package wire

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// auto falls back to QUIC where the TLS port does not answer, and tries it again later; tls fails.
func TestLaneFallback(t *testing.T) {
	bubble(t, nil, func(t *testing.T, net *memNet, a, b *Node) {
		net.noTLS = true
		for _, src := range []*Node{a, b} {
			dst := b
			if src == b {
				dst = a
			}
			f := start(t, src, dst, false, false)
			began := time.Now()
			f.run(t, 100<<10)
			if got := f.snd.Stats().Lane; got != "quic" {
				t.Errorf("lane %q", got)
			}
			if d := time.Since(began); d > 1100*time.Millisecond {
				t.Errorf("the probe took %v", d)
			}
		}
		net.noTLS = false
		time.Sleep(time.Minute)
		start(t, a, b, false, false).run(t, 1) // tries again beside it
		synctest.Wait()
		f := start(t, a, b, false, false)
		f.run(t, 1)
		if got := f.snd.Stats().Lane; got != "tls" {
			t.Errorf("lane %q after the TLS port opened", got)
		}
	})
	bubble(t, func(c *Config) { c.Lane = LaneTLS }, func(t *testing.T, net *memNet, a, b *Node) {
		net.noTLS = true
		f := start(t, a, b, false, false)
		f.rcv.Grant()
		f.src.failedWith(t, ErrLane)
		f.dst.failedWith(t, ErrLane)
	})
}

// The pool grows to one lane per handoff, up to its bound, and stays warm.
func TestLanePool(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		var flows []*flow
		for range 7 {
			f := start(t, a, b, false, false)
			f.src.await(t, "opened")
			synctest.Wait()
			flows = append(flows, f)
			if got := a.Stats().Links[0].Lanes; got != min(len(flows), 4) {
				t.Errorf("%d lanes for %d handoffs", got, len(flows))
			}
		}
		for _, n := range []*Node{a, b} {
			if got := n.Stats().Links[0].Lanes; got != 4 {
				t.Errorf("%s has %d lanes", n.name, got)
			}
		}
		for _, f := range flows {
			f.rcv.Grant()
			f.src.await(t, "room")
		}
		synctest.Wait()
		load := map[*pump]int{}
		for _, f := range flows {
			load[f.snd.pump]++
		}
		for _, n := range load {
			if len(load) != 4 || n > 2 {
				t.Errorf("handoffs per lane: %v", load)
			}
		}
		for _, f := range flows {
			f.run(t, 100<<10)
		}
		if got := a.Stats().Links[0].Lanes; got != 4 {
			t.Errorf("%d lanes stay", got)
		}
	})
}

// Handoffs on one lane take turns frame by frame: a small one is not behind a large one.
func TestFairness(t *testing.T) {
	mod := func(c *Config) { c.Lanes, c.LargestUnit = 1, 32<<20 }
	bubble(t, mod, func(t *testing.T, net *memNet, a, b *Node) {
		big, small := start(t, a, b, false, false), start(t, a, b, false, false)
		for _, f := range []*flow{big, small} {
			f.rcv.Grant()
			f.put(t, 0, payload(0, 10))
			f.dst.await(t, "unit")
		}
		freezeBulk(net, b)
		big.put(t, 1, payload(1, 32<<20))
		synctest.Wait() // the lane is full of the large unit
		small.put(t, 1, payload(1, 64<<10))
		small.snd.Finish(nil)
		// A few frames suffice: the one under way, and one of the large unit between each two of the small one.
		for _, l := range net.lanes {
			l.r.update(func() { l.r.let = 4 << 20 })
		}
		synctest.Wait()
		if !small.dst.has("manifest") {
			t.Errorf("the small unit is behind more than 4 MiB of the large one: %v", small.dst.log)
		}
		for _, l := range net.lanes {
			l.r.freeze(false)
		}
		big.snd.Abort("enough")
		small.snd.Abort("enough")
	})
}

// An idle connection is closed and dialled again when needed.
func TestIdle(t *testing.T) {
	bubble(t, nil, func(t *testing.T, net *memNet, a, b *Node) {
		f := start(t, a, b, false, false)
		time.Sleep(time.Hour) // a live handoff keeps it
		f.run(t, 10)
		time.Sleep(6 * time.Minute)
		if n := len(a.Stats().Links) + len(b.Stats().Links); n != 0 {
			t.Errorf("%d ends of idle connections", n)
		}
		start(t, b, a, true, false).run(t, 10)
		if len(net.links) != 2 {
			t.Errorf("%d connections were dialled", len(net.links))
		}
	})
}

// An open that crosses with the end of an unused connection is repeated on a new one.
func TestOpenCrossesIdleEnd(t *testing.T) {
	bubble(t, nil, func(t *testing.T, net *memNet, a, b *Node) {
		start(t, a, b, false, false).run(t, 10)
		synctest.Wait()
		var s *session
		for s = range b.sessions {
			s.mu.Lock()
			s.closed = true // as idled does, which then closes the connection
			s.mu.Unlock()
		}
		f := start(t, a, b, false, false)
		synctest.Wait()
		s.link.close(ErrIdle, "idle")
		f.run(t, 10)
		if len(net.links) != 2 {
			t.Errorf("%d connections were dialled", len(net.links))
		}
	})
}

// A connection on which an open waits for its host is not idle.
func TestOpenHoldsConnection(t *testing.T) {
	bubble(t, func(c *Config) { c.Timeouts.Idle = time.Second }, func(t *testing.T, net *memNet, a, b *Node) {
		bind, dst, src := binding(a, b), newWatcher(), newWatcher()
		ev := dst.receiver()
		ev.Open = func() error { time.Sleep(5 * time.Second); return nil }
		rcv, err := b.Expect(bind, ev)
		if err != nil {
			t.Fatal(err)
		}
		snd, err := a.Push(bind, b.Endpoint(), rcv.Ticket(), src.sender())
		if err != nil {
			t.Fatal(err)
		}
		(&flow{b: bind, snd: snd, rcv: rcv, src: src, dst: dst}).run(t)
		if len(net.links) != 1 {
			t.Errorf("%d connections were dialled", len(net.links))
		}
		time.Sleep(2 * time.Second)
		if n := len(a.Stats().Links) + len(b.Stats().Links); n != 0 {
			t.Errorf("%d ends of idle connections", n)
		}
	})
}

// Both sides dial at the same moment: two connections, and every handoff works.
func TestSimultaneousDial(t *testing.T) {
	bubble(t, nil, func(t *testing.T, net *memNet, a, b *Node) {
		f, g := start(t, a, b, false, false), start(t, b, a, false, false)
		f.run(t, 1000)
		g.run(t, 1000)
		for range 2 {
			start(t, a, b, false, false).run(t, 10)
			start(t, b, a, false, false).run(t, 10)
		}
		if len(net.links) > 2 {
			t.Errorf("%d connections", len(net.links))
		}
	})
}

// Many handoffs to a peer that is being dialled share the dial.
func TestDialOnce(t *testing.T) {
	bubble(t, nil, func(t *testing.T, net *memNet, a, b *Node) {
		var flows []*flow
		for range 20 {
			flows = append(flows, start(t, a, b, false, false))
		}
		for _, f := range flows {
			f.run(t, 100)
		}
		if len(net.links) != 1 {
			t.Errorf("%d connections", len(net.links))
		}
	})
}

// Config.Total admits handoffs in order; what waits is served when others end.
func TestTotal(t *testing.T) {
	mod := func(c *Config) { c.Total = 2 << 20 } // two charges of 1 MiB
	bubble(t, mod, func(t *testing.T, _ *memNet, a, b *Node) {
		var flows []*flow
		for range 4 {
			f := start(t, a, b, false, true)
			f.rcv.Grant()
			f.src.await(t, "opened")
			synctest.Wait()
			flows = append(flows, f)
		}
		granted := func() (n int) {
			for _, f := range flows {
				if f.src.has("room") {
					n++
				}
			}
			return n
		}
		if granted() != 2 || b.Stats().Granted != 2<<20 {
			t.Fatalf("%d granted, %d bytes", granted(), b.Stats().Granted)
		}
		// The second ends while a unit is still held: the charge stays.
		f := flows[1]
		f.put(t, 0, payload(0, 1000))
		f.dst.await(t, "unit")
		f.rcv.Abort("over")
		f.dst.await(t, "quiesced")
		synctest.Wait()
		if granted() != 2 {
			t.Error("granted while the memory is held")
		}
		f.dst.units[0].Release()
		synctest.Wait()
		if granted() != 3 || !flows[2].src.has("room") {
			t.Errorf("%d granted after a release", granted())
		}
		// One that waits goes away.
		flows[3].rcv.Abort("over")
		for _, f := range []*flow{flows[0], flows[2]} {
			f.snd.Abort("over")
		}
		for _, f := range flows {
			f.dst.await(t, "quiesced")
		}
		synctest.Wait()
		idle(t, a, b)
	})
}

// The send side has a total too: a sender is told when there is room again.
func TestSendTotal(t *testing.T) {
	bubble(t, func(c *Config) { c.Total = 1 << 20 }, func(t *testing.T, net *memNet, a, b *Node) {
		c := memNode(t, net, "other", nil)
		defer c.Close()
		f, g := start(t, a, b, false, false), start(t, a, c, false, false)
		for _, x := range []*flow{f, g} {
			x.rcv.Grant()
			x.src.await(t, "room")
		}
		one, ok := f.snd.Buffer(1 << 20)
		if !ok {
			t.Fatal("no buffer")
		}
		if _, ok := g.snd.Buffer(100); ok {
			t.Error("a buffer over the total")
		}
		before := len(g.src.log)
		one.Discard()
		one.Discard()
		g.src.wait(t, "room", func() bool { return len(g.src.log) > before })
		if b, ok := g.snd.Buffer(100); !ok {
			t.Error("no buffer after one was discarded")
		} else {
			b.Discard()
		}
		if a.Stats().Sending != 0 {
			t.Errorf("%d bytes held", a.Stats().Sending)
		}
		f.snd.Abort("")
		g.snd.Abort("")
	})
}

func TestPing(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		if _, err := a.Ping(t.Context(), "destination", 1); !errors.Is(err, ErrUnreachable) {
			t.Errorf("ping of nobody: %v", err)
		}
		start(t, a, b, false, false).run(t, 10)
		for _, n := range []*Node{a, b} {
			if _, err := n.Ping(t.Context(), map[*Node]string{a: "destination", b: "source"}[n], 1024); err != nil {
				t.Error(err)
			}
		}
	})
}
