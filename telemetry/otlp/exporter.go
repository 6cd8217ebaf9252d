package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-llm/tandem/telemetry"
)

const (
	// defaultQueue is how many ended requests wait for the collector, a few KiB each.
	defaultQueue = 1_024
	// mostSpans is how many spans one message to the collector has; a whole request may exceed it.
	mostSpans = 512
	// defaultDelay is how long a request waits for others to share its message.
	defaultDelay = time.Second
	// exportLimit bounds one message with its repetitions, so that a collector that hangs costs traces
	// and not the order of shutting down.
	exportLimit = 15 * time.Second
	// complainAfter is the least time between two log lines about a collector that takes nothing.
	complainAfter = time.Minute
)

// Config configures an Exporter.
type Config struct {
	// URL is the collector's base address, as in OTEL_EXPORTER_OTLP_ENDPOINT; empty: the
	// environment's.
	URL string
	// Name and Version are those of the gateway.
	Name, Version string
	// Counted is told what became of spans. It must not block; nil: nobody is.
	Counted func(telemetry.SpanResult, int)
	Log     *slog.Logger // nil: discards

	queue int           // for tests
	delay time.Duration // for tests
}

// Exporter builds and sends traces. A nil Exporter is off. Methods are safe for concurrent use.
type Exporter struct {
	cfg      Config
	out      sdktrace.SpanExporter
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	batch    []sdktrace.ReadOnlySpan // belongs to run

	mu       sync.Mutex
	closed   bool       // guarded by mu; nothing is queued any more
	queue    chan ended // closed with closed
	done     chan struct{}
	sending  context.Context // of run's messages; Close ends it
	cut      context.CancelFunc
	complain time.Time // belongs to run
}

// ended is one request and its records, which nobody changes any more.
type ended struct {
	parent   Parent
	request  telemetry.Request
	handoffs []*telemetry.Handoff
}

// Parent is the caller's span, from its traceparent and tracestate headers; the zero value is none.
type Parent struct{ span trace.SpanContext }

// ErrURL is wrapped by errors about the collector's address.
var ErrURL = errors.New("otlp: not the http or https address of a collector, such as http://127.0.0.1:4318")

// Configured reports whether traces are wanted: by an address, or by the environment.
func Configured(address string) bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	if address != "" {
		return true
	}
	return os.Getenv("OTEL_TRACES_EXPORTER") != "none" &&
		(os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "")
}

// Check refuses an address that New would refuse.
func Check(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return ErrURL
	}
	return nil
}

// New starts an exporter. It does not connect: a collector may come and go.
func New(ctx context.Context, cfg Config) (*Exporter, error) {
	var opts []otlptracehttp.Option
	if cfg.URL != "" {
		if err := Check(cfg.URL); err != nil {
			return nil, err
		}
		const path = "/v1/traces"
		base := strings.TrimSuffix(strings.TrimSuffix(cfg.URL, "/"), path)
		opts = append(opts, otlptracehttp.WithEndpointURL(base+path))
	}
	client, err := otlptracehttp.New(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("otlp: %w", err)
	}
	// The environment comes last and wins.
	res, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(
			attribute.String("service.name", "tandem"), attribute.String("service.version", cfg.Version),
			attribute.String("service.instance.id", cfg.Name),
		),
		resource.WithFromEnv(),
	)
	if err != nil {
		_ = client.Shutdown(ctx)
		return nil, fmt.Errorf("otlp: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	if cfg.queue == 0 {
		cfg.queue = defaultQueue
	}
	if cfg.delay == 0 {
		cfg.delay = defaultDelay
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	e := &Exporter{cfg: cfg, out: client, queue: make(chan ended, cfg.queue), done: make(chan struct{})}
	// Its own complaints, such as a collector that took only a part, belong into this process's log.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { cfg.Log.Debug("traces", "error", err) }))
	e.provider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor((*gather)(e)), sdktrace.WithResource(res))
	e.tracer = e.provider.Tracer("github.com/tandem-llm/tandem/telemetry/otlp")
	e.sending, e.cut = context.WithCancel(context.Background())
	go e.run()
	return e, nil
}

// Parent reads the caller's span from a request's headers. Malformed ones are none.
func (e *Exporter) Parent(h http.Header) Parent {
	if e == nil {
		return Parent{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.HeaderCarrier(h))
	return Parent{trace.SpanContextFromContext(ctx)}
}

// Offer queues an ended request with the records of its attempts, in their order, or drops it when
// the queue is full. It never blocks. Nothing may be changed afterwards.
func (e *Exporter) Offer(p Parent, r telemetry.Request, list []*telemetry.Handoff) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	it := ended{p, r, list}
	if !e.closed {
		select {
		case e.queue <- it:
			return
		default:
		}
	}
	e.count(telemetry.SpansDropped, tree(&it).size())
}

func (e *Exporter) count(r telemetry.SpanResult, n int) {
	if e.cfg.Counted != nil && n > 0 {
		e.cfg.Counted(r, n)
	}
}

// Close sends what is queued until ctx ends, and drops and counts the rest.
func (e *Exporter) Close(ctx context.Context) error {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.queue)
	}
	e.mu.Unlock()
	select {
	case <-e.done:
	case <-ctx.Done():
		e.cut()
		<-e.done // at once: every message ends with sending
	}
	e.cut()
	err := e.provider.Shutdown(ctx)
	if cerr := e.out.Shutdown(ctx); err == nil {
		err = cerr
	}
	return err
}

// run builds and sends until the queue is closed and empty.
func (e *Exporter) run() {
	defer close(e.done)
	for it := range e.queue {
		e.build(&it)
		e.collect()
		e.send()
	}
}

// collect builds what else comes within the delay, as far as one message has room.
func (e *Exporter) collect() {
	limit := time.NewTimer(e.cfg.delay)
	defer limit.Stop()
	for len(e.batch) < mostSpans {
		select {
		case it, ok := <-e.queue:
			if !ok {
				return
			}
			e.build(&it)
		case <-limit.C:
			return
		case <-e.sending.Done():
			return
		}
	}
}

// send exports the batch. What fails is not kept: newer traces are worth more.
func (e *Exporter) send() {
	n := len(e.batch)
	if n == 0 {
		return
	}
	batch := e.batch
	e.batch = nil
	if e.sending.Err() != nil { // closing took too long
		e.count(telemetry.SpansDropped, n)
		return
	}
	ctx, cancel := context.WithTimeout(e.sending, exportLimit)
	defer cancel()
	err := e.out.ExportSpans(ctx, batch)
	switch {
	case err == nil:
		e.count(telemetry.SpansExported, n)
		return
	case e.sending.Err() != nil:
		e.count(telemetry.SpansDropped, n)
	default:
		e.count(telemetry.SpansFailed, n)
	}
	if now := time.Now(); now.Sub(e.complain) >= complainAfter {
		e.complain = now
		e.cfg.Log.Warn("the trace collector takes nothing; requests are served without traces", "spans", n, "error", err)
	}
}

// gather collects the spans that build ends. The provider calls it on the exporter's goroutine.
type gather Exporter

func (*gather) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (g *gather) OnEnd(s sdktrace.ReadOnlySpan) {
	if s.SpanContext().IsSampled() { // others are recorded by some samplers, and not for sending
		g.batch = append(g.batch, s)
	}
}
func (*gather) Shutdown(context.Context) error   { return nil }
func (*gather) ForceFlush(context.Context) error { return nil }
