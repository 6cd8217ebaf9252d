package state

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every reason in errors.go is met by name in some test.
func TestEveryReasonIsTested(t *testing.T) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			for _, id := range v.Names {
				if strings.HasPrefix(id.Name, "Err") {
					reasons = append(reasons, id.Name)
				}
			}
		}
		return true
	})
	if len(reasons) < 30 {
		t.Fatalf("found only %d reasons", len(reasons))
	}
	used := map[string]bool{}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				used[id.Name] = true
			}
			return true
		})
	}
	for _, r := range reasons {
		if !used[r] {
			t.Errorf("%s is not met by any test", r)
		}
	}
}

// Errors and printed values show neither tokens nor digests nor keys.
func TestNothingSecretPrints(t *testing.T) {
	d := Digest{0xde, 0xad, 0xbe, 0xef}
	m := wholeManifest(t)
	m.History[3] = 987654321
	m.Units[0].Digest = d
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, v := range []any{d, DigestKey(d), m, &m, m.Units[0], SealerConfig{Key: DigestKey(d)}} {
			s := fmt.Sprintf(format, v)
			for _, secret := range []string{"dead", "DEAD", "222", "987654321", "###"} {
				if strings.Contains(s, secret) {
					t.Errorf("%s of %T prints %q", format, v, s)
				}
			}
		}
	}
	if d.Hex()[:8] != "deadbeef" {
		t.Errorf("Hex is %q", d.Hex())
	}
}

func TestErrorText(t *testing.T) {
	h := testHeader(t)
	for _, tt := range []struct {
		err  error
		want string
	}{
		{h.refuse(ErrSize, "length", "5", "6"), "state: page part 0 unit 0 field length is 5, want 6: payload size differs from the inventory"},
		{refuse(ErrMagic, "header", "magic", "", ""), "state: header field magic: wrong magic number; the peer sent something else, or lost its place in the stream"},
	} {
		if diff := cmp.Diff(tt.want, tt.err.Error()); diff != "" {
			t.Error(diff)
		}
	}
}

// The names of wire values are part of what operators read; a change is deliberate.
func TestNames(t *testing.T) {
	var got []string
	for k := Kind(0); k < 22; k++ {
		got = append(got, k.String())
	}
	got = append(got, UnitPage.String(), UnitSnapshot.String(), UnitKind(9).String(), CodecRaw.String(), CodecLlamaSeq.String(), Codec(9).String(), DType(9).String())
	want := "none attention_kv window_kv recurrent conv mtp_kv mtp_hidden kind(7) kind(8) kind(9) kind(10) kind(11) kind(12) kind(13) kind(14) kind(15) " +
		"history position first_token sampler parameters kind(21) page snapshot unit(9) raw llama_seq codec(9) dtype(9)"
	if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
		t.Error(diff)
	}
}

// readFile returns a file's text.
func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
