package wire

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem/state"
)

// A peer that accepts and stays silent fails the handoff in bounded time, at every point where something is awaited.
func TestSilentDestination(t *testing.T) {
	peers := state.Binding{Source: state.Peer{Worker: "source", Incarnation: 1}, Destination: state.Peer{Worker: "destination", Incarnation: 1}}
	tests := []struct {
		name   string
		want   Code
		within time.Duration
		serve  func(t *testing.T, st stream)
	}{
		{"after the open", ErrFirstByte, 11 * time.Second, func(*testing.T, stream) {}},
		{"after opened", ErrFirstByte, 15 * time.Second, func(_ *testing.T, st stream) {
			st.Write(frameMsg(msgOpened, 0, nil))
		}},
		{"after credit", ErrProgress, 45 * time.Second, func(_ *testing.T, st stream) {
			st.Write(frameMsg(msgOpened, 0, nil))
			st.Write(credit{1000, 0, 1000}.encode())
		}},
		{"alive but without credit for a unit", ErrProgress, 45 * time.Second, func(_ *testing.T, st stream) {
			st.Write(frameMsg(msgOpened, 0, nil))
			st.Write(credit{1500, 0, 1000}.encode())
			go alive(st, 35)
		}},
		{"alive but never confirms", ErrProgress, 45 * time.Second, func(_ *testing.T, st stream) {
			st.Write(frameMsg(msgOpened, 0, nil))
			st.Write(credit{1 << 20, 0, 1000}.encode())
			go alive(st, 35)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newMemNet()
				n := memNode(t, net, "source", nil)
				defer n.Close()
				tr := net.listen("destination")
				w := newWatcher()
				b := peers
				b.Handoff = newID()
				snd, err := n.Push(b, tr.endpoint(), newTicket(), w.sender())
				if err != nil {
					t.Fatal(err)
				}
				l := <-tr.links
				st, _ := l.accept(context.Background())
				if kind, _, err := readMsg(st, 0); kind != msgHello {
					t.Fatalf("got %d, %v", kind, err)
				}
				st.Write(hello{1, 1, "destination", 1, 0, LaneQUIC, Endpoint{}, ""}.encode())
				began := time.Now()
				hs, _ := l.accept(context.Background())
				tt.serve(t, hs)
				go func() {
					lane, err := l.acceptBulk(context.Background())
					for err == nil { // the bytes arrive, nothing else happens
						_, err = lane.Read(make([]byte, 4096))
					}
				}()
				w.wait(t, "room or the end", func() bool { return len(w.log) > 0 && w.log[len(w.log)-1] != "opened" })
				for i := range 2 {
					if b, ok := snd.Buffer(1000); ok {
						snd.Send(header(snd.b.Handoff, i, b.Bytes), b)
					}
				}
				snd.Finish(nil)
				w.failedWith(t, tt.want)
				w.check(t)
				if d := time.Since(began); d > tt.within {
					t.Errorf("after %v", d)
				}
				l.close(ErrClosed, "")
				time.Sleep(time.Minute) // what the peer started ends
			})
		})
	}
}

func TestSilentSource(t *testing.T) {
	for _, signed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			net := newMemNet()
			n := memNode(t, net, "destination", nil)
			defer n.Close()
			r := rawDial(t, net, "source", n)
			w := newWatcher()
			_, _, st := r.push(n, w)
			want, within := ErrFirstByte, 15*time.Second
			if signed {
				st.Write(frameMsg(msgAlive, flagOptional, nil))
				want, within = ErrProgress, 45*time.Second
			}
			began := time.Now()
			w.failedWith(t, want)
			if d := time.Since(began); d > within {
				t.Errorf("after %v", d)
			}
		})
	}
}

// A source that computes for long is alive, and so is a destination that imports for long.
func TestSlowHostsAreAlive(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		f := start(t, a, b, false, false)
		time.Sleep(20 * time.Minute) // the destination takes its time to grant
		f.rcv.Grant()
		f.src.await(t, "room")
		time.Sleep(20 * time.Minute)
		f.put(t, 0, payload(0, 1000))
		time.Sleep(20 * time.Minute)
		f.snd.Finish(nil)
		f.dst.await(t, "manifest")
		time.Sleep(20 * time.Minute) // restoring
		if err := f.rcv.Commit(OutcomeActive); err != nil {
			t.Fatal(err)
		}
		f.src.await(t, "committed")
		f.dst.await(t, "committed")
	})
}

// A destination that keeps every unit is given up after the progress deadline, although its wire is alive.
func TestNoCreditIsNoProgress(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		f := start(t, a, b, false, true)
		f.rcv.Grant()
		for i := range 3 {
			f.put(t, i, payload(i, 128<<10))
		}
		f.src.failedWith(t, ErrProgress)
		f.dst.failedWith(t, ErrProgress)
		for _, u := range f.dst.units {
			u.Release()
		}
		synctest.Wait()
		idle(t, a, b)
	})
}

// The peer's process dies: both what flows and what waits for a commit ends.
func TestPeerKilled(t *testing.T) {
	for _, lane := range []LaneMode{LaneTLS, LaneQUIC} {
		t.Run(string(lane), func(t *testing.T) {
			bubble(t, func(c *Config) { c.Lane = lane }, func(t *testing.T, net *memNet, a, b *Node) {
				flowing, waiting := start(t, a, b, false, true), start(t, a, b, true, false)
				for _, f := range []*flow{flowing, waiting} {
					f.rcv.Grant()
					f.put(t, 0, payload(0, 100<<10))
					f.dst.await(t, "unit")
				}
				waiting.snd.Finish(nil)
				waiting.src.await(t, "sent")
				began := time.Now()
				for _, l := range net.links {
					l.close(ErrPeerLost, "killed")
				}
				flowing.src.failedWith(t, ErrPeerLost)
				flowing.dst.failedWith(t, ErrPeerLost)
				if time.Since(began) > 0 {
					t.Errorf("what flowed ended after %v", time.Since(began))
				}
				waiting.src.failedWith(t, ErrPeerLost)
				if d := time.Since(began); d < 10*time.Second || d > time.Minute {
					t.Errorf("the source waited %v for a commit over a new connection", d)
				}
				if waiting.dst.err != nil {
					t.Errorf("the destination has everything, yet failed: %v", waiting.dst.err)
				}
				waiting.rcv.Abort("over")
				waiting.dst.await(t, "quiesced")
				for _, u := range flowing.dst.units {
					u.Release()
				}
				synctest.Wait()
				idle(t, a, b)
			})
		})
	}
}

// A broken lane fails the handoffs on it, on both sides; the connection and other handoffs go on.
func TestLaneBreaks(t *testing.T) {
	bubble(t, nil, func(t *testing.T, net *memNet, a, b *Node) {
		f, g := start(t, a, b, false, true), start(t, a, b, false, false)
		f.rcv.Grant()
		f.put(t, 0, payload(0, 100<<10))
		f.dst.await(t, "unit")
		g.src.await(t, "opened")
		net.mu.Lock()
		for _, l := range net.lanes {
			l.stop()
		}
		net.mu.Unlock()
		f.src.failedWith(t, ErrPeerLost)
		f.dst.failedWith(t, ErrPeerLost)
		for _, u := range f.dst.units {
			u.Release()
		}
		synctest.Wait()
		g.run(t, 100<<10, 200<<10)
		start(t, a, b, false, false).run(t, 100)
		synctest.Wait()
		if s := a.Stats(); len(s.Links) != 1 || s.Links[0].Lanes == 0 {
			t.Errorf("links afterwards: %+v", s.Links)
		}
	})
}

// The lanes break and the peer answers nothing: the connection is given up long before its own timeout.
func TestLanesBreakAndPeerIsSilent(t *testing.T) {
	bubble(t, nil, func(t *testing.T, net *memNet, a, b *Node) {
		start(t, a, b, false, false).run(t, 10)
		net.mu.Lock()
		for _, l := range net.lanes {
			l.stop()
		}
		link := net.links[0]
		net.mu.Unlock()
		for _, m := range []*memLink{link, link.other} {
			m.mu.Lock()
			for _, p := range m.parts {
				p.(*memStream).r.freeze(true)
			}
			m.mu.Unlock()
		}
		time.Sleep(2 * time.Second)
		if n := len(a.Stats().Links); n != 0 {
			t.Errorf("%d links to a silent peer", n)
		}
	})
}

// A write that does not come back: Abort waits for it, ForceClose does not, and then nothing touches the buffer.
func TestForceCloseUnderStalledWrite(t *testing.T) {
	for _, lane := range []LaneMode{LaneTLS, LaneQUIC} {
		t.Run(string(lane), func(t *testing.T) {
			bubble(t, func(c *Config) { c.Lane = lane }, func(t *testing.T, net *memNet, a, b *Node) {
				f := start(t, a, b, false, false)
				f.rcv.Grant()
				f.put(t, 0, payload(0, 1000))
				f.dst.await(t, "unit")
				freezeBulk(net, b)
				f.put(t, 1, payload(1, 1<<20))
				synctest.Wait()
				f.snd.Abort("cancelled")
				synctest.Wait()
				// On QUIC the peer, hearing of the cancel, stops the stream and so the write.
				if lane == LaneTLS && f.src.has("quiesced") {
					t.Error("quiesced while a write holds a buffer")
				}
				f.snd.ForceClose()
				synctest.Wait()
				if !f.src.has("quiesced") {
					t.Error("not quiesced after ForceClose")
				}
				f.dst.await(t, "quiesced") // by the cancel: it does not wait for the frozen lane
				f.src.check(t)
				f.dst.check(t)
				if a.Stats().Sending != 0 {
					t.Errorf("%d bytes held", a.Stats().Sending)
				}
			})
		})
	}
}

// freezeBulk holds back every bulk byte on its way to n.
func freezeBulk(net *memNet, n *Node) {
	net.mu.Lock()
	defer net.mu.Unlock()
	for _, l := range net.lanes {
		l.r.freeze(true)
	}
	for _, l := range net.links {
		for _, m := range []*memLink{l, l.other} {
			m.mu.Lock()
			for _, p := range m.parts {
				if b, ok := p.(*memBulk); ok && b.r != nil {
					b.r.freeze(true)
				}
			}
			m.mu.Unlock()
		}
	}
}

// A destination that cancels in the middle of a unit is quiet at once, although its bytes do not come; the lane goes on.
func TestReceiverQuiescesMidUnit(t *testing.T) {
	bubble(t, nil, func(t *testing.T, net *memNet, a, b *Node) {
		f, g := start(t, a, b, false, false), start(t, a, b, false, false)
		f.rcv.Grant()
		g.rcv.Grant()
		f.put(t, 0, payload(0, 1000))
		f.dst.await(t, "unit")
		g.put(t, 0, payload(0, 1000))
		g.dst.await(t, "unit")
		freezeBulk(net, b)
		f.put(t, 1, payload(1, 1<<20))
		synctest.Wait()
		for _, l := range net.lanes { // let the header and a part of the unit through
			l.r.update(func() { l.r.let = 100_000 })
		}
		synctest.Wait()
		if f.rcv.users != 1 {
			t.Fatal("the lane does not read into the unit's buffer")
		}
		began := time.Now()
		f.rcv.Abort("cancelled")
		f.dst.await(t, "quiesced")
		if time.Since(began) != 0 {
			t.Errorf("quiesced after %v", time.Since(began))
		}
		for _, l := range net.lanes {
			l.r.freeze(false)
		}
		f.src.failedWith(t, ErrCancelled)
		p := payload(1, 200<<10)
		g.put(t, 1, p)
		g.snd.Finish(nil)
		g.dst.await(t, "manifest")
		if got := g.snd.Stats().Lane; got != "tls" {
			t.Errorf("lane %q", got)
		}
		g.rcv.Commit(OutcomeActive)
		g.src.await(t, "quiesced")
		synctest.Wait()
		idle(t, a, b)
	})
}

// Damage on the way is noticed, whichever byte it hits.
func TestDamage(t *testing.T) {
	for _, at := range []int{1, 5, 9, 17, 30, frameSize + 3, frameSize + state.HeaderSize - 1, frameSize + state.HeaderSize + frameSize + 1, frameSize + state.HeaderSize + frameSize + 99_000} {
		bubble(t, func(c *Config) { c.Lane = LaneQUIC }, func(t *testing.T, net *memNet, a, b *Node) {
			f := start(t, a, b, false, false)
			f.rcv.Grant()
			f.src.await(t, "room")
			synctest.Wait()
			for _, m := range net.links[0].other.parts {
				if k, ok := m.(*memBulk); ok {
					k.r.update(func() { k.r.damage = at })
				}
			}
			f.put(t, 0, payload(0, 100_000))
			f.snd.Finish(nil)
			f.dst.await(t, "quiesced")
			f.src.await(t, "quiesced")
			if f.dst.err == nil || f.dst.has("manifest") {
				t.Errorf("byte %d damaged, and the destination saw %v, %v", at, f.dst.log, f.dst.err)
			}
			if at > 300 && !errors.Is(f.dst.err, ErrChecksum) {
				t.Errorf("payload byte %d damaged: %v", at, f.dst.err)
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	bubble(t, nil, func(t *testing.T, net *memNet, a, b *Node) {
		for _, tt := range []struct {
			to   Endpoint
			want Code
		}{
			{Endpoint{QUIC: "nowhere"}, ErrUnreachable},
			{Endpoint{}, ErrUnreachable},
			{net.listen("somebody else").endpoint(), ErrIdentity},
		} {
			w := newWatcher()
			if _, err := a.Push(binding(a, b), tt.to, newTicket(), w.sender()); err != nil {
				t.Fatal(err)
			}
			w.failedWith(t, tt.want)
			w.check(t)
		}
		// An abort while dialling is quiet at once.
		w := newWatcher()
		s, err := a.Push(binding(a, b), Endpoint{QUIC: "nowhere"}, newTicket(), w.sender())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		s.Abort("cancelled")
		synctest.Wait()
		if !w.has("quiesced") || w.err != nil {
			t.Errorf("events %v, error %v", w.log, w.err)
		}
	})
}
