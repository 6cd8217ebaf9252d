package wire

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// bubble runs f with a source and a destination on one memory network, under virtual time. The bubble fails the test if a
// goroutine outlives Close.
func bubble(t *testing.T, mod func(*Config), f func(t *testing.T, net *memNet, a, b *Node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net := newMemNet()
		a, b := memNode(t, net, "source", mod), memNode(t, net, "destination", mod)
		defer b.Close()
		defer a.Close()
		f(t, net, a, b)
	})
}

func TestHandoff(t *testing.T) {
	for _, lane := range []LaneMode{LaneAuto, LaneQUIC, LaneTLS} {
		for _, pull := range []bool{false, true} {
			t.Run(string(lane)+"/"+mode(pull), func(t *testing.T) {
				bubble(t, func(c *Config) { c.Lane = lane }, func(t *testing.T, _ *memNet, a, b *Node) {
					f := start(t, a, b, pull, false)
					f.run(t, 1, 64<<10, piece, piece+1, 1<<20)
					idle(t, a, b)
					f = start(t, a, b, pull, false)
					f.run(t) // a full prefix hit: nothing but the manifest
					for _, n := range []*Node{a, b} {
						if s := n.Stats(); len(s.Links) != 1 {
							t.Errorf("%d connections between the pair", len(s.Links))
						}
					}
				})
			})
		}
	}
}

// Both directions at once use one connection, whoever dialled it.
func TestBothWays(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		start(t, a, b, false, false).run(t, 100)
		f := start(t, b, a, false, false) // now the acceptor pushes
		f.run(t, 1<<20, 5)
		if got := f.snd.Stats().Lane; got != "tls" {
			t.Errorf("the acceptor's handoff went over %q", got)
		}
		if n := len(a.Stats().Links); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

func TestNothingBeforeGrant(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		f := start(t, a, b, false, false)
		f.src.await(t, "opened")
		synctest.Wait()
		if _, ok := f.snd.Buffer(1); ok {
			t.Error("a buffer before the grant")
		}
		if err := f.snd.Finish([]byte("m")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if f.dst.has("manifest") {
			t.Error("the manifest came before the grant")
		}
		f.rcv.Grant()
		f.dst.await(t, "manifest")
		f.rcv.Abort("done")
		f.src.failedWith(t, ErrCancelled)
	})
}

// A destination that stops releasing units stops the source; neither side holds more than the window.
func TestBackpressure(t *testing.T) {
	for _, lane := range []LaneMode{LaneTLS, LaneQUIC} {
		t.Run(string(lane), func(t *testing.T) {
			mod := func(c *Config) { c.Lane, c.Timeouts.Progress = lane, time.Hour }
			bubble(t, mod, func(t *testing.T, _ *memNet, a, b *Node) {
				f := start(t, a, b, false, true)
				f.rcv.Grant()
				f.src.await(t, "room")
				sent := 0
				for {
					buf, ok := f.snd.Buffer(48 << 10)
					if !ok {
						synctest.Wait()
						if buf, ok = f.snd.Buffer(48 << 10); !ok {
							break
						}
					}
					if err := f.snd.Send(header(f.b.Handoff, sent, buf.Bytes), buf); err != nil {
						t.Fatal(err)
					}
					sent++
				}
				window := a.cfg.window()
				s, r := f.snd.Stats(), f.rcv.Stats()
				if s.Peak > window || r.Peak > window || r.Held < window-48<<10 || s.Held < window-48<<10 {
					t.Errorf("source holds %d (peak %d), destination %d (peak %d), window %d", s.Held, s.Peak, r.Held, r.Peak, window)
				}
				before := len(f.src.log)
				f.dst.mu.Lock()
				f.dst.units[0].Release()
				f.dst.units[0].Release() // harmless
				f.dst.mu.Unlock()
				f.src.wait(t, "room after a release", func() bool { return len(f.src.log) > before })
				if _, ok := f.snd.Buffer(48 << 10); !ok {
					t.Error("no buffer after a release")
				}
				if f.snd.Stats().Peak > window || f.rcv.Stats().Peak > window {
					t.Error("over the window after a release")
				}
				f.snd.Abort("enough")
				f.dst.failedWith(t, ErrCancelled)
				for _, u := range f.dst.units {
					u.Release()
				}
			})
		})
	}
}

// A unit larger than the window travels, alone.
func TestLargeUnitTravelsAlone(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		f := start(t, a, b, false, false)
		f.run(t, 200<<10, 1<<20, 200<<10, 1<<20)
		for _, p := range []int64{f.snd.Stats().Peak, f.rcv.Stats().Peak} {
			if p > 1<<20 {
				t.Errorf("peak of %d beside a unit of 1 MiB", p)
			}
		}
	})
}

func TestUnitTooLarge(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		f := start(t, a, b, false, false)
		f.rcv.Grant()
		f.src.await(t, "room")
		if _, ok := f.snd.Buffer(1<<20 + 1); ok {
			t.Fatal("a buffer over LargestUnit")
		}
		f.src.failedWith(t, ErrLimit)
		f.dst.failedWith(t, ErrLimit)
	})
}

// The end at every phase, from either side: the other side hears of it, both quiesce once, nothing is held.
func TestCancelAtEveryPhase(t *testing.T) {
	type phase struct {
		name string
		to   func(t *testing.T, f *flow)
	}
	granted := func(t *testing.T, f *flow) {
		f.rcv.Grant()
		f.src.await(t, "room")
	}
	unit := func(t *testing.T, f *flow) {
		granted(t, f)
		f.put(t, 0, payload(0, 200<<10))
		f.dst.await(t, "unit")
	}
	done := func(t *testing.T, f *flow) {
		unit(t, f)
		if err := f.snd.Finish([]byte("m")); err != nil {
			t.Fatal(err)
		}
		f.src.await(t, "sent")
		f.dst.await(t, "manifest")
	}
	phases := []phase{
		{"at once", func(*testing.T, *flow) {}},
		{"opened", func(t *testing.T, f *flow) { f.src.await(t, "opened"); f.dst.await(t, "opened") }},
		{"granted", granted},
		{"buffer held", func(t *testing.T, f *flow) {
			granted(t, f)
			b, ok := f.snd.Buffer(1000)
			if !ok {
				t.Fatal("no buffer")
			}
			t.Cleanup(b.Discard)
		}},
		{"unit received", unit},
		{"starved", func(t *testing.T, f *flow) {
			unit(t, f)
			f.put(t, 1, payload(1, 200<<10)) // waits for credit, because the first unit is kept
			synctest.Wait()
		}},
		{"sent", done},
		{"committed", func(t *testing.T, f *flow) {
			done(t, f)
			if err := f.rcv.Commit(OutcomeActive); err != nil {
				t.Fatal(err)
			}
			f.src.await(t, "quiesced")
			f.dst.await(t, "quiesced")
		}},
	}
	ends := []struct {
		name  string
		local bool // at the source
		f     func(f *flow)
	}{
		{"source aborts", true, func(f *flow) { f.snd.Abort("no more"); f.snd.Abort("again") }},
		{"source forces", true, func(f *flow) { f.snd.ForceClose() }},
		{"destination aborts", false, func(f *flow) { f.rcv.Revoke(); f.rcv.Abort("no more") }},
		{"destination forces", false, func(f *flow) { f.rcv.Abort("no more"); f.rcv.ForceClose() }},
		{"both abort", true, func(f *flow) { f.rcv.Abort("x"); f.snd.Abort("y") }},
	}
	for _, lane := range []LaneMode{LaneTLS, LaneQUIC} {
		for _, pull := range []bool{false, true} {
			for _, p := range phases {
				for _, e := range ends {
					t.Run(fmt.Sprintf("%s/%s/%s/%s", lane, mode(pull), p.name, e.name), func(t *testing.T) {
						bubble(t, func(c *Config) { c.Lane = lane }, func(t *testing.T, _ *memNet, a, b *Node) {
							f := start(t, a, b, pull, true)
							p.to(t, f)
							e.f(f)
							if dials := e.local != pull; dials && p.name == "at once" {
								f.rcv.Abort("nobody will come") // the open may never have been sent
								f.snd.Abort("nobody will come")
							}
							f.src.await(t, "quiesced")
							if e.local && p.name == "sent" {
								synctest.Wait()
								f.rcv.Abort("the destination has everything and does not mind the source's end")
							}
							f.dst.await(t, "quiesced")
							time.Sleep(time.Minute)
							for _, u := range f.dst.units {
								u.Release()
							}
							f.src.check(t)
							f.dst.check(t)
							synctest.Wait()
							if p.name != "buffer held" {
								idle(t, a, b)
							}
							if p.name == "unit received" && e.name != "both abort" {
								other := f.dst
								if !e.local {
									other = f.src
								}
								if !errors.Is(other.err, ErrCancelled) && !errors.Is(other.err, ErrForced) && !errors.Is(other.err, ErrPeerLost) {
									t.Errorf("the other side failed with %v", other.err)
								}
							}
							// The pair goes on.
							start(t, a, b, pull, false).run(t, 300<<10)
						})
					})
				}
			}
		}
	}
}

// Close ends everything, also handoffs that wait for somebody.
func TestClose(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		f := start(t, a, b, false, false)
		f.rcv.Grant()
		f.src.await(t, "room")
		w := newWatcher()
		if _, err := b.Expect(binding(a, b), w.receiver()); err != nil {
			t.Fatal(err)
		}
		b.Close()
		w.failedWith(t, ErrClosed)
		f.dst.failedWith(t, ErrClosed)
		f.src.await(t, "quiesced")
		// The reason is sent, and the connection closed behind it: either may be noticed first.
		if err := f.src.err; !errors.Is(err, ErrPeerLost) && !errors.Is(err, ErrClosed) {
			t.Errorf("the peer failed with %v", err)
		}
		if _, err := b.Expect(binding(a, b), ReceiverEvents{}); !errors.Is(err, ErrClosed) {
			t.Errorf("Expect after Close: %v", err)
		}
	})
}

func TestArguments(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		bd := binding(a, b)
		if _, err := a.Push(bd, b.Endpoint(), []byte("short"), SenderEvents{}); !errors.Is(err, ErrConfig) {
			t.Errorf("short ticket: %v", err)
		}
		if _, err := a.Expect(bd, ReceiverEvents{}); !errors.Is(err, ErrStale) {
			t.Errorf("Expect on the source: %v", err)
		}
		bd.Destination.Incarnation++
		if _, err := b.Expect(bd, ReceiverEvents{}); !errors.Is(err, ErrStale) {
			t.Errorf("Expect of another incarnation: %v", err)
		}
		bd = binding(a, a)
		if _, err := a.Expect(bd, ReceiverEvents{}); !errors.Is(err, ErrConfig) {
			t.Errorf("Expect from itself: %v", err)
		}
		bd = binding(a, b)
		r, err := b.Expect(bd, ReceiverEvents{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Expect(bd, ReceiverEvents{}); !errors.Is(err, ErrDuplicate) {
			t.Errorf("Expect twice: %v", err)
		}
		if err := r.Commit(OutcomeActive); !errors.Is(err, ErrState) {
			t.Errorf("Commit before anything: %v", err)
		}
		r.Abort("over")
		if _, err := b.Expect(bd, ReceiverEvents{}); !errors.Is(err, ErrDuplicate) {
			t.Errorf("Expect of an id that is over: %v", err)
		}

		f := start(t, a, b, false, false)
		f.rcv.Grant()
		f.src.await(t, "room")
		buf, _ := f.snd.Buffer(10)
		h := header(f.b.Handoff, 0, buf.Bytes)
		h.Length = 9
		if err := f.snd.Send(h, buf); !errors.Is(err, ErrConfig) {
			t.Errorf("header of another length: %v", err)
		}
		if err := f.snd.Send(header(f.b.Handoff, 0, payload(0, 10)), buf); !errors.Is(err, ErrConfig) {
			t.Errorf("a buffer sent twice: %v", err)
		}
		if err := f.snd.Finish(make([]byte, a.cfg.ManifestBytes+1)); !errors.Is(err, ErrLimit) {
			t.Errorf("large manifest: %v", err)
		}
		buf, _ = f.snd.Buffer(10)
		if err := f.snd.Finish(nil); err != nil {
			t.Fatal(err)
		}
		if err := f.snd.Send(header(f.b.Handoff, 0, buf.Bytes), buf); !errors.Is(err, ErrState) {
			t.Errorf("Send after Finish: %v", err)
		}
		if err := f.snd.Finish(nil); !errors.Is(err, ErrState) {
			t.Errorf("Finish twice: %v", err)
		}
		f.dst.await(t, "manifest")
		f.rcv.Abort("")
		f.src.await(t, "quiesced")
	})
}

// Events come in order.
func TestEventOrder(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		f := start(t, a, b, false, false)
		f.run(t, 10, 20)
		want := []string{"opened", "unit", "unit", "manifest", "committed", "quiesced"}
		if !slices.Equal(f.dst.log, want) {
			t.Errorf("destination saw %v, want %v", f.dst.log, want)
		}
		want = []string{"opened", "room", "sent", "committed", "quiesced"}
		got := slices.Compact(slices.Clone(f.src.log))
		if !slices.Equal(got, want) {
			t.Errorf("source saw %v, want %v", got, want)
		}
	})
}
