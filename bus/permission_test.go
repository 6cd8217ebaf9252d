package bus_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/mesh"
)

// TestForbidden: a process with a genuine certificate and a client of its own cannot publish or subscribe what is not
// its, and what it publishes all the same reaches nobody.
func TestForbidden(t *testing.T) {
	asWorker, asGateway := mesh.Peer{Role: mesh.RoleWorker, Name: "w1"}, mesh.Peer{Role: mesh.RoleGateway, Name: "gw"}
	publish := map[mesh.Peer][]string{
		asWorker: {
			"tandem.v1.workers.w2",          // register as another worker
			"tandem.v1.status.gw.w2",        // report as another worker
			"tandem.v1.status.gw",           // report as nobody
			"tandem.v1.cmd.w2.gw",           // command another worker
			"tandem.v1.cmd.w2.w1",           // even as itself
			"tandem.v1.cmd.w1.gw",           // command itself
			"tandem.v1.gateways.gw",         // live as a gateway
			"tandem.v1.gateways.w1",         // even as itself
			"tandem.v1.hello.gw",            // ask for announcements
			"tandem.v1.inbox.gw.abc",        // answer what was not asked
			"tandem.v1.workers.w1.x",        // below its own subject
			"tandem.v1.status.gw.x.w1",      // beside its own pattern
			"_INBOX.abc",                    // the usual inboxes
			"anything",                      // anything else
			"$SYS.REQ.SERVER.PING",          // the system account's subjects
			"$JS.API.INFO",                  // streams
			"tandem.v1.status.gw.w1.reply",  // longer than its pattern
			"tandem.v2.workers.w1",          // another version
			"tandem.v1.inbox.gw.w1",         // an inbox that ends with its name
			"tandem.v1.cmd.w1.w1",           // itself as a gateway
			"tandem.v1.hello.w1",            // itself as a gateway
			"tandem.v1.inbox.worker.w1.abc", // no inbox of its own either
		},
		asGateway: {
			"tandem.v1.workers.gw",    // register as a worker
			"tandem.v1.workers.w1",    // even as another
			"tandem.v1.status.gw.w1",  // report to itself
			"tandem.v1.status.gw2.gw", // report to another gateway
			"tandem.v1.cmd.w1.gw2",    // command as another gateway
			"tandem.v1.gateways.gw2",  // live as another gateway
			"tandem.v1.hello.gw2",     // ask as another gateway
			"tandem.v1.inbox.gw2.abc", // answer another gateway
			"tandem.v1.inbox.gw.abc",  // answer itself
			"tandem.v1.cmd.w1",        // command as nobody
			"_INBOX.abc", "anything",  // anything else
			"$SYS.REQ.SERVER.PING",     // the system account's subjects
			"tandem.v1.cmd.w1.x.gw",    // beside its pattern
			"tandem.v1.cmd.w1.gw.more", // longer than its pattern
		},
	}
	subscribe := map[mesh.Peer][]string{
		asWorker: {
			"tandem.v1.cmd.w2.*", "tandem.v1.cmd.w2.gw", "tandem.v1.cmd.*.*", "tandem.v1.cmd.>", "tandem.v1.>", ">", "*.*.*.*.*",
			"tandem.v1.workers.*", "tandem.v1.workers.w2", "tandem.v1.status.*.*", "tandem.v1.status.gw.w1",
			"tandem.v1.inbox.gw.>", "tandem.v1.inbox.gw.abc", "tandem.v1.inbox.>", "_INBOX.>", "$SYS.>",
		},
		asGateway: {
			"tandem.v1.cmd.w1.*", "tandem.v1.cmd.>", "tandem.v1.>", ">", "tandem.v1.status.gw2.*", "tandem.v1.status.*.*",
			"tandem.v1.inbox.gw2.>", "tandem.v1.inbox.>", "tandem.v1.gateways.*", "tandem.v1.hello.*", "_INBOX.>", "$SYS.>",
		},
	}
	each(t, func(t *testing.T, w *world) {
		g, g2, k, k2 := w.gateway(t, "gw", nil), w.gateway(t, "gw2", nil), w.worker(t, "w1", nil), w.worker(t, "w2", nil)
		for peer, subjects := range publish {
			nc, errs := w.raw(t, w.issue(t, peer.Role, peer.Name))
			for _, s := range subjects {
				if err := nc.Publish(s, []byte("x")); err != nil {
					t.Fatal(err)
				}
				flush(t, nc)
				if err := recv(t, errs, peer.String()+" publishes "+s); !errors.Is(err, nats.ErrPermissionViolation) {
					t.Errorf("%s publishes %s: %v", peer, s, err)
				}
			}
		}
		for peer, subjects := range subscribe {
			nc, errs := w.raw(t, w.issue(t, peer.Role, peer.Name))
			for _, queue := range []string{"", "q"} {
				for _, s := range subjects {
					if _, err := nc.QueueSubscribe(s, queue, func(*nats.Msg) {}); err != nil {
						t.Fatal(err)
					}
					flush(t, nc)
					if err := recv(t, errs, peer.String()+" subscribes "+s); !errors.Is(err, nats.ErrPermissionViolation) {
						t.Errorf("%s subscribes %s: %v", peer, s, err)
					}
				}
			}
		}
		// Fence: everything published above would have been delivered before these.
		for _, gw := range []*gateway{g, g2} {
			if err := errors.Join(gw.Heartbeat(), k.Announce(registration()), k2.Announce(registration())); err != nil {
				t.Fatal(err)
			}
			recv(t, gw.regs, "fence")
			recv(t, k.beats, "fence")
			recv(t, k2.beats, "fence")
		}
		for _, c := range []*bus.Conn{g.conn, g2.conn, k.conn, k2.conn} {
			if n := c.Stats().Malformed; n != 0 {
				t.Errorf("%d forbidden messages were delivered", n)
			}
		}
		for _, ch := range []chan command{k.commands, k2.commands} {
			none(t, ch, "forbidden command")
		}
	})
}

// TestImpersonation: messages on a subject of the sender's own that claim another name in their content.
func TestImpersonation(t *testing.T) {
	w := embedded(t)
	g, k := w.gateway(t, "gw", nil), w.worker(t, "w1", nil)
	evilWorker, _ := w.raw(t, w.issue(t, mesh.RoleWorker, "w2"))
	evilGateway, _ := w.raw(t, w.issue(t, mesh.RoleGateway, "gw2"))
	send := func(nc *nats.Conn, subject, reply string, m proto.Message) {
		t.Helper()
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: b}); err != nil {
			t.Fatal(err)
		}
	}
	reg := registration()
	reg.Worker, reg.Incarnation, reg.Seq = "w1", 99, 1
	send(evilWorker, "tandem.v1.workers.w2", "", reg)
	send(evilWorker, "tandem.v1.workers.w2", "", &buspb.Registration{Worker: "w1", Incarnation: 99, Leaving: true})
	send(evilWorker, "tandem.v1.status.gw.w2", "", &buspb.Statuses{Worker: "w1", Incarnation: 3, Statuses: []*buspb.Status{tokens(0, "x")}})
	for range 3 {
		isKind(t, recv(t, g.ev.problem, "report"), bus.ErrMalformed)
	}
	none(t, g.regs, "registration in another name")
	none(t, g.statuses, "statuses in another name")

	cmd := &buspb.Command{Gateway: "gw", GatewayIncarnation: 7, Handoff: handoffID(1), Body: &buspb.Command_Cancel{Cancel: &buspb.Cancel{}}}
	send(evilGateway, "tandem.v1.cmd.w1.gw2", "", cmd)
	send(evilGateway, "tandem.v1.gateways.gw2", "", &buspb.GatewayBeat{Gateway: "gw", Incarnation: 8, Leaving: true})
	send(evilGateway, "tandem.v1.hello.gw2", "", &buspb.Hello{Gateway: "gw", Incarnation: 8})
	for range 3 {
		isKind(t, recv(t, k.ev.problem, "report"), bus.ErrMalformed)
	}
	none(t, k.commands, "command in another name")
	none(t, k.beats, "heartbeat in another name")
	none(t, k.hellos, "hello in another name")

	// A reply goes to the sender's own inbox only: here it would pass for a registration.
	cmd.Gateway = "gw2"
	send(evilGateway, "tandem.v1.cmd.w1.gw2", "tandem.v1.workers.w9", cmd)
	c := recv(t, k.commands, "command with a strange reply subject")
	c.reply(&buspb.Reply{Verdict: buspb.Verdict_VERDICT_ACCEPTED})
	if err := k.Announce(registration()); err != nil {
		t.Fatal(err)
	}
	recv(t, g.regs, "fence")
	if n := g.conn.Stats().Malformed; n != 3 {
		t.Errorf("the gateway ignored %d messages, want 3: a worker was made to publish for another", n)
	}
}

// TestReplyOnce: the right to answer is used up by the answer.
func TestReplyOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		g := w.gateway(t, "gw", nil)
		nc, errs := w.raw(t, w.issue(t, mesh.RoleWorker, "w1"))
		sub, err := nc.SubscribeSync("tandem.v1.cmd.w1.*")
		if err != nil {
			t.Fatal(err)
		}
		flush(t, nc)
		done := make(chan error, 1)
		go func() {
			_, err := g.Command(context.Background(), "w1", &buspb.Command{Handoff: handoffID(1), Body: &buspb.Command_Query{Query: &buspb.Query{}}})
			done <- err
		}()
		msg, err := sub.NextMsg(20 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := msg.Respond(nil); err != nil {
				t.Fatal(err)
			}
		}
		flush(t, nc)
		if err := recv(t, done, "reply"); err != nil {
			t.Error(err)
		}
		if err := recv(t, errs, "second answer"); !errors.Is(err, nats.ErrPermissionViolation) {
			t.Error(err)
		}
	})
}

// TestStrangers: who has no certificate of the mesh, or a role that has no business here, is refused, and says so.
func TestStrangers(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		other := newWorld(t)
		_, err := bus.Connect(ctx, bus.Options{Identity: other.issue(t, mesh.RoleWorker, "w1"), URL: w.url})
		isKind(t, err, bus.ErrRefused)
		if !errors.Is(err, mesh.ErrOtherCA) {
			t.Errorf("other CA: %v", err)
		}

		good := w.issue(t, mesh.RoleWorker, "w1").ClientTLS(nil, mesh.Peer{Role: mesh.RoleBus})
		for name, edit := range map[string]func(*tls.Config){
			"no certificate": func(c *tls.Config) { c.Certificates = nil },
			"certificate of another CA": func(c *tls.Config) {
				c.Certificates = other.issue(t, mesh.RoleWorker, "w1").ClientTLS(nil, mesh.Peer{}).Certificates
			},
			"role bus": func(c *tls.Config) {
				c.Certificates = w.issue(t, mesh.RoleBus, "b").ClientTLS(nil, mesh.Peer{}).Certificates
			},
			"TLS 1.2": func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 },
		} {
			cfg := good.Clone()
			edit(cfg)
			if nc, err := nats.Connect(w.url, nats.Secure(cfg), nats.NoReconnect()); err == nil {
				nc.Close()
				t.Errorf("%s: let in", name)
			}
		}
		for _, url := range []string{strings.Replace(w.url, "tls://", "nats://", 1), strings.Replace(w.url, "tls://", "nats://worker:secret@", 1)} {
			// Without TLS, and skipping verification.
			if nc, err := nats.Connect(url, nats.NoReconnect(), nats.Secure(&tls.Config{InsecureSkipVerify: true})); err == nil {
				nc.Close()
				t.Errorf("%s: let in", url)
			}
		}
	})
}

// TestUnknownUser: an external server knows its users by name; a genuine worker that it was not told of is refused.
func TestUnknownUser(t *testing.T) {
	w := external(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := bus.Connect(ctx, bus.Options{Identity: w.issue(t, mesh.RoleWorker, "w77"), URL: w.url})
	isKind(t, err, bus.ErrRefused)
}

// TestUserWithoutRights: an external server that knows the worker but does not let it hear its commands.
func TestUserWithoutRights(t *testing.T) {
	w := external(t)
	text, err := os.ReadFile(w.file)
	if err != nil {
		t.Fatal(err)
	}
	w.stop()
	text = bytes.Replace(text, []byte(`"tandem.v1.cmd.w1.*", `), nil, 1)
	if err := os.WriteFile(w.file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	w.restart(t)
	c, _ := w.connect(t, w.issue(t, mesh.RoleWorker, "w1"), nil)
	_, err = bus.ServeWorker(c, 1, bus.WorkerHandler{Command: func(*buspb.Command, func(*buspb.Reply)) {}})
	isKind(t, err, bus.ErrForbidden)
}

// TestRefusedByServer: the worker likes the server, the server does not like the worker, whose certificate has expired.
// The worker is told, instead of trying for ever.
func TestRefusedByServer(t *testing.T) {
	past := func() time.Time { return time.Now().Add(-2 * time.Hour) }
	ca, err := mesh.NewCA(past, 0)
	if err != nil {
		t.Fatal(err)
	}
	busID, err := ca.Issue(mesh.RoleBus, "bus", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	expired, err := ca.Issue(mesh.RoleWorker, "w1", nil, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := busID.Save(dir); err != nil {
		t.Fatal(err)
	}
	if busID, err = mesh.Load(dir, nil); err != nil { // of today
		t.Fatal(err)
	}
	s, err := bus.StartServer(bus.ServerOptions{Identity: busID})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err = bus.Connect(ctx, bus.Options{Identity: expired, URL: s.URL(), ReconnectMin: time.Millisecond})
	isKind(t, err, bus.ErrRefused)
}

// TestFalseServer: a worker's certificate does not make a bus, and a server without TLS is not talked to.
func TestFalseServer(t *testing.T) {
	w := newWorld(t)
	serve := func(t *testing.T, handle func(net.Conn)) string {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				handle(c)
				c.Close()
			}
		}()
		t.Cleanup(func() { ln.Close(); <-done })
		return "tls://" + ln.Addr().String()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	id := w.issue(t, mesh.RoleWorker, "w1")

	evil := w.issue(t, mesh.RoleWorker, "w2").ServerTLS(nil, nil)
	url := serve(t, func(c net.Conn) {
		c.Write([]byte(`INFO {"server_id":"x","tls_required":true,"max_payload":1000}` + "\r\n"))
		tls.Server(c, evil).Handshake()
	})
	_, err := bus.Connect(ctx, bus.Options{Identity: id, URL: url})
	isKind(t, err, bus.ErrRefused)
	if !errors.Is(err, mesh.ErrWrongRole) {
		t.Errorf("false bus: %v", err)
	}

	url = serve(t, func(c net.Conn) {
		c.Write([]byte(`INFO {"server_id":"x","max_payload":1000}` + "\r\n"))
		c.Read(make([]byte, 1))
	})
	_, err = bus.Connect(ctx, bus.Options{Identity: id, URL: url})
	isKind(t, err, bus.ErrRefused)
}

// TestPermissionsOf pins the table that docs/bus.md shows.
func TestPermissionsOf(t *testing.T) {
	for peer, want := range map[mesh.Peer]*bus.Permissions{
		{Role: mesh.RoleWorker, Name: "w1"}: {
			Publish:   []string{"tandem.v1.workers.w1", "tandem.v1.status.*.w1"},
			Subscribe: []string{"tandem.v1.cmd.w1.*", "tandem.v1.hello.*", "tandem.v1.gateways.*"},
			Responses: true,
		},
		{Role: mesh.RoleGateway, Name: "gw"}: {
			Publish:   []string{"tandem.v1.gateways.gw", "tandem.v1.hello.gw", "tandem.v1.cmd.*.gw"},
			Subscribe: []string{"tandem.v1.workers.*", "tandem.v1.status.gw.*", "tandem.v1.inbox.gw.>"},
		},
		{Role: mesh.RoleBus, Name: "b"}:    nil,
		{Role: "boss", Name: "b"}:          nil,
		{Role: mesh.RoleWorker, Name: "*"}: nil,
		{Role: mesh.RoleWorker, Name: ">"}: nil,
		{Role: mesh.RoleWorker}:            nil,
	} {
		got, ok := bus.PermissionsOf(peer)
		if ok != (want != nil) {
			t.Errorf("%v: %v", peer, ok)
		}
		if want != nil {
			if d := cmp.Diff(*want, got); d != "" {
				t.Errorf("%v: %s", peer, d)
			}
		}
	}
}
