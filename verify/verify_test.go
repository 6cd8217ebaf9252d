package verify

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/pair"
)

const peerEnv = "TANDEM_TEST_VERIFY_PEER"

func TestMain(m *testing.M) {
	if os.Getenv(peerEnv) != "" {
		if err := pair.Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// options are those of a small run of one family.
func options(t *testing.T, arch tiny.Arch) Options {
	t.Helper()
	lib, err := install.Ensure(t.Context(), install.Options{})
	if err != nil {
		t.Fatal(err)
	}
	file, err := tiny.Cached(arch)
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Lib: lib.Dir, Model: file, Quick: true, Version: "test", Threads: 1,
		Pair: pair.Options{Command: []string{os.Args[0]}, Env: []string{peerEnv + "=1"}, Budget: time.Minute},
	}
}

// The quick matrix passes for every family.
func TestQuick(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			o := options(t, arch)
			if testing.Verbose() {
				o.Progress = func(p Progress) {
					if p.Result != nil {
						fmt.Printf("%-60s %-12s %.3fs %s\n", p.Result.Name, p.Result.Status, p.Result.Took, p.Result.Reason)
					}
				}
			}
			r, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range r.Cells {
				if c.Status == Failed {
					t.Logf("%-60s %-12s %.2fs %s %+v", c.Name, c.Status, c.Took, c.Reason, c.Compared)
				}
			}
			if !r.OK() {
				t.Errorf("%v", r.Counts)
			}
		})
	}
}
