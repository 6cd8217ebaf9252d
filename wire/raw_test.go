package wire

import (
	"context"
	"encoding/binary"
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
	st.Write(hello{1, 1, name, r.inc, n.cfg.Incarnation, LaneAuto, r.tr.endpoint()}.encode())
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
	st := r.stream(open{b.Handoff, true, r.inc, n.cfg.Incarnation, proofOf(rcv.Ticket(), b, true)}.encode())
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

// TestHostileSource sends what no source sends. Each time the handoff fails with the right code, the source is told, the
// destination quiesces, and nothing is held.
func TestHostileSource(t *testing.T) {
	tests := []struct {
		name string
		want Code
		do   func(b state.Binding, st stream, l bulk)
	}{
		{"unit over the limit", ErrLimit, func(b state.Binding, _ stream, l bulk) {
			h := header(b.Handoff, 0, []byte{1})
			h.Length = 1<<20 + 1
			l.Write(rawHeader(b.Handoff, 0, h))
		}},
		{"unit over the credit", ErrCredit, func(b state.Binding, _ stream, l bulk) {
			p := payload(1, 1)
			l.Write(rawHeader(b.Handoff, 0, header(b.Handoff, 0, p)))
			l.Write(rawFrame(frame{kind: frameData, length: 1, handoff: b.Handoff}, p))
			h := header(b.Handoff, 1, p)
			h.Length = 256 << 10
			l.Write(rawHeader(b.Handoff, 1, h))
		}},
		{"many tiny units", ErrCredit, func(b state.Binding, _ stream, l bulk) {
			for i := range uint32(65) { // 4 KiB each against a window of 256 KiB
				l.Write(rawHeader(b.Handoff, i, header(b.Handoff, int(i), []byte{1})))
				l.Write(rawFrame(frame{kind: frameData, unit: i, length: 1, handoff: b.Handoff}, []byte{1}))
			}
		}},
		{"unit of another handoff", ErrProtocol, func(b state.Binding, _ stream, l bulk) {
			l.Write(rawHeader(b.Handoff, 0, header(newID(), 0, []byte{1})))
		}},
		{"unit number skipped", ErrProtocol, func(b state.Binding, _ stream, l bulk) {
			l.Write(rawHeader(b.Handoff, 1, header(b.Handoff, 0, []byte{1})))
		}},
		{"damaged header", ErrLimit, func(b state.Binding, _ stream, l bulk) {
			x := rawHeader(b.Handoff, 0, header(b.Handoff, 0, []byte{1}))
			x[frameSize+90] ^= 1
			l.Write(x)
		}},
		{"data without a unit", ErrProtocol, func(b state.Binding, _ stream, l bulk) {
			l.Write(rawFrame(frame{kind: frameData, length: 1, handoff: b.Handoff}, []byte{1}))
		}},
		{"data at the wrong offset", ErrProtocol, func(b state.Binding, _ stream, l bulk) {
			l.Write(rawHeader(b.Handoff, 0, header(b.Handoff, 0, []byte{1, 2})))
			l.Write(rawFrame(frame{kind: frameData, offset: 1, length: 1, handoff: b.Handoff}, []byte{2}))
		}},
		{"data past the end", ErrProtocol, func(b state.Binding, _ stream, l bulk) {
			l.Write(rawHeader(b.Handoff, 0, header(b.Handoff, 0, []byte{1, 2})))
			l.Write(rawFrame(frame{kind: frameData, length: 3, handoff: b.Handoff}, []byte{1, 2, 3}))
		}},
		{"unit inside a unit", ErrProtocol, func(b state.Binding, _ stream, l bulk) {
			l.Write(rawHeader(b.Handoff, 0, header(b.Handoff, 0, []byte{1, 2})))
			l.Write(rawHeader(b.Handoff, 0, header(b.Handoff, 0, []byte{1, 2})))
		}},
		{"damaged payload", ErrChecksum, func(b state.Binding, _ stream, l bulk) {
			l.Write(rawHeader(b.Handoff, 0, header(b.Handoff, 0, []byte{1, 2})))
			l.Write(rawFrame(frame{kind: frameData, length: 2, handoff: b.Handoff}, []byte{1, 3}))
		}},
		{"manifest counts fewer units", ErrProtocol, func(b state.Binding, st stream, l bulk) {
			p := payload(0, 10)
			l.Write(rawHeader(b.Handoff, 0, header(b.Handoff, 0, p)))
			l.Write(rawFrame(frame{kind: frameData, length: 10, handoff: b.Handoff}, p))
			synctest.Wait()
			st.Write(manifest{}.encode())
		}},
		{"manifest counts other bytes", ErrProtocol, func(b state.Binding, st stream, l bulk) {
			p := payload(0, 10)
			st.Write(manifest{units: 1, bytes: 11}.encode())
			synctest.Wait()
			l.Write(rawHeader(b.Handoff, 0, header(b.Handoff, 0, p)))
			l.Write(rawFrame(frame{kind: frameData, length: 10, handoff: b.Handoff}, p))
		}},
		{"two manifests", ErrProtocol, func(b state.Binding, st stream, _ bulk) {
			st.Write(manifest{units: 1}.encode())
			st.Write(manifest{units: 1}.encode())
		}},
		{"manifest too large", ErrLimit, func(_ state.Binding, st stream, _ bulk) {
			e := frameMsg(msgManifest, 0, nil)
			binary.LittleEndian.PutUint32(e[4:], 16<<20+13)
			st.Write(e)
		}},
		{"credit from a source", ErrProtocol, func(_ state.Binding, st stream, _ bulk) { st.Write(credit{}.encode()) }},
		{"unknown message", ErrProtocol, func(_ state.Binding, st stream, _ bulk) { st.Write(frameMsg(999, 0, nil)) }},
		{"short message", ErrProtocol, func(_ state.Binding, st stream, _ bulk) { st.Write(frameMsg(msgManifest, 0, []byte{1})) }},
		{"end of stream", ErrPeerLost, func(_ state.Binding, st stream, _ bulk) { st.closeWrite() }},
		{"stream cut", ErrPeerLost, func(_ state.Binding, st stream, _ bulk) { st.stop() }},
		{"half a unit", ErrProgress, func(b state.Binding, st stream, l bulk) {
			l.Write(rawHeader(b.Handoff, 0, header(b.Handoff, 0, []byte{1, 2})))
			l.Write(rawFrame(frame{kind: frameData, length: 2, handoff: b.Handoff}, []byte{1}))
			alive(st) // but the unit does not come
		}},
		{"bulk stream ends early", ErrProgress, func(b state.Binding, st stream, l bulk) {
			l.Write(rawHeader(b.Handoff, 0, header(b.Handoff, 0, []byte{1, 2})))
			l.stop()
			alive(st)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newMemNet()
				n := memNode(t, net, "destination", nil)
				defer n.Close()
				r := rawDial(t, net, "source", n)
				w := newWatcher()
				w.keep = true
				b, _, st := r.push(n, w)
				l := r.bulk()
				tt.do(b, st, l)
				w.failedWith(t, tt.want)
				if tt.want != ErrPeerLost {
					told := Code(0)
					for told == 0 {
						kind, p, err := readMsg(st, 0)
						if err != nil {
							t.Fatalf("the source was not told: %v", err)
						}
						if kind == msgCancel {
							ref, _ := decodeRefusal(p, kind)
							told = ref.code
						}
					}
					if told != tt.want {
						t.Errorf("the source was told %v", told)
					}
				}
				w.check(t)
				for _, u := range w.units {
					u.Release()
				}
				synctest.Wait()
				idle(t, n)
			})
		})
	}
}

// alive shows life for 35 seconds.
func alive(st stream) {
	for range 35 {
		time.Sleep(time.Second)
		if _, err := st.Write(frameMsg(msgAlive, flagOptional, nil)); err != nil {
			return
		}
	}
}

// Bytes in advance of the grant end the handoff.
func TestBytesBeforeGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemNet()
		n := memNode(t, net, "destination", nil)
		defer n.Close()
		r := rawDial(t, net, "source", n)
		w := newWatcher()
		b := state.Binding{Handoff: newID(), Source: state.Peer{Worker: "source", Incarnation: 1}, Destination: state.Peer{Worker: "destination", Incarnation: 1}}
		rcv, err := n.Expect(b, w.receiver())
		if err != nil {
			t.Fatal(err)
		}
		r.stream(open{b.Handoff, true, 1, 1, proofOf(rcv.Ticket(), b, true)}.encode())
		w.await(t, "opened")
		r.bulk().Write(rawHeader(b.Handoff, 0, header(b.Handoff, 0, []byte{1})))
		w.failedWith(t, ErrCredit)
	})
}

// TestHostileDestination sends a source what no destination sends.
func TestHostileDestination(t *testing.T) {
	tests := []struct {
		name string
		want Code
		msg  []byte
	}{
		{"credit for bytes never sent", ErrProtocol, credit{window: 1000, released: 1, largest: 1000}.encode()},
		{"received before the end", ErrProtocol, frameMsg(msgReceived, 0, nil)},
		{"commit before the end", ErrProtocol, commit{outcome: OutcomeActive}.encode(msgCommit)},
		{"manifest from a destination", ErrProtocol, manifest{}.encode()},
		{"negative credit", ErrProtocol, credit{window: -1}.encode()},
		{"cancelled", ErrCancelled, refusal{ErrCancelled, "mind changed"}.encode(msgCancel)},
		{"cancelled with an unknown code", ErrInternal, refusal{code: 60000}.encode(msgCancel)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newMemNet()
				n := memNode(t, net, "source", nil)
				defer n.Close()
				r := rawDial(t, net, "destination", n)
				w := newWatcher()
				b := state.Binding{Handoff: newID(), Source: state.Peer{Worker: "source", Incarnation: 1}, Destination: state.Peer{Worker: "destination", Incarnation: 1}}
				snd, err := n.Offer(b, w.sender())
				if err != nil {
					t.Fatal(err)
				}
				st := r.stream(open{b.Handoff, false, 1, 1, proofOf(snd.Ticket(), b, false)}.encode())
				w.await(t, "opened")
				st.Write(tt.msg)
				w.failedWith(t, tt.want)
				w.check(t)
			})
		})
	}
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
	good := hello{1, 1, "source", 1, 1, LaneAuto, Endpoint{}}
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

// A peer that pings and does not read costs one answer, not one for each ping.
func TestPingFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemNet()
		n := memNode(t, net, "destination", nil)
		defer n.Close()
		r := rawDial(t, net, "source", n)
		for range 1000 {
			r.first.Write(frameMsg(msgPing, 0, make([]byte, maxPing)))
		}
		synctest.Wait()
		for s := range n.sessions {
			s.ctl.mu.Lock()
			if len(s.ctl.queue) > 0 {
				t.Errorf("%d messages queued", len(s.ctl.queue))
			}
			s.ctl.mu.Unlock()
		}
		r.link.close(ErrClosed, "")
	})
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
