package verify

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/state"
)

// identity has no field that is zero, so that one which is forgotten shows.
func identity() state.Identity {
	return state.Identity{
		Schema: state.SchemaVersion, Weights: state.Digest{1, 2}, Tokenizer: state.Digest{3}, Architecture: "llama", Layers: 4,
		Rope:    state.Rope{Scaling: state.RopeYarn, FreqBase: 1.5, FreqScale: 2.5, ExtFactor: 3.5, AttnFactor: 4.5, BetaFast: 5.5, BetaSlow: 6.5, OrigContext: 7},
		KVTypeK: state.F16, KVTypeV: state.Q8_0, FlashAttention: true, SWAFull: true, EngineBuild: "engine", EngineState: 8, Endian: state.LittleEndian,
	}
}

// report is a small one without a failure.
func report() *Report {
	id := identity()
	r := &Report{
		Schema: ReportSchema, Tandem: "test", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Steps: 8, Seed: 1,
		Model:  Model{File: "m.gguf", Architecture: "llama", Weights: id.Weights.Hex()},
		Source: Side{"CPU", "engine", 2}, Destination: Side{"CPU", "engine", 2}, Identities: []Identity{identityOf(id)},
		Caps: []Cap{{65536, "too long"}},
		Cells: []Result{
			{Name: "a", Kind: KindImport, Params: &Params{Tokens: 100}, Status: Passed},
			{Name: "b", Kind: KindImport, Params: &Params{Tokens: 200}, Status: Explained, Reason: "near-tie"},
			{Name: "c", Kind: KindRefusal, Status: Passed},
			{Name: "d", Kind: KindLater, Status: NotBuilt, Reason: "later"},
		},
	}
	r.count()
	return r
}

// Every field of an identity travels, and comes back equal.
func TestIdentityIsWhole(t *testing.T) {
	id := identity()
	for _, v := range []reflect.Value{reflect.ValueOf(id), reflect.ValueOf(id.Rope)} {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("the test's %s.%s is zero", v.Type(), v.Type().Field(i).Name)
			}
		}
	}
	b, err := json.Marshal(identityOf(id))
	if err != nil {
		t.Fatal(err)
	}
	var back Identity
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if got, err := back.State(); err != nil || !got.Equal(id) {
		t.Errorf("%v, equal %v", err, got.Equal(id))
	}
}

func TestCertificate(t *testing.T) {
	c, err := Certify(report())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"a", "c"}, c.Passed) + cmp.Diff([]string{"b"}, c.Explained) + cmp.Diff([]LeftOut{{"d", NotBuilt, "later"}}, c.Skipped); d != "" {
		t.Error(d)
	}
	if c.LongestPrompt != 200 || c.Quick || c.Partial || len(c.Caps) != 1 {
		t.Errorf("%+v", c)
	}
	path := filepath.Join(t.TempDir(), "deep", "c.json")
	if err := c.Write(path); err != nil {
		t.Fatal(err)
	}
	back, err := ReadCertificate(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(c, back); d != "" {
		t.Error(d)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []struct{ name, old, new string }{
		{"steps", `"steps": 8`, `"steps": 9`},
		{"cell", `"c"`, `"x"`},
		{"schema", `"schema": 1,` + "\n" + `  "tandem"`, `"schema": 2,` + "\n" + `  "tandem"`},
		{"unknown field", `"seed"`, `"sead"`},
		{"identity", `"engine_state": 8`, `"engine_state": 9`},
		{"model", `"weights"`, `"weight"`},
		{"status", `"not built"`, `"failed"`},
		{"digest", `"digest": "`, `"digest": "0`},
		{"more", "}\n", "}\n{}"},
		{"nothing", string(raw), ""},
		{"no JSON", "{", "["},
	} {
		changed := strings.Replace(string(raw), e.old, e.new, 1)
		if changed == string(raw) {
			t.Fatalf("%s: nothing was changed", e.name)
		}
		if e.name == "more" {
			changed = string(raw) + "{}"
		}
		file := filepath.Join(t.TempDir(), "c.json")
		if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadCertificate(file); !errors.Is(err, ErrCertificate) {
			t.Errorf("%s: %v", e.name, err)
		}
	}
	if _, err := ReadCertificate(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// There is no certificate for a run that shows nothing.
func TestNoCertificate(t *testing.T) {
	for name, change := range map[string]func(*Report){
		"a failure":      func(r *Report) { r.Cells[0].Status = Failed },
		"an interrupt":   func(r *Report) { r.Interrupted = true },
		"unfinished":     func(r *Report) { r.Cells[2].Status = Unfinished },
		"nothing moved":  func(r *Report) { r.Cells = r.Cells[2:] },
		"nothing passed": func(r *Report) { r.Cells = r.Cells[3:] },
	} {
		r := report()
		change(r)
		r.count()
		if _, err := Certify(r); !errors.Is(err, ErrCertificate) {
			t.Errorf("%s: %v", name, err)
		}
	}
	quick := report()
	quick.Quick, quick.Match = true, "x"
	if c, err := Certify(quick); err != nil || !c.Quick || !c.Partial {
		t.Errorf("a quick and partial run: %v", err)
	}
}

func TestCertificatePath(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("HOME", dir)
	t.Setenv("AppData", dir)
	path, err := CertificatePath(Model{File: "m.gguf", Weights: "0123456789abcdef"})
	if err != nil || filepath.Base(path) != "m-0123456789ab.json" || !strings.HasPrefix(path, dir) {
		t.Errorf("%s, %v", path, err)
	}
}
