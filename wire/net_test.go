package wire

import (
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/mesh"
	"go.uber.org/goleak"
)

// These tests use real sockets on the loopback interface. Everything that does not need them is tested in memory.

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Both lanes, both directions: what arrives is what was sent.
func TestSockets(t *testing.T) {
	best := LaneTLS
	if slices.Contains(realLanes(), LaneLocal) {
		best = LaneLocal
	}
	for _, lane := range append(realLanes(), LaneAuto) {
		for _, pull := range []bool{false, true} {
			t.Run(string(lane)+"/"+mode(pull), func(t *testing.T) {
				a, b := netNodes(t, func(c *Config) { c.Lane = lane })
				for range 2 {
					f := start(t, a, b, pull, false)
					f.run(t, 1, 100<<10, 3<<20, 5<<20+17, 4<<20, 4<<20, 4<<20, 4<<20)
					if got := f.snd.Stats().Lane; lane != LaneAuto && got != string(lane) || lane == LaneAuto && got != string(best) {
						t.Errorf("lane %q", got)
					}
					if s := f.rcv.Stats(); s.Bytes != f.snd.Stats().Bytes || s.Units != 8 || s.Peak > b.cfg.window() || s.Wire <= 0 || s.RTT <= 0 {
						t.Errorf("destination measured %+v", s)
					}
				}
				l := b.Stats().Links
				if len(l) != 1 || l[0].Received == 0 || l[0].ReceiveRate == 0 || l[0].RTT == 0 {
					t.Errorf("links %+v", l)
				}
				// And back, over the same connection.
				start(t, b, a, pull, false).run(t, 1<<20)
				if n := len(a.Stats().Links); n != 1 {
					t.Errorf("%d connections", n)
				}
				idle(t, a, b)
			})
		}
	}
}

// Several handoffs at once, both ways, on few lanes.
func TestSocketsConcurrent(t *testing.T) {
	for _, lane := range realLanes() {
		t.Run(string(lane), func(t *testing.T) {
			a, b := netNodes(t, func(c *Config) { c.Lane, c.Lanes, c.Window, c.PageBytes = lane, 2, 1<<20, 256<<10 })
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					x, y := a, b
					if i%2 == 1 {
						x, y = b, a
					}
					start(t, x, y, i%4 < 2, false).run(t, 256<<10, 1, 256<<10, 256<<10, 70_000, 256<<10, 256<<10, 256<<10)
				})
			}
			wg.Wait()
			idle(t, a, b)
		})
	}
}

// A destination that stops reading: the source holds the window and not more, and a cancel from either side frees both.
func TestSocketsBackpressure(t *testing.T) {
	for _, lane := range realLanes() {
		t.Run(string(lane), func(t *testing.T) {
			a, b := netNodes(t, func(c *Config) { c.Lane, c.Window, c.PageBytes = lane, 2<<20, 512<<10 })
			f := start(t, a, b, false, true)
			f.rcv.Grant()
			for i := range 4 {
				f.put(t, i, payload(i, 512<<10))
			}
			f.dst.wait(t, "a full window", func() bool { return len(f.dst.units) == 4 })
			held := 0
			for {
				buf, ok := f.snd.Buffer(512 << 10)
				if !ok {
					break
				}
				held++
				if err := f.snd.Send(header(f.b.Handoff, 4+held, buf.Bytes), buf); err != nil {
					t.Fatal(err)
				}
			}
			if s, r := f.snd.Stats(), f.rcv.Stats(); s.Peak > 2<<20 || r.Peak > 2<<20 || s.Held != 2<<20 || r.Held != 2<<20 {
				t.Errorf("source %d (peak %d), destination %d (peak %d)", s.Held, s.Peak, r.Held, r.Peak)
			}
			f.rcv.Abort("enough")
			f.src.failedWith(t, ErrCancelled)
			f.dst.await(t, "quiesced")
			for _, u := range f.dst.units {
				u.Release()
			}
			idle(t, a, b)
		})
	}
}

// A destination that has everything does not fail when its source's connection ends, whichever of stream and
// connection is seen to end first.
func TestSocketsSourceLeaves(t *testing.T) {
	for range 10 {
		a, b := netNodes(t, nil)
		f := finished(t, a, b, false)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		for noticed := false; !noticed; runtime.Gosched() {
			f.rcv.mu.Lock()
			noticed = f.rcv.ctl == nil || f.rcv.ended
			f.rcv.mu.Unlock()
		}
		f.rcv.Abort("test over")
		f.dst.await(t, "quiesced")
		if f.dst.err != nil {
			t.Fatalf("the destination failed: %v", f.dst.err)
		}
	}
}

// A certificate of another CA is refused, by whichever side sees it.
func TestWrongCA(t *testing.T) {
	ca, err := mesh.NewCA(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	other, err := mesh.NewCA(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := netNode(t, ca, "source", nil), netNode(t, other, "destination", nil)
	w, v := newWatcher(), newWatcher()
	bd := binding(a, b)
	rcv, err := b.Expect(bd, v.receiver())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Push(bd, b.Endpoint(), rcv.Ticket(), w.sender()); err != nil {
		t.Fatal(err)
	}
	w.failedWith(t, ErrIdentity)
	var m *mesh.Error
	if !errors.As(w.err, &m) {
		t.Errorf("the cause is not named: %v", w.err)
	}
	if v.has("opened") {
		t.Error("the destination was opened")
	}
}

// A worker of the right CA but another name is refused.
func TestWrongWorker(t *testing.T) {
	ca, err := mesh.NewCA(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := netNode(t, ca, "source", nil), netNode(t, ca, "destination", nil), netNode(t, ca, "impostor", nil)
	// The source dials the destination and reaches the impostor.
	w, v := newWatcher(), newWatcher()
	bd := binding(a, b)
	rcv, err := b.Expect(bd, v.receiver())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Push(bd, c.Endpoint(), rcv.Ticket(), w.sender()); err != nil {
		t.Fatal(err)
	}
	w.failedWith(t, ErrIdentity)
	// The impostor has the source's ticket, and even claims to be it.
	s, err := c.connect(rcv.peer, b.Endpoint())
	if s != nil || !errors.Is(err, ErrIdentity) {
		t.Errorf("dialled %v, %v", s, err)
	}
	c.name = "source"
	if _, err := c.connect(binding(a, b).Destination, b.Endpoint()); !errors.Is(err, ErrIdentity) {
		t.Errorf("a hello under another name: %v", err)
	}
	c.name = "impostor"
	w = newWatcher()
	forged := bd
	forged.Source.Worker = "impostor"
	if _, err := c.Push(forged, b.Endpoint(), rcv.Ticket(), w.sender()); err != nil {
		t.Fatal(err)
	}
	w.failedWith(t, ErrTicket)
	if v.has("opened") {
		t.Error("the destination was opened")
	}
}

// Only workers have a data plane, and the data plane accepts only workers.
func TestWrongRole(t *testing.T) {
	ca, err := mesh.NewCA(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	id, err := ca.Issue(mesh.RoleGateway, "gateway", []string{"127.0.0.1"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(Config{Identity: id, Incarnation: 1, Addr: "127.0.0.1:0"}); !errors.Is(err, ErrConfig) {
		t.Errorf("a gateway listens: %v", err)
	}
	b := netNode(t, ca, "destination", nil)
	cfg := b.cfg
	cfg.Identity = id
	tr, err := listenNet(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(cfg, "gateway", tr)
	defer n.Close()
	if _, err := n.connect(binding(n, b).Destination, b.Endpoint()); !errors.Is(err, ErrIdentity) {
		t.Errorf("a gateway connects: %v", err)
	}
}

// The peer's process dies: its sockets go away without a word.
func TestSocketsPeerKilled(t *testing.T) {
	for _, lane := range realLanes() {
		t.Run(string(lane), func(t *testing.T) {
			a, b := netNodes(t, func(c *Config) { c.Lane, c.Timeouts.Dead = lane, 500*time.Millisecond })
			f := start(t, a, b, false, true)
			f.rcv.Grant()
			f.put(t, 0, payload(0, 1<<20))
			f.dst.await(t, "unit")
			tr := b.t.(*netTransport)
			tr.udp.Close()
			b.mu.Lock()
			for s := range b.sessions {
				s.mu.Lock()
				for _, l := range s.lanes {
					l.conn.stop()
				}
				s.mu.Unlock()
			}
			b.mu.Unlock()
			f.src.failedWith(t, ErrPeerLost)
			f.dst.failedWith(t, ErrPeerLost)
			f.dst.units[0].Release()
		})
	}
}

// TestNoLeaks runs 200 handoffs, one in three of them cancelled somewhere, and counts goroutines and descriptors.
func TestNoLeaks(t *testing.T) {
	a, b := netNodes(t, func(c *Config) { c.Window, c.PageBytes = 256<<10, 64<<10 })
	run := func(i int) {
		f := start(t, a, b, i%2 == 1, false)
		switch i % 3 {
		case 0:
			f.run(t, 64<<10, 1000, 64<<10)
			return
		case 1:
			f.rcv.Grant()
			f.put(t, 0, payload(0, 64<<10))
			f.snd.Abort("cancelled")
		default:
			f.src.await(t, "opened")
			f.rcv.Abort("cancelled")
		}
		f.src.await(t, "quiesced")
		f.dst.await(t, "quiesced")
	}
	for i := range 12 { // warm: connections, lanes
		run(i)
	}
	idle(t, a, b)
	settled := func() (int, int) {
		g, fds := 0, 0
		for range 50 { // control streams linger until both sides closed them
			g, fds = runtime.NumGoroutine(), descriptors(t)
			time.Sleep(2 * time.Millisecond)
		}
		return g, fds
	}
	g0, fd0 := settled()
	for i := range 200 {
		run(i)
	}
	idle(t, a, b)
	limit := time.Now().Add(30 * time.Second)
	for {
		g, fds := settled()
		if g <= g0 && fds <= fd0 {
			break
		}
		if time.Now().After(limit) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, before %d; %d descriptors, before %d\n%s", g, g0, fds, fd0, buf[:runtime.Stack(buf, true)])
		}
	}
}

// descriptors counts this process's open files, where the system says.
func descriptors(t testing.TB) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(l)
}

func TestListenErrors(t *testing.T) {
	ca, err := mesh.NewCA(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := netNode(t, ca, "first", nil)
	id, err := ca.Issue(mesh.RoleWorker, "second", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		cfg  Config
		say  string
	}{
		{"no identity", Config{}, "Identity"},
		{"no incarnation", Config{Identity: id}, "Incarnation"},
		{"no address", Config{Identity: id, Incarnation: 1}, "Addr"},
		{"bad address", Config{Identity: id, Incarnation: 1, Addr: "nowhere"}, "host:port"},
		{"nothing to dial", Config{Identity: id, Incarnation: 1, Addr: ":0"}, "Advertise"},
		{"port in use", Config{Identity: id, Incarnation: 1, Addr: n.Endpoint().QUIC}, "another worker"},
		{"lane", Config{Identity: id, Incarnation: 1, Addr: "127.0.0.1:0", Lane: "pigeon"}, "pigeon"},
		{"lanes", Config{Identity: id, Incarnation: 1, Addr: "127.0.0.1:0", Lanes: 99}, "Lanes"},
		{"unit below page", Config{Identity: id, Incarnation: 1, Addr: "127.0.0.1:0", PageBytes: 10, LargestUnit: 5}, "LargestUnit"},
		{"window", Config{Identity: id, Incarnation: 1, Addr: "127.0.0.1:0", Window: 5}, "Window"},
		{"timeouts", Config{Identity: id, Incarnation: 1, Addr: "127.0.0.1:0", Timeouts: Timeouts{Idle: -1}}, "Timeouts"},
	} {
		n, err := Listen(tt.cfg)
		if err == nil {
			n.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	n2, err := Listen(Config{Identity: id, Incarnation: 1, Addr: "0.0.0.0:0", Advertise: "127.0.0.1", Lane: LaneQUIC})
	if err != nil {
		t.Fatal(err)
	}
	defer n2.Close()
	if e := n2.Endpoint(); e.TLS != "" || !strings.HasPrefix(e.QUIC, "127.0.0.1:") {
		t.Errorf("endpoint %+v", e)
	}
	if _, _, err := net.SplitHostPort(n2.Endpoint().QUIC); err != nil {
		t.Error(err)
	}
}
