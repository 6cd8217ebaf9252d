package gateway

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/route"
)

// TestKVAware: a prompt goes where one that began alike was sent, if the same tenant sent it; without
// the policy it goes to the next worker in turn.
func TestKVAware(t *testing.T) {
	const acme, other = "Bearer sk-aaaaaaaaaaaaaaaa", "Bearer sk-bbbbbbbbbbbbbbbb"
	prompt := strings.Repeat("a", keyTokens)
	for name, tc := range map[string]struct {
		policy route.Policy
		want   []string
	}{
		"kv-aware":     {route.KVAware, []string{"p1 d1", "p1 d1", "p2 d2", "p2 d2", "p1 d1"}},
		"least-loaded": {route.LeastLoaded, []string{"p1 d1", "p2 d2", "p1 d1", "p2 d2", "p1 d1"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(cfg *Config, b *scripted) {
				cfg.Prefill, cfg.Decode = tc.policy, tc.policy
				keys, err := ParseKeys(strings.NewReader("acme sk-aaaaaaaaaaaaaaaa\nother sk-bbbbbbbbbbbbbbbb\n"))
				if err != nil {
					t.Fatal(err)
				}
				cfg.Keys = keys
				for _, n := range []string{"1", "2"} {
					b.add("p"+n, "prefill")
					b.add("d"+n, "decode")
				}
			}, func(r *rig) {
				for i, who := range []string{acme, acme, other, other, acme} {
					body := fmt.Sprintf(`{"model":"tiny","prompt":"%s%d","max_tokens":30}`, prompt, i)
					if w := r.post("/v1/completions", body, "Authorization", who); w.Code != 200 {
						t.Fatalf("%d: %s", w.Code, w.Body)
					}
				}
				var served []string
				for _, h := range r.list("") { // newest first
					served = append(served, h.Source.Worker+" "+h.Destination.Worker)
				}
				slices.Reverse(served)
				if d := cmp.Diff(tc.want, served); d != "" {
					t.Error(d)
				}
			})
		})
	}
}
