package bus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/mesh"
)

// TestConversation: every kind of message, both ways, over every kind of server.
func TestConversation(t *testing.T) {
	each(t, func(t *testing.T, w *world) { conversation(t, w.gateway(t, "gw", nil), w.worker(t, "w1", nil)) })
	t.Run("server in this process", func(t *testing.T) {
		w := embedded(t)
		g := w.gateway(t, "gw", func(o *bus.Options) { o.Server, o.URL = w.embedded, "" })
		conversation(t, g, w.worker(t, "w1", nil))
	})
}

func conversation(t *testing.T, g *gateway, k *worker) {
	// Liveness, both ways.
	if err := errors.Join(g.Hello(), g.Heartbeat(), g.Goodbye()); err != nil {
		t.Fatal(err)
	}
	if got := recv(t, k.hellos, "hello"); got != "gw 7" {
		t.Errorf("hello of %q", got)
	}
	for _, want := range []*buspb.GatewayBeat{{Gateway: "gw", Incarnation: 7}, {Gateway: "gw", Incarnation: 7, Leaving: true}} {
		if d := cmp.Diff(want, recv(t, k.beats, "heartbeat"), protocmp.Transform()); d != "" {
			t.Error("heartbeat:", d)
		}
	}
	reg := registration()
	if err := errors.Join(k.Announce(reg), k.Goodbye()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(reg, recv(t, g.regs, "registration"), protocmp.Transform()); d != "" {
		t.Error("registration:", d)
	}
	bye := &buspb.Registration{Worker: "w1", Incarnation: 3, Seq: 2, Leaving: true}
	if d := cmp.Diff(bye, recv(t, g.regs, "goodbye"), protocmp.Transform()); d != "" {
		t.Error("goodbye:", d)
	}

	// Commands are answered in whatever order the worker likes.
	type answer struct {
		i     int
		reply *buspb.Reply
		err   error
	}
	answers := make(chan answer, 3)
	for i := range 3 {
		go func() {
			r, err := g.Command(context.Background(), "w1", &buspb.Command{
				Handoff: handoffID(byte(i)), Request: fmt.Sprint(i), WorkerIncarnation: 3,
				Body: &buspb.Command_Cancel{Cancel: &buspb.Cancel{Reason: buspb.Reason_REASON_CLIENT}},
			})
			answers <- answer{i, r, err}
		}()
	}
	var held []command
	for range 3 {
		c := recv(t, k.commands, "command")
		if c.Gateway != "gw" || c.GatewayIncarnation != 7 || c.GetCancel().GetReason() != buspb.Reason_REASON_CLIENT {
			t.Errorf("command %v", c.Command)
		}
		held = append(held, c)
	}
	for i := len(held) - 1; i >= 0; i-- {
		held[i].reply(nil) // answers nothing
		held[i].reply(&buspb.Reply{Verdict: buspb.Verdict_VERDICT_ACCEPTED, Message: held[i].Request})
		held[i].reply(&buspb.Reply{Verdict: buspb.Verdict_VERDICT_REFUSED}) // too late
	}
	for range 3 {
		a := recv(t, answers, "reply")
		want := &buspb.Reply{Verdict: buspb.Verdict_VERDICT_ACCEPTED, Message: fmt.Sprint(a.i), WorkerIncarnation: 3}
		if d := cmp.Diff(want, a.reply, protocmp.Transform()); d != "" || a.err != nil {
			t.Errorf("reply %d: %v %s", a.i, a.err, d)
		}
	}

	// Posts are not answered.
	ack := &buspb.Command{Body: &buspb.Command_Acks{Acks: &buspb.Acks{Acks: []*buspb.Ack{{Handoff: handoffID(1), NextIndex: 5}}}}}
	if err := g.Post("w1", ack); err != nil {
		t.Fatal(err)
	}
	c := recv(t, k.commands, "post")
	if c.GetAcks().GetAcks()[0].GetNextIndex() != 5 {
		t.Errorf("acks %v", c.Command)
	}
	c.reply(&buspb.Reply{Verdict: buspb.Verdict_VERDICT_ACCEPTED}) // into nowhere

	// Statuses arrive in order.
	for i := range 100 {
		s := &buspb.Statuses{GatewayIncarnation: 7, Statuses: []*buspb.Status{tokens(uint32(i), "x")}}
		if err := k.Statuses("gw", s); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		s := recv(t, g.statuses, "status")
		if s.Worker != "w1" || s.Incarnation != 3 || s.GatewayIncarnation != 7 || s.Statuses[0].GetTokens().From != uint32(i) {
			t.Fatalf("status %d: %v", i, s)
		}
	}
	none(t, g.ev.problem, "problem of the gateway")
	none(t, k.ev.problem, "problem of the worker")
}

func tokens(from uint32, piece string) *buspb.Status {
	return &buspb.Status{
		Handoff: handoffID(1), Side: buspb.Side_SIDE_DESTINATION, Seq: 1,
		Body: &buspb.Status_Tokens{Tokens: &buspb.Tokens{From: from, Tokens: []*buspb.Token{{Id: 1, Piece: []byte(piece)}}}},
	}
}

func TestCommandErrors(t *testing.T) {
	w := embedded(t)
	g, k := w.gateway(t, "gw", nil), w.worker(t, "w1", nil)
	cancelCmd := func() *buspb.Command {
		return &buspb.Command{Handoff: handoffID(1), Body: &buspb.Command_Cancel{Cancel: &buspb.Cancel{}}}
	}

	_, err := g.Command(context.Background(), "w2", cancelCmd())
	isKind(t, err, bus.ErrNoWorker)
	_, err = g.Command(context.Background(), "w*", cancelCmd())
	isKind(t, err, bus.ErrConfig)
	isKind(t, g.Post("", cancelCmd()), bus.ErrConfig)

	// A worker that stays silent: the deadline ends it.
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err = g.Command(ctx, "w1", cancelCmd())
	isKind(t, err, bus.ErrTimeout)

	// A caller that goes away gets its own cause back.
	cause := errors.New("client gone")
	gone, goneCancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := g.Command(gone, "w1", cancelCmd())
		done <- err
	}()
	recv(t, k.commands, "first command")
	recv(t, k.commands, "second command")
	goneCancel(cause)
	if err := recv(t, done, "end of the command"); !errors.Is(err, cause) {
		t.Errorf("cancelled command: %v, want its cause", err)
	}

	// Answered by the link itself: wrong life, unknown command, malformed.
	for _, tc := range []struct {
		edit func(*buspb.Command)
		code buspb.Code
	}{
		{func(c *buspb.Command) { c.WorkerIncarnation = 2 }, buspb.Code_CODE_RESTARTED},
		{func(c *buspb.Command) { c.Body = nil }, buspb.Code_CODE_UNSUPPORTED},
		{func(c *buspb.Command) { c.Handoff = c.Handoff[:15] }, buspb.Code_CODE_BAD_REQUEST},
	} {
		cmd := cancelCmd()
		tc.edit(cmd)
		r, err := g.Command(context.Background(), "w1", cmd)
		retry := tc.code == buspb.Code_CODE_RESTARTED
		if err != nil || r.Verdict != buspb.Verdict_VERDICT_REFUSED || r.Code != tc.code || r.Retry != retry || r.WorkerIncarnation != 3 {
			t.Errorf("%v: %v, %v", tc.code, r, err)
		}
	}
	none(t, k.commands, "a command that should have been refused")
	isKind(t, recv(t, k.ev.problem, "report of the malformed command"), bus.ErrMalformed)

	closeConn(t, g.conn)
	_, err = g.Command(context.Background(), "w1", cancelCmd())
	isKind(t, err, bus.ErrClosed)
	isKind(t, g.Heartbeat(), bus.ErrClosed)
}

func TestServeRefuses(t *testing.T) {
	w := embedded(t)
	gc, _ := w.connect(t, w.issue(t, mesh.RoleGateway, "gw"), nil)
	wc, _ := w.connect(t, w.issue(t, mesh.RoleWorker, "w1"), nil)
	wh := bus.WorkerHandler{Command: func(*buspb.Command, func(*buspb.Reply)) {}}
	gh := bus.GatewayHandler{Registration: func(*buspb.Registration) {}, Statuses: func(*buspb.Statuses) {}}
	for i, serve := range []func() error{
		func() error { _, err := bus.ServeWorker(gc, 1, wh); return err },
		func() error { _, err := bus.ServeWorker(wc, 0, wh); return err },
		func() error { _, err := bus.ServeWorker(wc, 1, bus.WorkerHandler{}); return err },
		func() error { _, err := bus.ServeGateway(wc, 1, gh); return err },
		func() error { _, err := bus.ServeGateway(gc, 0, gh); return err },
		func() error { _, err := bus.ServeGateway(gc, 1, bus.GatewayHandler{}); return err },
	} {
		err := serve()
		if err == nil {
			t.Fatalf("case %d accepted", i)
		}
		isKind(t, err, bus.ErrConfig)
	}
}

// TestLinkClose: a closed link hears nothing more, its connection goes on.
func TestLinkClose(t *testing.T) {
	w := embedded(t)
	g, k := w.gateway(t, "gw", nil), w.worker(t, "w1", nil)
	if err := k.WorkerLink.Close(); err != nil {
		t.Fatal(err)
	}
	if err := k.Announce(registration()); err != nil { // travels behind the unsubscriptions
		t.Fatal(err)
	}
	recv(t, g.regs, "registration")
	_, err := g.Command(context.Background(), "w1", &buspb.Command{Handoff: handoffID(1), Body: &buspb.Command_Query{Query: &buspb.Query{}}})
	isKind(t, err, bus.ErrNoWorker)
	if err := g.GatewayLink.Close(); err != nil {
		t.Fatal(err)
	}
	if err := g.Heartbeat(); err != nil {
		t.Error(err)
	}
}

// TestUnknownFields: a peer of a newer release adds fields, commands, statuses and capabilities; all that this release
// knows still works.
func TestUnknownFields(t *testing.T) {
	w := embedded(t)
	g, k := w.gateway(t, "gw", nil), w.worker(t, "w1", nil)
	rawWorker, _ := w.raw(t, w.issue(t, mesh.RoleWorker, "w2"))
	rawGateway, _ := w.raw(t, w.issue(t, mesh.RoleGateway, "gw2"))
	unknown := func(m proto.Message, num protowire.Number) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		b = protowire.AppendTag(b, num, protowire.BytesType)
		b = protowire.AppendBytes(b, []byte("from the future"))
		b = protowire.AppendTag(b, num+1, protowire.Fixed64Type)
		return protowire.AppendFixed64(b, 42)
	}

	reg := registration()
	reg.Worker, reg.Incarnation, reg.Seq = "w2", 9, 1
	reg.Capabilities = append(reg.Capabilities, "telepathy/3")
	if err := rawWorker.Publish("tandem.v1.workers.w2", unknown(reg, 900)); err != nil {
		t.Fatal(err)
	}
	got := recv(t, g.regs, "registration with unknown fields")
	if d := cmp.Diff(reg, got, protocmp.Transform(), protocmp.IgnoreUnknown()); d != "" {
		t.Error(d)
	}
	old := proto.Clone(registration()).(*buspb.Registration)
	old.Worker = "old"
	if err := bus.Compatible(got, old); err != nil {
		t.Errorf("unknown fields and capabilities are not ignored: %v", err)
	}

	// A status whose body is unknown comes without a body; a known one beside it comes whole.
	future := &buspb.Statuses{Worker: "w2", Incarnation: 9, Statuses: []*buspb.Status{tokens(4, "x")}}
	st := unknown(&buspb.Status{Handoff: handoffID(2), Seq: 5}, 900)
	b, err := proto.Marshal(future)
	if err != nil {
		t.Fatal(err)
	}
	b = protowire.AppendTag(b, 4, protowire.BytesType)
	b = protowire.AppendBytes(b, st)
	if err := rawWorker.Publish("tandem.v1.status.gw.w2", b); err != nil {
		t.Fatal(err)
	}
	s := recv(t, g.statuses, "statuses")
	if len(s.Statuses) != 2 || s.Statuses[0].GetTokens().GetFrom() != 4 || s.Statuses[1].Body != nil || s.Statuses[1].Seq != 5 {
		t.Errorf("statuses: %v", s)
	}

	// Unknown fields beside a known command do not hurt it; an unknown command is refused in a way the sender can see.
	inbox := "tandem.v1.inbox.gw2."
	sub, err := rawGateway.SubscribeSync(inbox + ">")
	if err != nil {
		t.Fatal(err)
	}
	known := &buspb.Command{Gateway: "gw2", GatewayIncarnation: 1, Handoff: handoffID(3), Body: &buspb.Command_Query{Query: &buspb.Query{}}}
	if err := rawGateway.PublishRequest("tandem.v1.cmd.w1.gw2", inbox+"1", unknown(known, 900)); err != nil {
		t.Fatal(err)
	}
	if c := recv(t, k.commands, "command with unknown fields"); c.GetQuery() == nil {
		t.Errorf("command %v", c.Command)
	}
	known.Body = nil
	if err := rawGateway.PublishRequest("tandem.v1.cmd.w1.gw2", inbox+"2", unknown(known, 900)); err != nil {
		t.Fatal(err)
	}
	msg, err := sub.NextMsg(20 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var r buspb.Reply
	if err := proto.Unmarshal(msg.Data, &r); err != nil || r.Code != buspb.Code_CODE_UNSUPPORTED {
		t.Errorf("reply %v, %v", &r, err)
	}
	none(t, g.ev.problem, "problem")
}

// TestOversize: what is too large is split where it can be, refused where it cannot, and ignored when a peer sends it.
func TestOversize(t *testing.T) {
	w := embedded(t)
	g, k := w.gateway(t, "gw", nil), w.worker(t, "w1", nil)

	// A prompt of a million tokens fits.
	prompt := make([]int32, 1<<20)
	for i := range prompt {
		prompt[i] = 1 << 18 // the ids of the largest vocabularies
	}
	gen := func(tokens []int32) *buspb.Command {
		return &buspb.Command{Handoff: handoffID(1), Body: &buspb.Command_Run{Run: &buspb.Run{Generation: &buspb.Generation{Tokens: tokens}}}}
	}
	if err := g.Post("w1", gen(prompt)); err != nil {
		t.Fatal(err)
	}
	if got := recv(t, k.commands, "million tokens"); len(got.GetRun().GetGeneration().GetTokens()) != len(prompt) {
		t.Errorf("%d tokens arrived", len(got.GetRun().GetGeneration().GetTokens()))
	}
	huge := append(append(append([]int32(nil), prompt...), prompt...), prompt...)
	isKind(t, g.Post("w1", gen(huge)), bus.ErrTooLarge)
	_, err := g.Command(context.Background(), "w1", gen(huge))
	isKind(t, err, bus.ErrTooLarge)

	// Statuses are split, in order.
	piece := string(make([]byte, 100<<10))
	s := &buspb.Statuses{GatewayIncarnation: 7}
	for i := range 50 {
		s.Statuses = append(s.Statuses, tokens(uint32(i), piece))
	}
	if err := k.Statuses("gw", s); err != nil {
		t.Fatal(err)
	}
	messages := 0
	for next := uint32(0); next < 50; messages++ {
		got := recv(t, g.statuses, "part")
		if got.Worker != "w1" || got.Incarnation != 3 || got.GatewayIncarnation != 7 {
			t.Fatalf("part of %s/%d for %d", got.Worker, got.Incarnation, got.GatewayIncarnation)
		}
		for _, st := range got.Statuses {
			if st.GetTokens().From != next {
				t.Fatalf("status %d came, want %d", st.GetTokens().From, next)
			}
			next++
		}
	}
	if messages < 5 {
		t.Errorf("5 MB came in %d messages", messages)
	}
	isKind(t, k.Statuses("gw", &buspb.Statuses{Statuses: []*buspb.Status{tokens(0, string(make([]byte, bus.MaxStatuses)))}}), bus.ErrTooLarge)

	// A registration that is too large does not leave, and is ignored when it comes.
	reg := registration()
	reg.ModelName = string(make([]byte, bus.MaxText+1))
	isKind(t, k.Announce(reg), bus.ErrMalformed)
	nc, _ := w.raw(t, w.issue(t, mesh.RoleWorker, "w2"))
	if err := nc.Publish("tandem.v1.workers.w2", make([]byte, bus.MaxRegistration+1)); err != nil {
		t.Fatal(err)
	}
	problem := recv(t, g.ev.problem, "report of the oversize registration")
	isKind(t, problem, bus.ErrMalformed)
	if !errors.Is(problem, bus.ErrTooLarge) {
		t.Errorf("%v, want the cause too large", problem)
	}
	none(t, g.regs, "registration")
	if n := g.conn.Stats().Malformed; n != 1 {
		t.Errorf("%d malformed counted", n)
	}
}

// TestInProcessNeverWaits: a client in the server's process sends large commands that the server answers
// itself, from many goroutines, while a worker floods it. Neither waits for the other.
func TestInProcessNeverWaits(t *testing.T) {
	w := embedded(t)
	g := w.gateway(t, "gw", func(o *bus.Options) { o.Server, o.URL = w.embedded, "" })
	k := w.worker(t, "w1", nil)
	const commands, statuses = 40, 2000
	errs := make(chan error, 8)
	tokensOf := make([]int32, 200_000)
	for i := range tokensOf {
		tokensOf[i] = int32(i)
	}
	for range cap(errs) {
		go func() {
			for range commands / cap(errs) {
				_, err := g.Command(context.Background(), "nobody", &buspb.Command{
					Handoff: handoffID(1), Body: &buspb.Command_Run{Run: &buspb.Run{Generation: &buspb.Generation{Tokens: tokensOf}}},
				})
				if !errors.Is(err, bus.ErrNoWorker) {
					errs <- err
					return
				}
				if err := g.conn.Flush(); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for i := range statuses {
		if err := k.Statuses("gw", &buspb.Statuses{GatewayIncarnation: 7, Statuses: []*buspb.Status{tokens(uint32(i), "x")}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range statuses {
		if s := recv(t, g.statuses, "status"); s.Statuses[0].GetTokens().From != uint32(i) {
			t.Fatalf("status %d: %v", i, s)
		}
	}
	for range cap(errs) {
		if err := recv(t, errs, "commands"); err != nil {
			t.Error(err)
		}
	}
}

// TestInProcessPermissions: a client in the server's process may do what its role may, and nobody else is
// admitted without TLS.
func TestInProcessPermissions(t *testing.T) {
	w := embedded(t)
	id := w.issue(t, mesh.RoleWorker, "w1")
	conn, ev := w.connect(t, id, func(o *bus.Options) { o.Server, o.URL = w.embedded, "" })
	if _, err := bus.ServeGateway(conn, 7, bus.GatewayHandler{Registration: func(*buspb.Registration) {}, Statuses: func(*buspb.Statuses) {}}); !errors.Is(err, bus.ErrConfig) {
		t.Errorf("a worker serves as a gateway: %v", err)
	}
	none(t, ev.problem, "problem")
	nc, err := nats.Connect("nats://"+strings.TrimPrefix(w.url, "tls://"), nats.Token("guess"), nats.NoReconnect())
	if err == nil {
		nc.Close()
		t.Error("somebody was admitted without TLS")
	}
}

// TestInProcessStrangers: without TLS in between, a client and a server of other authorities refuse each
// other all the same: the rest of the mesh would.
func TestInProcessStrangers(t *testing.T) {
	w := embedded(t)
	ca, err := mesh.NewCA(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := ca.Issue(mesh.RoleGateway, "g", []string{"127.0.0.1"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := bus.Connect(t.Context(), bus.Options{Identity: stranger, Server: w.embedded})
	if err == nil {
		_ = conn.Close(t.Context())
	}
	if !errors.Is(err, bus.ErrRefused) || !errors.Is(err, mesh.ErrOtherCA) {
		t.Errorf("connected with another authority's certificate: %v", err)
	}
}
