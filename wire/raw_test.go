package wire

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/state"
)

// raw is a peer that speaks the protocol by hand, to break it.
type raw struct {
	t    *testing.T
	tr   *memTransport
	link link
	inc  uint64

	first stream // the connection's own
}

// rawDial connects to n as a worker of that name and exchanges hellos.
func rawDial(t *testing.T, net *memNet, name string, n *Node) *raw {
	t.Helper()
	r := &raw{t: t, tr: net.listen(name), inc: 1}
	r.link, _ = r.tr.dial(context.Background(), n.Endpoint(), n.name)
	st, err := r.link.open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	st.Write(hello{1, 1, name, r.inc, n.cfg.Incarnation, LaneAuto, r.tr.endpoint(), ""}.encode())
	if kind, _, err := readMsg(st, 0); kind != msgHello {
		t.Fatalf("hello answered with %d, %v", kind, err)
	}
	r.first = st
	return r
}

// push opens a handoff that n expects, with a grant, and returns its stream once credit came.
func (r *raw) push(n *Node, w *watcher) (state.Binding, *Receiver, stream) {
	r.t.Helper()
	b := state.Binding{
		Handoff: newID(), Source: state.Peer{Worker: r.tr.name, Incarnation: r.inc},
		Destination: state.Peer{Worker: n.name, Incarnation: n.cfg.Incarnation},
	}
	rcv, err := n.Expect(b, w.receiver())
	if err != nil {
		r.t.Fatal(err)
	}
	rcv.Grant()
	st := r.stream(open{b.Handoff, true, r.inc, n.cfg.Incarnation, proofOf(rcv.Ticket(), b, true), 0}.encode())
	for _, want := range []msgKind{msgOpened, msgCredit} {
		if kind, _, err := readMsg(st, 0); kind != want {
			r.t.Fatalf("got message %d, %v, want %d", kind, err, want)
		}
	}
	return b, rcv, st
}

// stream opens a stream that begins with first.
func (r *raw) stream(first []byte) stream {
	r.t.Helper()
	st, err := r.link.open(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	st.Write(first)
	return st
}

// bulk opens a bulk stream.
func (r *raw) bulk() bulk {
	r.t.Helper()
	b, err := r.link.openBulk(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

func rawFrame(f frame, p []byte) []byte {
	var h [frameSize]byte
	f.encode(&h)
	return append(h[:], p...)
}

func rawHeader(id handoff.ID, unit uint32, h state.UnitHeader) []byte {
	b := make([]byte, state.HeaderSize)
	h.Encode(b)
	return rawFrame(frame{kind: frameHeader, unit: unit, length: state.HeaderSize, handoff: id}, b)
}

// Frames of handoffs that ended are tolerated up to what was granted, then the lane is closed.
func TestStrays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemNet()
		n := memNode(t, net, "destination", nil)
		defer n.Close()
		r := rawDial(t, net, "source", n)
		w := newWatcher()
		b, rcv, _ := r.push(n, w)
		l := r.lane(n)
		h := header(b.Handoff, 0, []byte{1})
		h.Length = 1 << 20
		l.Write(rawHeader(b.Handoff, 0, h))
		synctest.Wait()
		rcv.Abort("cancelled")
		w.await(t, "quiesced")
		l.Write(rawFrame(frame{kind: frameData, length: 1 << 20, handoff: b.Handoff}, make([]byte, 1<<20)))
		synctest.Wait()
		if got := n.Stats().Links[0].Lanes; got != 1 {
			t.Fatalf("%d lanes after frames that credit covered", got)
		}
		l.Write(rawFrame(frame{kind: frameData, length: strayFrames + 1, handoff: b.Handoff}, make([]byte, strayFrames+1)))
		synctest.Wait()
		if got := n.Stats().Links; len(got) > 0 && got[0].Lanes != 0 {
			t.Errorf("%d lanes after a frame that nothing covers", got[0].Lanes)
		}
	})
}

// A lane that breaks fails what came over it at once, also if the source says nothing.
func TestLaneCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemNet()
		n := memNode(t, net, "destination", nil)
		defer n.Close()
		r := rawDial(t, net, "source", n)
		w, other := newWatcher(), newWatcher()
		b, _, _ := r.push(n, w)
		_, rcv, _ := r.push(n, other)
		l := r.lane(n)
		l.Write(rawHeader(b.Handoff, 0, header(b.Handoff, 0, []byte{1, 2})))
		synctest.Wait()
		began := time.Now()
		l.stop()
		w.failedWith(t, ErrPeerLost)
		if d := time.Since(began); d > 0 {
			t.Errorf("after %v", d)
		}
		if other.has("failed") {
			t.Error("a handoff that used no lane yet failed too")
		}
		rcv.Abort("")
	})
}

// An open names both processes; any other pair than the binding's and the connection's is stale.
func TestStaleOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemNet()
		n := memNode(t, net, "destination", nil)
		defer n.Close()
		r := rawDial(t, net, "source", n)
		for _, tt := range []struct {
			name              string
			mine, yours, bind uint64
			want              Code
		}{
			{"another destination process", 1, 9, 1, ErrStale},
			{"another process than the connection's", 2, 1, 2, ErrStale},
			{"bound to another source process", 1, 1, 2, ErrStale},
			{"right", 1, 1, 1, 0},
		} {
			b := state.Binding{Handoff: newID(), Source: state.Peer{Worker: "source", Incarnation: tt.bind}, Destination: state.Peer{Worker: "destination", Incarnation: 1}}
			rcv, err := n.Expect(b, ReceiverEvents{})
			if err != nil {
				t.Fatal(err)
			}
			st := r.stream(open{b.Handoff, true, tt.mine, tt.yours, proofOf(rcv.Ticket(), b, true), 0}.encode())
			kind, p, err := readMsg(st, 0)
			if err != nil {
				t.Fatal(err)
			}
			ref, _ := decodeRefusal(p, kind)
			if (kind == msgOpened) != (tt.want == 0) || kind == msgRefused && ref.code != tt.want {
				t.Errorf("%s: answer %d, %v", tt.name, kind, ref.code)
			}
			rcv.Abort("")
		}
	})
}

// A source that is cancelled says on the lane that nothing follows, and nothing may.
func TestReset(t *testing.T) {
	bubble(t, nil, func(t *testing.T, _ *memNet, a, b *Node) {
		f, g := start(t, a, b, false, false), start(t, a, b, false, false)
		for _, x := range []*flow{f, g} {
			x.rcv.Grant()
			x.put(t, 0, payload(0, 1000))
			x.dst.await(t, "unit")
		}
		f.rcv.Abort("cancelled")
		g.snd.Abort("cancelled")
		g.dst.await(t, "quiesced")
		synctest.Wait()
		s := b.find(f.rcv.peer)
		if len(s.strays.left) != 0 {
			t.Errorf("frames of %d handoffs are still expected", len(s.strays.left))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		net := newMemNet()
		n := memNode(t, net, "destination", nil)
		defer n.Close()
		r := rawDial(t, net, "source", n)
		w := newWatcher()
		b, rcv, _ := r.push(n, w)
		l := r.lane(n)
		rcv.Abort("cancelled")
		w.await(t, "quiesced")
		reset := rawFrame(frame{kind: frameReset, handoff: b.Handoff}, nil)
		l.Write(reset)
		synctest.Wait()
		if got := n.Stats().Links[0].Lanes; got != 1 {
			t.Fatalf("%d lanes after a reset", got)
		}
		l.Write(reset)
		synctest.Wait()
		if got := n.Stats().Links; len(got) > 0 && got[0].Lanes != 0 {
			t.Errorf("%d lanes after a second reset", got[0].Lanes)
		}
	})
}

// lane dials a TLS lane by hand.
func (r *raw) lane(n *Node) *memBulk {
	r.t.Helper()
	s := &session{link: r.link}
	id, _ := r.link.export("EXPORTER-tandem-session", sessionIDSize)
	copy(s.id[:], id)
	s.key, _ = r.link.export("EXPORTER-tandem-lane", 32)
	l, err := r.tr.dialLane(context.Background(), n.Endpoint(), n.name)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := s.greet(l, time.Second); err != nil {
		r.t.Fatal(err)
	}
	return l.(*memBulk)
}

// A dialler checks who answers, too.
func TestHelloAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		want   Code
		answer []byte
	}{
		{"another process", ErrStale, hello{1, 1, "destination", 2, 0, LaneAuto, Endpoint{}, ""}.encode()},
		{"another version", ErrVersion, hello{2, 2, "destination", 1, 0, LaneAuto, Endpoint{}, ""}.encode()},
		{"another name", ErrIdentity, hello{1, 1, "else", 1, 0, LaneAuto, Endpoint{}, ""}.encode()},
		{"refused", ErrStale, refusal{ErrStale, "restarted"}.encode(msgRefused)},
		{"something else", ErrProtocol, frameMsg(msgOpened, 0, nil)},
		{"malformed", ErrProtocol, frameMsg(msgHello, 0, []byte{1})},
		{"nothing", ErrUnreachable, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newMemNet()
				n := memNode(t, net, "source", nil)
				defer n.Close()
				tr := net.listen("destination")
				b := state.Binding{Handoff: newID(), Source: state.Peer{Worker: "source", Incarnation: 1}, Destination: state.Peer{Worker: "destination", Incarnation: 1}}
				w := newWatcher()
				if _, err := n.Push(b, tr.endpoint(), newTicket(), w.sender()); err != nil {
					t.Fatal(err)
				}
				l := <-tr.links
				st, _ := l.accept(t.Context())
				readMsg(st, 0)
				st.Write(tt.answer)
				w.failedWith(t, tt.want)
			})
		})
	}
}

// A lane must prove that it belongs to a connection of the same peer.
func TestLaneBinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemNet()
		n := memNode(t, net, "destination", nil)
		defer n.Close()
		r := rawDial(t, net, "source", n)
		id, _ := r.link.export("EXPORTER-tandem-session", sessionIDSize)
		key, _ := r.link.export("EXPORTER-tandem-lane", 32)
		try := func(tr *memTransport, spoil func(*session)) error {
			s := &session{link: r.link, key: append([]byte(nil), key...)}
			copy(s.id[:], id)
			spoil(s)
			l, err := tr.dialLane(context.Background(), n.Endpoint(), n.name)
			if err != nil {
				t.Fatal(err)
			}
			return s.greet(l, time.Second)
		}
		if try(r.tr, func(s *session) { s.key[0] ^= 1 }) == nil {
			t.Error("a lane with a wrong key was accepted")
		}
		if try(r.tr, func(s *session) { s.id[0] ^= 1 }) == nil {
			t.Error("a lane of an unknown connection was accepted")
		}
		if try(net.listen("stranger"), func(*session) {}) == nil {
			t.Error("a lane of another worker was accepted")
		}
		for i := range 5 {
			if err := try(r.tr, func(*session) {}); (err == nil) != (i < 4) {
				t.Errorf("lane %d: %v", i, err)
			}
		}
	})
}

// A hello is refused with the reason.
func TestHelloRefused(t *testing.T) {
	good := hello{1, 1, "source", 1, 1, LaneAuto, Endpoint{}, ""}
	tests := []struct {
		name string
		want Code
		mod  func(*hello)
	}{
		{"newer version", ErrVersion, func(h *hello) { h.min, h.max = 2, 3 }},
		{"another name", ErrIdentity, func(h *hello) { h.worker = "else" }},
		{"no incarnation", ErrIdentity, func(h *hello) { h.incarnation = 0 }},
		{"for an earlier process", ErrStale, func(h *hello) { h.want = 77 }},
		{"lanes that do not meet", ErrLane, func(h *hello) { h.lane = LaneQUIC }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newMemNet()
				n := memNode(t, net, "destination", func(c *Config) { c.Lane = LaneTLS })
				defer n.Close()
				l, _ := net.listen("source").dial(context.Background(), n.Endpoint(), "destination")
				st, _ := l.open(context.Background())
				h := good
				tt.mod(&h)
				st.Write(h.encode())
				kind, p, err := readMsg(st, 0)
				if kind != msgRefused {
					t.Fatalf("answer %d, %v", kind, err)
				}
				if r, _ := decodeRefusal(p, kind); r.code != tt.want {
					t.Errorf("refused with %v: %s", r.code, r.detail)
				}
			})
		})
	}
}

// Peers that connect and say nothing, or nonsense, cost a bounded time.
func TestSilentConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemNet()
		n := memNode(t, net, "destination", nil)
		tr := net.listen("source")
		l, _ := tr.dial(context.Background(), n.Endpoint(), "destination")
		lane, _ := tr.dialLane(context.Background(), n.Endpoint(), "destination")
		start := time.Now()
		<-l.done()
		if d := time.Since(start); d > 6*time.Second {
			t.Errorf("a connection without a hello lived for %v", d)
		}
		if _, err := lane.Read(make([]byte, 1)); err == nil || time.Since(start) > 6*time.Second {
			t.Errorf("a lane without a hello: %v", err)
		}
		r := rawDial(t, net, "source", n)
		st := r.stream(nil)
		start = time.Now()
		if _, err := st.Read(make([]byte, 1)); err == nil || time.Since(start) > 11*time.Second {
			t.Errorf("a stream without an open: %v after %v", err, time.Since(start))
		}
		n.Close()
		if !errors.Is(r.link.cause(), ErrPeerLost) {
			t.Errorf("cause %v", r.link.cause())
		}
	})
}
