package wire

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/state"
	"golang.org/x/sys/unix"
)

// Memory that is used and let go while all of it is being zeroed is zero at the end too.
func TestArenaUsedWhileZeroed(t *testing.T) {
	const size = 4 * scrubStep
	fd, mem, err := newShared(size)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	a := newArena(mem, size)
	defer a.drop()
	_, all := a.get(size)
	a.release(all, false)
	a.sweep()
	a.sweep()
	b, off := a.get(scrubStep + 1)
	copy(b, payload(1, len(b)))
	if a.sweep() {
		t.Error("memory in use was zeroed")
	}
	a.release(off, false)
	for a.sweep() {
	}
	if i := bytes.IndexFunc(mem, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d of the idle memory is not zero", i)
	}
	a.drop()
	a.drop() // the two parts' references
}

// Where the system does not take memory back, it is zeroed all the same.
func TestDiscardRefused(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unmap(mem)
	copy(mem, payload(1, len(mem)))
	discard(mem) // only shared memory can be given back
	if i := bytes.IndexFunc(mem, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d is not zero", i)
	}
}

// Memory whose pages may be missing when they are read, which ends the reader's process, is refused.
func TestHugePagesRefused(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
	if err != nil {
		t.Skip("no huge pages on this system:", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	size := st.Blksize // the size of a page
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	if m, err := mapShared(fd, uint64(size)); err == nil {
		m.drop()
		t.Error("mapped")
	}
}

// A process that takes the local connection and says nothing holds up neither a handoff for longer than a probe, nor
// the node's end.
func TestLocalSilence(t *testing.T) {
	deaf, err := listenLocal()
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	a, b := netNodes(t, func(c *Config) { c.Timeouts.Handshake = time.Hour })
	b.t.(*netTransport).localName = deaf.Addr().String()
	start(t, a, b, false, false).run(t, 100<<10)
	idle(t, a, b)
	c, err := net.Dial("unix", a.t.local())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err != nil { // its nonce: it waits for ours
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		a.Close()
	}()
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Error("Close waits for a handshake")
	}
}

// localPair returns the two ends of a same-host lane.
func localPair(t *testing.T, cfg *Config) (*localConn, *localConn) {
	t.Helper()
	l, err := listenLocal()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other := make(chan *localConn, 1)
	go func() {
		defer close(other)
		if c, err := l.AcceptUnix(); err == nil {
			if y, err := shakeLocal(t.Context(), c, cfg, false); err == nil {
				other <- y
			}
		}
	}()
	x, err := dialLocalConn(t.Context(), cfg, l.Addr().String())
	y := <-other
	if err != nil || y == nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range []*localConn{x, y} {
			c.stop()
			c.unmap()
		}
	})
	return x, y
}

// A lane whose other end reads nothing breaks: nobody else notices who waits on it.
func TestLocalPeerReadsNothing(t *testing.T) {
	cfg, _ := Config{Addr: "x", Incarnation: 1, Timeouts: Timeouts{Progress: 100 * time.Millisecond}}.fill()
	x, _ := localPair(t, &cfg)
	p := newPump(x, false)
	failed := make(chan error, 1)
	p.onFail = func(err error) { failed <- err }
	for range 100_000 {
		p.giveBack(0)
	}
	go p.run()
	select {
	case <-failed:
	case <-time.After(30 * time.Second):
		p.fail(ErrClosed)
		t.Fatal("the lane waits for ever")
	}
}

// A source that sends more units than its memory can hold, because it uses parts again that it was not given back,
// breaks the protocol: what is owed to it stays bounded.
func TestLocalOwedBounded(t *testing.T) {
	_, mem, err := newShared(4 * arenaUnit)
	if err != nil {
		t.Fatal(err)
	}
	theirs := newMapping(mem)
	defer theirs.drop()
	id := newID()
	s := &session{n: &Node{limits: state.DefaultLimits()}}
	s.strays.add(id, 1000)
	out, conn := newMemDuplex("local", "a", "b")
	in := &intake{sess: s, conn: conn, pump: newPump(conn, false), theirs: theirs}
	f := &flow{}
	f.b.Handoff = id
	for range 5 {
		if _, err := out.Write(sharedFrame(f, 0, 0, payload(1, 100))); err != nil {
			t.Fatal(err)
		}
	}
	out.finish()
	if err := in.run(); !errors.Is(err, ErrProtocol) {
		t.Errorf("five units in four pages: %v", err)
	}
}

// A source does not wait for ever for a destination that dialled and does not say which lanes there are.
func TestLanesNotSaid(t *testing.T) {
	deaf, err := listenLocal()
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	a, b := netNodes(t, func(c *Config) {
		c.Lane, c.Timeouts.Handshake, c.Timeouts.Progress = LaneLocal, time.Hour, 500*time.Millisecond
	})
	a.t.(*netTransport).localName = deaf.Addr().String() // b waits for it
	f := start(t, a, b, true, false)
	f.rcv.Grant()
	f.src.failedWith(t, ErrProgress)
	f.dst.await(t, "quiesced")
	idle(t, a, b)
}

// A lane that breaks under a handoff ends that one only; its memory goes with the last unit and buffer in it, and the
// next handoff has a lane again.
func TestLocalLaneBreaks(t *testing.T) {
	a, b := netNodes(t, nil)
	f := start(t, a, b, false, true)
	f.rcv.Grant()
	p := payload(3, 1<<20)
	f.put(t, 0, p)
	f.dst.await(t, "unit")
	buf, ok := f.snd.Buffer(1 << 20)
	own := ownArena(t, a)
	if !ok || buf.shared != own {
		t.Fatal("no buffer in shared memory")
	}
	f.dst.mu.Lock()
	u := f.dst.units[0]
	f.dst.mu.Unlock()
	f.rcv.mu.Lock()
	theirs := f.rcv.in.theirs
	f.rcv.mu.Unlock()
	f.snd.mu.Lock()
	lane := f.snd.pump.conn
	f.snd.mu.Unlock()
	lane.stop()
	f.src.failedWith(t, ErrPeerLost)
	f.dst.failedWith(t, ErrPeerLost)
	until(t, "a lane again", func() bool { s := a.Stats(); return len(s.Links) == 1 && s.Links[0].Lanes == 1 })
	g := start(t, a, b, false, false)
	g.run(t, 1, 2<<20)
	if got := g.snd.Stats().Lane; got != "local" {
		t.Errorf("the next handoff went over %q", got)
	}
	if l := a.Stats().Links[0]; l.Sent != 3<<20+1 || l.SendRate != 0 {
		t.Errorf("%d bytes were sent at %g, expected all of them at no rate: none moved", l.Sent, l.SendRate)
	}
	if !bytes.Equal(u.Payload, p) {
		t.Error("the unit changed after its lane was gone")
	}
	copy(buf.Bytes, p)
	u.Release()
	buf.Discard()
	until(t, "the memory is gone", func() bool { return own.refs.Load() == 0 && theirs.refs.Load() == 0 })
	idle(t, a, b)
}
