package soak

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testShape() Shape {
	s := Shape{Page: 128, Context: 2048}
	for t := range int32(200) {
		s.Vocab = append(s.Vocab, 7+t)
	}
	return s
}

// TestGenerator: a seed gives one load, whoever asks for it in which order, every request
// fits, and everything that a soak is about is in it.
func TestGenerator(t *testing.T) {
	shape := testShape()
	g, again, other := NewGenerator(1, shape), NewGenerator(1, shape), NewGenerator(2, shape)
	const n = 2000
	all := make([]Request, n)
	for i := range all {
		all[i] = g.Request(i)
	}
	differ := false
	seen := map[string]int{}
	for i := n - 1; i >= 0; i-- {
		q := all[i]
		if d := cmp.Diff(q, again.Request(i)); d != "" {
			t.Fatalf("request %d is not the same twice:\n%s", i, d)
		}
		differ = differ || !slices.Equal(q.Prompt, other.Request(i).Prompt)
		if len(q.Prompt) < 1 || q.Max < 1 || len(q.Prompt)+q.Max > shape.Context {
			t.Fatalf("request %d: %d tokens of prompt and %d of answer in a context of %d", i, len(q.Prompt), q.Max, shape.Context)
		}
		if bad := slices.IndexFunc(q.Prompt, func(t int32) bool { return !slices.Contains(shape.Vocab, t) }); bad >= 0 {
			t.Fatalf("request %d: token %d of the prompt is not of the vocabulary", i, bad)
		}
		for what, is := range map[string]bool{
			string(q.Order): true, "stream": q.Stream, "whole": !q.Stream, "greedy": q.greedy(), "sampled": !q.greedy(), "one token": q.Max == 1,
			"leaves by tokens": q.Leave.Tokens > 0, "leaves by time": q.Leave.After > 0, "stays": q.Leave == Leave{},
			"one token of prompt": len(q.Prompt) == 1, "a whole page": len(q.Prompt)%shape.Page == 0, "long": len(q.Prompt) > shape.Context/3,
			"ends by itself": !q.IgnoreEOS, "shares": i > 0 && slices.ContainsFunc(all[max(0, i-100):i], func(o Request) bool { return common(o.Prompt, q.Prompt) >= shape.Page }),
		} {
			if is {
				seen[what]++
			}
		}
	}
	if !differ {
		t.Error("two seeds make the same prompts")
	}
	for what, least := range map[string]int{
		string(DestinationFirst): n / 3, string(SourceFirst): n / 3, "stream": n / 2, "whole": n / 10, "greedy": n / 2, "sampled": n / 20,
		"one token": n / 50, "leaves by tokens": n / 50, "leaves by time": n / 50, "stays": n / 2, "one token of prompt": 5,
		"a whole page": n / 50, "long": n / 50, "ends by itself": n / 10, "shares": n / 4,
	} {
		if seen[what] < least {
			t.Errorf("%d of %d requests: %s, want at least %d", seen[what], n, what, least)
		}
	}
}

func common(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// TestDisruptions: rounds of any size see every death once, in order.
func TestDisruptions(t *testing.T) {
	workers := []Worker{{"prefill-0", Prefill}, {"decode-0", Decode}, {"both-0", Both}}
	of := func(size int) []Disruption {
		r := &run{cfg: Config{Every: 7, Workers: workers}, gen: NewGenerator(3, testShape())}
		var all []Disruption
		for first := 0; first < 700; first += size {
			part := r.disruptions(first, min(size, 700-first))
			for _, d := range part {
				if d.At < first || d.At >= first+size {
					t.Errorf("a death at request %d in the round from %d", d.At, first)
				}
			}
			all = append(all, part...)
		}
		return all
	}
	want := of(700)
	if len(want) != 100 {
		t.Errorf("%d deaths in 700 requests, want 100", len(want))
	}
	drains, states := 0, map[string]bool{}
	for _, d := range want {
		if d.Drain {
			drains++
		}
		states[d.State] = true
	}
	if drains < 10 || drains > 50 || len(states) < 8 {
		t.Errorf("%d of 100 are drains, states %v", drains, states)
	}
	for _, size := range []int{1, 25, 40, 699} {
		if d := cmp.Diff(want, of(size)); d != "" {
			t.Errorf("rounds of %d:\n%s", size, d)
		}
	}
	if r := (&run{cfg: Config{Every: -1, Workers: workers}}); len(r.disruptions(0, 100)) > 0 {
		t.Error("somebody dies where nobody should")
	}
}
