package sweep

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem/replay/report"
)

// A file that is not a store stays what it is, also one without an end of line.
func TestStoreLeavesOtherFiles(t *testing.T) {
	for _, text := range []string{"my notes", "{}", "mode: colocated\npools: []", "{\"kez"} {
		path := filepath.Join(t.TempDir(), "notes")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenStore(path); !errors.Is(err, ErrStore) {
			t.Errorf("%q: %v", text, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%q became %q, %v", text, got, err)
		}
	}
}

// FuzzStore: what is in a file is taken or refused; what was taken is there again, and
// what is added, too.
func FuzzStore(f *testing.F) {
	line := `{"key":"a","result":{"schema":"` + report.Schema + `"}}` + "\n"
	f.Add([]byte(line + line[:20]))
	f.Add([]byte(line + "x\n"))
	f.Add([]byte(`{"key":"a","result":{"schema":"` + report.Schema + `","end_s":1e99}}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "runs")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := OpenStore(path)
		if err != nil {
			if got, _ := os.ReadFile(path); !bytes.Equal(got, text) {
				t.Errorf("%q was refused and changed to %q", text, got)
			}
			return
		}
		n := s.Len()
		if s.get("new key") == nil {
			n++
		}
		if err := errors.Join(s.put("new key", &report.Result{Schema: report.Schema}), s.Close()); err != nil {
			t.Fatal(err)
		}
		again, err := OpenStore(path)
		if err != nil {
			t.Fatalf("after one more line: %v", err)
		}
		defer again.Close()
		if again.Len() != n {
			t.Errorf("%d runs, want %d", again.Len(), n)
		}
	})
}
