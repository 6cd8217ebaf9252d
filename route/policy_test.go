package route

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"pgregory.net/rapid"
)

// chain returns the keys of so many blocks of a prompt. Prompts of one parity begin with the same
// two blocks.
func chain(prompt, blocks int) []kv.Key {
	ids := make([]uint64, blocks)
	for i := range ids {
		ids[i] = uint64(1000*prompt + i)
		if i < 2 {
			ids[i] = uint64(prompt % 2)
		}
	}
	return kv.NewChain(kv.Salt{}, 1).IDs(ids, nil)
}

func using(o Options, list ...Worker) *Router {
	r := fleet(anyPair, list...)
	r.Use(o)
	return r
}

func book(t *testing.T, r *Router, n int, what handoff.Booking, name string, tokens int) {
	t.Helper()
	if err := r.Book(id(n), what, Target{name, 1}, tokens); err != nil {
		t.Fatal(err)
	}
}

func TestPolicyNames(t *testing.T) {
	for p := range policies {
		text, _ := p.MarshalText()
		var back Policy
		if err := back.UnmarshalText(text); err != nil || back != p {
			t.Errorf("%v reads as %v, %v", p, back, err)
		}
	}
	for _, names := range []string{"fastest", "", "random,", ",random", "random,random,random"} {
		if _, _, err := ParsePolicies(names); !errors.Is(err, ErrPolicy) {
			t.Errorf("%q: %v", names, err)
		}
	}
	if p, d, err := ParsePolicies("kv-aware, random"); p != KVAware || d != Random || err != nil {
		t.Error(p, d, err)
	}
	if p, d, err := ParsePolicies("random"); p != Random || d != Random || err != nil {
		t.Error(p, d, err)
	}
}

// Round-robin takes workers in turn whatever their load, in each role by itself, and goes on behind
// one that is gone.
func TestRoundRobin(t *testing.T) {
	r := using(Options{Prefill: RoundRobin, Decode: RoundRobin},
		worker("p1", Prefill), worker("p2", Prefill), worker("d1", Decode), worker("d2", Decode), worker("d3", Decode))
	book(t, r, 1, handoff.BookPrefill, "p2", 500)
	book(t, r, 1, handoff.BookDecode, "d2", 500)
	var got []string
	for i := range 6 {
		p, err := r.ChoosePair(Request{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, p.Prefill.Worker+p.Decode.Worker)
		if i == 4 {
			r.Remove(Target{"d2", 1})
		}
	}
	if d := cmp.Diff([]string{"p1d1", "p2d2", "p1d3", "p2d1", "p1d2", "p2d3"}, got); d != "" {
		t.Error(d)
	}
}

// shares returns how often each worker is chosen for decode, of 6000 times.
func shares(t *testing.T, r *Router) map[string]int {
	t.Helper()
	n := map[string]int{}
	for range 6000 {
		p, err := r.ChoosePair(Request{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		n[p.Decode.Worker]++
	}
	return n
}

// near fails unless each worker has about its share of 6000; five standard deviations are 200.
func near(t *testing.T, got map[string]int, want map[string]float64) {
	t.Helper()
	for name, share := range want {
		if math.Abs(float64(got[name])-6000*share) > 200 || share == 0 && got[name] > 0 {
			t.Errorf("chosen %v of 6000 times, want shares %v", got, want)
			return
		}
	}
}

func TestRandomPolicies(t *testing.T) {
	list := []Worker{worker("p", Prefill), worker("d1", Decode), worker("d2", Decode), worker("d3", Decode), worker("d4", Decode)}
	third := map[string]float64{"d1": 1.0 / 4, "d2": 1.0 / 4, "d3": 1.0 / 4, "d4": 1.0 / 4}
	for _, policy := range []Policy{Random, PowerOfTwo} {
		r := using(Options{Decode: policy, Seed: 1}, list...)
		near(t, shares(t, r), third) // equal loads
	}
	load := func(r *Router) *Router {
		for i, name := range []string{"d3", "d2", "d1"} {
			book(t, r, i, handoff.BookDecode, name, 10*(i+1))
		}
		return r
	}
	// Of two out of four, the least loaded one wins three pairs of six, the next two, then one.
	near(t, shares(t, load(using(Options{Decode: PowerOfTwo, Seed: 1}, list...))), map[string]float64{"d4": 3.0 / 6, "d3": 2.0 / 6, "d2": 1.0 / 6, "d1": 0})
	near(t, shares(t, load(using(Options{Decode: Random, Seed: 1}, list...))), third)

	choices := func(seed uint64) (out []string) {
		r := using(Options{Decode: Random, Seed: seed}, list...)
		for range 30 {
			p, _ := r.ChoosePair(Request{Model: "m"})
			out = append(out, p.Decode.Worker)
		}
		return out
	}
	if !slices.Equal(choices(7), choices(7)) || slices.Equal(choices(7), choices(8)) {
		t.Error("choices do not follow the seed")
	}
}

// The score of KVAware by hand: workers of 1000 tokens and 4 slots, prompts of 10 keys.
func TestKVAware(t *testing.T) {
	for name, tc := range map[string]struct {
		affinity float64
		learn    map[string]int // keys of the prompt that a worker has
		tokens   map[string]int // booked for decode, in a request of its own
		want     string
	}{
		"no knowledge: the least loaded": {tokens: map[string]int{"d1": 10}, want: "d2"},
		"more of the prompt":             {learn: map[string]int{"d1": 4, "d3": 5}, want: "d3"},
		"another prompt is none":         {learn: map[string]int{"d2": -10}, tokens: map[string]int{"d1": 1, "d2": 1}, want: "d3"},
		// d1: 0.5·0.6 + 0.5·min(0.2, 0.75) = 0.40; d2: 0.5·0 + 0.5·1 = 0.5
		"load outweighs overlap": {learn: map[string]int{"d1": 6}, tokens: map[string]int{"d1": 800, "d3": 1}, want: "d2"},
		// d1: 0.8·0.6 + 0.2·0.2 = 0.52; d2: 0.2
		"unless overlap weighs more": {affinity: 0.8, learn: map[string]int{"d1": 6}, tokens: map[string]int{"d1": 800, "d3": 1}, want: "d1"},
		// d1: 0.5·0.3 + 0.5·min(0.99, 0.75) = 0.525; d2: 0.5
		"slots are what is short of less": {learn: map[string]int{"d1": 3}, tokens: map[string]int{"d1": 10, "d3": 1}, want: "d1"},
		// d1: 0.5·0.2 + 0.5·0.75 = 0.475; d2: 0.5
		"and outweigh a short overlap": {learn: map[string]int{"d1": 2}, tokens: map[string]int{"d1": 10, "d3": 1}, want: "d2"},
	} {
		t.Run(name, func(t *testing.T) {
			r := using(Options{Decode: KVAware, Affinity: tc.affinity},
				worker("p", Prefill), worker("d1", Decode), worker("d2", Decode), worker("d3", Decode))
			n := 0
			for d, tokens := range tc.tokens {
				book(t, r, n, handoff.BookDecode, d, tokens)
				n++
			}
			for d, keys := range tc.learn {
				prompt := 1
				if keys < 0 {
					prompt, keys = 2, -keys
				}
				r.Learn(Target{d, 1}, chain(prompt, keys))
			}
			p, err := r.ChoosePair(Request{Model: "m", Keys: chain(1, 10)})
			if err != nil || p.Decode.Worker != tc.want {
				t.Errorf("chose %v, %v; want %s", p.Decode, err, tc.want)
			}
		})
	}
}

// Prompt tokens count as load of a prefill worker, and a policy of one role leaves the other's.
func TestKVAwarePrefill(t *testing.T) {
	r := using(Options{Prefill: KVAware}, worker("p1", Prefill), worker("p2", Prefill), worker("d1", Decode), worker("d2", Decode))
	r.Learn(Target{"p2", 1}, chain(1, 3))
	r.Learn(Target{"d2", 1}, chain(1, 10))
	q := Request{Model: "m", Keys: chain(1, 10)}
	book(t, r, 1, handoff.BookPrefill, "p2", 100) // 0.15 + 0.45 against 0.5
	if p, _ := r.ChoosePair(q); p.Prefill.Worker != "p2" || p.Decode.Worker != "d1" {
		t.Errorf("chose %v, want the prefix on p2, and d1 in turn", p)
	}
	if w, _ := r.ChooseWhole(q); w.Worker != "p2" {
		t.Errorf("chose %v for the whole, want p2", w)
	}
	book(t, r, 2, handoff.BookPrefill, "p2", 400) // 0.15 + 0.25
	if p, _ := r.ChoosePair(q); p.Prefill.Worker != "p1" {
		t.Errorf("chose %v, want the idle p1", p)
	}
}

// What a worker had is not what it has after a restart; what it cannot hold it does not have.
func TestLearn(t *testing.T) {
	r := using(Options{Decode: KVAware, KeyTokens: 100}, worker("p", Prefill), worker("d1", Decode), worker("d2", Decode))
	q := Request{Model: "m", Keys: chain(1, 10)}
	match := func(name string) int {
		return r.live(Target{name, r.workers[map[string]int{"d1": 0, "d2": 1}[name]].Incarnation}).prefixes.match(q.Keys, 1)
	}
	r.Learn(Target{"d1", 1}, q.Keys)
	r.Learn(Target{"d9", 1}, q.Keys)
	r.Learn(Target{"d2", 2}, q.Keys)
	if match("d1") != 10 || match("d2") != 0 {
		t.Fatalf("d1 has %d, d2 %d", match("d1"), match("d2"))
	}
	r.Learn(Target{"d1", 1}, chain(2, 4)) // 1000 tokens are ten keys
	if match("d1") != 6 {
		t.Errorf("d1 has %d, want the 6 that 4 others leave", match("d1"))
	}
	r.Use(Options{Decode: KVAware, KeyTokens: 100, Every: 3})
	r.Learn(Target{"d1", 1}, q.Keys)
	if n := r.live(Target{"d1", 1}).prefixes.match(q.Keys, 3); n != 9 {
		t.Errorf("d1 has %d of 10 by threes", n)
	}
	r.Learn(Target{"d1", 1}, chain(2, 9))
	if n := r.live(Target{"d1", 1}).prefixes.match(q.Keys, 3); n != 0 {
		t.Errorf("d1 has %d, though three times three keys are all it can hold", n)
	}
	again := worker("d1", Decode)
	again.Incarnation = 2
	r.Update(again)
	if match("d1") != 0 {
		t.Errorf("d1 has %d after its restart", match("d1"))
	}
}

// A host that knows what workers have is asked instead.
func TestOverlap(t *testing.T) {
	asked := 0
	r := using(Options{Decode: KVAware, Overlap: func(w Target, q Request) int {
		asked++
		if w.Worker == "d2" {
			return len(q.Keys) + 5 // more than there is counts as all
		}
		return -1
	}}, worker("p", Prefill), worker("d1", Decode), worker("d2", Decode))
	r.Learn(Target{"d1", 1}, chain(1, 10))
	for range 2 {
		if p, err := r.ChoosePair(Request{Model: "m", Keys: chain(1, 10)}); err != nil || p.Decode.Worker != "d2" {
			t.Errorf("chose %v, %v", p, err)
		}
	}
	if asked != 4 {
		t.Errorf("asked %d times for two choices of two workers", asked)
	}
}

// prefixes against a list that is kept in order of use.
func TestPrefixes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 12).Draw(t, "limit")
		every := rapid.IntRange(1, 3).Draw(t, "every")
		some := func(keys []kv.Key) (out []kv.Key) {
			for i := every - 1; i < len(keys); i += every {
				out = append(out, keys[i])
			}
			return out
		}
		var p prefixes
		var used []kv.Key // latest first
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			keys := chain(rapid.IntRange(0, 4).Draw(t, "prompt"), rapid.IntRange(0, 15).Draw(t, "blocks"))
			p.add(keys, every, limit)
			keys = some(keys)
			keep := keys[:min(len(keys), limit)]
			used = slices.DeleteFunc(used, func(k kv.Key) bool { return slices.Contains(keep, k) })
			used = append(slices.Clone(keep), used...)
			used = used[:min(len(used), limit)]
			if len(p.at) != len(used) || len(p.nodes) > limit+1 {
				t.Fatalf("knows %d keys in %d nodes, want %d of at most %d", len(p.at), len(p.nodes), len(used), limit)
			}
			for prompt := range 5 {
				keys := chain(prompt, 15)
				want := 0
				for _, k := range some(keys) {
					if !slices.Contains(used, k) {
						break
					}
					want += every
				}
				if got := p.match(keys, every); got != want {
					t.Fatalf("prompt %d matches %d keys, want %d", prompt, got, want)
				}
			}
		}
	})
}

// large returns a router with 64 prefill and 64 decode workers, which know prompts.
func large(tb testing.TB, o Options) (*Router, Request) {
	r := New(anyPair)
	o.KeyTokens = 512
	r.Use(o)
	for i := range 64 {
		for _, role := range []Role{Prefill, Decode} {
			w := worker(fmt.Sprintf("%v%02d", role, i), role)
			w.Cells, w.Context = 1<<20, 1<<20
			r.Update(w)
			r.Learn(w.Target(), chain(i, 200))
			if err := r.Book(handoff.Mint(uint64(i), [10]byte{byte(role)}), handoff.BookDecode, w.Target(), 100*i); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return r, Request{Model: "m", Tokens: 1000, Keys: chain(37, 200)}
}

func TestChoosingDoesNotAllocate(t *testing.T) {
	for p := range policies {
		r, q := large(t, Options{Prefill: p, Decode: p})
		n := testing.AllocsPerRun(50, func() {
			pair, err := r.ChoosePair(q)
			if err != nil {
				t.Fatal(err)
			}
			r.Learn(pair.Prefill, q.Keys)
			r.Learn(pair.Decode, q.Keys)
			if _, err := r.ChooseWhole(q); err != nil {
				t.Fatal(err)
			}
		})
		if n > 0 {
			t.Errorf("%v: %v allocations", p, n)
		}
	}
}

// BenchmarkChoosePair is a decision over 64 × 64 workers, prompts of 200 blocks.
func BenchmarkChoosePair(b *testing.B) {
	for p := range policies {
		b.Run(p.String(), func(b *testing.B) {
			r, q := large(b, Options{Prefill: p, Decode: p})
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.ChoosePair(q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("learn", func(b *testing.B) {
		r, q := large(b, Options{Decode: KVAware})
		b.ReportAllocs()
		for b.Loop() {
			r.Learn(Target{"decode01", 1}, q.Keys)
		}
	})
}
