package verify

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// show plays a run of three cells to a table.
func show(live bool) string {
	plan := report()
	for i := range 3 {
		plan.Cells[i].Status, plan.Cells[i].Reason = "", ""
	}
	plan.Cells[2].Name = "refusal/tls/x"
	var out bytes.Buffer
	now := time.Unix(0, 0)
	t := NewTable(&out, live, "verifying m.gguf", plan, func() time.Time { now = now.Add(10 * time.Second); return now })
	t.Progress(Progress{Note: "prompts of 65536 tokens are left out: too long", Total: 3, Weights: 4})
	for i := range 3 {
		c := plan.Cells[i]
		t.Progress(Progress{Result: &c, Done: i, Total: 3, Weight: float64(i), Weights: 4})
		c.Status, c.Took = Passed, 1.5
		if i == 1 {
			c.Status, c.Reason = Explained, "near-tie"
		}
		t.Progress(Progress{Result: &c, Done: i + 1, Total: 3, Weight: float64(i + 1), Weights: 4})
	}
	t.End()
	return out.String()
}

// Without a terminal there is a line for each group, and for each cell that is worth one.
func TestPlainTable(t *testing.T) {
	want := `verifying m.gguf
  prompts of 65536 tokens are left out: too long
  100 tokens,               1/1    passed  1.5s
  explained: b: near-tie
  200 tokens,               0/1    passed, 1 explained  1.5s
  refusals over tls         1/1    passed  1.5s
`
	if d := cmp.Diff(want, show(false)); d != "" {
		t.Error(d)
	}
}

// On a terminal the block is redrawn in place, with what is left to do.
func TestLiveTable(t *testing.T) {
	got := show(true)
	for _, want := range []string{"\x1b[J", "explained: b: near-tie\n", "[############............] 2/3, about ", "refusals over tls         1/1    passed"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	if strings.Count(got, "explained: b") != 1 {
		t.Error("a cell's line came more than once")
	}
}

func TestSummary(t *testing.T) {
	r := report()
	r.Took = 12
	r.Cells[0].Compared = &Compared{Steps: 8, Tokens: 8, BitEqual: 8, Controlled: true}
	r.Cells[1].Compared = &Compared{Steps: 8, Tokens: 3, BitEqual: 0}
	var out bytes.Buffer
	if err := WriteSummary(&out, r); err != nil {
		t.Fatal(err)
	}
	want := `m.gguf (llama, ): 2 passed, 1 explained, 1 not built, in 12s
  explained: b: near-tie
  1 not built: later
  controlled: 1 cells, every bit of 8 steps equal; under load: 1 of 1 cells with other bits, 1 with another token
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Error(d)
	}
}

// Many cells of one kind do not bury the rest.
func TestSummaryIsShort(t *testing.T) {
	r := report()
	for range 50 {
		r.Cells = append(r.Cells, Result{Name: "x", Kind: KindImport, Status: Explained, Reason: "near-tie"})
	}
	r.count()
	var out bytes.Buffer
	if err := WriteSummary(&out, r); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "near-tie"); n != mostTold || !strings.Contains(out.String(), "explained: 41 more, see --json\n") {
		t.Errorf("%d lines of 51: %s", n, out.String())
	}
}
