package timed

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the generated part of docs/timing.md")

const (
	doc      = "../../docs/timing.md"
	docBegin = "<!-- catalogue: this part is generated; go test ./engine/timed -update -->\n"
	docEnd   = "<!-- /catalogue -->\n"
)

// TestDocumentedCatalogue keeps docs/timing.md equal to what is built in.
func TestDocumentedCatalogue(t *testing.T) {
	raw, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), docBegin)
	got, after, ok2 := strings.Cut(rest, docEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no generated part", doc)
	}
	var w strings.Builder
	catalogue(&w)
	if *update {
		if err := os.WriteFile(doc, []byte(before+docBegin+w.String()+docEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if d := cmp.Diff(w.String(), got); d != "" {
		t.Errorf("%s: go test ./engine/timed -update rewrites it\n%s", doc, d)
	}
}

func catalogue(w *strings.Builder) {
	w.WriteString("\n### Models\n\nWeights in 10⁹: all, and those of one token without embeddings. Bytes of attention state per token and in a\nsnapshot of 4,096 tokens (windows, recurrent and convolution state), at 16 bits.\n\n")
	w.WriteString("| model | weights | of a token | per token | snapshot | read from |\n|---|---|---|---|---|---|\n")
	for _, m := range Models() {
		all, body := m.Params()
		g := m.Geometry(Options{})
		fmt.Fprintf(w, "| `%s` | %.4g | %.4g | %d | %d | %s |\n", m.Name, float64(all)/1e9, float64(body)/1e9, g.PerToken(), g.Snapshot(4096), m.Source)
	}
	w.WriteString("\n### Hardware\n\nDense TFLOP/s, memory and one link in GB/s one way, memory in GB (10⁹ bytes).\n\n")
	w.WriteString("| hardware | bf16 | fp8 | fp4 | GB/s | GB | link | MFU of prompts, decodes | MBU | read from | efficiencies from |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, h := range Hardwares() {
		fmt.Fprintf(w, "| `%s` | %g | %g | %g | %g | %g | %g | %g, %g | %g | %s | %s |\n", h.Name, h.BF16TFLOPS, h.FP8TFLOPS, h.FP4TFLOPS, h.GBps, h.MemoryGB, h.LinkGBps, h.PrefillMFU, h.DecodeMFU, h.MBU, h.Source, h.EfficiencySource)
	}
	w.WriteString("\n### Presets\n\n| preset | read from |\n|---|---|\n")
	for _, p := range Presets() {
		fmt.Fprintf(w, "| `%s` | %s |\n", p.Name, p.Source)
	}
}

// TestDocumentedFilesLoad: what docs/timing.md shows can be copied.
func TestDocumentedFilesLoad(t *testing.T) {
	raw, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	loaded := 0
	for _, block := range strings.Split(string(raw), "\n\n") {
		file, kind := strings.ReplaceAll(strings.TrimPrefix(block, "    "), "\n    ", "\n"), ""
		switch {
		case !strings.HasPrefix(block, "    "):
			continue
		case strings.HasPrefix(file, "timing: "):
			file, kind = strings.TrimPrefix(file, "timing: "), "timing"
		case strings.HasPrefix(file, "fitted:"), strings.HasPrefix(file, "table:"):
			kind = "file"
		case strings.HasPrefix(file, "speculation:"):
			for line := range strings.Lines(file) {
				if _, err := Load(strings.NewReader("model: deepseek-v3\nhardware: h200-sxm\n" + line)); err != nil {
					t.Errorf("%s: %v", line, err)
				}
				loaded++
			}
		}
		if kind == "" {
			continue
		}
		if _, err := Load(strings.NewReader(file)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		loaded++
	}
	if loaded != 5 {
		t.Errorf("%d files were found, want 5", loaded)
	}
}
