package bus_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/mesh"
)

// serveEnv makes the test binary a NATS server of its own: its value is a configuration file and a port.
const serveEnv = "TANDEM_TEST_NATS_SERVER"

func TestMain(m *testing.M) {
	if v := os.Getenv(serveEnv); v != "" {
		if err := serveNATS(v); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// serveNATS runs a stock NATS server with a configuration file until standard input ends.
func serveNATS(arg string) error {
	file, port, _ := strings.Cut(arg, "|")
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		return err
	}
	if opts.Port, err = strconv.Atoi(port); err != nil {
		return err
	}
	opts.NoSigs, opts.NoLog = true, true
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		return errors.New("not ready")
	}
	fmt.Println(s.Addr().(*net.TCPAddr).Port)
	_, err = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	return err
}

// world is a mesh and one bus.
type world struct {
	ca       *mesh.CA
	url      string
	embedded *bus.Server // nil when the server is another process
	file     string      // configuration of that process
	restart  func(t *testing.T)
	stop     func()
}

func (w *world) issue(t testing.TB, role mesh.Role, name string) *mesh.Identity {
	t.Helper()
	id, err := w.ca.Issue(role, name, []string{"localhost", "127.0.0.1"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// names are the processes that an external server knows.
var names = []mesh.Peer{
	{Role: mesh.RoleGateway, Name: "gw"},
	{Role: mesh.RoleGateway, Name: "gw2"},
	{Role: mesh.RoleWorker, Name: "w1"},
	{Role: mesh.RoleWorker, Name: "w2"},
}

func newWorld(t testing.TB) *world {
	t.Helper()
	ca, err := mesh.NewCA(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &world{ca: ca}
}

// embedded starts a server in this process, reached over TLS.
func embedded(t testing.TB) *world {
	w := newWorld(t)
	id := w.issue(t, mesh.RoleBus, "bus")
	start := func(listen string) {
		s, err := bus.StartServer(bus.ServerOptions{Identity: id, Listen: listen})
		if err != nil {
			t.Fatal(err)
		}
		w.embedded, w.url = s, s.URL()
	}
	start("127.0.0.1:0")
	w.stop = func() { w.embedded.Close() }
	w.restart = func(*testing.T) { start(strings.TrimPrefix(w.url, "tls://")) }
	t.Cleanup(func() { w.stop() })
	return w
}

// external starts a stock server with our configuration in a process of its own.
func external(t testing.TB) *world {
	w := newWorld(t)
	dir := t.TempDir()
	if err := w.issue(t, mesh.RoleBus, "bus").Save(dir); err != nil {
		t.Fatal(err)
	}
	text, err := bus.ExternalConfig(bus.ExternalOptions{Peers: names, Dir: dir, Listen: "127.0.0.1:4222"})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.file = file
	port := "-1"
	start := func() {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), serveEnv+"="+file+"|"+port)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal("the server process did not start: ", err)
		}
		port = strings.TrimSpace(line)
		w.url = "tls://127.0.0.1:" + port
		w.stop = func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // "signal: killed"
			in.Close()
		}
	}
	start()
	w.restart = func(*testing.T) { start() }
	t.Cleanup(func() { w.stop() })
	return w
}

// each runs a test against every kind of server.
func each(t *testing.T, fn func(t *testing.T, w *world)) {
	t.Run("embedded", func(t *testing.T) { fn(t, embedded(t)) })
	t.Run("external", func(t *testing.T) { fn(t, external(t)) })
}

// events records what a connection reports.
type events struct {
	down, up, closed, problem chan error
}

func newEvents() *events {
	mk := func() chan error { return make(chan error, 1024) }
	return &events{mk(), mk(), mk(), mk()}
}

func (e *events) callbacks() bus.Events {
	put := func(ch chan error) func(error) {
		return func(err error) {
			select {
			case ch <- err:
			default:
			}
		}
	}
	return bus.Events{
		Disconnected: put(e.down), Closed: put(e.closed), Problem: put(e.problem),
		Reconnected: func() { put(e.up)(nil) },
	}
}

func (w *world) connect(t testing.TB, id *mesh.Identity, edit func(*bus.Options)) (*bus.Conn, *events) {
	t.Helper()
	ev := newEvents()
	opts := bus.Options{Identity: id, URL: w.url, Events: ev.callbacks(), ReconnectMin: time.Millisecond, ReconnectMax: 20 * time.Millisecond}
	if edit != nil {
		edit(&opts)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := bus.Connect(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeConn(t, c) })
	return c, ev
}

func closeConn(t testing.TB, c *bus.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
}

// gateway is a gateway whose messages come out of channels.
type gateway struct {
	*bus.GatewayLink
	conn     *bus.Conn
	ev       *events
	regs     chan *buspb.Registration
	statuses chan *buspb.Statuses
}

func (w *world) gateway(t testing.TB, name string, edit func(*bus.Options)) *gateway {
	t.Helper()
	g := &gateway{regs: make(chan *buspb.Registration, 4096), statuses: make(chan *buspb.Statuses, 1<<16)}
	g.conn, g.ev = w.connect(t, w.issue(t, mesh.RoleGateway, name), edit)
	var err error
	g.GatewayLink, err = bus.ServeGateway(g.conn, 7, bus.GatewayHandler{
		Registration: func(r *buspb.Registration) { g.regs <- r },
		Statuses:     func(s *buspb.Statuses) { g.statuses <- s },
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// command is a command with the means to answer it.
type command struct {
	*buspb.Command
	reply func(*buspb.Reply)
}

// worker is a worker whose messages come out of channels.
type worker struct {
	*bus.WorkerLink
	conn     *bus.Conn
	ev       *events
	commands chan command
	hellos   chan string
	beats    chan *buspb.GatewayBeat
}

func (w *world) worker(t testing.TB, name string, edit func(*bus.Options)) *worker {
	t.Helper()
	k := &worker{commands: make(chan command, 4096), hellos: make(chan string, 64), beats: make(chan *buspb.GatewayBeat, 64)}
	k.conn, k.ev = w.connect(t, w.issue(t, mesh.RoleWorker, name), edit)
	var err error
	k.WorkerLink, err = bus.ServeWorker(k.conn, 3, bus.WorkerHandler{
		Command: func(cmd *buspb.Command, reply func(*buspb.Reply)) { k.commands <- command{cmd, reply} },
		Hello:   func(g string, inc uint64) { k.hellos <- fmt.Sprint(g, " ", inc) },
		GatewaySeen: func(g string, inc uint64, leaving bool) {
			k.beats <- &buspb.GatewayBeat{Gateway: g, Incarnation: inc, Leaving: leaving}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// raw is a plain NATS client with a mesh identity: what a hostile process would use.
func (w *world) raw(t testing.TB, id *mesh.Identity) (*nats.Conn, chan error) {
	t.Helper()
	errs := make(chan error, 64)
	nc, err := nats.Connect(w.url, nats.Secure(id.ClientTLS(nil, mesh.Peer{Role: mesh.RoleBus})), nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { errs <- err }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, errs
}

// recv takes one value, and fails the test rather than hang.
func recv[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("nothing came: %s", what)
		panic("unreachable")
	}
}

// none fails the test if something has come.
func none[T any](t testing.TB, ch <-chan T, what string) {
	t.Helper()
	select {
	case v := <-ch:
		t.Errorf("%s came: %v", what, v)
	default:
	}
}

func flush(t testing.TB, nc *nats.Conn) {
	t.Helper()
	if err := nc.FlushTimeout(20 * time.Second); err != nil {
		t.Fatal(err)
	}
}

// isKind asserts kind, type and that the text tells what to do.
func isKind(t testing.TB, err, kind error) {
	t.Helper()
	var e *bus.Error
	if !errors.Is(err, kind) || !errors.As(err, &e) {
		t.Fatalf("error %v, want kind %v", err, kind)
	}
	if s := e.Error(); !strings.HasPrefix(s, "bus: ") || !strings.Contains(s, "; ") {
		t.Errorf("error text %q lacks prefix or next step", s)
	}
}

func handoffID(n byte) []byte { return append(make([]byte, 15), n) }

func registration() *buspb.Registration {
	return &buspb.Registration{
		Role: "decode", Version: "v0", Identity: []byte("identity"), SchemaMin: 1, SchemaMax: 1, Capabilities: []string{bus.CapHandoff},
		Owned: []*buspb.Owned{{Handoff: handoffID(1), Request: "r", Gateway: "gw", Side: buspb.Side_SIDE_SOURCE, State: "Pinned"}},
	}
}
