package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
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
			// Two computing threads on a busy machine wait for each other, so that one family has to do.
			o.Match = "alone|offset|neighbours|busy|refusal"
			if arch == tiny.Llama {
				o.Match += "|f16.*other threads"
			}
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
			if d := r.Divergence(); d.Controlled < 2 || d.Load < 5 || d.Steps != 8*d.Controlled {
				t.Errorf("%+v", d)
			}
			if c, err := Certify(r); err != nil || !c.Quick || !c.Partial || len(c.Identities) == 0 || c.LongestPrompt != 512 {
				t.Errorf("the certificate: %v", err)
			}
		})
	}
}

// An interrupt ends the run with what was found until then.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := options(t, tiny.Llama)
	o.Progress = func(p Progress) {
		if p.Done == 3 {
			cancel()
		}
	}
	r, err := Run(ctx, o)
	if !errors.Is(err, context.Canceled) || r == nil {
		t.Fatal(err)
	}
	if !r.Interrupted || r.OK() || r.Counts[Passed] != 3 || r.Counts[Failed] != 0 || r.Counts[Unfinished] < 50 {
		t.Errorf("%v", r.Counts)
	}
}

// A process that dies costs its own cell and no other.
func TestLostPeer(t *testing.T) {
	o := options(t, tiny.Llama)
	o.Match = "/f16/chunk 64/.*alone|refusal/tls/wrong ticket"
	killed := false
	o.damage = func(r *runner, _ Params) *pair.Damage {
		if killed {
			return nil
		}
		killed = true
		return &pair.Damage{Payload: func(int, []byte) {
			p, err := os.FindProcess(r.peer.Info().PID)
			if err == nil {
				err = p.Kill()
			}
			if err != nil {
				t.Error(err)
			}
		}}
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Counts[Failed] != 1 || r.Counts[Passed] < 3 {
		t.Errorf("%v", r.Counts)
	}
	for _, c := range r.Cells {
		if c.Kind == KindResource && c.Status != Passed {
			t.Errorf("%s: %s", c.Name, c.Status)
		}
		if c.Status == Failed && !strings.Contains(c.Reason, pair.ErrPeerGone.Error()) {
			t.Errorf("%s: %s", c.Name, c.Reason)
		}
	}
}

// A plan lists the cells that a run has.
func TestPlanIsWhatRuns(t *testing.T) {
	o := options(t, tiny.Mamba2)
	o.Match = "alone$"
	plan, err := Plan(o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Cells {
		if a, b := &plan.Cells[i], &r.Cells[i]; a.Name != b.Name || a.Status != "" && a.Status != b.Status || b.Status == "" {
			t.Errorf("planned %s %q, ran %s %q", a.Name, a.Status, b.Name, b.Status)
		}
	}
}
