package fleet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine/timed"
)

const good = `
mode: disaggregated
pools:
  - name: p
    model: llama-3.1-8b
    hardware: h100-sxm
  - name: d
    role: decode
    fixed: {decode_ms: 10}
    memory: {blocks: 100}
`

func TestDefaults(t *testing.T) {
	c, err := Parse([]byte(good), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &c.Pools[0]
	if c.Order != DestinationFirst || !c.StreamsPages() || p.Count != 1 || p.Role != Prefill || !p.Memory.Caches() || c.Links.Default.Gbps != 400 || *c.Gateway.Retries != 3 {
		t.Errorf("defaults are %+v", c)
	}
	// An 8 B model in 16 bits leaves 0.9·80 − 16 GB of an H100, 131,072 bytes a token.
	if tokens := p.BlocksEach() * p.Memory.BlockTokens; tokens < 410_000 || tokens > 480_000 {
		t.Errorf("an H100 holds %d tokens", tokens)
	}
}

// Every error says where it is.
func TestErrorsNameTheField(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"mode: disaggregated", "mode: dis", "mode"},
		{"mode: disaggregated", "modus: x", "modus"},
		{"mode: disaggregated", "mode: auto\norder: last-first", "order"},
		{"role: decode", "role: decoder", "pools[1] (d): role"},
		{"role: decode", "count: -1", "pools[1] (d): count"},
		{"name: d", "name: p", "another pool"},
		{"blocks: 100", "blocks: 100, kind: tree", "memory.kind"},
		{"blocks: 100", "bloks: 100", "bloks"},
		{"blocks: 100", "fraction: 2", "memory.fraction"},
		{"blocks: 100", "slots: 3", "does not know the hardware's memory"},
		{"decode_ms: 10", "decode_ms: -1", "pools[1] (d)"},
		{"h100-sxm", "h1000", "h1000"},
		{"h100-sxm", "m1-ultra\n    tp: 3", "link_gbps"},
		{"h100-sxm", "h100-sxm\n    timing: none.yaml", "timing"},
		{"h100-sxm", "h100-sxm\n    split: {share: 1}", "split"},
		{"pools:", "links: {default: {loss: 1}}\npools:", "links.default"},
		{"pools:", "links: {between: [{from: p, to: q}]}\npools:", "links.between[0]"},
		{"role: decode", "count: 0", "pools[1].count is 0"},
		{"blocks: 100", "block_tokens: 0", "pools[1].memory.block_tokens is 0"},
		{"pools:", "links: {default: {gbps: 0}}\npools:", "links.default.gbps is 0"},
		{"pools:", "links: {between: [{from: p, to: d, gbps: 0.0}]}\npools:", "links.between[0].gbps is 0"},
		{"pools:", "worker: {lease: 0s}\npools:", "worker.lease is 0"},
		{"pools:", "speedup: 0\npools:", "speedup is 0"},
		{"pools:", "links: {default: {gbps: .inf}}\npools:", "links.default"},
		{"pools:", "links: {default: {convert: 3000h}}\npools:", "links.default"},
		{"pools:", "worker: {lease: 3000h}\npools:", "worker"},
		{"pools:", "cancels: {within: 3000h}\npools:", "cancels"},
		{"pools:", "cancels: {requests: [{request: 1, at: 3000h}]}\npools:", "cancels.requests[0]"},
		{"pools:", "failures: [{at: 1s, from: p, to: d, gbps: .inf}]\npools:", "failures[0]"},
		{"role: decode", "nic_gbps: .inf", "nic_gbps"},
		{"pools:", "route: {policy: best}\npools:", "unknown routing policy"},
		{"pools:", "gateway: {retry: maybe}\npools:", "maybe"},
		{"pools:", "gateway: {timeout: -1s}\npools:", "gateway"},
		{"pools:", "failures: [{at: 1s}]\npools:", "failures[0]"},
		{"pools:", "failures: [{at: 1s, worker: d-1}]\npools:", "d-1"},
		{"pools:", "cancels: {rate: 2}\npools:", "cancels"},
		{"pools:", "speedup: -1\npools:", "speedup"},
		{"role: decode", "role: decode\n    count: 16384", "limit"},
		{"blocks: 100", "blocks: 16000000, block_tokens: 1}\n    count: 9\n    accelerators: 1\n    schedule: {budget: 9", "block_tokens"},
		{good, "", "empty"},
		{good, "mode: colocated", "0 pools"},
		{good, good + "---\n" + good, "something follows"},
	} {
		text := strings.Replace(good, c.from, c.to, 1)
		if _, err := Parse([]byte(text), nil); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q in it", c.to, err, c.want)
		}
	}
	if _, err := Parse(make([]byte, MaxBytes+1), nil); !errors.Is(err, ErrConfig) {
		t.Error(err)
	}
}

func TestTimingFiles(t *testing.T) {
	text := strings.Replace(good, "fixed: {decode_ms: 10}", "timing: fit.yaml", 1)
	files := func(name string) ([]byte, error) {
		if name != "fit.yaml" {
			return nil, os.ErrNotExist
		}
		return []byte("fixed: {decode_ms: 3}"), nil
	}
	c, err := Parse([]byte(text), files)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Pools[1].Model().Step(&timed.Batch{Decodes: 1, Context: 1}); got != 3*timed.Millisecond {
		t.Errorf("a step takes %v", got)
	}
	if _, err := Parse([]byte(strings.Replace(text, "fit.yaml", "other.yaml", 1)), files); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	for _, beside := range []string{"model: llama-3.1-8b", "tp: 2", "speculation: {kind: suffix, draft: 2, accept: [1]}"} {
		both := strings.Replace(text, "timing: fit.yaml", "timing: fit.yaml\n    "+beside, 1)
		if _, err := Parse([]byte(both), files); !errors.Is(err, ErrConfig) {
			t.Errorf("%s beside a file: %v", beside, err)
		}
	}

	// The devices of a model that a file describes count.
	files = func(string) ([]byte, error) { return []byte("{model: llama-3.1-70b, hardware: h100-sxm, tp: 4}"), nil }
	if c, err = Parse([]byte(text), files); err != nil {
		t.Fatal(err)
	}
	if p := &c.Pools[1]; p.Ways() != 4 || p.Devices() != 4 {
		t.Errorf("%d ways on %d devices", p.Ways(), p.Devices())
	}
}

// The two boxes of a split have all layers between them.
func TestSplit(t *testing.T) {
	whole, err := Parse([]byte(good), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse([]byte(strings.Replace(good, "h100-sxm", "h100-sxm\n    split: {share: 0.25, hardware: m3-ultra}", 1)), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &c.Pools[0]
	a, b := p.Model().Geometry().PerToken(), p.SecondModel().Geometry().PerToken()
	if all := whole.Pools[0].Model().Geometry().PerToken(); a+b != all || b*4 != all {
		t.Errorf("%d and %d bytes per token, of %d", a, b, all)
	}
	if p.Devices() != 2 {
		t.Errorf("%d devices", p.Devices())
	}
}

func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../examples/replay/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(raw, nil); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

// FuzzParse: whatever the text, an answer comes and is bounded.
func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add("mode: colocated\npools: [{name: x, fixed: {decode_ms: 1}, memory: {blocks: 2}, split: {share: .5}}]")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse([]byte(text), nil)
		if err == nil && (len(c.Pools) == 0 || c.Pools[0].BlocksEach() < 2) {
			t.Errorf("%q gives %+v", text, c)
		}
	})
}

// State of a fixed size has its room before blocks have theirs.
func TestSizeLeavesRoomForFixedState(t *testing.T) {
	const pool = "mode: colocated\npools: [{name: p, model: nemotron-3-super-120b-a12b, hardware: h200-sxm, tp: 2, memory: {gb: 100, block_tokens: 16%s}, schedule: {running: %d}}]\n"
	blocks := func(slots string, running int) int {
		t.Helper()
		cfg, err := Parse([]byte(fmt.Sprintf(pool, slots, running)), nil)
		if err != nil {
			t.Fatal(err)
		}
		return cfg.Pools[0].BlocksEach()
	}
	const sequence = 160<<20 + 2_457_600 // recurrent and convolution state
	few, many := blocks("", 10), blocks("", 110)
	if got, want := few-many, 100*sequence/(16*8192); got < want-1 || got > want+1 {
		t.Errorf("100 sequences more take the room of %d blocks, want %d", got, want)
	}
	if got := blocks(", slots: 10", 110); got != few {
		t.Errorf("%d blocks for 10 slots, %d for 10 that run", got, few)
	}
	if _, err := Parse([]byte(fmt.Sprintf(pool, "", 1000)), nil); err == nil {
		t.Error("1,000 sequences fit into 100 GB")
	}
}
