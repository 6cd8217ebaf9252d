package worker

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/wire"
)

// sourceFirst makes an attempt one whose destination pulls.
func (a *attempt) sourceFirst() *attempt {
	a.terms.Policy = buspb.Policy_POLICY_SOURCE_FIRST
	return a
}

// pullCommand asks the destination to come for what is pinned.
func (a *attempt) pullCommand(p *buspb.Pinned) *buspb.Command {
	c := a.reserveCommand()
	c.GetReserve().SourceEndpoint, c.GetReserve().SourceTicket = p.GetEndpoint(), p.GetTicket()
	return c
}

// pinned lets the source compute and returns where the state can be pulled from.
func (l *lab) pinned(a *attempt) *buspb.Pinned {
	l.t.Helper()
	if r := l.command(a.source, a.prefillCommand(nil)); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
		l.t.Fatalf("prefill: %v", r)
	}
	return l.await(a.id, "the pin", func(s *buspb.Status) bool { return s.GetPinned() != nil }).GetPinned()
}

// The destination that comes after prefill continues as if it had been there from the beginning.
func TestSourceFirst(t *testing.T) {
	for _, arch := range tiny.Archs() {
		for _, lane := range []wire.LaneMode{wire.LaneTLS, wire.LaneAuto} {
			t.Run(string(arch)+"/"+string(lane), func(t *testing.T) {
				l := newLab(t)
				over := func(c *Config) { c.Wire.Lane = lane }
				source, dst := l.worker("p", RolePrefill, arch, over), l.worker("d", RoleDecode, arch, over)
				a := l.attempt(source, dst, testPrompt(200), 12).sourceFirst()
				want := l.colocated(source, a)
				p := l.pinned(a)
				if p.GetUsage().GetPrompt() != 200 || len(p.Ticket) == 0 || p.GetEndpoint().GetQuic() == "" {
					t.Fatalf("the pin says %d tokens, a ticket of %d bytes, endpoint %q", p.GetUsage().GetPrompt(), len(p.Ticket), p.GetEndpoint().GetQuic())
				}
				if ids, _ := l.tokens(a.id); len(ids) != 1 {
					t.Errorf("%d tokens before the destination came, expected the first", len(ids))
				}
				if r := l.command(a.dst, a.pullCommand(p)); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
					t.Fatalf("reserve: %v", r)
				}
				if o := l.released(a.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_COMPLETED {
					t.Errorf("the destination ended as %v", o)
				}
				if o := l.released(a.id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_HANDED_OFF {
					t.Errorf("the source ended as %v", o)
				}
				got, finish := l.tokens(a.id)
				if !slices.Equal(got, want) || len(got) != 12 || finish != buspb.Finish_FINISH_LENGTH {
					t.Errorf("the answer differs: %d tokens, finish %v; colocated %d tokens", len(got), finish, len(want))
				}
				l.mu.Lock()
				src, restored := l.states[a.id.String()+string(telemetry.Source)], l.states[a.id.String()+string(telemetry.Destination)]
				l.mu.Unlock()
				if len(src) == 0 || !bytes.Equal(src, restored) {
					t.Errorf("restored state of %d bytes differs from the exported %d bytes", len(restored), len(src))
				}
				l.idle(source)
				l.idle(dst)
			})
		}
	}
}

// A pinned source that nobody comes for lets go when its lease is over, with no new work and no
// message, and its ticket is worthless then.
func TestSourceFirstNoShow(t *testing.T) {
	l := newLab(t)
	source := l.worker("p", RolePrefill, tiny.NemotronHMoE, func(c *Config) { c.Lease = 300 * time.Millisecond })
	dst := l.worker("d", RoleDecode, tiny.NemotronHMoE, nil)
	a := l.attempt(source, dst, testPrompt(100), 4).sourceFirst()
	p := l.pinned(a)
	if o := l.released(a.id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_EXPIRED {
		t.Errorf("the source ended as %v", o)
	}
	l.idle(source)
	l.command(a.dst, a.pullCommand(p))
	if o := l.released(a.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_FAILED {
		t.Errorf("a destination that came too late ended as %v", o)
	}
	l.idle(dst)
}

// Renewed, the lease lasts until the destination has room, however long that takes.
func TestSourceFirstRenewed(t *testing.T) {
	l := newLab(t)
	const lease = 2 * time.Second
	source := l.worker("p", RolePrefill, tiny.Llama, func(c *Config) { c.Lease = lease })
	dst := l.worker("d", RoleDecode, tiny.Llama, nil)
	a := l.attempt(source, dst, testPrompt(100), 4).sourceFirst()
	want := l.colocated(source, a)
	p := l.pinned(a)
	for seq := range uint64(2) {
		c := &buspb.Command{Handoff: a.id[:], Request: a.request, Body: &buspb.Command_Renew{Renew: &buspb.Renew{Seq: seq + 1, ForMs: 60_000}}}
		if r := l.command(a.source, c); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED || r.State != "Pinned" {
			t.Fatalf("renewal %d: %v in state %s", seq, r.Verdict, r.State)
		}
		if seq == 0 {
			time.Sleep(lease * 5 / 4) // past the first lease: only the renewal keeps it
		}
	}
	l.command(a.dst, a.pullCommand(p))
	if o := l.released(a.id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_HANDED_OFF {
		t.Errorf("the source ended as %v", o)
	}
	l.released(a.id, buspb.Side_SIDE_DESTINATION)
	if got, _ := l.tokens(a.id); !slices.Equal(got, want) {
		t.Error("the answer differs")
	}
	l.idle(source)
	l.idle(dst)
}

// Who comes without the ticket is refused and the source stays as it was; who is cancelled or loses its
// source leaves nothing behind.
func TestSourceFirstFailures(t *testing.T) {
	l := newLab(t)
	source, dst := l.worker("p", RolePrefill, tiny.Gemma3, nil), l.worker("d", RoleDecode, tiny.Gemma3, nil)
	t.Run("wrong ticket", func(t *testing.T) {
		a := l.attempt(source, dst, testPrompt(100), 4).sourceFirst()
		p := l.pinned(a)
		good := bytes.Clone(p.Ticket)
		p.Ticket[0] ^= 1
		l.command(a.dst, a.pullCommand(p))
		if o := l.released(a.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_FAILED {
			t.Errorf("the destination ended as %v", o)
		}
		c := &buspb.Command{Handoff: a.id[:], Request: a.request, Body: &buspb.Command_Query{Query: &buspb.Query{}}}
		if r := l.command(a.source, c); r.State != "Pinned" {
			t.Errorf("the source is %s", r.State)
		}
		// Another attempt takes over what it holds.
		b := l.attempt(source, dst, testPrompt(100), 4).sourceFirst()
		b.request = a.request
		take := b.prefillCommand(nil)
		take.GetPrefill().Reuse = a.id[:]
		computed := l.computedOn(source)
		l.command(b.source, take)
		q := l.await(b.id, "the second pin", func(s *buspb.Status) bool { return s.GetPinned() != nil }).GetPinned()
		if bytes.Equal(q.Ticket, good) {
			t.Error("the second attempt has the first one's ticket")
		}
		l.command(b.dst, b.pullCommand(q))
		if o := l.released(b.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_COMPLETED {
			t.Errorf("the second destination ended as %v", o)
		}
		if o := l.released(a.id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_CANCELLED {
			t.Errorf("the first attempt ended at the source as %v", o)
		}
		if n := l.computedOn(source) - computed; n != 0 {
			t.Errorf("the source computed %d tokens again", n)
		}
	})
	t.Run("no address", func(t *testing.T) {
		a := l.attempt(source, dst, testPrompt(100), 4).sourceFirst()
		if r := l.command(a.dst, a.reserveCommand()); r.Code != buspb.Code_CODE_BAD_REQUEST {
			t.Errorf("a reservation without a source: %v", r)
		}
	})
	t.Run("cancelled while pinned", func(t *testing.T) {
		a := l.attempt(source, dst, testPrompt(100), 4).sourceFirst()
		p := l.pinned(a)
		l.command(a.source, &buspb.Command{Handoff: a.id[:], Request: a.request, Body: &buspb.Command_Cancel{Cancel: &buspb.Cancel{
			Reason: buspb.Reason_REASON_CLIENT, Side: buspb.Side_SIDE_SOURCE,
		}}})
		if o := l.released(a.id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_CANCELLED {
			t.Errorf("the source ended as %v", o)
		}
		l.command(a.dst, a.pullCommand(p))
		if o := l.released(a.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_FAILED {
			t.Errorf("the destination ended as %v", o)
		}
	})
	l.idle(source)
	l.idle(dst)
	t.Run("while the source drains", func(t *testing.T) {
		a := l.attempt(source, dst, testPrompt(100), 4).sourceFirst()
		l.pinned(a)
		source.box.post(func() { source.draining, source.drainEnd = true, source.now()+limit })
		b := l.attempt(source, dst, testPrompt(100), 4).sourceFirst()
		if r := l.command(b.source, b.prefillCommand(nil)); r.Code != buspb.Code_CODE_DRAINING || !r.Retry {
			t.Errorf("a new prompt: %v", r)
		}
		b.request = a.request
		take := b.prefillCommand(nil)
		take.GetPrefill().Reuse = a.id[:]
		if r := l.command(b.source, take); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
			t.Fatalf("taking over: %v", r)
		}
		q := l.await(b.id, "the second pin", func(s *buspb.Status) bool { return s.GetPinned() != nil }).GetPinned()
		l.command(b.dst, b.pullCommand(q))
		if o := l.released(b.id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_HANDED_OFF {
			t.Errorf("the source ended as %v", o)
		}
		if o := l.released(b.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_COMPLETED {
			t.Errorf("the destination ended as %v", o)
		}
	})
}

// What a client has got meanwhile is computed on top of what is taken over, and the destination of the
// second attempt goes on from there.
func TestSourceFirstReboundForced(t *testing.T) {
	for _, arch := range []tiny.Arch{tiny.Llama, tiny.NemotronHMoE} {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			source, dst := l.worker("p", RolePrefill, arch, nil), l.worker("d", RoleDecode, arch, nil)
			a := l.attempt(source, dst, testPrompt(128), 8).sourceFirst() // two whole pages
			want := l.colocated(source, a)
			l.pinned(a)
			first, _ := l.tokens(a.id)
			b := l.attempt(source, dst, append(testPrompt(128), first...), 8).sourceFirst()
			b.request, b.gen.ForcedTokens = a.request, uint32(len(first))
			take := b.prefillCommand(nil)
			take.GetPrefill().Reuse = a.id[:]
			computed := l.computedOn(source)
			l.command(b.source, take)
			p := l.await(b.id, "the second pin", func(s *buspb.Status) bool { return s.GetPinned() != nil }).GetPinned()
			if n := l.computedOn(source) - computed; n != 1 {
				t.Errorf("the source computed %d tokens, expected the forced one", n)
			}
			l.command(b.dst, b.pullCommand(p))
			if o := l.released(b.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_COMPLETED {
				t.Errorf("the destination ended as %v", o)
			}
			l.released(b.id, buspb.Side_SIDE_SOURCE)
			l.mu.Lock()
			l.statuses[b.id] = append(slices.Clone(l.statuses[a.id]), l.statuses[b.id]...)
			l.mu.Unlock()
			if got, _ := l.tokens(b.id); !slices.Equal(got, want) {
				t.Errorf("the answer is %v, colocated %v", got, want)
			}
			l.idle(source)
			l.idle(dst)
		})
	}
}
