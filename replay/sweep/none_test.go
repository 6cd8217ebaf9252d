package sweep

import (
	"bytes"
	"context"
	"encoding/csv"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/replay/report"
)

// Where no request completed there is no latency, and none is shown: not 0.
func TestNothingMeasuredIsNoNumber(t *testing.T) {
	s := &Sweep{Base: base(), Run: func(context.Context, Cell) (*report.Result, error) {
		r := report.New(report.Options{})
		r.Request(&report.Request{Input: 10, Status: handoff.StatusRefused, Reason: "never fits"})
		return r.Finish(0)
	}}
	res, err := s.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table, text, page bytes.Buffer
	for _, err := range []error{res.Table(&table), res.CSV(&text), res.HTML(&page)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(table.String(), "–"); n != 7 { // three of TTFT and of TPOT, and the tail
		t.Errorf("%d figures are missing:\n%s", n, table.String())
	}
	lines, err := csv.NewReader(&text).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ttft_p50_s", "ttst_p90_s", "tpot_p99_s", "itl_p99_s", "e2e_p50_s", "tail_p99_s", "hidden_share"} {
		if got := lines[1][slices.Index(lines[0], name)]; got != "" {
			t.Errorf("%s is %q", name, got)
		}
	}
	if got := lines[1][slices.Index(lines[0], "refused")]; got != "1" {
		t.Errorf("refused is %q", got)
	}
}
