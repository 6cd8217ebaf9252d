package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/wire"
	"github.com/tandem-llm/tandem/worker"
)

type workerCmd struct {
	serveFlags
	engineFlags
	dataFlags
	processFlags

	Role          string `required:"" enum:"prefill,decode,both" help:"prefill computes prompts (and serves whole requests), decode receives state and generates, both does both."`
	Bus           string `required:"" help:"Address of the control bus, as the gateway prints it: tls://HOST:PORT; several separated by commas." placeholder:"URL"`
	Listen        string `default:"127.0.0.1:0" help:"Address of the data plane, UDP and TCP."`
	Advertise     string `help:"Host under which other workers reach the data plane; needed when --listen names no single host." placeholder:"HOST"`
	Metrics       string `help:"Address to serve /metrics on; empty: not served." placeholder:"HOST:PORT"`
	ColocatedOnly bool   `help:"Serve whole requests only, also a model that cannot be handed off."`
	DumpState     string `help:"Write each handed-off sequence's state to DIR. The files hold what the prompt was turned into; for verification only." placeholder:"DIR" type:"existingdir"`
}

func (c *workerCmd) Run(a *app) error {
	if c.Model == "" {
		return usageError{errors.New("--model is missing: a worker serves one GGUF file")}
	}
	if err := errors.Join(c.serveFlags.check(), c.engineFlags.check(), c.dataFlags.check()); err != nil {
		return err
	}
	ctx, done := c.follow(a.ctx)
	defer done()
	id, err := c.load(mesh.RoleWorker)
	if err != nil {
		return err
	}
	log := c.logger(a.stderr, id.Name())
	eng, cached, reason, err := c.openEngine(ctx, a)
	if err != nil {
		return err
	}
	var events *telemetry.Events // nobody reads them but a trace: without one they are dropped unmade
	trace, err := c.openTrace()
	if err != nil {
		return err
	}
	if trace != nil {
		events = telemetry.NewEvents(id.Name(), 0, traceTime)
		if err := events.Attach(trace); err != nil {
			return err
		}
		defer func() { _ = events.Close(); _ = trace.Close() }()
	}
	metrics := telemetry.NewWorker(version(), c.Role)
	cfg := worker.Config{
		Engine: eng, Identity: id, Incarnation: uint64(time.Now().UnixMilli()), Role: worker.Role(c.Role),
		ModelName: c.modelName(), Version: version(), ColocatedOnly: reason,
		Wire: wire.Config{
			Addr: c.Listen, Advertise: c.Advertise, Lane: wire.LaneMode(c.Lane), Lanes: c.Lanes, Window: c.Window,
		},
		Bus: bus.Options{URL: c.Bus}, PageTokens: c.PageTokens, StepTokens: c.StepTokens, Headroom: c.Headroom, PrefixCache: c.PrefixCache, CachedSlots: cached, CachedTokens: c.CachedTokens, SnapshotBytes: c.SnapshotCache, ContextTokens: c.Context,
		Log: log, Metrics: metrics, Events: events,
	}
	if c.DumpState != "" {
		cfg.StateChecked = stateDump(c.DumpState, func(err error) { log.Error("state not dumped", "error", err) })
	}
	metricsAddr, err := serveMetrics(ctx, c.Metrics, metrics.Handler())
	if err != nil {
		_ = eng.Close()
		return usageError{err}
	}
	w, err := worker.New(ctx, cfg)
	if err != nil {
		_ = eng.Close()
		return blame("--listen, --advertise or --bus", err)
	}
	if c.Announce {
		line, _ := json.Marshal(announcement{Ready: "worker", Name: id.Name(), Metrics: metricsAddr})
		fmt.Fprintln(a.stdout, string(line))
	}
	log.Info("serving", "role", c.Role, "model", cfg.ModelName, "backend", eng.Info().Backend, "data", w.Endpoint().QUIC)
	return blame("--bus", w.Run(ctx, c.Drain))
}

// openEngine loads the model. cached of the engine's slots are for the prefix cache.
// reason is not empty when the worker must not take part in handoffs.
func (c *workerCmd) openEngine(ctx context.Context, a *app) (eng *llama.Engine, cached int, reason string, err error) {
	m, err := model.Inspect(c.Model)
	if err != nil {
		return nil, 0, "", err
	}
	if err := errors.Join(m.Serve(), c.fits(m)); err != nil {
		return nil, 0, "", err
	}
	if err := m.Handoff(); err != nil {
		if !c.ColocatedOnly {
			return nil, 0, "", colocatedHint(err)
		}
		reason = err.Error()
	} else if c.ColocatedOnly {
		reason = "this worker was asked to serve whole requests only"
	}
	cached = c.cachedSlots(m)
	if c.CachedTokens == 0 && m.Family == model.FamilyDense {
		c.CachedTokens = cachedTokensDense
	}
	eng, err = c.open(ctx, a, m, c.Slots+cached, c.logger(a.stderr, "llama.cpp"))
	if err != nil {
		return nil, 0, "", err
	}
	// What the engine found in its own state counts more than what the file says.
	if why := eng.Info().ColocatedOnly; why != "" && reason == "" {
		_ = eng.Close()
		return nil, 0, "", colocatedHint(fmt.Errorf("the model's state cannot be handed off: %s", why))
	}
	return eng, cached, reason, nil
}

// open loads a model as the flags say, with so many slots. It replaces the flags
// that leave a size open by what they come to.
func (f *engineFlags) open(ctx context.Context, a *app, m *model.Model, slots int, log *slog.Logger) (*llama.Engine, error) {
	lib, err := install.Ensure(ctx, install.Options{Progress: func(line string) { fmt.Fprintln(a.stderr, line) }})
	if err != nil {
		return nil, err
	}
	kv, _ := state.ParseDType(f.KVType) // the enum admits valid names only
	if f.Context == 0 {
		f.Context = min(defaultContext, m.Context)
	}
	cells := f.Cells
	if cells == 0 {
		cells = f.Slots * f.Context
	}
	f.PageTokens = min(f.PageTokens, cells)
	threads := f.Threads
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	return llama.Open(llama.Options{
		Lib: lib.Dir, Model: m.Files[0], Slots: slots, Cells: cells, BatchTokens: max(f.PageTokens, f.Slots),
		UBatch: f.PageTokens, Threads: threads, KVType: kv, GPULayers: f.gpuLayers(), Log: log,
	})
}

// How many slots keep prefixes where --cached-slots says nothing: each costs a model with
// windows or recurrent state one of these, others nothing.
const (
	cachedSlotsFree   = 32
	cachedSlotsCostly = 4
)

// cachedTokensDense is how many tokens of prefixes a model keeps whose layers all have
// attention, where --cached-tokens says nothing. llama.cpp's attention on a CPU looks at
// every cell up to the last one in use, also at those of others: 1.6 ns for each of them,
// each row, layer and head. This many cost a model of 8 billion parameters 8 %.
const cachedTokensDense = 16384

// cachedSlots is how many slots the engine has for prefixes.
func (c *workerCmd) cachedSlots(m *model.Model) int {
	n := c.CachedSlots
	switch {
	case !c.PrefixCache || m.Family == model.FamilyRecurrent: // which has no pages to keep
		return 0
	case n > 0:
	case m.Family == model.FamilyDense:
		n = cachedSlotsFree
	default:
		n = cachedSlotsCostly
	}
	return min(n, mostSlots-c.Slots)
}

func colocatedHint(err error) error {
	return fmt.Errorf("%w (--colocated-only, or `tandem up --mode colocated`, serves it colocated)", err)
}

// defaultContext bounds a sequence where the user names no bound: enough for
// long prompts, and four such sequences of a model of 8 billion parameters stay
// below 20 GB.
const defaultContext = 32768

func (f *engineFlags) gpuLayers() int {
	if f.GPULayers < 0 {
		return 1 << 16
	}
	return f.GPULayers
}

func (f *serveFlags) modelName() string {
	if f.ModelName != "" {
		return f.ModelName
	}
	name := filepath.Base(f.Model)
	return name[:len(name)-len(filepath.Ext(name))]
}

// traceTime is the time of event streams: since 1970, so that the streams of
// several processes of one machine can be laid side by side.
func traceTime() time.Duration { return time.Duration(time.Now().UnixNano()) }

// serveMetrics serves h on addr until ctx ends and returns the address in use,
// empty when addr is.
func serveMetrics(ctx context.Context, addr string, h http.Handler) (string, error) {
	if addr == "" {
		return "", nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", fmt.Errorf("--metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", h)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = srv.Serve(l) }()
	go func() { <-ctx.Done(); _ = srv.Close() }()
	return l.Addr().String(), nil
}

// stateDump writes the state of a sequence, as exported after prefill and as
// re-exported after import, to files that a verifier compares.
func stateDump(dir string, failed func(error)) func(string, telemetry.Side, []byte) {
	return func(handoff string, side telemetry.Side, canonical []byte) {
		name := filepath.Join(dir, handoff+"."+string(side))
		if err := os.WriteFile(name+".tmp", canonical, 0o600); err != nil {
			failed(err)
			return
		}
		if err := os.Rename(name+".tmp", name); err != nil {
			failed(err)
		}
	}
}
