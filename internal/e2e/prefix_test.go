package e2e

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/model/tiny"
)

// TestPrefixCache: a prompt that was computed before is computed from its last whole page
// on, in every mode and order, and the client is told so; the answer is the same.
func TestPrefixCache(t *testing.T) {
	for _, arch := range []tiny.Arch{tiny.Llama, tiny.NemotronHMoE} {
		t.Run(string(arch), func(t *testing.T) { prefixCache(t, arch) })
	}
}

func prefixCache(t *testing.T, arch tiny.Arch) {
	file, err := tiny.Cached(arch)
	if err != nil {
		t.Fatal(err)
	}
	f := up(t, "--model="+file, "--context=1024", "--page-tokens=64", "--threads=1", "--prefix-cache")
	cold := f.complete(ask{prompt: prompt(300, 1), max: 24, mode: "colocated"})
	if cold.Usage.Details.Cached != 0 || len(cold.Tokens) != 24 {
		t.Errorf("the first request: %d tokens, %d of the prompt cached", len(cold.Tokens), cold.Usage.Details.Cached)
	}
	for _, a := range []ask{
		{mode: "colocated"}, {mode: "disaggregated"}, {mode: "disaggregated", order: "source-first"}, {mode: "colocated"},
	} {
		a.prompt, a.max = prompt(300, 1), 24
		got := f.complete(a)
		if got.Usage.Details.Cached != 256 || got.Usage.Prompt != 300 {
			t.Errorf("%s %s: %d of %d tokens cached, want 256 of 300", a.mode, a.order, got.Usage.Details.Cached, got.Usage.Prompt)
		}
		if !slices.Equal(got.Tokens, cold.Tokens) {
			t.Errorf("%s %s: another answer than that of the cold request", a.mode, a.order)
		}
	}
	// The decode worker had all whole pages when the second handoff came, and only the rest of it travelled.
	f.eventually("pages that did not travel", func() bool {
		return f.metric("gateway", `tandem_handoff_tokens_total{kind="cached",side="destination"}`) == 256 &&
			f.metric("gateway", "tandem_handoff_skipped_bytes_total") > 0
	})
	// So it has of its own answer when the conversation goes on: 300 + 100 tokens, the last one not computed.
	first := f.complete(ask{prompt: prompt(300, 5), max: 100, mode: "disaggregated"})
	turn := slices.Concat(prompt(300, 5), first.Tokens, prompt(40, 3))
	second := f.complete(ask{prompt: turn, max: 24, mode: "disaggregated"})
	if want := f.complete(ask{prompt: turn, max: 24, mode: "disaggregated", order: "source-first"}); !slices.Equal(second.Tokens, want.Tokens) || len(want.Tokens) != 24 {
		t.Error("the second turn has another answer in the other order")
	}
	f.eventually("pages of an answer that did not travel", func() bool {
		return f.metric("gateway", `tandem_handoff_tokens_total{kind="cached",side="destination"}`) == 256+384+384
	})
	if got := f.complete(ask{prompt: prompt(300, 2), max: 24, mode: "colocated"}); got.Usage.Details.Cached != 0 {
		t.Errorf("another prompt: %d tokens cached", got.Usage.Details.Cached)
	}
}
