package wire

import (
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem/state"
)

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
			alive(st, 35) // but the unit does not come
		}},
		{"bulk stream ends early", ErrProgress, func(b state.Binding, st stream, l bulk) {
			p := payload(0, 10)
			l.Write(rawHeader(b.Handoff, 0, header(b.Handoff, 0, p)))
			l.Write(rawFrame(frame{kind: frameData, length: 10, handoff: b.Handoff}, p))
			synctest.Wait()
			l.stop()
			alive(st, 14)
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

// alive shows life for some seconds.
func alive(st stream, seconds int) {
	for range seconds {
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
		r.stream(open{b.Handoff, true, 1, 1, proofOf(rcv.Ticket(), b, true), 0}.encode())
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
				st := r.stream(open{b.Handoff, false, 1, 1, proofOf(snd.Ticket(), b, false), 0}.encode())
				w.await(t, "opened")
				st.Write(tt.msg)
				w.failedWith(t, tt.want)
				w.check(t)
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
