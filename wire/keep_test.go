package wire

import (
	"bytes"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem/state"
)

// A destination sees every byte of a unit while it arrives, once, in order and before the unit; but for a same-host lane.
func TestPieces(t *testing.T) {
	for _, lane := range realLanes() {
		t.Run(string(lane), func(t *testing.T) {
			a, b := netNodes(t, func(c *Config) { c.Lane = lane })
			f := &flow{b: binding(a, b), src: newWatcher(), dst: newWatcher()}
			ev := f.dst.receiver()
			var mu sync.Mutex
			seen := map[uint32][]byte{}
			ev.Piece = func(h *state.UnitHeader, off int, p []byte) {
				mu.Lock()
				defer mu.Unlock()
				if off != len(seen[h.Index]) {
					t.Errorf("unit %d: a piece at %d after %d bytes", h.Index, off, len(seen[h.Index]))
				}
				seen[h.Index] = append(seen[h.Index], p...)
			}
			note := ev.Unit
			ev.Unit = func(u *Unit) {
				f.gotMu.Lock()
				f.got = append(f.got, bytes.Clone(u.Payload))
				f.gotMu.Unlock()
				mu.Lock()
				if got := seen[u.Header.Index]; lane != LaneLocal && !bytes.Equal(got, u.Payload) || lane == LaneLocal && got != nil {
					t.Errorf("unit %d: %d of %d bytes were shown before it, or others", u.Header.Index, len(got), len(u.Payload))
				}
				mu.Unlock()
				note(u)
			}
			var err error
			if f.rcv, err = b.Expect(f.b, ev); err != nil {
				t.Fatal(err)
			}
			if f.snd, err = a.Push(f.b, b.Endpoint(), f.rcv.Ticket(), f.src.sender()); err != nil {
				t.Fatal(err)
			}
			f.run(t, 1, 100, piece, piece+1, 3<<20, 4<<20, 4<<20, 4<<20, 4<<20, 4<<20)
			idle(t, a, b)
		})
	}
}

// A kept buffer stays as it is, and counts, until it is let go; only then is it zeroed and used again.
func TestKeep(t *testing.T) {
	for _, lane := range []LaneMode{LaneTLS, LaneQUIC} {
		t.Run(string(lane), func(t *testing.T) {
			a, b := netNodes(t, func(c *Config) { c.Lane, c.PageBytes, c.Window = lane, 1<<20, 4<<20 })
			f := start(t, a, b, false, false)
			f.rcv.Grant()
			f.src.await(t, "room")
			p := payload(1, 1<<20)
			buf, ok := f.snd.Buffer(len(p))
			if !ok {
				t.Fatal("no room")
			}
			copy(buf.Bytes, p)
			bytesOf, release := buf.Bytes, buf.Keep()
			if err := f.snd.Send(header(f.b.Handoff, 0, p), buf); err != nil {
				t.Fatal(err)
			}
			f.dst.await(t, "unit")
			f.put(t, 1, payload(2, 100)) // the pump has left the first unit
			f.dst.wait(t, "the second unit", func() bool { return len(f.dst.units) == 2 })
			if !bytes.Equal(bytesOf, p) {
				t.Error("a kept buffer changed")
			}
			if held := f.snd.Stats().Held; held < int64(len(p)) {
				t.Errorf("%d bytes are held beside a kept buffer of %d", held, len(p))
			}
			release()
			if bytes.ContainsFunc(bytesOf, func(r rune) bool { return r != 0 }) {
				t.Error("a buffer that was let go is not zero")
			}
			// One that is kept beyond the handoff's end, and one that is never sent.
			x, _ := f.snd.Buffer(1 << 20)
			copy(x.Bytes, p)
			bytesOf, release = x.Bytes, x.Keep()
			f.snd.Abort("test over")
			f.src.await(t, "quiesced")
			f.dst.await(t, "quiesced")
			x.Discard()
			if !bytes.Equal(bytesOf, p) || a.Stats().Sending != 1<<20 {
				t.Errorf("a kept buffer changed with its handoff's end, or is not counted: %d", a.Stats().Sending)
			}
			release()
			idle(t, a, b)
		})
	}
}
