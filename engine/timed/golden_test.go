package timed

import (
	"strings"
	"testing"
)

// TestStepTimesAreTheSameOnEveryMachine pins picoseconds: reports are compared byte
// by byte between machines, and compilers for some of them fuse a product and a
// sum where the code does not say otherwise.
func TestStepTimesAreTheSameOnEveryMachine(t *testing.T) {
	decode := &Batch{Decodes: 48, Context: 123457}
	mixed := &Batch{Decodes: 48, Context: 123457, Chunks: []Chunk{{New: 511, Past: 3}, {New: 77, Past: 40001}}}
	for _, c := range []struct {
		spec                   string
		decode, mixed, stretch Time
	}{
		{"{model: llama-3.1-70b, hardware: h100-sxm, tp: 4, weight_bits: 8, kv_bits: 8.5, all_reduce_us: 7.3, step_us: 311.7}", 10388219238, 62888425022, 10777565502000},
		{"{model: deepseek-v3, hardware: b200-sxm, tp: 8, weight_bits: 4.5, compute: fp8, layer_us: 1.1}", 7662007903, 11750768616, 7935526111000},
		{"{model: nemotron-3-super-120b-a12b, hardware: h200-sxm, tp: 2, link_gbps: 333.3}", 30081548389, 35051503395, 30107130781000},
		{"{model: gemma-3-27b, hardware: m3-ultra, weight_bits: 4.85, mbu: 0.737}", 119850370250, 1510992377528, 120027696746000},
		{"{preset: dynamo}", 11742156434, 37317044948, 12820549478779},
		{"{preset: distserve-opt-13b}", 99185539000, 204905001940, 114218491000000},
		{"{table: {new: [1, 100, 900], past: [0, 1000], prefill_ms: [[1.1, 2.3], [9.7, 11.3], [90.1, 177.7]], batch: [1, 7, 64], context: [9, 1001], decode_ms: [[1.3, 2.7], [3.1, 9.9], [17.3, 55.5]]}}", 89238211896, 426584204239, 104034856440000},
	} {
		m, err := Load(strings.NewReader(c.spec))
		if err != nil {
			t.Fatal(err)
		}
		if a, b, s := m.Step(decode), m.Step(mixed), m.Stretch(48, 123457, 1000); a != c.decode || b != c.mixed || s != c.stretch {
			t.Errorf("%s: %d, %d, %d; want %d, %d, %d", c.spec, a, b, s, c.decode, c.mixed, c.stretch)
		}
	}
}
