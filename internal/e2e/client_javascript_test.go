package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestJavaScriptClient uses the server through OpenAI's JavaScript client, which
// npm installs in the version that the lock file pins.
func TestJavaScriptClient(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json", "client.mjs"} {
		raw, err := os.ReadFile(filepath.Join("testdata", "openai-js", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(t, dir, "npm", "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	f := clientFleet(t)
	out := run(t, dir, "node", "client.mjs", f.url+"/v1", clientKey, f.model)
	if n := strings.Count(out, "ok "); n != 5 {
		t.Errorf("%d of 5 parts ran:\n%s", n, out)
	}
}

// run runs a tool in a directory and returns what it printed.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is needed for this test: install Node.js, which brings node and npm: %v", name, err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
