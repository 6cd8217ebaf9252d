package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/bench/soak"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/supervise"
)

type benchSoakCmd struct {
	Requests    int           `default:"5000" help:"Requests to hand off while workers die."`
	Concurrency int           `default:"12" help:"Clients at once, each asking again when it has its answer."`
	Seed        uint64        `default:"1" help:"Seed of requests, departures and deaths."`
	KillEvery   int           `default:"25" help:"Requests for each worker that dies, three times in four by SIGKILL, else by SIGTERM; 0: none dies."`
	Compare     int           `default:"2" help:"Serve one in so many of the requests colocated too, with nobody dying."`
	Alone       int           `default:"50" help:"Requests that run alone at the end, in both orders."`
	MostErrors  float64       `default:"0.05" help:"Share of the requests that may be refused while workers die."`
	Patience    time.Duration `default:"3m" help:"Longest wait for the end of a request."`
	KeepGoing   bool          `help:"Go on after a failure."`
	JSON        bool          `name:"json" help:"Print the report as JSON."`
	Verbose     bool          `short:"v" help:"Show the log of every process."`

	Model       string `help:"GGUF file; default: the small hybrid model that 'up' serves without one." placeholder:"FILE" type:"existingfile"`
	Prefill     int    `default:"2" help:"Number of prefill workers."`
	Decode      int    `default:"2" help:"Number of decode workers."`
	Colocated   int    `default:"0" help:"Number of workers in role both."`
	Slots       int    `default:"4" help:"Sequences a worker holds at once."`
	Context     int    `default:"2048" help:"Most tokens of one sequence, prompt and answer."`
	Cells       int    `default:"0" help:"Attention cells all sequences of a worker share; 0: slots times context."`
	PageTokens  int    `default:"128" help:"Tokens of one prefill chunk, which is one page of transfer."`
	PrefixCache bool   `default:"true" negatable:"" help:"Let workers keep what prompts were computed to, where they can."`
	Threads     int    `default:"1" help:"Threads that compute, in each worker and for the reference."`
	KVType      string `name:"kv-type" default:"f16" enum:"f16,bf16,q8_0" help:"Element type of attention state: f16, bf16 or q8_0."`
	Lane        string `default:"auto" enum:"auto,quic,tls,local" help:"How bulk state travels: auto, quic, tls or local (docs/wire.md)."`
}

func (c *benchSoakCmd) Run(a *app) error {
	if err := errors.Join(
		between("requests", c.Requests, 1, most), between("concurrency", c.Concurrency, 1, 4096), between("kill-every", c.KillEvery, 0, most),
		between("compare", c.Compare, 1, most), between("alone", c.Alone, 0, most), between("most-errors", c.MostErrors, 0, 1),
		between("patience", c.Patience, time.Second, mostTime), between("prefill", c.Prefill, 0, 64), between("decode", c.Decode, 0, 64), between("colocated", c.Colocated, 0, 64),
		between("context", c.Context, 64, most), between("threads", c.Threads, 1, 1024),
	); err != nil {
		return err
	}
	say := func(line string) { fmt.Fprintln(a.stderr, line) }
	lib, err := install.Ensure(a.ctx, install.Options{Progress: say})
	if err != nil {
		return err
	}
	if c.Model == "" {
		if c.Model, err = tiny.Cached(tiny.NemotronHMoE); err != nil {
			return err
		}
	}
	up, err := c.up()
	if err != nil {
		return err
	}
	if err := up.check(); err != nil {
		return usageError{err}
	}
	if err := up.checkModel(&progress{w: io.Discard}); err != nil {
		return err
	}
	report, err := soak.Run(a.ctx, soak.Config{
		Requests: c.Requests, Concurrency: c.Concurrency, Seed: c.Seed, Every: orNone(c.KillEvery), Compare: c.Compare, Alone: orNone(c.Alone),
		KeepGoing: c.KeepGoing, MostErrors: c.MostErrors, Patience: c.Patience,
		Workers: up.soaked(), Page: c.PageTokens, Context: c.Context,
		Open: func() (engine.Engine, error) { return c.open(lib.Dir) },
		Start: func(ctx context.Context, traces string, event func(soak.Event)) (*soak.Fleet, error) {
			return up.soak(ctx, a, traces, event)
		},
		Settings: c.settings(), Say: say,
	})
	if report == nil {
		return err
	}
	write := report.WriteTable
	if c.JSON {
		write = report.WriteJSON
	}
	if werr := write(a.stdout); err == nil {
		err = werr
	}
	if failed := report.Failed(); err == nil && len(failed) > 0 {
		err = fmt.Errorf("the soak found failures: %s", strings.Join(failed, "; "))
	}
	return err
}

// orNone makes a flag's 0, which is none, what a Config has for it.
func orNone(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

func (c *benchSoakCmd) settings() []bench.Setting {
	set := func(name string, v any) bench.Setting { return bench.Setting{Name: name, Value: fmt.Sprint(v)} }
	return []bench.Setting{
		set("requests", c.Requests), set("concurrency", c.Concurrency), set("seed", c.Seed), set("kill every", c.KillEvery),
		set("model", (&serveFlags{Model: c.Model}).modelName()), set("prefill workers", c.Prefill), set("decode workers", c.Decode), set("workers in role both", c.Colocated),
		set("slots", c.Slots), set("context", c.Context), set("page tokens", c.PageTokens), set("prefix cache", c.PrefixCache),
		set("threads", c.Threads), set("kv type", c.KVType), set("lane", c.Lane),
	}
}

// up is the `tandem up` that is soaked: its defaults, with what the soak sets.
func (c *benchSoakCmd) up() (*upCmd, error) {
	up := &upCmd{}
	parser, err := kong.New(up, kong.Name("up"))
	if err != nil {
		return nil, err
	}
	_, err = parser.Parse([]string{
		"--listen=127.0.0.1:0", "--mode=disaggregated", "--model=" + c.Model, "--model-name=soak",
		"--prefill=" + strconv.Itoa(c.Prefill), "--decode=" + strconv.Itoa(c.Decode), "--lane=" + c.Lane, "--colocated=" + strconv.Itoa(c.Colocated),
		"--slots=" + strconv.Itoa(c.Slots), "--context=" + strconv.Itoa(c.Context), "--cells=" + strconv.Itoa(c.Cells),
		"--page-tokens=" + strconv.Itoa(c.PageTokens), "--threads=" + strconv.Itoa(c.Threads), "--kv-type=" + c.KVType,
		"--prefix-cache=" + strconv.FormatBool(c.PrefixCache), "--verbose=" + strconv.FormatBool(c.Verbose),
		// Requests that the gateway has to end by itself count as hung.
		"--request-timeout=" + (c.Patience * 3 / 4).String(),
	})
	return up, err
}

// open opens an engine as workers do.
func (c *benchSoakCmd) open(lib string) (engine.Engine, error) {
	m, err := model.Inspect(c.Model)
	if err != nil {
		return nil, err
	}
	kv, _ := state.ParseDType(c.KVType) // the enum admits valid names only
	cells := c.Cells
	if cells == 0 {
		cells = c.Slots * c.Context
	}
	return llama.Open(llama.Options{
		Lib: lib, Model: m.Files[0], Slots: c.Slots, Cells: cells, BatchTokens: max(c.PageTokens, c.Slots), UBatch: c.PageTokens,
		Threads: c.Threads, KVType: kv,
	})
}

// soaked are the workers of the fleet.
func (c *upCmd) soaked() []soak.Worker {
	var all []soak.Worker
	for _, w := range (&fleet{cmd: c}).workers() {
		all = append(all, soak.Worker{Name: w.name, Role: soak.Role(w.role)})
	}
	return all
}

// soak starts the fleet for a soak.
func (c *upCmd) soak(ctx context.Context, a *app, traces string, event func(soak.Event)) (*soak.Fleet, error) {
	run, err := os.MkdirTemp("", "tandem-up-*")
	if err != nil {
		return nil, err
	}
	c.TraceDir = traces
	f, err := c.newFleet(a, &progress{w: io.Discard}, run)
	if err != nil {
		_ = os.RemoveAll(run)
		return nil, err
	}
	f.also = func(e supervise.Event) { soakEvent(e, event) }
	stop, err := f.start(context.WithoutCancel(ctx))
	if err != nil {
		_ = os.RemoveAll(run)
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return &soak.Fleet{
		URL: "http://" + f.http, Model: f.modelName(), Ready: f.awaitReady,
		Plain: func() { f.update(func() { f.cmd.PrefixCache = false }) },
		Stop:  func() error { stop(); return os.RemoveAll(run) },
	}, nil
}

func soakEvent(e supervise.Event, event func(soak.Event)) {
	s := soak.Event{Process: e.Name, PID: e.PID, Err: e.Err}
	switch e.Kind {
	case supervise.Started:
		s.Kind = soak.Started
	case supervise.Announced:
		var line announcement
		if json.Unmarshal(e.Line, &line) != nil || line.Ready == "" {
			return
		}
		if s.Kind, s.Metrics = soak.Announced, line.Metrics; e.Name == gatewayName {
			s.Metrics = line.HTTP
		}
	case supervise.Exited:
		s.Kind = soak.Exited
	default:
		return
	}
	event(s)
}
