package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// pkg is one package of the module with its sources for all platforms.
type pkg struct {
	name  string // relative to the module
	files []*file
	tests []*file // test files, with their package comments only used if there are no others
}

type file struct {
	path string // relative to the module's root
	fset *token.FileSet
	ast  *ast.File
}

// at formats a position for a message.
func (f *file) at(pos token.Pos) string {
	return f.path + ":" + strconv.Itoa(f.fset.Position(pos).Line)
}

// imports returns each import path with the spec that names it.
func (f *file) imports() map[string]*ast.ImportSpec {
	out := map[string]*ast.ImportSpec{}
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err == nil {
			out[p] = spec
		}
	}
	return out
}

// packages lists the module's packages as the go command sees them and parses
// them, once per test run.
var packages = sync.OnceValues(func() ([]*pkg, error) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return nil, err
	}
	if err := touch(root); err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,GoFiles,CgoFiles,IgnoredGoFiles,TestGoFiles,XTestGoFiles", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	raw, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.Bytes())
	}
	var out []*pkg
	for dec := json.NewDecoder(bytes.NewReader(raw)); ; {
		var listed struct {
			ImportPath, Dir                                              string
			GoFiles, CgoFiles, IgnoredGoFiles, TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&listed); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		p := &pkg{name: strings.TrimPrefix(strings.TrimPrefix(listed.ImportPath, module), "/")}
		for _, group := range [][]string{listed.GoFiles, listed.CgoFiles, listed.IgnoredGoFiles, listed.TestGoFiles, listed.XTestGoFiles} {
			for _, name := range group {
				full := filepath.Join(listed.Dir, name)
				src, err := os.ReadFile(full)
				if err != nil {
					return nil, err
				}
				rel, err := filepath.Rel(root, full)
				if err != nil {
					return nil, err
				}
				f, err := parse(filepath.ToSlash(rel), src)
				if err != nil {
					return nil, err
				}
				if strings.HasSuffix(name, "_test.go") {
					p.tests = append(p.tests, f)
				} else {
					p.files = append(p.files, f)
				}
			}
		}
		out = append(out, p)
	}
})

// touch opens every directory of the module. The go command remembers which
// ones a test opened, so that a new file or package makes a cached result
// stale; what a child process opens it does not see.
func touch(root string) error {
	return filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && p != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		return err
	})
}

func parse(name string, src []byte) (*file, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	return &file{name, fset, f}, err
}

// load returns the packages that rules apply to.
func load(t *testing.T) []*pkg {
	t.Helper()
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("found only %d packages: is the module's root still two directories up?", len(all))
	}
	return all
}

// covers reports whether a pattern, a path or "path/...", covers a path.
func covers(pattern, p string) bool {
	if dir, ok := strings.CutSuffix(pattern, "/..."); ok {
		return p == dir || strings.HasPrefix(p, dir+"/")
	}
	return pattern == p
}

// standard reports whether an import path is of the standard library: those
// have no dot in their first element.
func standard(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	return !strings.Contains(first, ".")
}

// local returns the module-relative name of an import path, or false.
func local(p string) (string, bool) {
	if p == module {
		return "", true
	}
	return strings.CutPrefix(p, module+"/")
}

// localName is the identifier a file uses for an import.
func localName(importPath string, spec *ast.ImportSpec) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	base := path.Base(importPath)
	if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" {
		base = path.Base(path.Dir(importPath)) // math/rand/v2
	}
	return base
}

// impure lists what in a file of the core breaks the core's rules.
func impure(f *file) (out []string) {
	complain := func(pos token.Pos, format string, args ...any) {
		out = append(out, f.at(pos)+": "+fmt.Sprintf(format, args...))
	}
	watched := map[string]map[string]string{} // local name -> names -> reason
	for p, spec := range f.imports() {
		for pattern, why := range forbiddenImports {
			if covers(pattern, p) {
				complain(spec.Pos(), "imports %s: %s", p, why)
			}
		}
		name := localName(p, spec)
		if name == "." {
			complain(spec.Pos(), "imports %s with a dot, which hides what is used of it", p)
		}
		if names := forbiddenNames[p]; names != nil {
			watched[name] = names
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			complain(n.Pos(), "starts a goroutine: concurrency is the host's")
		case *ast.ChanType:
			complain(n.Pos(), "has a channel: concurrency is the host's")
		case *ast.SelectStmt:
			complain(n.Pos(), "has a select statement: concurrency is the host's")
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && (id.Name == "print" || id.Name == "println") {
				complain(n.Pos(), "calls %s: %s", id.Name, printing)
			}
		case *ast.SelectorExpr:
			if id, ok := n.X.(*ast.Ident); ok {
				if why := watched[id.Name][n.Sel.Name]; why != "" {
					complain(n.Pos(), "mentions %s.%s: %s", id.Name, n.Sel.Name, why)
				}
			}
		}
		return true
	})
	return out
}
