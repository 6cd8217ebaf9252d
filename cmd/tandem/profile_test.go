package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/engine/timed"
)

// TestProfileRefusesBeforeItMeasures: wrong flags are usage errors, at once.
func TestProfileRefusesBeforeItMeasures(t *testing.T) {
	for _, c := range []struct{ arg, says string }{
		{"--runs=0", "--runs"},
		{"--max-error=0", "--max-error"},
		{"--slots=1000", "--slots"},
		{"--context=8", "--context"},
		{"--out=" + filepath.Join(t.TempDir(), "missing", "timing.yaml"), "--out"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), []string{"--config=", "profile", c.arg}, &stdout, &stderr); code != exitUsage || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%s: exit code %d, %s", c.arg, code, &stderr)
		}
	}
}

// TestProfileWritesWhatReplayReads takes a few steps only; how long they take says
// nothing.
func TestProfileWritesWhatReplayReads(t *testing.T) {
	if _, err := install.Ensure(t.Context(), install.Options{}); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "timing.yaml")
	small := []string{
		"--config=", "profile", "--threads=1", "--slots=2", "--context=256", "--page-tokens=32",
		"--new=16,32", "--past=0,32", "--batch=1,2", "--held=8,16", "--runs=1", "--form=table", "--out=" + out,
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), small, &stdout, &stderr); code != exitOK || !strings.Contains(stdout.String(), "prefill 16 on 0") {
		t.Fatalf("exit code %d\n%s\n%s", code, &stdout, &stderr)
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := timed.Load(f)
	if err != nil {
		t.Fatal(err)
	}
	if m.Geometry().Recurrent == 0 || m.Step(&timed.Batch{Decodes: 2, Context: 20}) < timed.Microsecond {
		t.Errorf("the model is empty: %+v", m.Geometry())
	}
	var again bytes.Buffer
	if code := run(t.Context(), append(small, "--new=16,4096"), &again, &again); code != exitUsage {
		t.Errorf("a chunk beyond the engine's batch: exit code %d\n%s", code, &again)
	}
}
