package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/route"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/telemetry/otlp"
)

// gatewayFlags configure what clients see.
type gatewayFlags struct {
	Listen         string        `default:"127.0.0.1:8080" help:"Address of the HTTP API."`
	BusListen      string        `default:"127.0.0.1:0" help:"Address of the embedded control bus."`
	Mode           string        `default:"auto" enum:"auto,disaggregated,colocated" help:"How requests are served: auto hands off where a pair of workers can, disaggregated always, colocated never. A request's Tandem-Mode header overrides it."`
	Order          string        `default:"destination-first" enum:"destination-first,source-first" help:"Order of handoffs: destination-first reserves first and streams while the prompt is computed, source-first reserves when the prompt is done. A request's Tandem-Order header overrides it."`
	Route          string        `default:"least-loaded" help:"How workers are chosen: least-loaded, round-robin, random, power-of-two, or kv-aware, which weighs how much of a prompt a worker was sent before against its load. Two with a comma between them: for prefill workers, which colocated requests go to as well, and for decode workers." placeholder:"POLICY"`
	APIKeys        string        `name:"api-keys" help:"File of API keys, one 'tenant key' pair a line; without it anybody may ask." placeholder:"FILE" type:"existingfile"`
	MaxActive      int           `default:"256" help:"Most samples generated at once."`
	MaxQueue       int           `default:"1024" help:"Most requests waiting behind them; more are refused as overloaded."`
	MaxPerTenant   int           `default:"0" help:"Most samples of one API key's tenant at once, waiting ones included; 0: no limit."`
	RequestTimeout time.Duration `default:"10m" help:"Longest life of a request."`
	Retries        int           `default:"3" help:"Attempts after the first."`
	Retry          string        `default:"recompute" enum:"recompute,rebind,none" help:"What a failed attempt is answered with: recompute tries elsewhere and computes again what was lost, rebind tries only where nothing has to be computed twice, none reports the failure. A request's Tandem-Retry header overrides it."`
	SLOTTFT        time.Duration `name:"slo-ttft" default:"0" help:"Objective for the time to the first token, counted in the metrics (docs/telemetry.md); 0: none."`
	SLOTPOT        time.Duration `name:"slo-tpot" default:"0" help:"Objective for the mean time per further token; 0: none."`
	OTLP           string        `name:"otlp" help:"Send one trace for each request to this OTLP/HTTP collector, such as http://127.0.0.1:4318; without it the standard OTEL_EXPORTER_OTLP_ENDPOINT counts." placeholder:"URL"`
}

func (f *gatewayFlags) args() []string {
	args := []string{
		"--listen=" + f.Listen, "--bus-listen=" + f.BusListen, "--mode=" + f.Mode, "--order=" + f.Order, "--route=" + f.Route,
		"--max-active=" + strconv.Itoa(f.MaxActive), "--max-queue=" + strconv.Itoa(f.MaxQueue),
		"--max-per-tenant=" + strconv.Itoa(f.MaxPerTenant),
		"--request-timeout=" + f.RequestTimeout.String(), "--retries=" + strconv.Itoa(f.Retries), "--retry=" + f.Retry,
		"--slo-ttft=" + f.SLOTTFT.String(), "--slo-tpot=" + f.SLOTPOT.String(),
	}
	if f.OTLP != "" {
		args = append(args, "--otlp="+f.OTLP)
	}
	if f.APIKeys != "" {
		args = append(args, "--api-keys="+f.APIKeys)
	}
	return args
}

type gatewayCmd struct {
	serveFlags
	gatewayFlags
	processFlags

	NATS    string `name:"nats" help:"Use this external NATS server or cluster instead of the embedded one (docs/bus.md)." placeholder:"URL"`
	BusMesh string `help:"Directory with the identity of the embedded bus server (role bus); needed unless --nats is given." placeholder:"DIR"`
}

func (c *gatewayCmd) Run(a *app) error {
	switch {
	case c.Model == "":
		return usageError{errors.New("--model is missing: the gateway needs the model's vocabulary and chat template")}
	case c.NATS == "" && c.BusMesh == "":
		return usageError{errors.New("--bus-mesh is missing: the embedded bus needs an identity of role bus (tandem mesh issue --role bus), or use --nats")}
	}
	if err := errors.Join(c.serveFlags.check(), c.gatewayFlags.check()); err != nil {
		return err
	}
	ctx, done := c.follow(a.ctx)
	defer done()
	id, err := c.load(mesh.RoleGateway)
	if err != nil {
		return err
	}
	log := c.logger(a.stderr, id.Name())
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
	incarnation := uint64(time.Now().UnixMilli())
	cfg, err := c.config(ctx, a)
	if err != nil {
		return err
	}
	cfg.Name, cfg.Incarnation, cfg.Log, cfg.Events = id.Name(), incarnation, log, events
	if cfg.Traces, err = c.traces(ctx, id.Name(), cfg.Metrics, log); err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.Background(), traceFlush)
		defer cancel()
		if err := cfg.Traces.Close(last); err != nil {
			log.Warn("traces were lost", "error", err)
		}
	}()
	g, err := gateway.New(cfg)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return usageError{fmt.Errorf("%w; choose another address with --listen", err)}
	}
	defer listener.Close()

	opt := bus.Options{Identity: id, URL: c.NATS, Events: bus.Events{
		Disconnected: g.BusDown, Reconnected: g.BusUp,
		Problem: func(err error) { log.Warn("bus", "error", err) },
	}}
	ready := announcement{Ready: "gateway", Name: id.Name(), HTTP: listener.Addr().String(), Bus: c.NATS, Model: cfg.Model}
	if c.NATS == "" {
		busID, err := mesh.Load(c.BusMesh, nil)
		if err != nil {
			return err
		}
		srv, err := bus.StartServer(bus.ServerOptions{Identity: busID, Listen: c.BusListen, Log: log})
		if err != nil {
			return blame("--bus-mesh or --bus-listen", err)
		}
		defer srv.Close()
		opt.Server, ready.Bus = srv, srv.URL()
	}
	conn, err := bus.Connect(ctx, opt)
	if err != nil {
		return blame("--nats", err)
	}
	link, err := bus.ServeGateway(conn, incarnation, g.BusHandler())
	if err != nil {
		return err
	}
	if c.Announce {
		line, _ := json.Marshal(ready)
		fmt.Fprintln(a.stdout, string(line))
	}
	log.Info("serving", "http", ready.HTTP, "bus", ready.Bus, "model", cfg.Model, "mode", c.Mode)
	err = g.Run(ctx, link, listener)
	closing, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if cerr := conn.Close(closing); err == nil {
		err = cerr
	}
	return err
}

// traceFlush bounds the sending of the last traces when the gateway stops.
const traceFlush = 3 * time.Second

// traces starts the export of traces, or returns nil when nobody wants any.
func (f *gatewayFlags) traces(ctx context.Context, name string, m *telemetry.Gateway, log *slog.Logger) (*otlp.Exporter, error) {
	if !otlp.Configured(f.OTLP) {
		return nil, nil
	}
	return otlp.New(ctx, otlp.Config{URL: f.OTLP, Name: name, Version: version(), Counted: m.Spans, Log: log})
}

// config reads what the gateway needs of the model and the key file.
func (c *gatewayCmd) config(ctx context.Context, a *app) (gateway.Config, error) {
	m, err := model.Inspect(c.Model)
	if err != nil {
		return gateway.Config{}, err
	}
	lib, err := install.Ensure(ctx, install.Options{Progress: func(line string) { fmt.Fprintln(a.stderr, line) }})
	if err != nil {
		return gateway.Config{}, err
	}
	vocab, err := llama.OpenVocab(lib.Dir, m.Files[0])
	if err != nil {
		return gateway.Config{}, err
	}
	order, _ := gateway.ParseOrder(c.Order)            // the enum admits valid names only
	prefill, decode, _ := route.ParsePolicies(c.Route) // checked
	retry, _ := gateway.ParseRetry(c.Retry)
	cfg := gateway.Config{
		Version: version(), Model: c.modelName(), Vocab: vocab, Tokenizer: m.Tokenizer.Digest,
		Mode: gateway.Mode(c.Mode), Order: order, Prefill: prefill, Decode: decode, MaxActive: c.MaxActive, MaxQueue: c.MaxQueue, MaxPerTenant: c.MaxPerTenant,
		RequestTimeout: c.RequestTimeout, Retries: c.Retries, Retry: retry, ShutdownGrace: c.Drain,
		SLO: telemetry.SLO{TTFT: c.SLOTTFT, TPOT: c.SLOTPOT}, Metrics: telemetry.NewGateway(version()),
	}
	if c.Retries == 0 {
		cfg.Retries = -1
	}
	if c.APIKeys != "" {
		f, err := os.Open(c.APIKeys)
		if err != nil {
			return cfg, err
		}
		defer f.Close()
		if cfg.Keys, err = gateway.ParseKeys(f); err != nil {
			return cfg, usageError{fmt.Errorf("--api-keys: %s: %w", c.APIKeys, err)}
		}
	}
	return cfg, nil
}
