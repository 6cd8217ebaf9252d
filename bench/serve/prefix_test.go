package serve

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem/bench"
)

// cacheServer answers as one that has a prefix cache with pages of that many tokens; page 0
// is one without.
func cacheServer(t *testing.T, page int) (url string, asked func() [][]int) {
	var mu sync.Mutex
	var seen [][]int
	s := server(t, func(w http.ResponseWriter, _ *http.Request, b body, _ int) {
		var ids []int
		for _, v := range b.Prompt.([]any) {
			ids = append(ids, int(v.(float64)))
		}
		mu.Lock()
		shared := 0
		for _, old := range seen {
			n := 0
			for n < min(len(ids)-1, len(old)) && ids[n] == old[n] {
				n++
			}
			if page > 0 {
				shared = max(shared, n/page*page)
			}
		}
		seen = append(seen, ids)
		mu.Unlock()
		send(w, text("x"), finish, usage(len(ids), shared, 1), done)
	})
	return s.URL + "/v1", func() [][]int {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

func TestPrefix(t *testing.T) {
	url, asked := cacheServer(t, 16)
	p := Prefix{Target: Target{URL: url, Model: "m"}, Plan: bench.Plan{Runs: 3}, Prompt: 64, Shared: 48, Vocab: 100, Pairs: 2, Bar: 1e6, Seed: 1}
	report, err := RunPrefix(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(asked()); got != 2*(1+2*3) { // the first hits need something to hit
		t.Errorf("%d requests", got)
	}
	by := map[string]bench.Result{}
	for _, r := range report.Results {
		by[r.Name] = r
	}
	if r := by[figureComputed].Ratio; r == nil || r.Min != 0.25 || r.Max != 0.25 {
		t.Errorf("the ratio of computed tokens is %+v", r)
	}
	over, ttft := by[figureOver], by[figureTTFT].Ratio
	if ttft == nil || len(over.Series) != 1 || over.Series[0].N != 3 {
		t.Fatalf("the ratio of ratios is %+v", over)
	}
	for i, v := range over.Series[0].Values {
		if want := ttft.Values[i] / 0.25; v != want {
			t.Errorf("turn %d: %v, want %v", i, v, want)
		}
	}
	if over.Held == nil || !*over.Held {
		t.Errorf("a bar that everything holds: %+v", over)
	}
	p.Bar = 1e-6
	if report, err = RunPrefix(t.Context(), p); err != nil || !slices.Equal(report.Missed(), []string{figureOver}) {
		t.Errorf("a bar that nothing holds: %v, %v", report.Missed(), err)
	}
}

// Hits share what is asked for and nothing beyond, and nothing else is shared.
func TestPrefixPrompts(t *testing.T) {
	url, asked := cacheServer(t, 1)
	p := Prefix{Target: Target{URL: url, Model: "m"}, Plan: bench.Plan{Runs: 2}, Prompt: 40, Shared: 30, Vocab: 50, Pairs: 1, Seed: 3}
	if _, err := RunPrefix(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	all := asked() // cold, hit, cold, hit, cold
	common := func(a, b []int) (n int) {
		for n < len(a) && a[n] == b[n] {
			n++
		}
		return n
	}
	for i := range all {
		for j := range i {
			n := common(all[i], all[j])
			if hit := i%2 == 1 && j == i-1; hit && n != 30 || !hit && n > 5 {
				t.Errorf("prompts %d and %d share %d tokens", j, i, n)
			}
		}
	}
}

func TestPrefixRefusals(t *testing.T) {
	url, _ := cacheServer(t, 0)
	p := Prefix{Target: Target{URL: url, Model: "m"}, Plan: bench.Plan{Runs: 1}, Prompt: 40, Shared: 30, Vocab: 50, Pairs: 1}
	if report, err := RunPrefix(t.Context(), p); err == nil || !strings.Contains(err.Error(), "prefix cache") || report.Complete {
		t.Errorf("an endpoint without a cache: %v", err)
	}
	for _, change := range []func(*Prefix){
		func(p *Prefix) { p.Shared = 40 }, func(p *Prefix) { p.Shared = 0 }, func(p *Prefix) { p.Vocab = 1 }, func(p *Prefix) { p.Pairs = 0 },
	} {
		bad := p
		change(&bad)
		if _, err := RunPrefix(t.Context(), bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
