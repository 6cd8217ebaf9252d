package lane

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/wire"
)

const childEnv = "TANDEM_TEST_LANE_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := Child(os.Stdin, os.Stdout); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func config(env ...string) Config {
	return Config{
		Lanes: []wire.LaneMode{wire.LaneTLS, wire.LaneQUIC}, PageBytes: 256 << 10, Pages: 9, Pings: 5,
		Plan: bench.Plan{Warmup: 1, Runs: 2},
		Child: func() *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"=1")
			return cmd
		},
	}
}

// Both lanes are measured with all their figures, in two processes.
func TestRun(t *testing.T) {
	report, err := Run(t.Context(), config())
	if err != nil {
		t.Fatal(err)
	}
	if !report.Complete || report.Turns != 4 {
		t.Errorf("complete %t, %d turns", report.Complete, report.Turns)
	}
	found := map[string]bench.Result{}
	for _, r := range report.Results {
		found[r.Name] = r
	}
	for _, lane := range []string{"tls", "quic"} {
		rate := found[lane+" lane: rate"]
		if rate.Bar == nil || rate.Held == nil || rate.Ratio == nil || rate.Ratio.N != 2 || rate.Ratio.Min <= 0 {
			t.Errorf("%s: rate is not judged: %+v", lane, rate)
		}
		for _, name := range []string{"source CPU", "destination CPU", "ping of 1 KiB, p50", "ping of 1 KiB, p99"} {
			r := found[lane+" lane: "+name]
			// A ping takes time. The CPU time of a short run may be less than the clock's tick.
			if len(r.Series) == 0 || r.Series[0].N != 2 || strings.HasPrefix(name, "ping") && r.Series[0].Min <= 0 {
				t.Errorf("%s: %s is %+v", lane, name, r)
			}
		}
	}
}

// A same-host lane has a copy in memory beside it and no bar.
func TestLocal(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("this system has no such lane")
	}
	cfg := config()
	cfg.Lanes = []wire.LaneMode{wire.LaneLocal}
	report, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := report.Results[0]
	if r.Name != "local lane: rate" || r.Bar != nil || len(r.Series) != 2 || r.Series[1].Name != "memcpy" || r.Series[0].N != 2 {
		t.Errorf("%+v", r)
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := config()
	cfg.Lanes, cfg.Plan.Runs = cfg.Lanes[:1], 1000000
	n := 0
	cfg.Plan.Say = func(string) {
		if n++; n == 4 { // the warm-up and one turn
			cancel()
		}
	}
	report, err := Run(ctx, cfg)
	if !errors.Is(err, context.Canceled) || report == nil || report.Complete || report.Turns != 1 || len(report.Results) == 0 {
		t.Errorf("ended with %v, %+v", err, report)
	}
}

// A process that is not what it should be is an error, not a wait.
func TestBrokenChild(t *testing.T) {
	cfg := config()
	cfg.Child = func() *exec.Cmd { return exec.Command(os.Args[0], "-test.list=^$") }
	if _, err := Run(t.Context(), cfg); !errors.Is(err, errGone) {
		t.Errorf("ended with %v", err)
	}
}

// Orders that do not fit are refused, each with a reply.
func TestOrders(t *testing.T) {
	var out bytes.Buffer
	in := `{"Op":"grant"}{"Op":"setup","Dir":"/nowhere"}{"Op":"dance"}`
	if err := Child(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), `"Err"`); got != 3 {
		t.Errorf("replies:\n%s", &out)
	}
}

func TestConfig(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Lanes = nil },
		func(c *Config) { c.Lanes = []wire.LaneMode{wire.LaneAuto} },
		func(c *Config) { c.Pages = 0 },
		func(c *Config) { c.PageBytes = 1 },
	} {
		cfg := config()
		change(&cfg)
		if r, err := Run(t.Context(), cfg); err == nil || r != nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}
