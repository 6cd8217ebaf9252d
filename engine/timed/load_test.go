package timed

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const fittedFile = `
note: measured on a machine
fitted:
  step_ms: 1.5
  token_ms: 0.25
  pair_ms: 0.0001
  decode:
    - {up_to: 8, step_ms: 2, sequence_ms: 0.5, context_ms: 0.001}
    - {step_ms: 3, sequence_ms: 0.25, context_ms: 0.001}
geometry: {attention_per_token: 1000, recurrent: 5}
moves: {export_bytes_per_second: 1e9, import_ms: 0.5}
`

func TestLoad(t *testing.T) {
	m, err := Load(strings.NewReader(fittedFile))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Step(&Batch{Decodes: 4, Context: 1000}); got != 5*ms {
		t.Errorf("a step takes %v", got)
	}
	if got := m.Geometry().Bytes(10); got != 10005 {
		t.Errorf("a sequence takes %d bytes", got)
	}
	for _, c := range []struct {
		name, file string
		step       *Batch
		want       float64 // ms
	}{
		{"names", "{model: llama-3-8b, hardware: h100-sxm, mbu: 1}", &Batch{Decodes: 1}, 15.009e9 / 3.35e12 * 1e3},
		{"options", "{model: llama-3-8b, hardware: h100-sxm, tp: 2, mbu: 1, link_gbps: 1e6, weight_bits: 8, step_us: 1000}", &Batch{Decodes: 1}, 1 + 15.009e9/4/3.35e12*1e3},
		{"JSON", `{"preset": "dynamo"}`, &Batch{Decodes: 1}, 5.74},
		{"a shape beside fixed times", "{model: llama-3-8b, fixed: {decode_ms: 7}}", &Batch{Decodes: 1}, 7},
		{"shapes of one's own", `
model_spec:
  name: mine
  hidden: 64
  vocab: 1000
  blocks: [{count: 2, attention: {heads: 4, kv_heads: 2, head_dim: 16}, dense: {width: 128, gated: true}}]
hardware_spec: {name: toaster, bf16_tflops: 1e-3, gbps: 1, memory_gb: 1, prefill_mfu: 1, decode_mfu: 1, mbu: 1}
`, &Batch{Decodes: 1}, 2 * (2*(2*64*64+2*64*32+3*64*128) + 64000) / 1e9 * 1e3},
	} {
		m, err := Load(strings.NewReader(c.file))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		near(t, c.name, m.Step(c.step).Seconds()*1e3, c.want, 0.01)
	}
	shaped, err := Load(strings.NewReader("{model: llama-3-8b, fixed: {decode_ms: 7}}"))
	if err != nil || shaped.Geometry().PerToken() != 131072 {
		t.Errorf("the model beside fixed times does not give the size of state: %v", err)
	}
	for name, c := range map[string][2]string{
		"nothing":           {"note: x", "not 0"},
		"two kinds":         {"{preset: dynamo, fixed: {decode_ms: 1}}", "not 2"},
		"hardware alone":    {"hardware: h100-sxm", "model"},
		"an unknown field":  {"{preset: dynamo, tokens: 3}", "tokens"},
		"an unknown preset": {"preset: mocker", "dynamo"},
		"an unknown model":  {"{model: llama-9, hardware: h100-sxm}", "llama-3-8b"},
		"both of a pair":    {"{model: llama-3-8b, model_spec: {name: x}, hardware: h100-sxm}", "both"},
		"a bad shape":       {"{model_spec: {name: x}, fixed: {decode_ms: 1}}", "hidden"},
		"not YAML":          {"{{", "read the timing model"},
		"an empty file":     {"", "read the timing model"},
		"a huge file":       {strings.Repeat("#", maxFile+1), "4 MiB"},
	} {
		if _, err := Load(strings.NewReader(c[0])); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %v, want an error with %q", name, err, c[1])
		}
	}
}

func TestSpecComesBackAsWritten(t *testing.T) {
	spec := Spec{
		Note:  "test",
		Table: &Table{New: []int{1}, Past: []int{0}, PrefillMS: [][]float64{{1}}, Batch: []int{1}, Context: []int{1}, DecodeMS: [][]float64{{2}}},
		Options: Options{Common: Common{
			Geometry:    Geometry{AttentionPerToken: 7, Conv: 3},
			Moves:       Moves{ImportBytesPerSecond: 5},
			Speculation: &Speculation{Kind: Suffix, Draft: 2, Accept: []float64{0.5}, Hit: 0.25},
			MaxDecodes:  5,
		}},
	}
	var yaml bytes.Buffer
	if err := spec.Write(&yaml); err != nil {
		t.Fatal(err)
	}
	var back Spec
	if err := decode(yaml.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(spec, back); d != "" {
		t.Errorf("YAML changes it:\n%s", d)
	}
	if _, err := back.Build(); err != nil {
		t.Error(err)
	}
	for _, m := range Models() {
		var out bytes.Buffer
		if err := (&Spec{ModelSpec: &m, Hardware: "h100-sxm"}).Write(&out); err != nil {
			t.Fatal(err)
		}
		var back Spec
		if err := decode(out.Bytes(), &back); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(&m, back.ModelSpec, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s changes in YAML:\n%s", m.Name, d)
		}
		raw, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var again ModelSpec
		if err := json.Unmarshal(raw, &again); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, again, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s changes in JSON:\n%s", m.Name, d)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(fittedFile))
	f.Add([]byte("{model: nemotron-3-super-120b-a12b, hardware: b200-sxm, tp: 8, speculation: {kind: mtp, draft: 2, accept: [0.9, 0.5]}}"))
	f.Add([]byte("{preset: dynamo}"))
	f.Add([]byte("{table: {new: [1, 9], past: [0], prefill_ms: [[1], [2]], batch: [1], context: [1, 5], decode_ms: [[2, 1]]}}"))
	f.Add([]byte("{polynomial: {prefill_ms: [1, 2, 3], decode_ms: [1, -2, 3], tokens: 1000}}"))
	f.Add([]byte("{fixed: {decode_ms: 1e12}, max_decodes: 3}"))
	var spec bytes.Buffer
	if err := (&Spec{ModelSpec: &Models()[27], HardwareSpec: &Hardwares()[0]}).Write(&spec); err != nil {
		f.Fatal(err)
	}
	f.Add(spec.Bytes())
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := Load(bytes.NewReader(raw))
		if err != nil {
			return
		}
		// Whatever was accepted keeps time that only moves on.
		for _, d := range []int{1, 7, 3000} {
			a := m.Step(&Batch{Decodes: d, Context: int64(d) * 100})
			b := m.Step(&Batch{Decodes: d, Context: int64(d) * 100, Chunks: []Chunk{{New: 512, Past: 1 << 20}}})
			if a < 1 || b < 1 {
				t.Fatalf("steps take %d and %d", a, b)
			}
			if got, want := m.Stretch(d, 0, 20), steps(m, d, 0, 20); got != want {
				t.Fatalf("a stretch of %d and steps of %d", got, want)
			}
			if n := m.StepsWithin(d, 0, m.Stretch(d, 0, 20), 20); n != 20 {
				t.Fatalf("%d steps of 20 fit into their own time", n)
			}
		}
		if m.Export(1<<40) < 0 || m.Capacity(0.9) < -1 {
			t.Fatal("negative cost or capacity")
		}
	})
}
