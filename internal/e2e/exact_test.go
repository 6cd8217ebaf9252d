package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/telemetry"
)

// Prompt lengths around every boundary that matters: one token, the 64-cell tile
// of flash attention, the 512-token page, several pages, many pages.
var lengths = []int{1, 63, 64, 65, 511, 2000, 8000}

// TestHandoffIsExact asks the same questions colocated and disaggregated, over all
// lanes, in both orders and for all families, and compares token ids; and compares the
// state that the destination re-exports with the source's, byte by byte. The colocated
// answers come from the first fleet of a family and hold for the others too.
func TestHandoffIsExact(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			t.Parallel()
			file, err := tiny.Cached(arch)
			if err != nil {
				t.Fatal(err)
			}
			colocated := map[string]answer{}
			for _, way := range []struct{ lane, order string }{
				{"tls", "destination-first"}, {"quic", "destination-first"}, {"local", "destination-first"}, {"tls", "source-first"},
			} {
				t.Run(way.lane+"/"+way.order, func(t *testing.T) { compareAnswers(t, file, way.lane, way.order, colocated) })
			}
		})
	}
}

// compareAnswers asks a fleet whose bulk state takes one lane. It fills in the
// colocated answers that it does not find.
func compareAnswers(t *testing.T, file, lane, order string, colocated map[string]answer) {
	dumps := t.TempDir()
	f := up(t, "--model="+file, "--lane="+lane, "--order="+order, "--dump-state="+dumps, "--slots=2", "--context=8192", "--threads=1")
	answers := map[string]bool{}
	for _, n := range lengths {
		for _, sampled := range []bool{false, true} {
			a := ask{prompt: prompt(n, uint64(n)), max: 24}
			if sampled {
				a.extra = map[string]any{"temperature": 0.9, "top_p": 0.95, "top_k": 50, "seed": 7, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
			}
			question := fmt.Sprintf("%d tokens, sampled %v", n, sampled)
			want, known := colocated[question]
			if !known {
				a.mode = "colocated"
				want = f.complete(a)
				colocated[question] = want
			}
			a.mode = "disaggregated"
			got := f.complete(a)
			if len(want.Tokens) != 24 || want.Usage.Prompt != n || want.Usage.Completion != 24 {
				t.Errorf("%s: the colocated answer has %d tokens, usage %+v", question, len(want.Tokens), want.Usage)
			}
			if !slices.Equal(got.Tokens, want.Tokens) || got.Finish != want.Finish || got.Usage != want.Usage {
				t.Errorf("%s: the answers differ\ncolocated     %v %s %+v\ndisaggregated %v %s %+v",
					question, want.Tokens, want.Finish, want.Usage, got.Tokens, got.Finish, got.Usage)
			}
			answers[fmt.Sprint(got.Tokens)] = true
		}
	}
	if want := 2*len(lengths) - 1; len(answers) < want {
		t.Errorf("%d distinct answers, want at least %d: equal answers prove nothing", len(answers), want)
	}
	compareDumps(t, f, dumps, 2*len(lengths))
	checkWhoComputed(t, f, lane)
}

// compareDumps checks that every handoff left the same state on both sides.
func compareDumps(t *testing.T, f *fleet, dir string, want int) {
	t.Helper()
	var destinations []string
	f.eventually("both dumps of every handoff", func() bool {
		var err error
		if destinations, err = filepath.Glob(filepath.Join(dir, "*."+string(telemetry.Destination))); err != nil {
			t.Fatal(err)
		}
		return len(destinations) >= want
	})
	for _, d := range destinations {
		restored, err := os.ReadFile(d)
		if err != nil {
			t.Fatal(err)
		}
		exported, err := os.ReadFile(strings.TrimSuffix(d, string(telemetry.Destination)) + string(telemetry.Source))
		if err != nil {
			t.Fatal(err)
		}
		if len(restored) < 100 || !bytes.Equal(restored, exported) {
			t.Errorf("%s: the restored state (%d bytes) differs from the exported one (%d bytes)", filepath.Base(d), len(restored), len(exported))
		}
	}
}

// checkWhoComputed checks from the events that the decode worker never computed
// a prompt, that all handoffs ended as such, and which lane they took.
func checkWhoComputed(t *testing.T, f *fleet, lane string) {
	t.Helper()
	for _, e := range f.events("decode-0") {
		if e.Kind == telemetry.ChunkComputed {
			t.Error("the decode worker computed a prompt")
		}
	}
	var handedOff, lanes int
	f.eventually("the end of every stream", func() bool {
		handedOff, lanes = 0, 0
		for _, e := range f.events("prefill-0") {
			switch {
			case e.Kind == telemetry.StreamDone && e.Detail == lane:
				lanes++
			case e.Kind == telemetry.StreamDone:
				t.Errorf("a stream took the lane %q, want %q", e.Detail, lane)
			case e.Kind == telemetry.Transition && e.Record.SourceFact != nil:
				for _, a := range e.Record.SourceActions {
					if a.Kind == handoff.ActionReleaseSource && a.Outcome == handoff.OutcomeHandedOff {
						handedOff++
					}
				}
			}
		}
		return handedOff >= 2*len(lengths) && lanes >= 2*len(lengths)
	})
}

// TestStreamingOverlapsPrefill: for a long prompt the decode worker has imported
// all pages but the last two before prefill ends.
func TestStreamingOverlapsPrefill(t *testing.T) {
	f := up(t, "--slots=2", "--context=8704", "--threads=1")
	got := f.complete(ask{prompt: prompt(8000, 3), max: 8, mode: "disaggregated"})
	if len(got.Tokens) != 8 {
		t.Fatalf("answer has %d tokens", len(got.Tokens))
	}
	var pinned telemetry.Event
	pages := 0
	f.eventually("PrefillPinned", func() bool {
		pages = 0
		for _, e := range f.events("prefill-0") {
			switch {
			case e.Kind == telemetry.PageExported:
				pages++
			case e.Kind == telemetry.Transition && e.Record.SourceFact != nil && e.Record.SourceFact.Kind == handoff.FactPrefillPinned:
				pinned = e
			}
		}
		return pinned.Seq != 0
	})
	if pages < 16 {
		t.Fatalf("%d pages exported, want at least 16", pages)
	}
	before := 0
	for _, e := range f.events("decode-0") {
		if e.Kind == telemetry.PageImported && e.Now < pinned.Now {
			before++
		}
	}
	if before < pages-2 {
		t.Errorf("%d of %d pages were imported before prefill ended, want all but two", before, pages)
	}
	if n := f.metric("decode-0", `tandem_worker_computed_tokens_total{phase="decode"}`); n != 7 {
		t.Errorf("the decode worker computed %v tokens, want 7: one less than the answer has", n)
	}
	if n := f.metric("decode-0", `tandem_worker_computed_tokens_total{phase="prefill"}`); n != 0 {
		t.Errorf("the decode worker computed %v prompt tokens", n)
	}
}
