package gateway

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/bus/buspb"
)

// TestSkipFollowsTheAttempt: a destination that looks for prefixes is told the tokens of its own attempt,
// and what it has of them goes to the source with that attempt; others are told nothing.
func TestSkipFollowsTheAttempt(t *testing.T) {
	for _, k := range []struct {
		finds bool
		pages uint32 // of decode workers; those of prefill workers are 16 tokens
		told  bool
	}{{true, 16, true}, {true, 48, true}, {true, 24, false}, {true, 8, false}, {false, 16, false}} {
		var reserves []*buspb.Reserve
		var prefills []*buspb.Prefill
		inBubble(t, func(cfg *Config, b *scripted) {
			twoPairs(cfg, b)
			for _, w := range b.all() {
				w.keeps, w.finds = true, k.finds
				if w.role == "decode" {
					w.pages = k.pages
				}
				w.onCommand = func(cmd *buspb.Command) (*buspb.Reply, bool) {
					if r := cmd.GetReserve(); r != nil {
						reserves = append(reserves, r)
					}
					if p := cmd.GetPrefill(); p != nil {
						prefills = append(prefills, p)
					}
					return nil, false
				}
				w.onStatus = func(st *buspb.Status) []*buspb.Status {
					if r := st.GetReserved(); r != nil {
						r.SkipTokens = uint32(len(reserves))
						if len(reserves) == 1 {
							r.Ticket = []byte("of nobody") // the source does not get in, and keeps what it has
						}
					}
					return []*buspb.Status{st}
				}
			}
		}, func(r *rig) {
			if text, _, done := streamed(r.post("/v1/chat/completions", streamBody).Body.String()); text != answerText || !done {
				t.Fatalf("%q %v", text, done)
			}
			if len(reserves) != 2 || len(prefills) != 2 || len(prefills[1].Reuse) == 0 {
				t.Fatalf("%d reservations, %d prefills", len(reserves), len(prefills))
			}
			for i, p := range prefills {
				want := p.GetGeneration().GetTokens()
				if !k.told {
					want = nil
				}
				if !slices.Equal(reserves[i].Tokens, want) || p.SkipTokens != uint32(i+1) || int(p.GetGeneration().GetForcedTokens()) != i {
					t.Errorf("%+v, attempt %d: reserved with %d tokens, prefilled with %d of which %d are forced and %d skipped",
						k, i, len(reserves[i].Tokens), len(want), p.GetGeneration().GetForcedTokens(), p.SkipTokens)
				}
			}
		})
	}
}
