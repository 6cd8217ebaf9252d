package replay

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/workload"
)

// A handoff of live processes, as `tandem up --trace-dir` wrote it down (a model of
// two layers, a prompt of 2702 tokens, an answer of 20), and the same one replayed:
// machine by machine the same facts lead to the same states and ask for the same.
func TestParityWithLive(t *testing.T) {
	for _, order := range []handoff.Policy{handoff.DestinationFirst, handoff.SourceFirst} {
		t.Run(order.String(), func(t *testing.T) {
			raw, err := os.ReadFile("testdata/live/" + strings.ReplaceAll(order.String(), "-", "_") + ".jsonl")
			if err != nil {
				t.Fatal(err)
			}
			live := map[handoff.Role][]string{}
			for r, err := range handoff.ReadRecords(bytes.NewReader(raw)) {
				if err != nil {
					t.Fatal(err)
				}
				told(live, &r)
			}
			var trace bytes.Buffer
			simulate(t, fmt.Sprintf(`
mode: disaggregated
order: %s
pools:
  - name: p
    fixed: {decode_ms: 5, token_ms: 0.05}
    geometry: {attention_per_token: 512}
    memory: {block_tokens: 64, blocks: 1000}
    schedule: {budget: 528, chunk: 512}
  - name: d
    role: decode
    fixed: {decode_ms: 5}
    geometry: {attention_per_token: 512}
    memory: {block_tokens: 64, blocks: 1000}
`, order), &list{requests: []workload.Request{{Input: 2702, Output: 20}}}, Options{Lifecycle: &trace})
			events, err := replayed(&trace)
			if err != nil {
				t.Fatal(err)
			}
			virtual := map[handoff.Role][]string{}
			for _, e := range events {
				if e.Record != nil {
					told(virtual, e.Record)
				}
			}
			for _, role := range []handoff.Role{handoff.RoleSource, handoff.RoleDestination, handoff.RoleRequest} {
				if role == handoff.RoleRequest { // what two workers report may cross
					slices.Sort(live[role])
					slices.Sort(virtual[role])
				}
				if len(live[role]) < 5 {
					t.Fatalf("%d facts of the %s", len(live[role]), role)
				}
				if d := cmp.Diff(live[role], virtual[role]); d != "" {
					t.Errorf("%s, live and virtual:\n%s", role, d)
				}
			}
		})
	}
}

// told adds what a record tells of its machine. Times differ, so timers are left out;
// and so are three things that replay does not do, because nothing follows from them:
// renewing a lease whenever the stream has room, telling that a stream which had
// done its work is quiet, and telling tokens in portions of another size. What a
// request's machine is in when reports of two workers cross is left out too.
func told(by map[handoff.Role][]string, r *handoff.Record) {
	var fact string
	var actions []string
	add := func(kind handoff.ActionKind, report handoff.Report, tokens int) {
		if kind != handoff.ActionWakeAt {
			actions = append(actions, fmt.Sprint(kind, " ", report, " ", tokens))
		}
	}
	switch {
	case r.SourceFact != nil:
		f := r.SourceFact
		if f.Kind == handoff.FactTransferQuiesced || f.Kind == handoff.FactLeaseRenewed && f.Seq == 0 {
			return
		}
		fact = fmt.Sprintf("%s %s prompt %d, answer %d, skip %d → %s", f.Kind, f.Policy, f.PromptTokens, f.MaxTokens, f.SkipTokens, r.State)
		for _, a := range r.SourceActions {
			add(a.Kind, a.Report, a.SkipTokens)
		}
	case r.DestinationFact != nil:
		f := r.DestinationFact
		if f.Kind == handoff.FactTransferQuiesced {
			return
		}
		fact = fmt.Sprintf("%s %s prompt %d, headroom %d, skip %d → %s", f.Kind, f.Policy, f.PromptTokens, f.Headroom, f.SkipTokens, r.State)
		for _, a := range r.DestinationActions {
			add(a.Kind, a.Report, a.PromptTokens)
		}
	default:
		f := r.RequestFact
		if f.Kind == handoff.FactTokenOut && f.Finish == 0 {
			return
		}
		fact = fmt.Sprintf("%s %s %s", f.Kind, f.Policy, f.Booking)
		crosses := f.Kind == handoff.FactPrefillPinned || f.Kind == handoff.FactCommitted || f.Kind == handoff.FactSourceReleased
		for _, a := range r.RequestActions {
			if a.Kind != handoff.ActionForward && !crosses {
				add(a.Kind, 0, 0)
			}
		}
	}
	by[r.Role] = append(by[r.Role], fact+": "+strings.Join(actions, ", "))
}
