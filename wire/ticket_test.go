package wire

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem/state"
)

// A ticket opens one handoff, once, with every field of its binding as it was made for.
func TestTicket(t *testing.T) {
	tests := []struct {
		name string
		want Code
		mod  func(b *state.Binding, ticket []byte)
	}{
		{"wrong ticket", ErrTicket, func(_ *state.Binding, k []byte) { k[31] ^= 1 }},
		{"wrong handoff", ErrTicket, func(b *state.Binding, _ []byte) { b.Handoff = newID() }},
		{"wrong request", ErrTicket, func(b *state.Binding, _ []byte) { b.Request = "request-2" }},
		{"wrong tenant", ErrTicket, func(b *state.Binding, _ []byte) { b.Tenant = "tenant-b" }},
		{"wrong deadline", ErrTicket, func(b *state.Binding, _ []byte) { b.Deadline++ }},
		{"stale destination", ErrStale, func(b *state.Binding, _ []byte) { b.Destination.Incarnation++ }},
	}
	for _, tt := range tests {
		for _, pull := range []bool{false, true} {
			if pull && tt.want == ErrStale {
				continue // then the field names the puller itself, which refuses
			}
			t.Run(tt.name+"/"+mode(pull), func(t *testing.T) {
				bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
					bd, src, dst := binding(a, b), newWatcher(), newWatcher()
					if pull {
						snd, err := a.Offer(bd, src.sender())
						if err != nil {
							t.Fatal(err)
						}
						k, other := snd.Ticket(), bd
						tt.mod(&other, k)
						if _, err := b.Pull(other, a.Endpoint(), k, 0, dst.receiver()); err != nil {
							t.Fatal(err)
						}
						dst.failedWith(t, tt.want)
						snd.Abort("over")
						return
					}
					rcv, err := b.Expect(bd, dst.receiver())
					if err != nil {
						t.Fatal(err)
					}
					k, other := rcv.Ticket(), bd
					tt.mod(&other, k)
					if _, err := a.Push(other, b.Endpoint(), k, src.sender()); err != nil {
						t.Fatal(err)
					}
					src.failedWith(t, tt.want)
					// The expectation is unharmed.
					if other.Handoff != bd.Handoff {
						ok := newWatcher()
						if _, err := a.Push(bd, b.Endpoint(), rcv.Ticket(), ok.sender()); err != nil {
							t.Fatal(err)
						}
						ok.await(t, "opened")
					}
					rcv.Abort("over")
				})
			})
		}
	}
}

// A second open is refused and the first goes on unharmed; so is one after the end.
func TestTicketReused(t *testing.T) {
	bubble(t, nil, func(t *testing.T, net *memNet, a, b *Node) {
		f := start(t, a, b, false, false)
		f.src.await(t, "opened")
		s := a.find(f.snd.peer)
		again := func() Code {
			t.Helper()
			o := open{f.b.Handoff, true, 1, 1, proofOf(f.rcv.Ticket(), f.b, true), 0}
			st, err := s.link.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			st.Write(o.encode())
			kind, p, err := readMsg(st, 0)
			if kind != msgRefused {
				t.Fatalf("second open answered with %d, %v", kind, err)
			}
			r, _ := decodeRefusal(p, kind)
			return r.code
		}
		if got := again(); got != ErrTicketUsed {
			t.Errorf("second open: %v", got)
		}
		f.run(t, 100, 200)
		if got := again(); got != ErrTicketUsed {
			t.Errorf("open after the end: %v", got)
		}
	})
}

func TestTicketExpired(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		bd, src, dst := binding(a, b), newWatcher(), newWatcher()
		bd.Deadline = time.Minute
		rcv, err := b.Expect(bd, dst.receiver())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		dst.failedWith(t, ErrTicketExpired)
		dst.check(t)
		if _, err := a.Push(bd, b.Endpoint(), rcv.Ticket(), src.sender()); err != nil {
			t.Fatal(err)
		}
		src.failedWith(t, ErrTicketExpired)

		// A ticket that was redeemed has no expiry.
		f := start(t, a, b, true, false)
		f.dst.await(t, "opened")
		time.Sleep(2 * time.Hour)
		f.run(t, 10)
	})
}

func TestTicketRevoked(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		bd, src, dst := binding(a, b), newWatcher(), newWatcher()
		rcv, err := b.Expect(bd, dst.receiver())
		if err != nil {
			t.Fatal(err)
		}
		if b.Stats().Tickets != 1 {
			t.Errorf("%d live tickets", b.Stats().Tickets)
		}
		rcv.Revoke()
		dst.await(t, "quiesced")
		if b.Stats().Tickets != 0 {
			t.Errorf("%d live tickets after Revoke", b.Stats().Tickets)
		}
		if _, err := a.Push(bd, b.Endpoint(), rcv.Ticket(), src.sender()); err != nil {
			t.Fatal(err)
		}
		src.failedWith(t, ErrTicketRevoked)

		// Revoke after the open does nothing.
		f := start(t, a, b, false, false)
		f.src.await(t, "opened")
		f.rcv.Revoke()
		f.run(t, 10)
	})
}

// The host's machine decides; a no leaves the ticket good for a later open.
func TestOpenDecision(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		bd, dst := binding(a, b), newWatcher()
		ev := dst.receiver()
		say := errors.New("not reserved yet")
		wait := time.Duration(0)
		ev.Open = func() error {
			time.Sleep(wait)
			return say
		}
		rcv, err := b.Expect(bd, ev)
		if err != nil {
			t.Fatal(err)
		}
		push := func() *watcher {
			t.Helper()
			w := newWatcher()
			if _, err := a.Push(bd, b.Endpoint(), rcv.Ticket(), w.sender()); err != nil {
				t.Fatal(err)
			}
			return w
		}
		w := push()
		w.failedWith(t, ErrRefused)
		if e := new(Error); !errors.As(w.err, &e) || e.Detail != say.Error() {
			t.Errorf("refused with %v", w.err)
		}
		// Aborting while the host decides refuses too.
		say, wait = nil, time.Second
		a.mu.Lock()
		a.past = past{} // the id may be pushed again, for this test
		a.mu.Unlock()
		w = push()
		time.Sleep(wait / 2)
		synctest.Wait()
		rcv.Abort("too late")
		w.failedWith(t, ErrTicketRevoked)
		dst.await(t, "quiesced")
		if dst.has("opened") {
			t.Error("opened after the abort")
		}
	})
}

// A worker that restarts is another process: what is bound to the old one is refused, whoever dials.
func TestStaleIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemNet()
		a := memNode(t, net, "source", nil)
		b := memNode(t, net, "destination", nil)
		defer a.Close()
		first := start(t, a, b, false, false)
		first.rcv.Grant()
		first.src.await(t, "room")
		ticket := first.rcv.Ticket()
		old := first.b

		// The new process connects while the old connection still seems alive: its handoffs fail at once.
		b2 := memNode(t, net, "destination", func(c *Config) { c.Incarnation = 2 })
		start(t, b2, a, false, false).run(t, 100)
		first.src.failedWith(t, ErrPeerLost)
		b.Close()

		// A push bound to the old process fails, at the old address and at the new.
		for _, to := range []Endpoint{b.Endpoint(), b2.Endpoint()} {
			w := newWatcher()
			bd := old
			bd.Handoff = newID()
			if _, err := a.Push(bd, to, ticket, w.sender()); err != nil {
				t.Fatal(err)
			}
			w.await(t, "failed")
			if to == b2.Endpoint() && !errors.Is(w.err, ErrStale) {
				t.Errorf("push to the new process with an old binding: %v", w.err)
			}
		}
		b2.Close()
	})
}
