package worker

import (
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/model/tiny"
)

// TestDestinationReportsWholeAnswer: the gateway may hear of the commit before it
// hears of the source's token, and listens to the destination alone from then on.
func TestDestinationReportsWholeAnswer(t *testing.T) {
	l := newLab(t)
	source, dst := l.worker("p", RolePrefill, tiny.Llama, nil), l.worker("d", RoleDecode, tiny.Llama, nil)
	a := l.attempt(source, dst, testPrompt(100), 6)
	a.gen.Logprobs, a.gen.TopLogprobs = true, 2
	l.command(a.source, a.prefillCommand(l.reserve(a)))
	l.released(a.id, buspb.Side_SIDE_DESTINATION)
	l.released(a.id, buspb.Side_SIDE_SOURCE)
	all, _ := l.tokens(a.id)
	l.mu.Lock()
	defer l.mu.Unlock()
	var got []int32
	var first [3]*buspb.Token // by side
	for _, s := range l.statuses[a.id] {
		for i, tok := range s.GetTokens().GetTokens() {
			if s.Side == buspb.Side_SIDE_DESTINATION {
				if int(s.GetTokens().From)+i != len(got) {
					t.Errorf("token %d where %d is next", int(s.GetTokens().From)+i, len(got))
				}
				got = append(got, tok.Id)
			}
			if s.GetTokens().From == 0 {
				first[s.Side] = tok
			}
		}
	}
	if !slices.Equal(got, all) || len(got) != 6 {
		t.Errorf("the destination reported %d tokens, both sides together %d", len(got), len(all))
	}
	if s, d := first[buspb.Side_SIDE_SOURCE], first[buspb.Side_SIDE_DESTINATION]; s.String() != d.String() || len(s.GetTop()) != 2 {
		t.Errorf("the first token as the source tells it: %v; as the destination does: %v", s, d)
	}
}

// TestCancelOvertakesCommand: a cancel of a handoff that was never heard of leaves
// nothing but the memory that the command is not to be started.
func TestCancelOvertakesCommand(t *testing.T) {
	l := newLab(t)
	source, dst := l.worker("p", RolePrefill, tiny.Llama, nil), l.worker("d", RoleDecode, tiny.Llama, nil)
	a := l.attempt(source, dst, testPrompt(100), 6)
	cancel := func(side buspb.Side) *buspb.Command {
		return &buspb.Command{Handoff: a.id[:], Request: a.request, Body: &buspb.Command_Cancel{Cancel: &buspb.Cancel{Side: side}}}
	}
	l.command(a.source, cancel(buspb.Side_SIDE_SOURCE))
	l.command(a.dst, cancel(buspb.Side_SIDE_DESTINATION))
	for _, side := range []buspb.Side{buspb.Side_SIDE_SOURCE, buspb.Side_SIDE_DESTINATION} {
		if o := l.released(a.id, side); o != buspb.Outcome_OUTCOME_CANCELLED {
			t.Errorf("%v ended as %v", side, o)
		}
	}
	if r := l.command(a.dst, a.reserveCommand()); r.Verdict != buspb.Verdict_VERDICT_RELEASED || r.Outcome != buspb.Outcome_OUTCOME_CANCELLED {
		t.Errorf("the overtaken reserve is answered with %v", r)
	}
	if r := l.command(a.source, a.prefillCommand(&buspb.Reserved{})); r.Verdict != buspb.Verdict_VERDICT_RELEASED || r.Outcome != buspb.Outcome_OUTCOME_CANCELLED {
		t.Errorf("the overtaken prefill is answered with %v", r)
	}
	l.idle(source)
	l.idle(dst)
	for _, w := range []*Worker{source, dst} {
		done := make(chan int)
		w.box.post(func() { done <- len(w.tasks) })
		if n := <-done; n != 0 {
			t.Errorf("%d tasks are left", n)
		}
	}
}

// TestSilentGatewayHearsTheEnd: a gateway that was out of reach for longer than the
// grace period, and is still the same, hears that its handoff was ended.
func TestSilentGatewayHearsTheEnd(t *testing.T) {
	l := newLab(t)
	short := func(c *Config) { c.GatewayGrace = bus.Beat / 4 }
	source, dst := l.worker("p", RolePrefill, tiny.Llama, short), l.worker("d", RoleDecode, tiny.Llama, short)
	a := l.attempt(source, dst, testPrompt(100), 6)
	l.command(a.dst, a.reserveCommand())
	if o := l.released(a.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_CANCELLED {
		t.Errorf("the destination ended as %v", o)
	}
	// A source whose destination does not answer: the gateway's silence ends it first.
	mute, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	b := l.attempt(source, dst, testPrompt(100), 6)
	l.command(b.source, b.prefillCommand(&buspb.Reserved{Endpoint: &buspb.Endpoint{Quic: mute.LocalAddr().String()}, Ticket: make([]byte, 32)}))
	if o := l.released(b.id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_CANCELLED {
		t.Errorf("the source ended as %v", o)
	}
	l.idle(source)
	l.idle(dst)
}

// refusing is an engine whose imports fail at their last part.
type refusing struct{ engine.Engine }

type refusingImport struct{ engine.Import }

var errRefusing = errors.New("refused by the test")

func (e refusing) BeginImport(seq int32, tokens int) (engine.Import, error) {
	imp, err := e.Engine.BeginImport(seq, tokens)
	return refusingImport{imp}, err
}

func (i refusingImport) Snapshot([]byte) error { return errors.Join(errRefusing, i.Discard()) }

// TestRebind: after a destination failed, the next attempt takes over what the
// source holds, whether the client has the source's token already or not, and the
// answer is the same.
func TestRebind(t *testing.T) {
	for name, forced := range map[string]bool{"token known": true, "token lost": false} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			source := l.worker("p", RolePrefill, tiny.NemotronHMoE, nil)
			bad := l.worker("bad", RoleDecode, tiny.NemotronHMoE, func(c *Config) { c.Engine = refusing{c.Engine} })
			good := l.worker("good", RoleDecode, tiny.NemotronHMoE, nil)
			a := l.attempt(source, bad, testPrompt(150), 8)
			want := l.colocated(source, a)
			l.command(a.source, a.prefillCommand(l.reserve(a)))
			l.released(a.id, buspb.Side_SIDE_DESTINATION)
			computed := l.computedOn(source)

			b := l.attempt(source, good, testPrompt(150), 8)
			b.request = a.request
			if forced {
				b.gen.Tokens, b.gen.ForcedTokens = append(b.gen.Tokens, want[0]), 1
			}
			c := b.prefillCommand(l.reserve(b))
			c.GetPrefill().Reuse = a.id[:]
			if r := l.command(b.source, c); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
				t.Fatalf("rebind: %v", r)
			}
			if o := l.released(b.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_COMPLETED {
				t.Errorf("the new destination ended as %v", o)
			}
			if o := l.released(b.id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_HANDED_OFF {
				t.Errorf("the new attempt ended at the source as %v", o)
			}
			if o := l.released(a.id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_CANCELLED {
				t.Errorf("the old attempt ended at the source as %v", o)
			}
			got := map[uint32]int32{}
			l.mu.Lock()
			for _, s := range l.statuses[b.id] {
				for i, tok := range s.GetTokens().GetTokens() {
					got[s.GetTokens().From+uint32(i)] = tok.Id
				}
			}
			l.mu.Unlock()
			begin := 0
			if forced {
				begin = 1
			}
			for i := begin; i < len(want); i++ {
				if id, ok := got[uint32(i)]; !ok || id != want[i] {
					t.Errorf("token %d is %d (there: %v), want %d", i, id, ok, want[i])
				}
			}
			if n := l.computedOn(source) - computed; n > 1 {
				t.Errorf("the source computed %d tokens again", n)
			}
			l.idle(source)
			l.idle(good)
			l.idle(bad)
		})
	}
}

// computedOn returns the number of prompt tokens that a worker has computed.
func (l *lab) computedOn(w *Worker) int {
	l.t.Helper()
	n := 0
	for _, e := range w.cfg.Events.Since(0) {
		if e.Kind == "chunk_computed" {
			n += e.End - e.First
		}
	}
	return n
}

// TestStatusesAreRepeated: without an acknowledgement a status comes again, also
// while newer ones keep coming, and not more often than the pause allows.
func TestStatusesAreRepeated(t *testing.T) {
	w := &Worker{epoch: time.Now(), gateways: map[string]*gateway{"gw": {incarnation: 1}}, tasks: map[handoff.ID]*task{}, unacked: map[handoff.ID]*task{}}
	task := &task{id: newID(), gateway: gatewayID{"gw", 1}}
	w.tasks[task.id] = task
	ago := func(d time.Duration) { w.epoch = w.epoch.Add(-d) }
	took := func() int {
		n := len(w.gateways["gw"].queue)
		w.gateways["gw"].queue = nil
		return n
	}
	for i := range 5 {
		w.send(task, &buspb.Status{})
		w.resendOverdue()
		if n := took(); i < 4 && n != 1 || i == 4 && n != 1+5 {
			t.Fatalf("step %d: %d statuses went out", i, n)
		}
		ago(resendAfter / 4)
	}
	w.resend(task)
	if n := took(); n != 5 {
		t.Errorf("%d statuses were repeated, want 5", n)
	}
	w.resend(task)
	if n := took(); n != 0 {
		t.Errorf("%d statuses were repeated at once, want none", n)
	}
	ago(resendPause)
	w.acknowledge(task, 3)
	w.resend(task)
	if n := took(); n != 2 {
		t.Errorf("%d statuses were repeated, want 2", n)
	}
}
