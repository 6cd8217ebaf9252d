package worker

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
)

// commandable is a worker that can refuse commands: it has neither engine nor bus.
func commandable(t *testing.T) *Worker {
	t.Helper()
	w := &Worker{
		cfg: Config{
			Role: RoleBoth, Incarnation: 1, ContextTokens: 100, PageTokens: 20, MaxWaiting: 4, Quarantine: time.Second,
			Log: slog.New(slog.DiscardHandler),
		},
		epoch: time.Now(), tasks: map[handoff.ID]*task{}, unacked: map[handoff.ID]*task{}, gateways: map[string]*gateway{},
	}
	w.mem = memoryFor(t, w.cfg, 4, 400)
	w.tombs = handoff.NewTombstones(tombstoneLife, uint64(w.epoch.UnixMilli()), 0)
	return w
}

func reserveFor(prompt, maxTokens uint32) *buspb.Command {
	id := newID()
	return &buspb.Command{
		Gateway: "gw", GatewayIncarnation: 2, Handoff: id[:], Request: "r",
		Body: &buspb.Command_Reserve{Reserve: &buspb.Reserve{
			Terms:        &buspb.Terms{RemainingMs: 1000, BudgetMs: 1000, Policy: buspb.Policy_POLICY_DESTINATION_FIRST},
			PromptTokens: prompt, MaxTokens: maxTokens,
		}},
	}
}

// TestRefusedCommandLeavesNothing: what cannot be started is refused, and nothing is kept
// of it: a task that its machine does not know has no deadline.
func TestRefusedCommandLeavesNothing(t *testing.T) {
	longName := reserveFor(10, 10)
	longName.Request = strings.Repeat("r", bus.MaxText+1)
	noPeer := reserveFor(10, 10)
	noPeer.Body = &buspb.Command_Prefill{Prefill: &buspb.Prefill{
		Terms: noPeer.GetReserve().Terms, Generation: &buspb.Generation{Tokens: []int32{1}, MaxTokens: 1},
	}}
	otherCount := reserveFor(10, 10)
	otherCount.GetReserve().Tokens = make([]int32, 9)
	skips := func(policy buspb.Policy, tokens uint32) *buspb.Command {
		c := reserveFor(10, 10)
		terms := c.GetReserve().Terms
		terms.Policy, terms.Destination = policy, &buspb.Peer{Worker: "d", Incarnation: 1}
		c.Body = &buspb.Command_Prefill{Prefill: &buspb.Prefill{
			Terms: terms, Generation: &buspb.Generation{Tokens: make([]int32, 10), MaxTokens: 1}, SkipTokens: tokens,
		}}
		return c
	}
	for _, c := range []struct {
		name   string
		cmd    *buspb.Command
		change func(*Worker)
		code   buspb.Code
	}{
		{"a prompt beyond the context", reserveFor(101, 1), nil, buspb.Code_CODE_TOO_LONG},
		{"the largest numbers", reserveFor(1<<32-1, 1<<32-1), nil, buspb.Code_CODE_TOO_LONG},
		{"a name that no announcement can carry", longName, nil, buspb.Code_CODE_BAD_REQUEST},
		{"a prefill for nobody", noPeer, nil, buspb.Code_CODE_BAD_REQUEST},
		{"fewer tokens than will come", otherCount, nil, buspb.Code_CODE_BAD_REQUEST},
		{"a destination that has more than the prompt", skips(buspb.Policy_POLICY_DESTINATION_FIRST, 11), nil, buspb.Code_CODE_BAD_REQUEST},
		{"a gateway that speaks for a destination that pulls", skips(buspb.Policy_POLICY_SOURCE_FIRST, 5), nil, buspb.Code_CODE_BAD_REQUEST},
		{
			"a command that the machine does not take", reserveFor(10, 10),
			func(w *Worker) { w.cfg.Quarantine = -1 }, buspb.Code_CODE_BAD_REQUEST,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := commandable(t)
			if c.change != nil {
				c.change(w)
			}
			if r := w.execute(c.cmd, w.now()); r.Verdict != buspb.Verdict_VERDICT_REFUSED || r.Code != c.code {
				t.Errorf("answered with %v", r)
			}
			if len(w.tasks)+len(w.unacked) != 0 || !w.mem.sched.Drained() {
				t.Errorf("%d tasks are kept, the scheduler knows some: %v", len(w.tasks)+len(w.unacked), !w.mem.sched.Drained())
			}
		})
	}
	w := commandable(t)
	if r := w.execute(reserveFor(100, 1<<32-1), w.now()); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
		t.Errorf("a prompt that fills the context is answered with %v", r)
	}
	if s := w.mem.kv.Snapshot(); s.Reserved*w.mem.block != 100 || s.Headroom != 0 {
		t.Errorf("a prompt that fills the context has %d blocks of %d cells, and %d promised", s.Reserved, w.mem.block, s.Headroom)
	}
}

// TestEarlierLifeOfGatewayStartsNothing: a command that is overtaken by its gateway's
// restart would hold a slot that nobody gives back before the deadline.
func TestEarlierLifeOfGatewayStartsNothing(t *testing.T) {
	w := commandable(t)
	w.gatewaySeen("gw", 3, false)
	if r := w.execute(reserveFor(10, 10), w.now()); r.Verdict != buspb.Verdict_VERDICT_REFUSED || len(w.tasks) != 0 {
		t.Errorf("answered with %v, %d tasks", r, len(w.tasks))
	}
	other := reserveFor(10, 10)
	other.Gateway = "gw2" // incarnations of different gateways are not compared
	if r := w.execute(other, w.now()); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
		t.Errorf("answered with %v", r)
	}
}
