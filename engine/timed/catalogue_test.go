package timed

import (
	"math"
	"strings"
	"testing"
)

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance*math.Abs(want)) {
		t.Errorf("%s is %g, want %g within %g%%", what, got, want, tolerance*100)
	}
}

func model(t testing.TB, name string) *ModelSpec {
	t.Helper()
	m, err := FindModel(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func hardware(t testing.TB, name string) *HardwareSpec {
	t.Helper()
	h, err := FindHardware(name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestShapesGiveThePublishedWeights compares counts with what publishers state in
// model cards and reports, in 10^9 weights: all, and used by one token with
// embeddings where they say so.
func TestShapesGiveThePublishedWeights(t *testing.T) {
	for _, c := range []struct {
		name        string
		all, active float64
	}{
		{"llama-3.2-1b", 1.24, 0}, {"llama-3.2-3b", 3.21, 0},
		{"llama-3-8b", 8.03, 0}, {"llama-3.1-70b", 70.55, 0}, {"llama-3.1-405b", 405.85, 0},
		{"qwen2.5-0.5b", 0.494, 0}, {"qwen2.5-7b", 7.616, 0}, {"qwen2.5-14b", 14.77, 0}, {"qwen2.5-32b", 32.76, 0}, {"qwen2.5-72b", 72.71, 0},
		{"qwen3-0.6b", 0.596, 0}, {"qwen3-1.7b", 1.72, 0}, {"qwen3-8b", 8.19, 0}, {"qwen3-14b", 14.77, 0}, {"qwen3-32b", 32.76, 0},
		{"qwen3-30b-a3b", 30.53, 3.35}, {"qwen3-235b-a22b", 235.1, 22.2}, {"qwen3-coder-480b-a35b", 480.2, 35.5},
		{"mistral-nemo-12b", 12.25, 0}, {"mixtral-8x7b", 46.7, 12.9}, {"mixtral-8x22b", 140.6, 39.2},
		{"deepseek-v3", 671.0, 37.6}, {"deepseek-r1", 671.0, 37.6}, {"kimi-k2", 1026, 32.9},
		{"gemma-3-4b", 3.88, 0}, {"gemma-3-12b", 11.77, 0}, {"gemma-3-27b", 27.01, 0},
		{"gpt-oss-20b", 20.9, 0}, {"gpt-oss-120b", 116.8, 0},
		{"nemotron-3-nano-30b-a3b", 31.6, 3.6}, {"nemotron-3-super-120b-a12b", 120.7, 12.77}, {"nemotron-3-ultra-550b-a55b", 550, 55},
	} {
		m := model(t, c.name)
		all, body := m.Params()
		near(t, c.name+": weights", float64(all)/1e9, c.all, 0.01)
		if c.active > 0 {
			embeddings := 2 * float64(m.Vocab*m.Hidden)
			near(t, c.name+": weights of a token", (float64(body)+embeddings)/1e9, c.active, 0.02)
		}
	}
}

func TestCatalogueIsSoundAndSourced(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range Models() {
		if err := m.Check(); err != nil {
			t.Error(err)
		}
		if m.Source == "" || m.Context == 0 || seen[m.Name] || !strings.HasPrefix(m.String(), m.Name) {
			t.Errorf("%s has no source or context, or is there twice", m.Name)
		}
		seen[m.Name] = true
	}
	for _, h := range Hardwares() {
		if err := h.Check(); err != nil {
			t.Error(err)
		}
		if h.Source == "" || h.EfficiencySource == "" || seen[h.Name] || !strings.HasPrefix(h.String(), h.Name) {
			t.Errorf("%s has no source, or is there twice", h.Name)
		}
		seen[h.Name] = true
		// Everything runs on everything that has the memory: no number is missing.
		for _, m := range Models() {
			if _, err := New(&m, &h, Options{Common: Common{MaxDecodes: 2}, TP: 2, LinkGBps: 10}); err != nil {
				t.Errorf("%s on %s: %v", m.Name, h.Name, err)
			}
		}
	}
	if _, err := FindModel("gpt-5"); err == nil || !strings.Contains(err.Error(), "llama-3-8b") {
		t.Errorf("an unknown model: %v", err)
	}
	if _, err := FindHardware("abacus"); err == nil || !strings.Contains(err.Error(), "h100-sxm") {
		t.Errorf("unknown hardware: %v", err)
	}
}

// TestSizesOfState holds the sizes that handoffs of these models have.
func TestSizesOfState(t *testing.T) {
	mtp := Options{Common: Common{Speculation: &Speculation{Kind: MTP, Draft: 1, Accept: []float64{0.8}}}}
	for _, c := range []struct {
		name string
		o    Options
		want Geometry
	}{
		{"llama-3-8b", Options{}, Geometry{AttentionPerToken: 131072}},
		{"llama-3-70b", Options{}, Geometry{AttentionPerToken: 327680}},
		{"llama-3-8b", Options{KVBits: 8.5}, Geometry{AttentionPerToken: 69632}},
		{"deepseek-v3", Options{}, Geometry{AttentionPerToken: 61 * 576 * 2}},
		{"deepseek-v3", mtp, Geometry{AttentionPerToken: 61 * 576 * 2, MTPPerToken: 1152}},
		{"gemma-3-27b", Options{}, Geometry{AttentionPerToken: 10 * 8192, WindowPerToken: 52 * 8192, WindowTokens: 1024}},
		{"gpt-oss-120b", Options{}, Geometry{AttentionPerToken: 18 * 2048, WindowPerToken: 18 * 2048, WindowTokens: 128}},
		{"nemotron-3-super-120b-a12b", mtp, Geometry{AttentionPerToken: 8192, MTPPerToken: 1024, Recurrent: 160 << 20, Conv: 2457600}},
		{"nemotron-3-nano-30b-a3b", Options{}, Geometry{AttentionPerToken: 6 * 1024, Recurrent: 23 << 21, Conv: 23 * 6144 * 3 * 2}},
	} {
		if got := model(t, c.name).Geometry(c.o); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
