package gateway

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
)

// pulls scripts the workers for handoffs that the destination comes for. answer is called for each
// reservation, in order, and says how long the destination waits for room; negative for ever.
func pulls(r *rig, answer func(d *worker, id string, n int) time.Duration) *[]*buspb.Reserve {
	var reserves []*buspb.Reserve
	gens := map[string]*buspb.Generation{}
	for _, w := range r.b.all() {
		w.onCommand = func(cmd *buspb.Command) (*buspb.Reply, bool) {
			id := string(cmd.GetHandoff())
			switch c := cmd.GetBody().(type) {
			case *buspb.Command_Prefill:
				if c.Prefill.GetTerms().GetPolicy() != buspb.Policy_POLICY_SOURCE_FIRST {
					return nil, false
				}
				gen := c.Prefill.GetGeneration()
				gens[id] = gen
				w.note(gen)
				w.mu.Lock()
				w.reused = append(w.reused, string(c.Prefill.GetReuse()))
				w.mu.Unlock()
				w.later(func() {
					w.generate(id, buspb.Side_SIDE_SOURCE, gen, 0, 1)
					w.status(id, buspb.Side_SIDE_SOURCE, &buspb.Status{Body: &buspb.Status_Pinned{Pinned: &buspb.Pinned{
						Usage:    &buspb.Usage{Prompt: uint32(len(gen.GetTokens())) - gen.GetForcedTokens()},
						Endpoint: &buspb.Endpoint{Quic: w.name + ":1"}, Ticket: []byte("of " + id),
					}}})
				})
				return accepted, true
			case *buspb.Command_Reserve:
				if c.Reserve.GetTerms().GetPolicy() != buspb.Policy_POLICY_SOURCE_FIRST {
					return nil, false
				}
				reserves = append(reserves, c.Reserve)
				gen := gens[id]
				if string(c.Reserve.GetSourceTicket()) != "of "+id || c.Reserve.GetSourceEndpoint().GetQuic() == "" {
					r.t.Errorf("a reservation with the ticket %q", c.Reserve.GetSourceTicket())
				}
				if int(c.Reserve.GetPromptTokens()) != len(gen.GetTokens()) || c.Reserve.GetForcedTokens() != gen.GetForcedTokens() {
					r.t.Errorf("%d tokens are reserved, %d of them forced; the source has %d and %d",
						c.Reserve.GetPromptTokens(), c.Reserve.GetForcedTokens(), len(gen.GetTokens()), gen.GetForcedTokens())
				}
				if want := gen.GetTokens(); w.finds && !slices.Equal(c.Reserve.GetTokens(), want) || !w.finds && c.Reserve.Tokens != nil {
					r.t.Errorf("reserved with %d tokens, prefilled with %d", len(c.Reserve.GetTokens()), len(want))
				}
				wait := answer(w, id, len(reserves))
				if wait < 0 {
					return accepted, true
				}
				time.AfterFunc(wait, func() {
					w.status(id, buspb.Side_SIDE_DESTINATION, &buspb.Status{Body: &buspb.Status_Reserved{Reserved: &buspb.Reserved{}}})
					w.status(id, buspb.Side_SIDE_DESTINATION, &buspb.Status{Body: &buspb.Status_Committed{Committed: &buspb.Committed{}}})
					w.generate(id, buspb.Side_SIDE_DESTINATION, gen, 1, -1)
				})
				return accepted, true
			}
			return nil, false
		}
	}
	return &reserves
}

// TestSourceFirstRefused: another destination gets what the source holds, with the client's tokens
// forced and a ticket of its own.
func TestSourceFirstRefused(t *testing.T) {
	finding := func(cfg *Config, b *scripted) {
		twoPairs(cfg, b)
		for _, w := range b.all() {
			w.finds = true
		}
	}
	inBubble(t, finding, func(r *rig) {
		var first string
		reserves := pulls(r, func(d *worker, id string, n int) time.Duration {
			if n > 1 {
				return 0
			}
			first = id
			d.later(func() {
				d.status(id, buspb.Side_SIDE_DESTINATION, &buspb.Status{Body: &buspb.Status_Refused{Refused: &buspb.Refused{}}})
			})
			return -1
		})
		text, finish, done := streamed(r.post("/v1/chat/completions", streamBody, "Tandem-Order", "source-first").Body.String())
		if text != answerText || finish != "stop" || !done {
			t.Fatalf("%q %q %v", text, finish, done)
		}
		p := r.b.workers["p1"]
		if len(p.reused) == 0 {
			p = r.b.workers["p2"]
		}
		if len(*reserves) != 2 || len(p.reused) != 2 || p.reused[1] != first || len(p.forced[1]) != 1 {
			t.Errorf("%d reservations, prefills took over %x, forced %v", len(*reserves), p.reused, p.forced)
		}
	})
}

// TestSourceFirstWaits: the lease is renewed for as long as the destination has no room, and not after.
func TestSourceFirstWaits(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		pulls(r, func(*worker, string, int) time.Duration { return 12 * time.Second })
		p := r.b.workers["p1"]
		text, _, done := streamed(r.post("/v1/chat/completions", streamBody, "Tandem-Order", "source-first").Body.String())
		n := p.count("Renew")
		if text != answerText || !done || n < 3 || n > 4 {
			t.Errorf("%q %v, %d renewals in 12 s", text, done, n)
		}
	})
}

// TestSourceFirstExpired: after a lease ran out the request goes on, destination-first.
func TestSourceFirstExpired(t *testing.T) {
	inBubble(t, twoPairs, func(r *rig) {
		reserves := pulls(r, func(_ *worker, id string, _ int) time.Duration {
			for _, w := range r.b.all() {
				if len(w.reused) > 0 {
					w.later(func() { w.status(id, buspb.Side_SIDE_SOURCE, ended(buspb.Outcome_OUTCOME_EXPIRED)) })
				}
			}
			return -1
		})
		text, _, done := streamed(r.post("/v1/chat/completions", streamBody, "Tandem-Order", "source-first").Body.String())
		if text != answerText || !done || len(*reserves) != 1 {
			t.Errorf("%q %v, %d reservations to be pulled", text, done, len(*reserves))
		}
	})
}

// TestSourceFirstClientGone: both sides are told while the destination waits for room.
func TestSourceFirstClientGone(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		var id string
		ctx, cancel := context.WithCancel(context.Background())
		pulls(r, func(_ *worker, h string, _ int) time.Duration {
			id = h
			time.AfterFunc(time.Second, cancel)
			return -1
		})
		r.postCtx(ctx, "/v1/chat/completions", chatBody, "Tandem-Order", "source-first")
		time.Sleep(time.Second)
		for _, w := range r.b.all() {
			if w.cancelled[id] != buspb.Reason_REASON_CLIENT {
				t.Errorf("%s was told %v", w.name, w.cancelled[id])
			}
		}
	})
}
