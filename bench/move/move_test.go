package move

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/pair"
	"github.com/tandem-llm/tandem/wire"
)

const peerEnv = "TANDEM_TEST_MOVE_PEER"

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

// config moves a small hybrid model: pages and a snapshot.
func config(t *testing.T, parts ...Part) Config {
	t.Helper()
	lib, err := install.Ensure(t.Context(), install.Options{})
	if err != nil {
		t.Fatal(err)
	}
	file, err := tiny.Cached(tiny.NemotronHMoE)
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Parts: parts, Lib: lib.Dir, Model: file,
		TransferBytes: 300 << 10, StreamTokens: 700, PageTokens: 64, Threads: 1, Lane: wire.LaneTLS,
		Plan: bench.Plan{Runs: 2},
		Pair: pair.Options{Command: []string{os.Args[0]}, Env: []string{peerEnv + "=1"}},
	}
}

func results(r *bench.Report) map[string]bench.Result {
	out := map[string]bench.Result{}
	for _, res := range r.Results {
		out[res.Name] = res
	}
	return out
}

// A sequence goes to another process and can be decoded there, turn after turn.
func TestTransfer(t *testing.T) {
	report, err := Run(t.Context(), config(t, Transfer))
	if err != nil {
		t.Fatal(err)
	}
	res := results(report)
	for _, name := range []string{"ready to decode after", "rate", "source, export", "destination, import", "peak at the source", "peak at the destination"} {
		r := res["transfer: "+name]
		if len(r.Series) != 1 || r.Series[0].N != 2 || r.Series[0].Min <= 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if got := res["transfer: state in MiB"].Series[0].Min; got < 300./1024 {
		t.Errorf("%v MiB were moved", got)
	}
	if r := res[figureReady]; r.Bar == nil || r.Held != nil {
		t.Errorf("judged without anything to compare with: %+v", r)
	}
}

// Another way gets the same prompt, once, and takes turns.
func TestAgainst(t *testing.T) {
	cfg := config(t, Transfer)
	prompts, moves := 0, 0
	cfg.Against = &Against{
		Name: "other",
		Prefill: func(_ context.Context, prompt []int32) error {
			prompts++
			if len(prompt) < 256 {
				t.Errorf("a prompt of %d tokens", len(prompt))
			}
			return nil
		},
		Move: func(context.Context) (time.Duration, int64, []bench.Figure, error) {
			moves++
			return time.Hour, 1 << 20, []bench.Figure{{Name: "transfer: saved", Unit: "ms", Value: 1}}, nil
		},
	}
	report, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	res := results(report)
	if r := res[figureReady]; prompts != 1 || moves != 2 || r.Held == nil || !*r.Held {
		t.Errorf("%d prompts, %d moves, %+v", prompts, moves, r)
	}
	if _, ok := res["transfer: saved"]; !ok {
		t.Error("what the other way says is missing")
	}
}

// Everything that has a bar is judged; what is counted and not timed holds.
func TestStream(t *testing.T) {
	report, err := Run(t.Context(), config(t, Stream))
	if err != nil {
		t.Fatal(err)
	}
	res := results(report)
	for _, name := range []string{figurePrefill, figureEarly, figureTail, figureSource, figureDestination} {
		if r := res[name]; r.Held == nil || r.Series[0].N != 2 || r.Series[0].Min <= 0 {
			t.Errorf("%s is not judged: %+v", name, r)
		}
	}
	for _, name := range []string{figureSource, figureDestination} {
		if r := res[name]; r.Held != nil && !*r.Held {
			t.Errorf("more memory than the window: %+v, bar %+v", r, r.Bar)
		}
	}
}

// Pages and snapshots of wide models go out and in, and every bar is judged.
func TestEngine(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of megabytes")
	}
	cfg := config(t, Pages, Snapshot)
	cfg.Plan.Runs = 3
	report, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	judged := 0
	for _, r := range report.Results {
		if r.Bar != nil {
			judged++
			if r.Held == nil {
				t.Errorf("%s has a bar and is not judged", r.Name)
			}
		}
		// What a page allocates is there in every turn; what the runtime does beside it is not.
		if strings.Contains(r.Name, "page: allocations") && r.Series[0].Min > 0 {
			t.Errorf("%s: %v", r.Name, r.Series[0].Values)
		}
	}
	if judged != 3*5+3 {
		t.Errorf("%d figures have bars, of three sizes of pages and the snapshot", judged)
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := config(t, Transfer, Stream)
	cfg.Plan.Runs = 1000000
	cfg.Plan.Say = func(line string) {
		if strings.Contains(line, "run 2") {
			cancel()
		}
	}
	report, err := Run(ctx, cfg)
	if !errors.Is(err, context.Canceled) || report == nil || report.Complete || report.Turns < 1 || len(report.Results) == 0 {
		t.Errorf("ended with %v, %+v", err, report)
	}
}

func TestConfig(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Parts = nil },
		func(c *Config) { c.Parts = []Part{"dance"} },
		func(c *Config) { c.PageTokens = 0 },
		func(c *Config) { c.Threads = 0 },
	} {
		cfg := Config{Parts: Parts(), TransferBytes: 1, StreamTokens: 1, PageTokens: 1, Threads: 1}
		change(&cfg)
		if r, err := Run(t.Context(), cfg); err == nil || r != nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

// State smaller than a page, and more than the model is made for.
func TestTokensFor(t *testing.T) {
	file, err := tiny.Cached(tiny.Llama)
	if err != nil {
		t.Fatal(err)
	}
	n, per, err := tokensFor(file, 1, 256)
	if err != nil || n != 256 || per < 1 {
		t.Errorf("%d tokens of %d bytes, %v", n, per, err)
	}
	if m, _, err := tokensFor(file, 1000*per, 256); err != nil || m != 1024 {
		t.Errorf("%d tokens for 1000, %v", m, err)
	}
	if _, _, err := tokensFor(file, 1<<50, 256); err == nil {
		t.Error("a petabyte fits")
	}
	if file, err = tiny.Cached(tiny.Mamba2); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tokensFor(file, 1<<20, 256); err == nil || !strings.Contains(err.Error(), "attention") {
		t.Errorf("a model without attention: %v", err)
	}
}
