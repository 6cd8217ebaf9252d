package bus

import (
	"testing"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/mesh"
)

// FuzzIncoming: whatever arrives on any subject, nothing panics, and what reaches a handler keeps the promises of its
// documentation.
func FuzzIncoming(f *testing.F) {
	id := make([]byte, HandoffBytes)
	for kind, m := range []proto.Message{
		&buspb.Registration{Worker: "peer", Incarnation: 1, Role: "both", Identity: id, SchemaMin: 1, SchemaMax: 1},
		&buspb.Statuses{Worker: "peer", Incarnation: 1, Statuses: []*buspb.Status{{Handoff: id, Body: &buspb.Status_Committed{}}}},
		&buspb.Command{Gateway: "peer", GatewayIncarnation: 1, Handoff: id, Body: &buspb.Command_Query{Query: &buspb.Query{}}},
		&buspb.GatewayBeat{Gateway: "peer", Incarnation: 1},
		&buspb.Hello{Gateway: "peer", Incarnation: 1},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(kind), b)
		f.Add(uint8(kind), b[:len(b)/2])
	}
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		problems := 0
		c := &Conn{peer: mesh.Peer{}, events: Events{Problem: func(error) { problems++ }}}
		handled := 0
		check := func(ok bool) {
			handled++
			if !ok {
				t.Errorf("kind %d: a handler got what it should not", kind%5)
			}
		}
		g := &GatewayLink{conn: c, name: "gw", incarnation: 1, handler: GatewayHandler{
			Registration: func(r *buspb.Registration) { check(r.Worker == "peer" && CheckRegistration(r) == nil) },
			Statuses: func(s *buspb.Statuses) {
				check(s.Worker == "peer" && s.Incarnation != 0)
				for _, st := range s.Statuses {
					handled--
					check(len(st.Handoff) == HandoffBytes)
				}
			},
		}}
		w := &WorkerLink{conn: c, name: "w", incarnation: 1, handler: WorkerHandler{
			Command: func(cmd *buspb.Command, reply func(*buspb.Reply)) {
				check(cmd.Gateway == "peer" && cmd.GatewayIncarnation != 0 && cmd.Body != nil && cmd.WorkerIncarnation <= 1)
				reply(nil)
			},
			Hello:       func(g string, inc uint64) { check(g == "peer" && inc != 0) },
			GatewaySeen: func(g string, inc uint64, _ bool) { check(g == "peer" && inc != 0) },
		}}
		refused := false
		switch kind % 5 {
		case 0:
			g.onRegistration(&nats.Msg{Subject: prefixWorkers + "peer", Data: data})
		case 1:
			g.onStatuses(&nats.Msg{Subject: prefixStatus + "gw.peer", Data: data})
		case 2:
			w.onCommand(&nats.Msg{Subject: prefixCommand + "w.peer", Data: data})
			refused = true // unknown and misdirected commands are refused without a report
		case 3:
			w.onBeat(&nats.Msg{Subject: prefixGateways + "peer", Data: data})
		case 4:
			w.onHello(&nats.Msg{Subject: prefixHello + "peer", Data: data})
		}
		if handled+problems != 1 && !(refused && handled+problems == 0) {
			t.Errorf("kind %d: handled %d times, %d problems: ignored in silence, or both", kind%5, handled, problems)
		}
	})
}
