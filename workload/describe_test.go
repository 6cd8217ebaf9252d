package workload

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tandem-llm/tandem/engine/timed"
)

// The traces that come along, by what a program in another language found in them.
func TestDescribeExamples(t *testing.T) {
	for name, want := range map[string]Summary{
		"mooncake-conversation-10min.jsonl.gz": {
			Requests: 1750, Span: 597 * timed.Second, Rate: 2.92964824, GapCV: 2.79086817, Peak: 217, Tenants: 1,
			Input:  Lengths{Total: 24486514, Mean: 13992.293714, P50: 8036, P90: 30183, P99: 99934, Max: 123192},
			Output: Lengths{Total: 619615, Mean: 354.065714, P50: 364, P90: 610, P99: 1047, Max: 2000},
			Blocks: 48671, Distinct: 34850, Shared: 0.288854673,
		},
		"azure-2023-conversation-15min.csv.gz": {
			Requests: 4424, Span: 899_881_888 * timed.Microsecond, Rate: 4.91508948, GapCV: 1.07547847, Peak: 353, Tenants: 1,
			Input:  Lengths{Total: 5188168, Mean: 1172.732369, P50: 1047, P90: 2425, P99: 4109, Max: 7930},
			Output: Lengths{Total: 1125283, Mean: 254.358725, P50: 205, P90: 430, P99: 626, Max: 1000},
		},
	} {
		f, err := os.Open("../examples/replay/traces/" + name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r, err := Read(f, ReadOptions{Strict: true})
		if err != nil {
			t.Fatal(err)
		}
		got, err := Describe(r)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateApprox(1e-6, 0)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// By hand: what tenants share, what only begins alike, what a cut-off block counts.
func TestDescribe(t *testing.T) {
	r, err := Read(strings.NewReader(`{"arrival":0,"input":10,"output":1,"hash_tokens":4,"hashes":[1,2,3],"tenant":"a"}
{"arrival":1,"input":10,"output":2,"hash_tokens":4,"hashes":[1,2,4],"tenant":"a"}
{"arrival":1,"input":10,"output":3,"hash_tokens":4,"hashes":[1,2,3],"tenant":"b"}
{"arrival":61,"input":10,"output":4,"hash_tokens":4,"hashes":[5,2,3],"tenant":"a"}
{"arrival":62,"input":10,"output":2000000,"hash_tokens":4,"hashes":[1,2,4],"tenant":"a","session":1,"turn":2}
`), ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Describe(r)
	if err != nil {
		t.Fatal(err)
	}
	want := Summary{
		Requests: 5, Span: 62 * timed.Second, Rate: 4.0 / 62, GapCV: 1.65776, Peak: 3, Later: 1, Tenants: 2,
		Input:  Lengths{Total: 50, Mean: 10, P50: 10, P90: 10, P99: 10, Max: 10},
		Output: Lengths{Total: 2000010, Mean: 400002, P50: 3, P90: 2000000, P99: 2000000, Max: 2000000},
		Blocks: 15, Distinct: 8, Shared: (8 + 10) / 50.0,
	}
	if d := cmp.Diff(want, got, cmpopts.EquateApprox(1e-4, 0)); d != "" {
		t.Error(d)
	}
	var text strings.Builder
	if err := got.Print(&text); err != nil {
		t.Fatal(err)
	}
	const printed = `requests      5
span          62.000 s, 0.065 requests/s, at most 3 in a minute, gaps vary by 1.66 of their mean
input         50 tokens, mean 10.0, p50 10, p90 10, p99 10, max 10
output        2000010 tokens, mean 400002.0, p50 3, p90 2000000, p99 2000000, max 2000000
sharing       36.0 % of input tokens are in blocks that an earlier prompt began with (15 block ids, 8 different)
sessions      1 requests are later turns
tenants       2
`
	if d := cmp.Diff(printed, text.String()); d != "" {
		t.Error(d)
	}
}

// A closed loop ends: its turns are taken to last a second.
func TestDescribeClosed(t *testing.T) {
	s, err := Describe(generator(t, "closed sessions=2 input=1 output=1 seconds=10"))
	if err != nil || s.Requests != 20 || s.Span != 9*timed.Second {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestMalformedPrint(t *testing.T) {
	var m Malformed
	for i := range 22 {
		m.add(LineError{i + 2, Missing, "input"})
	}
	m.add(LineError{99, Disorder, "x"})
	var text strings.Builder
	if err := m.Print(&text); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(text.String(), "\n")
	if len(lines) != 23 || lines[0] != "malformed     23 lines, 22 missing field, 1 out of order" || lines[1] != "  line 2: missing field: input" || lines[21] != "  and 3 more" {
		t.Errorf("%q", lines)
	}
}
