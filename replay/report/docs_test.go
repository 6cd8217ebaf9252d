package report

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// TestDocumented: docs/replay-report.md says of every field what it means.
func TestDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/replay-report.md")
	if err != nil {
		t.Fatal(err)
	}
	schema, err := os.ReadFile("testdata/schema.txt")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(schema)) {
		field, _, _ := strings.Cut(line, " ")
		for name := range strings.SplitSeq(strings.ReplaceAll(field, "[]", ""), ".") {
			names[name] = true
		}
	}
	lines, err := os.ReadFile("testdata/small.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`"([a-z0-9_]+)":`).FindAllStringSubmatch(string(lines), -1) {
		names[m[1]] = true
	}
	delete(names, "")
	if len(names) < 100 {
		t.Fatalf("only %d fields", len(names))
	}
	for name := range names {
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("%s does not explain %q", path.Base("docs/replay-report.md"), name)
		}
	}
}
