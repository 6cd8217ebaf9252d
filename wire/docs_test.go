package wire

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The table of error codes in docs/wire.md is the one that the code has.
func TestDocsListEveryCode(t *testing.T) {
	var want strings.Builder
	want.WriteString("| code | name | what it says |\n|---|---|---|\n")
	for c := Code(1); int(c) <= len(codeText); c++ {
		text, ok := codeText[c]
		if !ok {
			t.Fatalf("code %d has no text; codes are numbered without gaps", c)
		}
		fmt.Fprintf(&want, "| %d | `%s` | %s |\n", c, text.name, text.text)
	}
	doc, err := os.ReadFile("../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), want.String()) {
		t.Errorf("docs/wire.md has not this table:\n%s", want.String())
	}
}
