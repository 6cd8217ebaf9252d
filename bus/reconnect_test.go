package bus_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/mesh"
)

// TestServerRestart: the server dies in the middle of use and comes back. Waiting commands fail at once, sends fail while
// it is away, both ends hear of it, and everything works again afterwards, without anybody subscribing anew.
func TestServerRestart(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		g, k := w.gateway(t, "gw", nil), w.worker(t, "w1", nil)
		query := func() *buspb.Command {
			return &buspb.Command{Handoff: handoffID(1), Body: &buspb.Command_Query{Query: &buspb.Query{}}}
		}
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			_, err := g.Command(ctx, "w1", query())
			done <- err
		}()
		unanswered := recv(t, k.commands, "command")

		w.stop()
		isKind(t, recv(t, done, "end of the waiting command"), bus.ErrDisconnected)
		isKind(t, recv(t, g.ev.down, "the gateway's disconnect"), bus.ErrDisconnected)
		isKind(t, recv(t, k.ev.down, "the worker's disconnect"), bus.ErrDisconnected)
		if g.conn.Connected() || k.conn.Connected() {
			t.Error("still connected")
		}
		isKind(t, g.Heartbeat(), bus.ErrDisconnected)
		isKind(t, k.Announce(registration()), bus.ErrDisconnected)
		isKind(t, k.Statuses("gw", &buspb.Statuses{}), bus.ErrDisconnected)
		_, err := g.Command(context.Background(), "w1", query())
		isKind(t, err, bus.ErrDisconnected)

		w.restart(t)
		recv(t, g.ev.up, "the gateway's reconnect")
		recv(t, k.ev.up, "the worker's reconnect")
		unanswered.reply(&buspb.Reply{}) // nobody waits any more; the new server does not even permit it
		if err := k.Announce(registration()); err != nil {
			t.Fatal(err)
		}
		if r := recv(t, g.regs, "registration after the restart"); r.Seq != 2 {
			t.Errorf("registration %d: something was buffered", r.Seq)
		}
		go func() {
			_, err := g.Command(context.Background(), "w1", query())
			done <- err
		}()
		recv(t, k.commands, "command after the restart").reply(&buspb.Reply{Verdict: buspb.Verdict_VERDICT_ACCEPTED})
		if err := recv(t, done, "reply after the restart"); err != nil {
			t.Error(err)
		}
		if n := g.conn.Stats().Reconnects; n != 1 {
			t.Errorf("%d reconnects", n)
		}
		none(t, g.ev.closed, "close")
	})
}

// TestReconnectedMeansSubscribed: when a gateway on a slow link hears of its reconnect, the server has its subscriptions:
// whoever announces itself from then on is heard.
func TestReconnectedMeansSubscribed(t *testing.T) {
	w := embedded(t)
	g := w.gateway(t, "gw", func(o *bus.Options) { o.URL = slowLink(t, strings.TrimPrefix(w.url, "tls://")) })
	k := w.worker(t, "w1", nil)
	w.stop()
	recv(t, g.ev.down, "the gateway's disconnect")
	recv(t, k.ev.down, "the worker's disconnect")
	w.restart(t)
	recv(t, k.ev.up, "the worker's reconnect")
	recv(t, g.ev.up, "the gateway's reconnect")
	if err := k.Announce(registration()); err != nil {
		t.Fatal(err)
	}
	recv(t, g.regs, "registration")
}

// slowLink forwards TCP connections to an address and holds each chunk on its way there back for a while. It returns the
// URL to connect to.
func slowLink(t *testing.T, to string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	forward := func(dst, src net.Conn, delay time.Duration) {
		defer wg.Done()
		defer dst.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := src.Read(buf)
			if err != nil {
				return
			}
			time.Sleep(delay)
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			wg.Add(2)
			go forward(s, c, 20*time.Millisecond)
			go forward(c, s, 0)
		}
	}()
	// Registered before the connections through it are, so it runs after they are closed.
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return "tls://" + ln.Addr().String()
}

// TestServerLearnsAnotherCA: a server that comes back under another CA is never talked to; the problem is reported and the
// connection keeps trying.
func TestServerLearnsAnotherCA(t *testing.T) {
	w := embedded(t)
	_, ev := w.connect(t, w.issue(t, mesh.RoleWorker, "w1"), nil)
	w.stop()
	recv(t, ev.down, "disconnect")
	own := w.ca
	w.ca = newWorld(t).ca
	s, err := bus.StartServer(bus.ServerOptions{Identity: w.issue(t, mesh.RoleBus, "bus"), Listen: strings.TrimPrefix(w.url, "tls://")})
	if err != nil {
		t.Fatal(err)
	}
	for {
		err := recv(t, ev.problem, "report")
		if errors.Is(err, bus.ErrRefused) {
			if !errors.Is(err, mesh.ErrOtherCA) {
				t.Errorf("%v, want another CA", err)
			}
			break
		}
	}
	s.Close()
	w.ca = own
	w.restart(t)
	recv(t, ev.up, "reconnect")
}

// TestServerForgetsUser: an external server comes back without this worker in its configuration, and later with it again.
func TestServerForgetsUser(t *testing.T) {
	w := external(t)
	_, ev := w.connect(t, w.issue(t, mesh.RoleWorker, "w1"), nil)
	text, err := os.ReadFile(w.file)
	if err != nil {
		t.Fatal(err)
	}
	replace := func(text []byte) {
		w.stop()
		if err := os.WriteFile(w.file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		w.restart(t)
	}
	replace(bytes.ReplaceAll(text, []byte("worker/w1"), []byte("worker/w9")))
	recv(t, ev.down, "disconnect")
	for refused := 0; refused < 4; {
		if errors.Is(recv(t, ev.problem, "refusal"), bus.ErrRefused) {
			refused++
		}
	}
	replace(text)
	recv(t, ev.up, "reconnect")
	none(t, ev.closed, "close")
}

// TestSlow: a handler that does not keep up loses messages beyond the bound, and that is reported and counted.
func TestSlow(t *testing.T) {
	w := embedded(t)
	k := w.worker(t, "w1", nil)
	ev := newEvents()
	gate, seen := make(chan struct{}), make(chan uint32, 1<<16)
	opts := bus.Options{Identity: w.issue(t, mesh.RoleGateway, "gw"), URL: w.url, Events: ev.callbacks()}
	opts.SetPending(10)
	conn, err := bus.Connect(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(t, conn)
	_, err = bus.ServeGateway(conn, 1, bus.GatewayHandler{
		Registration: func(*buspb.Registration) {},
		Statuses: func(s *buspb.Statuses) {
			<-gate
			seen <- s.Statuses[0].GetTokens().From
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	const sent = 100
	for i := range sent {
		if err := k.Statuses("gw", &buspb.Statuses{Statuses: []*buspb.Status{tokens(uint32(i), "x")}}); err != nil {
			t.Fatal(err)
		}
	}
	isKind(t, recv(t, ev.problem, "report"), bus.ErrSlow)
	for conn.Stats().ReceivedMessages < sent {
		time.Sleep(time.Millisecond) // until all have come
	}
	dropped := conn.Stats().Dropped
	if dropped < sent-12 || dropped >= sent {
		t.Errorf("%d of %d dropped with room for 10", dropped, sent)
	}
	close(gate)
	for i := range sent - dropped {
		if got := recv(t, seen, "kept message"); got != uint32(i) {
			t.Errorf("message %d came, want %d", got, i)
		}
	}
	// It is heard again.
	if err := k.Statuses("gw", &buspb.Statuses{Statuses: []*buspb.Status{tokens(777, "x")}}); err != nil {
		t.Fatal(err)
	}
	if got := recv(t, seen, "message after the gap"); got != 777 {
		t.Errorf("message %d came", got)
	}
}

// TestCloseDrains: what has arrived is handled before Close returns; a Close that may not wait does not.
func TestCloseDrains(t *testing.T) {
	for _, patient := range []bool{true, false} {
		w := embedded(t)
		k := w.worker(t, "w1", nil)
		ev := newEvents()
		conn, err := bus.Connect(context.Background(), bus.Options{Identity: w.issue(t, mesh.RoleGateway, "gw"), URL: w.url, Events: ev.callbacks()})
		if err != nil {
			t.Fatal(err)
		}
		gate, handled := make(chan struct{}), make(chan struct{}, 100)
		_, err = bus.ServeGateway(conn, 1, bus.GatewayHandler{
			Registration: func(*buspb.Registration) {},
			Statuses:     func(*buspb.Statuses) { <-gate; handled <- struct{}{} },
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			if err := k.Statuses("gw", &buspb.Statuses{}); err != nil {
				t.Fatal(err)
			}
		}
		for conn.Stats().ReceivedMessages < 50 {
			time.Sleep(time.Millisecond) // until all have come
		}
		ctx, cancel := context.WithCancel(context.Background())
		closed := make(chan error, 1)
		go func() { closed <- conn.Close(ctx) }()
		if patient {
			for !conn.Ending() {
				runtime.Gosched()
			}
			close(gate)
			if err := recv(t, closed, "close"); err != nil {
				t.Error(err)
			}
			if len(handled) != 50 {
				t.Errorf("%d of 50 handled before Close returned", len(handled))
			}
		} else {
			cancel()
			isKind(t, recv(t, closed, "close"), bus.ErrClosed)
			close(gate)
		}
		cancel()
		if err := recv(t, ev.closed, "closed event"); err != nil {
			t.Errorf("closed event: %v", err)
		}
		none(t, ev.down, "disconnect event of a wanted close")
		if err := conn.Close(context.Background()); err != nil {
			t.Errorf("second close: %v", err)
		}
	}
}

// TestCloseWhileAway: a connection without a server closes at once.
func TestCloseWhileAway(t *testing.T) {
	w := embedded(t)
	conn, ev := w.connect(t, w.issue(t, mesh.RoleWorker, "w1"), nil)
	w.stop()
	recv(t, ev.down, "disconnect")
	closeConn(t, conn)
	w.stop = func() {}
}

// TestConnectGivesUp: nobody listens, or somebody who stays silent; the context ends both.
func TestConnectGivesUp(t *testing.T) {
	w := newWorld(t)
	id := w.issue(t, mesh.RoleWorker, "w1")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := bus.Connect(ctx, bus.Options{Identity: id, URL: "tls://" + ln.Addr().String(), DialTimeout: time.Hour})
		done <- err
	}()
	silent, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	cancel()
	isKind(t, recv(t, done, "end of the attempt at a silent server"), bus.ErrDisconnected)

	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	_, err = bus.Connect(ctx, bus.Options{
		Identity: id, URL: "tls://" + free.Addr().String(), ReconnectMin: time.Millisecond,
		Events: bus.Events{Problem: func(err error) { // a wait that nobody is told of looks like a hang
			isKind(t, err, bus.ErrDisconnected)
			cancel()
		}},
	})
	isKind(t, err, bus.ErrDisconnected)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v does not say that the wait was ended", err)
	}
}

// TestConnectWaits: a process that is started before the server finds it.
func TestConnectWaits(t *testing.T) {
	w := embedded(t)
	w.stop()
	done := make(chan *bus.Conn, 1)
	id, url := w.issue(t, mesh.RoleWorker, "w1"), w.url
	go func() {
		conn, err := bus.Connect(context.Background(), bus.Options{
			Identity: id, URL: url, ReconnectMin: time.Millisecond, ReconnectMax: 5 * time.Millisecond,
		})
		if err != nil {
			t.Error(err)
		}
		done <- conn
	}()
	w.restart(t)
	if conn := recv(t, done, "connection"); conn != nil {
		closeConn(t, conn)
	}
}

func TestBadOptions(t *testing.T) {
	w := newWorld(t)
	worker, busID := w.issue(t, mesh.RoleWorker, "w1"), w.issue(t, mesh.RoleBus, "b")
	for _, o := range []bus.Options{
		{URL: "tls://127.0.0.1:1"},
		{Identity: busID, URL: "tls://127.0.0.1:1"},
		{Identity: worker},
		{Identity: worker, URL: "http://127.0.0.1:1"},
		{Identity: worker, URL: "ws://127.0.0.1:1"},
		{Identity: worker, URL: "127.0.0.1:1"},
		{Identity: worker, URL: "tls://"},
		{Identity: worker, URL: "tls://a:1,,tls://b:1"},
	} {
		_, err := bus.Connect(context.Background(), o)
		isKind(t, err, bus.ErrConfig)
	}
	for _, o := range []bus.ServerOptions{
		{},
		{Identity: worker},
		{Identity: busID, Listen: "nowhere"},
		{Identity: busID, Listen: "127.0.0.1:http"},
		{Identity: busID, Listen: "127.0.0.1:70000"},
	} {
		_, err := bus.StartServer(o)
		isKind(t, err, bus.ErrConfig)
	}
}

func TestPortInUse(t *testing.T) {
	w := embedded(t)
	_, err := bus.StartServer(bus.ServerOptions{Identity: w.issue(t, mesh.RoleBus, "b"), Listen: strings.TrimPrefix(w.url, "tls://")})
	isKind(t, err, bus.ErrListen)
}

func TestBackoff(t *testing.T) {
	lo, hi := 50*time.Millisecond, 5*time.Second
	want := lo
	var waits []time.Duration
	for attempt := 1; attempt < 100; attempt++ {
		d := bus.Backoff(attempt, lo, hi)
		if d < want/2 || d > want {
			t.Fatalf("attempt %d waits %v, want within %v and %v", attempt, d, want/2, want)
		}
		want = min(2*want, hi)
		if attempt > 50 {
			waits = append(waits, d)
		}
	}
	slices.Sort(waits)
	if len(slices.Compact(waits)) < 10 {
		t.Error("the waits have no jitter")
	}
	if d := bus.Backoff(1, 1, 1); d < 0 || d > 1 {
		t.Error(d)
	}
}
