package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const cases = 27 // rows of the table in docs/cases.md

// TestCases: every lifecycle case names at least one pure test, and every test that
// is named exists.
func TestCases(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "cases.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([^`]+)`")
	next := 1
	for line := range strings.Lines(string(text)) {
		cell := strings.Split(line, "|")
		if len(cell) != 7 {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(cell[1]))
		if err != nil {
			continue // the head
		}
		if n != next {
			t.Fatalf("row %d follows row %d", n, next-1)
		}
		next++
		if !named.MatchString(cell[4]) {
			t.Errorf("case %d names no pure test", n)
		}
		for _, m := range named.FindAllStringSubmatch(cell[4]+cell[5], -1) {
			if problem := missing(root, m[1]); problem != "" {
				t.Errorf("case %d: %s: %s", n, m[1], problem)
			}
		}
	}
	if next != cases+1 {
		t.Errorf("%d cases, want %d", next-1, cases)
	}
}

// missing says why a named test is not there: a file below the root, or
// directory:Test.
func missing(root, name string) string {
	dir, test, isTest := strings.Cut(name, ":")
	if !isTest {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			return "no such file"
		}
		return ""
	}
	files, _ := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(src), "\nfunc "+test+"(") {
			return ""
		}
	}
	return "no such test"
}
