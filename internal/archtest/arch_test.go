package archtest

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Core packages import the standard library, each other, and the libraries that
// are listed with their reason.
func TestCoreImports(t *testing.T) {
	for _, p := range load(t) {
		if !slices.Contains(core, p.name) {
			continue
		}
		for _, f := range p.files {
			for path, spec := range f.imports() {
				if name, ok := local(path); ok {
					if !slices.Contains(core, name) {
						t.Errorf("%s: core package %s imports %s, which is outside the core", f.at(spec.Pos()), p.name, name)
					}
				} else if !standard(path) && coreLibraries[p.name][path] == "" {
					t.Errorf("%s: core package %s imports %s, which is not in coreLibraries", f.at(spec.Pos()), p.name, path)
				}
			}
		}
	}
}

// The core has no clock, goroutine, I/O, logger, lock or random source.
func TestCoreIsPure(t *testing.T) {
	for _, p := range load(t) {
		if slices.Contains(core, p.name) {
			for _, f := range p.files {
				for _, complaint := range impure(f) {
					t.Error(complaint)
				}
			}
		}
	}
}

// Every package outside the core imports only what its row allows.
func TestLayers(t *testing.T) {
	for _, p := range load(t) {
		if slices.Contains(core, p.name) {
			continue
		}
		at := slices.IndexFunc(layers, func(r row) bool { return covers(r.pkg, p.name) })
		if at < 0 {
			t.Errorf("package %s has no row in layers: decide what it may import", p.name)
			continue
		}
		r := layers[at]
		for _, f := range p.files {
			for path, spec := range f.imports() {
				name, ok := local(path)
				if !ok || slices.Contains(r.imports, name) || slices.Contains(r.imports, "core") && slices.Contains(core, name) {
					continue
				}
				t.Errorf("%s: %s imports %s, which its row does not list: %s", f.at(spec.Pos()), p.name, name, r.why)
			}
		}
	}
}

// Libraries behind a fence are imported by the packages it names.
func TestFences(t *testing.T) {
	for _, p := range load(t) {
		for _, f := range p.files {
			for path, spec := range f.imports() {
				for _, fence := range fences {
					if !covers(fence.library, path) {
						continue
					}
					if !slices.ContainsFunc(fence.by, func(by string) bool { return covers(by, p.name) }) {
						t.Errorf("%s: %s imports %s: %s", f.at(spec.Pos()), p.name, path, fence.why)
					}
				}
			}
		}
	}
}

// Every rule says why.
func TestRulesHaveReasons(t *testing.T) {
	for _, r := range layers {
		if r.why == "" {
			t.Errorf("row %s has no reason", r.pkg)
		}
		for _, name := range r.imports {
			if slices.Contains(core, r.pkg) {
				t.Errorf("row %s is for a core package", r.pkg)
			}
			if name == r.pkg {
				t.Errorf("row %s lists itself", r.pkg)
			}
		}
	}
	for _, f := range fences {
		if f.why == "" {
			t.Errorf("fence %s has no reason", f.library)
		}
	}
	for name, libraries := range coreLibraries {
		for library, why := range libraries {
			if why == "" || !slices.Contains(core, name) {
				t.Errorf("library %s of %s has no reason or no core package", library, name)
			}
		}
	}
}

var sentence = regexp.MustCompile(`[.!?:]["')\]]*(\s|$)`)

// Every package has a comment that is enough to start: it begins the way godoc
// expects and has at least two sentences.
func TestPackageComments(t *testing.T) {
	for _, p := range load(t) {
		files := p.files
		if len(files) == 0 {
			files = p.tests // a package of tests only
		}
		var docs []string
		name := ""
		for _, f := range files {
			name = strings.TrimSuffix(f.ast.Name.Name, "_test")
			if f.ast.Doc != nil {
				docs = append(docs, f.ast.Doc.Text())
			}
		}
		if len(docs) != 1 {
			t.Errorf("package %s has %d package comments, want one", p.name, len(docs))
			continue
		}
		prefix := "Package " + name + " "
		if name == "main" {
			prefix = "Command "
		}
		if !strings.HasPrefix(docs[0], prefix) {
			t.Errorf("package %s: its comment does not begin with %q", p.name, prefix)
		}
		if n := len(sentence.FindAllString(docs[0], -1)); n < 2 {
			t.Errorf("package %s: its comment has %d sentences, want at least two", p.name, n)
		}
	}
}

// Every exported identifier says what it is. Excused are methods that only
// satisfy a well-known interface, and the constants of a group that has any
// comment, or a named type, to say what they are.
func TestExportedComments(t *testing.T) {
	excused := []string{
		"Error", "Unwrap", "Is", "String", "Close", "Len", "Less", "Swap", "Push", "Pop", "Write", "Read",
		"MarshalText", "UnmarshalText", "MarshalJSON", "UnmarshalJSON",
	}
	for _, p := range load(t) {
		for _, f := range p.files {
			if ast.IsGenerated(f.ast) || f.ast.Name.Name == "main" {
				continue
			}
			missing := func(pos token.Pos, name string) {
				t.Errorf("%s: exported %s has no comment", f.at(pos), name)
			}
			for _, d := range f.ast.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) && !(d.Recv != nil && slices.Contains(excused, d.Name.Name)) {
						missing(d.Pos(), d.Name.Name)
					}
				case *ast.GenDecl:
					if d.Tok == token.CONST && (commented(f, d) || typed(d)) {
						continue
					}
					for _, s := range d.Specs {
						switch s := s.(type) {
						case *ast.TypeSpec:
							if s.Name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
								missing(s.Pos(), s.Name.Name)
							}
						case *ast.ValueSpec:
							for _, n := range s.Names {
								if n.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
									missing(s.Pos(), n.Name)
								}
							}
						}
					}
				}
			}
		}
	}
}

// commented reports whether a group of declarations has any comment.
func commented(f *file, d *ast.GenDecl) bool {
	return d.Doc != nil || slices.ContainsFunc(f.ast.Comments, func(c *ast.CommentGroup) bool {
		return d.Pos() < c.Pos() && c.Pos() < d.End()
	})
}

// typed reports whether a group's first constant has a named type, whose own
// comment is checked where it is declared.
func typed(d *ast.GenDecl) bool {
	if len(d.Specs) < 2 {
		return false
	}
	first, ok := d.Specs[0].(*ast.ValueSpec)
	return ok && first.Type != nil
}

// exportedReceiver reports whether a function is no method, or one of an
// exported type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

// How long a file may be: one idea each. Tables make tests longer.
const (
	maxLines     = 500
	maxTestLines = 700
)

func TestFileLength(t *testing.T) {
	for _, p := range load(t) {
		for limit, files := range map[int][]*file{maxLines: p.files, maxTestLines: p.tests} {
			for _, f := range files {
				if n := f.fset.Position(f.ast.FileEnd).Line; n > limit && !ast.IsGenerated(f.ast) {
					t.Errorf("%s has %d lines, at most %d", f.path, n, limit)
				}
			}
		}
	}
}
