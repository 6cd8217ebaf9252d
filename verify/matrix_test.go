package verify

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/wire"
)

// Every two values of every two axes meet, in few rows, and always in the same ones.
func TestPairwise(t *testing.T) {
	for _, sizes := range [][]int{{3}, {1, 1}, {2, 3}, {3, 2, 3, 2, 3, 6}, {3, 2, 3, 2, 2, 1}, {1, 2, 1, 1, 3, 4}, {5, 5, 5}, {2, 2, 2, 2, 2, 2, 2, 2}, {2, 0}} {
		rows := pairwise(sizes)
		if d := cmp.Diff(rows, pairwise(sizes)); d != "" {
			t.Errorf("%v: the second time it is another list", sizes)
		}
		for _, row := range rows {
			for i, v := range row {
				if v < 0 || v >= sizes[i] {
					t.Fatalf("%v: row %v", sizes, row)
				}
			}
		}
		for a := range sizes {
			for b := range a {
				for x := range sizes[a] {
					for y := range sizes[b] {
						if !slices.ContainsFunc(rows, func(r []int) bool { return r[a] == x && r[b] == y }) {
							t.Errorf("%v: value %d of axis %d never meets value %d of axis %d", sizes, x, a, y, b)
						}
					}
				}
			}
		}
		sorted := slices.Sorted(slices.Values(sizes))
		if len(sorted) > 1 && len(rows) > 2*sorted[len(sorted)-1]*sorted[len(sorted)-2]+len(sizes) {
			t.Errorf("%v: %d rows", sizes, len(rows))
		}
	}
}

func TestProduct(t *testing.T) {
	want := [][]int{{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}}
	if d := cmp.Diff(want, product([]int{2, 3})); d != "" {
		t.Error(d)
	}
	if product([]int{2, 0}) != nil {
		t.Error("a product with an empty axis")
	}
}

// planned makes a plan without loading anything.
func planned(t *testing.T, arch tiny.Arch, memory int64, change func(*Options)) *plan {
	t.Helper()
	file, err := tiny.Cached(arch)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Inspect(file)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Model: file, Lanes: []wire.LaneMode{wire.LaneTLS, wire.LaneQUIC}, Threads: 2}
	if change != nil {
		change(&o)
	}
	if o, err = o.withDefaults(); err != nil {
		t.Fatal(err)
	}
	p, err := newPlan(&o, m, memory)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The full matrix is what the issue of verification asks for, with nothing dropped silently.
func TestPlan(t *testing.T) {
	for _, arch := range tiny.Archs() {
		p := planned(t, arch, 0, nil)
		names := map[string]bool{}
		cells := map[int]int{} // import cells that run, by length
		lanes := map[string]bool{}
		for i := range p.cells {
			c := &p.cells[i]
			if names[c.Name] {
				t.Errorf("%s: two cells are called %q", arch, c.Name)
			}
			names[c.Name] = true
			if c.Status != "" && c.Reason == "" {
				t.Errorf("%s: %s is %s without a reason", arch, c.Name, c.Status)
			}
			if c.Status == "" && c.Kind == KindImport {
				cells[c.Params.Tokens]++
				lanes[fmt.Sprint(c.Params.Tokens, c.Params.Lane)] = true
			}
		}
		full := 3*2*3*2*2*5 + 3*2*2 + 3*3*2 + 3*2*7 // kv × chunk × page × order × lane × placement, live, source-first, prefix-assisted ones
		if arch == tiny.Gemma3 {
			full -= 3 * 2 * 3 // hits at the source, with a window that the prompt has passed
		}
		if arch == tiny.Mamba2 {
			full = 2*2*3 + 2*2 + 2 + 2
		}
		if n := cells[1024]; n < full || n > full+20 {
			t.Errorf("%s: %d cells of 1024 tokens, the product has %d", arch, n, full)
		}
		if n := cells[512]; (n > 0) != (arch == tiny.Gemma3) {
			t.Errorf("%s: %d cells within a window", arch, n) // the window of gemma3 has 512 tokens
		}
		if n := cells[8192]; n < 8 || n > 54 {
			t.Errorf("%s: %d pairwise cells", arch, n)
		}
		hybrid := 0
		if arch == tiny.NemotronHMoE {
			hybrid = 1
		}
		if cells[32768] != 2 || cells[65536] != hybrid || !lanes["32768tls"] || !lanes["32768quic"] {
			t.Errorf("%s: %d cells of 32768 tokens and %d of 65536", arch, cells[32768], cells[65536])
		}
		for _, name := range []string{"MTP", "suffix speculation", "refusal/quic/wrong ticket", "refusal/" + residue} {
			if !names[name] {
				t.Errorf("%s: no cell %q", arch, name)
			}
		}
	}
}

// The source-first order has cells of its own, beside those of the other order, whose names stay.
func TestSourceFirstCells(t *testing.T) {
	refusals := []string{
		"wrong ticket", "reused ticket", "expired ticket", "cancelled by the source before the first page",
		"cancelled by the destination before the first page", "cancelled by the source before the commit",
		"cancelled by the destination before the commit",
	}
	full := func(tokens string, kvs, pages []string) []string {
		var list []string
		for _, kv := range kvs {
			for _, page := range pages {
				for _, lane := range []string{"tls", "quic"} {
					list = append(list, fmt.Sprintf("%s/%s/chunk 128/page %s/in order/%s/alone/source-first", tokens, kv, page, lane))
				}
			}
		}
		return list
	}
	kvs, pages := []string{"f16", "bf16", "q8_0"}, []string{"128", "500", "512"}
	for _, c := range []struct {
		arch  tiny.Arch
		quick bool
		want  []string
	}{
		{tiny.Llama, false, append(full("1024", kvs, pages), full("8192", kvs[:1], pages[:1])...)},
		{tiny.Gemma3, false, slices.Concat(full("512", kvs[:1], pages[:1]), full("1024", kvs, pages), full("8192", kvs[:1], pages[:1]))},
		{tiny.Mamba2, false, append(full("1024", kvs[:1], pages[:1]), full("8192", kvs[:1], pages[:1])...)},
		{tiny.Mamba2, true, []string{"512/f16/chunk 64/page 64/in order/tls/alone/source-first"}},
		{tiny.NemotronHMoE, true, []string{"512/f16/chunk 64/page 64/in order/tls/alone/source-first"}},
	} {
		p := planned(t, c.arch, 0, func(o *Options) { o.Quick = c.quick })
		var got, refused, want []string
		for i := range p.cells {
			cell := &p.cells[i]
			switch {
			case cell.Status != "" || !strings.Contains(cell.Name, "source-first") || strings.Contains(cell.Name, " hit "):
			case cell.Kind == KindRefusal:
				refused = append(refused, cell.Name)
			case cell.Params == nil || !cell.Params.SourceFirst || !cell.Params.controlled(0):
				t.Errorf("%s: %s has the parameters %+v", c.arch, cell.Name, cell.Params)
			default:
				got = append(got, cell.Name)
			}
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s, quick %v: %s", c.arch, c.quick, d)
		}
		for _, lane := range []string{"tls", "quic"} {
			for _, name := range refusals {
				if c.arch != tiny.Mamba2 || !strings.HasSuffix(name, "page") {
					want = append(want, "refusal/"+lane+"/source-first/"+name)
				}
			}
		}
		if d := cmp.Diff(want, refused); d != "" {
			t.Errorf("%s, quick %v: %s", c.arch, c.quick, d)
		}
	}
}

// What does not fit is left out by name and with its reason.
func TestCaps(t *testing.T) {
	all := planned(t, tiny.NemotronHMoE, 0, nil)
	enough := need(all.file, all.inv["f16"], 8192+32+extraCells(32), 8192, 3)
	for _, c := range []struct {
		name   string
		memory int64
		change func(*Options)
		left   []int
		reason string
	}{
		{"nothing", 0, nil, nil, ""},
		{"--max-tokens", 0, func(o *Options) { o.MaxTokens = 9000 }, []int{32768, 65536}, "--max-tokens"},
		{"memory", enough, nil, []int{32768, 65536}, "are free to use"},
		{"no memory", 1 << 20, nil, []int{1024, 8192, 32768, 65536}, "are free to use"},
		{"context", 0, func(o *Options) { o.Lengths = []int{64, 131072} }, []int{131072}, "trained for"},
	} {
		p := planned(t, tiny.NemotronHMoE, c.memory, c.change)
		var left []int
		for _, l := range p.caps {
			left = append(left, l.Tokens)
			if !strings.Contains(l.Reason, c.reason) {
				t.Errorf("%s: %d: %q", c.name, l.Tokens, l.Reason)
			}
		}
		if d := cmp.Diff(c.left, left); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
		for i := range p.cells {
			if cell := &p.cells[i]; cell.Params != nil && slices.Contains(c.left, cell.Params.Tokens) && cell.Status == "" {
				t.Errorf("%s: %s runs", c.name, cell.Name)
			}
		}
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{
		{Lengths: []int{8}},
		{Lengths: []int{1 << 21}},
		{Steps: -1},
		{Steps: 5000},
		{Threads: -1},
		{KVTypes: []string{"f64"}},
		{Lanes: []wire.LaneMode{"auto"}},
		{Match: "("},
	} {
		if _, err := o.withDefaults(); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := Run(t.Context(), Options{Model: "/nonexistent.gguf"}); err == nil {
		t.Error("a model that is not there was verified")
	}
}

// Only a layout that the source has too is controlled.
func TestControlled(t *testing.T) {
	alone := Params{Tokens: 1000, Placement: Alone, Order: InOrder}
	busy, mixed := alone, alone
	busy.Placement, mixed.Order = Busy, OutOfOrder
	for _, c := range []struct {
		p      Params
		window int
		want   bool
	}{
		{alone, 0, true}, {alone, 1000, true}, {alone, 999, false}, {busy, 0, false}, {mixed, 0, false},
	} {
		if got := c.p.controlled(c.window); got != c.want {
			t.Errorf("%+v with a window of %d: %v", c.p, c.window, got)
		}
	}
}
