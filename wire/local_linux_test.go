package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/tandem-llm/tandem/state"
	"golang.org/x/sys/unix"
)

// The payload that a destination reads on a same-host lane is the memory that the source wrote, and the source has it
// again, zeroed, only when the destination has let go.
func TestLocalMovesNoBytes(t *testing.T) {
	a, b := netNodes(t, func(c *Config) { c.Lane, c.PageBytes, c.Window = LaneLocal, 64<<10, 256<<10 })
	start(t, a, b, false, false).run(t, 1) // the lane is up
	own := ownArena(t, a)
	f := start(t, a, b, false, true)
	f.rcv.Grant()
	f.src.await(t, "room")
	buf, ok := f.snd.Buffer(64 << 10)
	if !ok || buf.shared != own {
		t.Fatalf("the buffer is not in shared memory: %v", ok)
	}
	off := int64(uintptr(unsafe.Pointer(&buf.Bytes[0])) - uintptr(unsafe.Pointer(&own.mem[0])))
	p := payload(1, 64<<10)
	copy(buf.Bytes, p)
	if err := f.snd.Send(header(f.b.Handoff, 0, p), buf); err != nil {
		t.Fatal(err)
	}
	f.dst.await(t, "unit")
	u := f.dst.units[0]
	if !bytes.Equal(u.Payload, p) {
		t.Fatal("other bytes arrived")
	}
	own.mem[off+100] ^= 0xff // no copy was made
	if u.Payload[100] != p[100]^0xff {
		t.Error("the destination reads a copy")
	}
	if got, where := own.get(64 << 10); where == off {
		t.Error("memory that the destination reads was handed out again")
	} else {
		_ = got
		own.put(where)
	}
	u.Release()
	until(t, "the memory comes back, zeroed", func() bool { own.mu.Lock(); defer own.mu.Unlock(); return own.inUse == 0 && own.high == 0 })
	if again, where := own.get(64 << 10); where != off || bytes.ContainsFunc(again, func(r rune) bool { return r != 0 }) {
		t.Errorf("the part at %d, expected %d, is not zero", where, off)
	} else {
		own.put(where)
	}
	f.snd.Abort("test over")
	f.src.await(t, "quiesced")
	f.dst.await(t, "quiesced")
	idle(t, a, b)
}

// Units that the host still reads outlive the handoff, the lane and the source's process.
func TestLocalUnitOutlivesLane(t *testing.T) {
	a, b := netNodes(t, func(c *Config) { c.Lane = LaneLocal })
	f := start(t, a, b, false, true)
	f.rcv.Grant()
	p := payload(3, 1<<20)
	f.put(t, 0, p)
	f.dst.await(t, "unit")
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	f.dst.await(t, "quiesced")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	u := f.dst.units[0]
	if !bytes.Equal(u.Payload, p) {
		t.Error("the unit changed after its lane was gone")
	}
	u.Release()
	f.src.check(t)
	f.dst.check(t)
}

// A buffer that the host holds while its lane breaks can still be written and given back.
func TestLocalBufferOutlivesLane(t *testing.T) {
	a, b := netNodes(t, func(c *Config) { c.Lane = LaneLocal })
	f := start(t, a, b, false, false)
	f.rcv.Grant()
	f.src.await(t, "room")
	x, _ := f.snd.Buffer(1 << 20)
	y, _ := f.snd.Buffer(1 << 20)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	f.src.await(t, "quiesced")
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	copy(x.Bytes, payload(1, 1<<20))
	copy(y.Bytes, payload(2, 1<<20))
	if err := f.snd.Send(header(f.b.Handoff, 0, x.Bytes), x); !errors.Is(err, ErrState) {
		t.Errorf("Send after the end: %v", err)
	}
	y.Discard()
	if sending := a.Stats().Sending; sending != 0 {
		t.Errorf("%d bytes are still held", sending)
	}
}

// Where a peer does not listen on this host, or what answers is not its lane, auto goes on to TLS and local fails.
func TestLocalElsewhere(t *testing.T) {
	deaf, err := listenLocal()
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	go func() { // another process that took the name over
		for {
			c, err := deaf.Accept()
			if err != nil {
				return
			}
			c.Write(bytes.Repeat([]byte{7}, localHello))
			c.Close()
		}
	}()
	for _, name := range []string{"", localPrefix + "0000000000000000", "/etc/passwd", deaf.Addr().String()} {
		a, b := netNodes(t, func(c *Config) { c.Timeouts.Handshake, c.Timeouts.Probe = 2*time.Second, 2*time.Second })
		b.t.(*netTransport).localName = name
		f := start(t, a, b, false, false)
		f.run(t, 100<<10)
		if got := f.snd.Stats().Lane; got != "tls" {
			t.Errorf("%q: lane %q", name, got)
		}
		idle(t, a, b)
	}
	a, b := netNodes(t, func(c *Config) { c.Lane, c.Timeouts.Handshake = LaneLocal, 2*time.Second })
	b.t.(*netTransport).localName = ""
	f := start(t, a, b, false, false)
	f.rcv.Grant()
	f.src.failedWith(t, ErrLane)
}

// Whoever connects to the socket must prove that it is the session's peer.
func TestLocalProof(t *testing.T) {
	a, b := netNodes(t, func(c *Config) { c.Lane = LaneLocal })
	start(t, a, b, false, false).run(t, 1)
	var sess *session
	a.mu.Lock()
	for s := range a.sessions {
		sess = s
	}
	a.mu.Unlock()
	try := func(spoil func(*session)) error {
		s := &session{n: a, key: bytes.Clone(sess.key), id: sess.id}
		spoil(s)
		l, err := dialLocalConn(context.Background(), &a.cfg, b.t.local())
		if err != nil {
			t.Fatal(err)
		}
		defer l.unmap()
		defer l.stop()
		return s.greet(l, 2*time.Second)
	}
	if err := try(func(*session) {}); err != nil {
		t.Errorf("the peer itself: %v", err)
	}
	if try(func(s *session) { s.key[0] ^= 1 }) == nil {
		t.Error("a lane with a wrong key was accepted")
	}
	if try(func(s *session) { s.id[0] ^= 1 }) == nil {
		t.Error("a lane of an unknown connection was accepted")
	}
}

// Hostile frames end the lane with a precise error, and touch no memory that was not declared.
func TestLocalHostileFrames(t *testing.T) {
	for _, tt := range []struct {
		name  string
		frame func(f *flow) []byte
	}{
		{"memory given back that is not there", func(*flow) []byte { return rawFrame(frame{kind: frameBack, offset: 1 << 20}, nil) }},
		{"a unit outside of the memory", func(f *flow) []byte { return sharedFrame(f, 0, 1<<62, payload(1, 100)) }},
		{"a unit that wraps around", func(f *flow) []byte { return sharedFrame(f, 0, 1<<64-50, payload(1, 100)) }},
		{"other bytes than the header says", func(f *flow) []byte { return sharedFrame(f, 0, 0, payload(1, 100)) }},
		{"a unit out of order", func(f *flow) []byte { return sharedFrame(f, 3, 0, make([]byte, 100)) }},
		{"a header that is none", func(f *flow) []byte {
			return rawFrame(frame{kind: frameShared, length: sharedSize, handoff: f.b.Handoff}, make([]byte, sharedSize))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := netNodes(t, func(c *Config) { c.Lane = LaneLocal })
			f := start(t, a, b, false, false)
			f.rcv.Grant()
			f.src.await(t, "room")
			// The frame goes out behind the source's back, on its own socket.
			f.snd.mu.Lock()
			conn := f.snd.pump.conn.(*localConn)
			f.snd.mu.Unlock()
			if _, err := conn.UnixConn.Write(tt.frame(f)); err != nil {
				t.Fatal(err)
			}
			f.dst.await(t, "failed")
			f.dst.await(t, "quiesced")
			f.src.await(t, "quiesced")
			if len(f.got) != 0 {
				t.Errorf("%d units were handed over", len(f.got))
			}
			idle(t, a, b)
		})
	}
}

// sharedFrame announces a unit at off whose header fits p.
func sharedFrame(f *flow, unit uint32, off uint64, p []byte) []byte {
	b := make([]byte, sharedSize)
	h := header(f.b.Handoff, int(unit), p)
	h.Encode(b[:state.HeaderSize])
	binary.LittleEndian.PutUint64(b[state.HeaderSize:], off)
	return rawFrame(frame{kind: frameShared, unit: unit, length: sharedSize, handoff: f.b.Handoff}, b)
}

// Shared memory that could shrink, has another size, or does not come is refused before it is mapped.
func TestLocalMemoryRefused(t *testing.T) {
	fd := func(size int64, seals int) int {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	plain, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	for name, tt := range map[string]struct {
		fd   int
		size uint64
	}{
		"may shrink":   {fd(4096, unix.F_SEAL_GROW), 4096},
		"other size":   {fd(4096, unix.F_SEAL_SHRINK), 8192},
		"empty":        {fd(0, unix.F_SEAL_SHRINK), 0},
		"a plain file": {int(plain.Fd()), 4096},
	} {
		if m, err := mapShared(tt.fd, tt.size); err == nil {
			m.drop()
			t.Errorf("%s: mapped", name)
		}
	}
	// A hello without a descriptor.
	l, err := listenLocal()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := net.Dial("unix", l.Addr().String())
		if err == nil {
			c.Write(make([]byte, localHello))
			io.Copy(io.Discard, c)
			c.Close()
		}
	}()
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	cfg, _ := Config{Addr: "x", Incarnation: 1}.fill()
	if _, err := shakeLocal(c, &cfg, false); !errors.Is(err, ErrProtocol) {
		t.Errorf("a hello without memory: %v", err)
	}
}

// The arena hands out disjoint parts, takes each back once, and is whole and zero again at the end.
func TestArena(t *testing.T) {
	t.Run("kept", func(t *testing.T) { testArena(t, 1<<20) })
	t.Run("given back", func(t *testing.T) { testArena(t, 64<<10) })
}

func testArena(t *testing.T, retain int64) {
	const size = 1 << 20
	_, mem, err := newShared(size)
	if err != nil {
		t.Fatal(err)
	}
	a := newArena(mem, retain)
	defer a.drop()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	type held struct {
		b    []byte
		off  int64
		sent bool
	}
	var list []held
	for range 20_000 {
		switch {
		case r.IntN(2) == 0:
			n := 1 + r.IntN(100<<10)
			b, off := a.get(n)
			if b == nil {
				continue
			}
			if len(b) != n {
				t.Fatalf("%d bytes at %d, expected %d", len(b), off, n)
			}
			for _, h := range list {
				if off < h.off+int64(len(h.b)) && h.off < off+int64(n) {
					t.Fatalf("[%d,+%d) overlaps [%d,+%d)", off, n, h.off, len(h.b))
				}
			}
			for i := range b {
				b[i] = 0xa5
			}
			list = append(list, held{b: b, off: off})
		case len(list) > 0:
			i := r.IntN(len(list))
			h := &list[i]
			switch {
			case h.sent && !a.returned(h.off):
				t.Fatal("a sent part does not come back")
			case !h.sent && a.returned(h.off):
				t.Fatal("a part that was not sent came back")
			case !h.sent && r.IntN(2) == 0:
				a.sent(h.off)
				h.sent = true
				continue
			case !h.sent:
				a.put(h.off)
			case a.returned(h.off):
				t.Fatal("a part came back twice")
			}
			list = append(list[:i], list[i+1:]...)
		}
	}
	for _, h := range list {
		if h.sent {
			a.returned(h.off)
		} else {
			a.put(h.off)
		}
	}
	if i := bytes.IndexFunc(mem, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d of the idle memory is not zero", i)
	}
	if len(a.free) != 1 || a.free[0] != (extent{0, size}) || a.inUse != 0 || len(a.used) != 0 || a.refs.Load() != 1 || a.kept() > a.retain {
		t.Errorf("at the end: free %v, %d in use, %d parts, %d references, %d kept", a.free, a.inUse, len(a.used), a.refs.Load(), a.kept())
	}
}

// ownArena is the memory of a node's only lane.
func ownArena(t *testing.T, n *Node) *arena {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	for s := range n.sessions {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.lanes) == 1 && s.lanes[0].pump.own != nil {
			return s.lanes[0].pump.own
		}
	}
	t.Fatal("no same-host lane")
	return nil
}

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for limit := time.Now().Add(30 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not seen: %s", what)
		}
	}
}
