package openai

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateDocs = flag.Bool("update-docs", false, "rewrite the field table of docs/api.md")

const apiDoc = "../../docs/api.md"

// section returns what stands between <!-- name … --> and <!-- /name -->, and its place.
func section(t *testing.T, doc, name string) (text string, from, to int) {
	t.Helper()
	start := strings.Index(doc, "<!-- "+name)
	to = strings.Index(doc, "<!-- /"+name+" -->")
	if start < 0 || to < start {
		t.Fatalf("%s has no section %s", apiDoc, name)
	}
	from = start + strings.Index(doc[start:], "\n") + 1
	return doc[from:to], from, to
}

// TestDocsListFields: the documentation's table is the code's.
func TestDocsListFields(t *testing.T) {
	raw, err := os.ReadFile(apiDoc)
	if err != nil {
		t.Fatal(err)
	}
	doc := string(raw)
	var want strings.Builder
	want.WriteString("| field | chat | completions | | |\n|---|---|---|---|---|\n")
	mark := func(f Field, e Endpoint) string {
		if slices.Contains(f.On, e) {
			return "yes"
		}
		return ""
	}
	for _, f := range Fields() {
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s | %s |\n", f.Name, mark(f, Chat), mark(f, Completion), f.Use, f.Note)
	}
	got, from, to := section(t, doc, "fields")
	if *updateDocs {
		doc = doc[:from] + want.String() + doc[to:]
		if err := os.WriteFile(apiDoc, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(want.String(), got); d != "" {
		t.Errorf("docs/api.md: run go test ./api/openai -update-docs\n%s", d)
	}
}

// TestDocsListCodes: the documentation explains every code that there is, and no other.
func TestDocsListCodes(t *testing.T) {
	raw, err := os.ReadFile(apiDoc)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("error.go")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := section(t, string(raw), "codes")
	documented := make(map[string]bool)
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cells[2], -1) {
			documented[m[1]] = true
		}
	}
	defined := regexp.MustCompile(`(?m)^\tCode\w+\s+= "([a-z_]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(defined) < 20 {
		t.Fatalf("only %d codes found in error.go", len(defined))
	}
	for _, m := range defined {
		if !documented[m[1]] {
			t.Errorf("docs/api.md does not explain %s", m[1])
		}
		delete(documented, m[1])
	}
	for code := range documented {
		t.Errorf("docs/api.md explains %s, which does not exist", code)
	}
}
