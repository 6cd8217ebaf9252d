package gateway

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/telemetry"
)

// TestRebind: when the destination is lost after the pin, the source hands what it computed to
// another one instead of computing again; its first token, which the client has, is forced.
func TestRebind(t *testing.T) {
	inBubble(t, twoPairs, func(r *rig) {
		p, d := r.b.workers["p1"], r.b.workers["d1"]
		p.keeps = true
		at(p, 1, "Pinned", d.kill)
		text, finish, done := streamed(r.post("/v1/chat/completions", streamBody).Body.String())
		if text != answerText || finish != "stop" || !done {
			t.Fatalf("%q %q %v", text, finish, done)
		}
		first := d.reservations()
		if len(first) != 1 || !slices.Equal(p.reused, []string{"", first[0]}) {
			t.Errorf("reservations %x, prefills took over %x", first, p.reused)
		}
		if len(p.forced) != 2 || len(p.forced[1]) != 1 {
			t.Errorf("forced %v", p.forced)
		}
		if n := r.b.workers["p2"].count("Prefill"); n != 0 {
			t.Error("another source computed the prompt again")
		}
	})
}

// TestRebindDraining: a source that is going down gets nothing new, and hands over what it holds.
func TestRebindDraining(t *testing.T) {
	inBubble(t, twoPairs, func(r *rig) {
		p, d := r.b.workers["p1"], r.b.workers["d1"]
		p.keeps = true
		at(p, 1, "Pinned", func() {
			p.mu.Lock()
			p.drain = true
			p.mu.Unlock()
			go p.announce()
			d.kill()
		})
		if text, _, done := streamed(r.post("/v1/chat/completions", streamBody).Body.String()); text != answerText || !done {
			t.Fatalf("%q %v", text, done)
		}
		if len(p.reused) != 2 || p.reused[1] == "" {
			t.Errorf("prefills took over %x", p.reused)
		}
		if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText || p.count("Prefill") != 2 {
			t.Errorf("%q, the draining worker was asked %d times", got, p.count("Prefill"))
		}
	})
}

// TestRebindWaits: with no other destination the pinned source is kept alive by lease renewals until
// the lost one is back.
func TestRebindWaits(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		p, d := r.b.workers["p1"], r.b.workers["d1"]
		p.keeps = true
		at(p, 1, "Pinned", func() {
			d.kill()
			time.AfterFunc(time.Millisecond, d.leave)
			time.AfterFunc(8*time.Second, d.restart)
		})
		text, finish, done := streamed(r.post("/v1/chat/completions", streamBody).Body.String())
		if text != answerText || finish != "stop" || !done {
			t.Fatalf("%q %q %v", text, finish, done)
		}
		if n := p.count("Renew"); n < 2 {
			t.Errorf("%d renewals in 8 s", n)
		}
		if len(p.reused) != 2 || p.reused[1] == "" {
			t.Errorf("prefills took over %x", p.reused)
		}
	})
}

// TestHolderLost: a source that is lost while its state is kept for a rebind is not asked again.
func TestHolderLost(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		p, d := r.b.workers["p1"], r.b.workers["d1"]
		p.keeps = true
		at(p, 1, "Pinned", func() {
			d.kill()
			time.AfterFunc(time.Millisecond, d.leave)
			time.AfterFunc(3*time.Second, p.restart)
			time.AfterFunc(6*time.Second, d.restart)
		})
		text, finish, done := streamed(r.post("/v1/chat/completions", streamBody).Body.String())
		if text != answerText || finish != "stop" || !done {
			t.Fatalf("%q %q %v", text, finish, done)
		}
		if len(p.reused) != 2 || p.reused[1] != "" {
			t.Errorf("prefills took over %x", p.reused)
		}
	})
}

// TestUnreachable: a worker that is gone and not yet missed is asked once, not until no attempt is
// left, and the request waits for its successor.
func TestUnreachable(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		d := r.b.workers["d1"]
		d.kill()
		time.AfterFunc(3*time.Second, d.restart)
		if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
			t.Errorf("got %q", got)
		}
		if n := d.count("Reserve"); n != 2 {
			t.Errorf("asked %d times", n)
		}
		// The same when it only lost its connection for a moment.
		d.kill()
		time.AfterFunc(2500*time.Millisecond, func() {
			d.mu.Lock()
			d.gone = false
			d.mu.Unlock()
		})
		if got := r.chatText(r.post("/v1/chat/completions", chatBody)); got != answerText {
			t.Errorf("got %q", got)
		}
	})
}

// TestLeftovers: what a worker holds for an earlier life of the gateway is reported when it joins.
func TestLeftovers(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		w := r.b.add("d9", "decode")
		reg := w.registration()
		id := make([]byte, 16)
		reg.Owned = []*buspb.Owned{
			{Handoff: id, Gateway: "g1", GatewayIncarnation: 7, Side: buspb.Side_SIDE_DESTINATION, State: "Active"},
			{Handoff: id, Gateway: "g1", GatewayIncarnation: 1, Side: buspb.Side_SIDE_DESTINATION, State: "Active"},
			{Handoff: id, Gateway: "other", GatewayIncarnation: 7, Side: buspb.Side_SIDE_DESTINATION, State: "Active"},
		}
		r.g.registration(reg)
		n := 0
		for _, ev := range r.events.Since(0) {
			if ev.Kind == telemetry.WorkerHolds && ev.Worker == "d9" {
				n += ev.End
			}
		}
		if n != 1 {
			t.Errorf("%d handoffs reported", n)
		}
	})
}
