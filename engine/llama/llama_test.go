package llama

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/model/tiny"
)

// libDir is where the libraries are; they are installed when they are missing.
var libDir = sync.OnceValues(func() (string, error) {
	lib, err := install.Ensure(context.Background(), install.Options{Progress: func(line string) { fmt.Fprintln(os.Stderr, line) }})
	return lib.Dir, err
})

func options(t testing.TB, arch tiny.Arch) Options {
	t.Helper()
	dir, err := libDir()
	if err != nil {
		t.Fatal(err)
	}
	path, err := tiny.Cached(arch)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Lib: dir, Model: path, Threads: 1}
}

// open opens a small engine, changed as the test likes.
func open(t testing.TB, arch tiny.Arch, change ...func(*Options)) *Engine {
	t.Helper()
	o := options(t, arch)
	o.Slots, o.Cells, o.BatchTokens = 3, 1024, 256
	for _, f := range change {
		f(&o)
	}
	e, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func TestConformance(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			enginetest.Run(t, func(t testing.TB, c enginetest.Config) engine.Engine {
				o := options(t, arch)
				o.Slots, o.Cells, o.BatchTokens = c.Slots, c.Cells, c.BatchTokens
				e, err := Open(o)
				if err != nil {
					t.Fatal(err)
				}
				return e
			})
		})
	}
}
