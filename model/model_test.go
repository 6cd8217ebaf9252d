package model_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/tandem-llm/tandem/gguf"
	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/state"
)

// TestInspect runs the scripts in testdata. Commands:
//
//	tiny arch=NAME    report on the small model of that architecture
//	inspect           report on a file with the metadata given, one key and
//	                  value per line; [1 2] is an array, 3×[1 2] repeats it,
//	                  a minimal tokenizer is added. "-key" removes one.
//
// Errors are printed. Run with -rewrite to take new output over.
func TestInspect(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			file := filepath.Join(t.TempDir(), "m.gguf")
			switch d.Cmd {
			case "tiny":
				var arch string
				d.ScanArgs(t, "arch", &arch)
				if err := tiny.Write(file, tiny.Arch(arch), tiny.DefaultSeed); err != nil {
					d.Fatalf(t, "%v", err)
				}
			case "inspect":
				if err := fileOf(d.Input).WriteFile(file); err != nil {
					d.Fatalf(t, "%v", err)
				}
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			return report(file)
		})
	})
}

func report(file string) string {
	m, err := model.Inspect(file)
	if err != nil {
		return strings.ReplaceAll(err.Error(), file, "FILE") + "\n"
	}
	var b strings.Builder
	if err := m.Report(&b); err != nil {
		return err.Error() + "\n"
	}
	var out []string
	for line := range strings.Lines(b.String()) {
		out = append(out, strings.TrimRight(line, " \n"))
	}
	return strings.Join(out, "\n") + "\n"
}

// fileOf returns a file with the metadata that spec lists.
func fileOf(spec string) *gguf.Writer {
	values := map[string]string{
		"general.architecture":            "llama",
		"*.context_length":                "4096",
		"*.embedding_length":              "64",
		"*.block_count":                   "2",
		"*.attention.head_count":          "2",
		"tokenizer.ggml.model":            `"gpt2"`,
		"tokenizer.ggml.tokens":           `["a" "b" "c"]`,
		"tokenizer.ggml.token_type":       "[1 1 3]",
		"tokenizer.ggml.merges":           `["a b"]`,
		"tokenizer.ggml.eos_token_id":     "2",
		"tokenizer.ggml.padding_token_id": "4294967295",
	}
	for line := range strings.Lines(spec) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name, ok := strings.CutPrefix(key, "-"); ok {
			delete(values, name)
			continue
		}
		values[key] = strings.TrimSpace(value)
	}
	arch := strings.Trim(values["general.architecture"], `"`)
	w := &gguf.Writer{}
	for key, value := range values {
		put(w, strings.Replace(key, "*", arch, 1), value)
	}
	return w
}

func put(w *gguf.Writer, key, value string) {
	switch {
	case strings.HasPrefix(value, `["`):
		w.Strings(key, quoted(value))
	case strings.Contains(value, "["):
		w.Int32s(key, numbers(value))
	case value == "true" || value == "false":
		w.Bool(key, value == "true")
	default:
		if n, err := strconv.ParseUint(value, 10, 32); err == nil {
			w.Uint32(key, uint32(n))
		} else if f, err := strconv.ParseFloat(value, 32); err == nil {
			w.Float32(key, float32(f))
		} else {
			w.String(key, strings.Trim(value, `"`))
		}
	}
}

// quoted parses `["a" "b c"]`.
func quoted(s string) []string {
	var out []string
	for s = s[1:]; ; s = strings.TrimSpace(s) {
		q, err := strconv.QuotedPrefix(s)
		if err != nil {
			return out
		}
		s = s[len(q):]
		q, _ = strconv.Unquote(q)
		out = append(out, q)
	}
}

// numbers parses "[1 2]" and repetitions such as "3×[1 2] [4]".
func numbers(s string) []int32 {
	var out []int32
	for s != "" {
		head, tail, _ := strings.Cut(s, "[")
		list, rest, _ := strings.Cut(tail, "]")
		repeat := 1
		if n, ok := strings.CutSuffix(strings.TrimSpace(head), "×"); ok {
			repeat, _ = strconv.Atoi(n)
			repeat = min(repeat, 1000)
		}
		for range repeat {
			for _, f := range strings.Fields(list) {
				n, _ := strconv.ParseInt(f, 10, 32)
				out = append(out, int32(n))
			}
		}
		s = strings.TrimSpace(rest)
	}
	return out
}

func inspect(t *testing.T, w *gguf.Writer) (*model.Model, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "m.gguf")
	if err := w.WriteFile(file); err != nil {
		t.Fatal(err)
	}
	return model.Inspect(file)
}

func TestErrorsAreTyped(t *testing.T) {
	_, err := inspect(t, fileOf("*.block_count 0"))
	var invalid *model.InvalidError
	if !errors.Is(err, model.ErrInvalid) || !errors.As(err, &invalid) || invalid.Key != "llama.block_count" {
		t.Errorf("block_count 0: %v", err)
	}
	_, err = inspect(t, fileOf("-*.block_count"))
	if !errors.Is(err, model.ErrInvalid) || !errors.Is(err, gguf.ErrMissingKey) {
		t.Errorf("no block_count: %v", err)
	}
	_, err = inspect(t, fileOf("*.block_count two"))
	if !errors.Is(err, model.ErrInvalid) || !errors.Is(err, gguf.ErrKeyType) {
		t.Errorf("block_count as text: %v", err)
	}
	_, err = model.Inspect(filepath.Join(t.TempDir(), "none.gguf"))
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	m, err := inspect(t, fileOf("general.architecture bert"))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{m.Handoff(), m.Serve()} {
		var unsupported *model.UnsupportedError
		if !errors.Is(err, model.ErrUnsupported) || !errors.As(err, &unsupported) || unsupported.Colocated {
			t.Errorf("bert: %v", err)
		}
	}
	if m, err = inspect(t, fileOf("general.architecture gpt9")); err != nil {
		t.Fatal(err)
	}
	if err := m.Handoff(); !errors.Is(err, model.ErrUnsupported) || !strings.Contains(err.Error(), "serve it colocated") {
		t.Errorf("unknown architecture: %v", err)
	}
	if err := m.Serve(); err != nil {
		t.Errorf("unknown architecture, colocated: %v", err)
	}
	if _, err := m.Inventory(model.DefaultConfig); !errors.Is(err, model.ErrUnsupported) {
		t.Errorf("inventory of an unknown architecture: %v", err)
	}
}

func TestInventoryFollowsTheConfiguration(t *testing.T) {
	m, err := inspect(t, fileOf("general.architecture gemma3\n*.attention.sliding_window 8\n*.block_count 6\n*.attention.key_length 64\n*.attention.value_length 64"))
	if err != nil {
		t.Fatal(err)
	}
	find := func(c model.Config, k state.Kind) state.Component {
		t.Helper()
		inv, err := m.Inventory(c)
		if err != nil {
			t.Fatal(err)
		}
		if f := inv.Find(k); f != nil {
			return *f
		}
		return state.Component{}
	}
	c := model.Config{KVTypeK: state.F32, KVTypeV: state.Q8_0}
	// Five of six layers are windowed; a row is 2 heads of 64 elements.
	if got, want := find(c, state.WindowKV).PerToken, uint64(5*(2*64*4+2*64/32*34)); got != want {
		t.Errorf("window: %d bytes per token, want %d", got, want)
	}
	if w := find(c, state.WindowKV); w.WindowMin != 7 || w.WindowMax != 8 {
		t.Errorf("window holds %d to %d tokens, want 7 to 8", w.WindowMin, w.WindowMax)
	}
	c.WindowCells = 100
	if w := find(c, state.WindowKV); w.WindowMax != 100 {
		t.Errorf("window holds up to %d tokens, want 100", w.WindowMax)
	}
	c.SWAFull = true
	if got := find(c, state.AttentionKV).Count; got != 6 {
		t.Errorf("with full windows %d layers page, want 6", got)
	}
	if got := find(c, state.WindowKV).Count; got != 0 {
		t.Errorf("with full windows %d layers are windowed", got)
	}
	if m, err = inspect(t, fileOf("*.embedding_length 40")); err != nil {
		t.Fatal(err)
	}
	if _, ok := m.TokenBytes(state.Q8_0); ok {
		t.Error("rows of 40 elements fit q8_0")
	}
}

func TestTokenizerDigest(t *testing.T) {
	digest := func(spec string) state.Digest {
		t.Helper()
		m, err := inspect(t, fileOf(spec))
		if err != nil {
			t.Fatal(err)
		}
		return m.Tokenizer.Digest
	}
	base := digest("")
	for _, same := range []string{"*.context_length 99", "tokenizer.chat_template x", "tokenizer.chat_template.tools x"} {
		if digest(same) != base {
			t.Errorf("%q changes the tokenizer digest", same)
		}
	}
	for _, other := range []string{
		`tokenizer.ggml.tokens ["a" "b" "d"]`, `tokenizer.ggml.tokens ["ab" "" "c"]`, "tokenizer.ggml.eos_token_id 1",
		"tokenizer.ggml.pre x", "tokenizer.ggml.add_space_prefix true", "-tokenizer.ggml.merges",
	} {
		if digest(other) == base {
			t.Errorf("%q does not change the tokenizer digest", other)
		}
	}
}

func TestSplit(t *testing.T) {
	dir := t.TempDir()
	part := func(no, tensors int, spec string) *gguf.Writer {
		w := &gguf.Writer{}
		if no == 0 {
			w = fileOf(spec)
		}
		w.Uint32("split.no", uint32(no))
		w.Uint32("split.count", 3)
		w.Int32s("split.tensors.count.unused", nil)
		for i := range tensors {
			w.Float32Tensor(fmt.Sprintf("t%d.%d", no, i), []uint64{2}, []float32{1, 2})
		}
		return w
	}
	name := func(i int) string { return filepath.Join(dir, fmt.Sprintf("m-%05d-of-00003.gguf", i+1)) }
	write := func(file string, w *gguf.Writer) {
		t.Helper()
		if err := w.WriteFile(file); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		write(name(i), part(i, i+1, "split.tensors.count 6"))
	}
	m, err := model.Inspect(name(0))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Files) != 3 || m.Files[2] != name(2) || m.Parameters != 12 {
		t.Errorf("files %q, %d parameters", m.Files, m.Parameters)
	}
	whole, err := model.Digest(name(0))
	if err != nil {
		t.Fatal(err)
	}

	wrong := func(says string) {
		t.Helper()
		if _, err := model.Inspect(name(0)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want %q", err, says)
		}
	}
	if _, err := model.Inspect(name(1)); err == nil || !strings.Contains(err.Error(), "part 2 of 3: give the path of the first part") {
		t.Errorf("second part: %v", err)
	}
	write(name(0), part(0, 1, "split.tensors.count 7"))
	wrong("7, the parts hold 6")
	write(name(0), part(0, 1, ""))
	write(name(2), part(1, 3, ""))
	wrong("1, want 2")
	if err := os.Remove(name(2)); err != nil {
		t.Fatal(err)
	}
	wrong("part 3 of 3")
	write(name(2), part(2, 3, ""))
	other, err := model.Digest(name(0))
	if err != nil {
		t.Fatal(err)
	}
	if other == whole {
		t.Error("the digest does not depend on the parts' bytes")
	}
	lone := filepath.Join(dir, "renamed.gguf")
	write(lone, part(0, 1, ""))
	if _, err := model.Inspect(lone); err == nil || !strings.Contains(err.Error(), "NAME-00001-of-00003.gguf") {
		t.Errorf("renamed first part: %v", err)
	}
}

// FuzzInspect takes metadata as TestInspect's scripts write it: changes of bytes
// would rarely get past package gguf, which has a fuzz target of its own.
func FuzzInspect(f *testing.F) {
	for _, spec := range []string{
		"", "general.architecture gemma3\n*.attention.sliding_window 8\n*.attention.sliding_window_pattern [1 0]",
		"general.architecture nemotron_h_moe\n*.nextn_predict_layers 1\n*.ssm.conv_kernel 4\n*.ssm.inner_size 8\n*.ssm.state_size 4\n*.ssm.time_step_rank 2\n*.ssm.group_count 1\n*.attention.head_count_kv [0 2]",
		"general.architecture deepseek2\n*.attention.key_length_mla 8\n*.attention.value_length_mla 8\n*.expert_count 8\n*.expert_used_count 2",
	} {
		f.Add(spec)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		var b bytes.Buffer
		if _, err := fileOf(spec).WriteTo(&b); err != nil {
			return
		}
		head, err := gguf.Read(&b, int64(b.Len()), gguf.Limits{})
		if err != nil {
			return
		}
		m, err := model.Describe("m.gguf", head)
		if err != nil {
			if !errors.Is(err, model.ErrInvalid) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if err := m.Report(&bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
		if m.Refusal == "" && (len(m.Layers) == 0 || m.Family == model.FamilyUnknown) {
			t.Fatalf("no layers of a supported model: %+v", m)
		}
	})
}
