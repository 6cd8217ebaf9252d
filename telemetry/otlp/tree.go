package otlp

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-llm/tandem/telemetry"
)

// node is a span before it is one. Offsets are since the request's arrival.
type node struct {
	name       string
	begin, end time.Duration
	attrs      []attribute.KeyValue
	events     []event
	failed     string // why, or empty
	children   []*node
}

type event struct {
	name string
	at   time.Duration
}

// add appends a child, unless it never happened.
func (n *node) add(name string, begin, end time.Duration, attrs ...attribute.KeyValue) *node {
	c := &node{name: name, begin: begin, end: end, attrs: attrs}
	if end >= begin && end > 0 {
		n.children = append(n.children, c)
	}
	return c
}

// work appends a child for work in pieces that a worker did, whose clock began at at.
func (n *node) work(name string, at time.Duration, w telemetry.Work) {
	if len(w.Spans) > 0 {
		n.add(name, at+w.Begin(), at+w.End(), number("tandem.pieces", w.Count), nanos("tandem.busy_ns", w.Busy))
	}
}

func (n *node) size() int {
	sum := 1
	for _, c := range n.children {
		sum += c.size()
	}
	return sum
}

// fit puts a span and what is below it into its parent's time. Clocks of workers are placed on the
// gateway's to within a message, so a child may stick out by as much.
func (n *node) fit(begin, end time.Duration) {
	n.begin = min(max(n.begin, begin), end)
	n.end = min(max(n.end, n.begin), end)
	for _, c := range n.children {
		c.fit(n.begin, n.end)
	}
}

// hull widens a span to what is below it.
func (n *node) hull() {
	for i, c := range n.children {
		if i == 0 {
			n.begin, n.end = c.begin, c.end
		}
		n.begin, n.end = min(n.begin, c.begin), max(n.end, c.end)
	}
}

// tree arranges a request's records.
func tree(it *ended) *node {
	r := &it.request
	root := &node{name: "request", end: r.Total, attrs: []attribute.KeyValue{
		text("tandem.request", r.Key), text("tandem.mode", string(r.Mode)), text("tandem.outcome", string(r.Outcome)),
		number("tandem.attempts", r.Attempts),
		number("tandem.tokens.prompt", r.Prompt), number("tandem.tokens.cached", r.Cached), number("tandem.tokens.completion", r.Completion),
		nanos("tandem.ttft_ns", r.TTFT), nanos("tandem.tpot_ns", r.TPOT),
		text("tandem.slo.ttft", string(r.SLO.TTFT)), text("tandem.slo.tpot", string(r.SLO.TPOT)), attribute.Bool("tandem.slo.good", r.SLO.Good),
	}}
	if r.TTFT > 0 {
		root.events = append(root.events, event{"first token", r.TTFT})
	}
	if r.Outcome == telemetry.Failed || r.Outcome == telemetry.Expired {
		root.failed = string(r.Outcome)
	}
	root.add("admission", 0, r.Admitted)
	for _, h := range it.handoffs {
		attempt(root, h)
	}
	root.fit(0, r.Total)
	return root
}

func attempt(root *node, h *telemetry.Handoff) {
	g, s, d := &h.Gateway, &h.Source, h.Destination
	a := root.add("attempt", g.Placed, g.Ended,
		text("tandem.handoff", h.ID.String()), number("tandem.attempt", h.Attempt), text("tandem.why", string(h.Why)),
		text("tandem.mode", string(h.Mode)), text("tandem.chosen", string(h.Chosen)), text("tandem.ending", string(h.Ending)),
		text("tandem.source", s.Worker), text("tandem.source.role", s.Role),
	)
	if h.Failure != nil {
		a.failed = h.Failure.Code
		a.attrs = append(a.attrs, text("tandem.failure.side", string(h.Failure.Side)), text("tandem.failure.phase", h.Failure.Phase),
			text("tandem.failure.code", h.Failure.Code))
		if a.failed == "" {
			a.failed = "failed"
		}
	}
	if g.Reserved > 0 {
		n := a.add("reserve", g.Reserve, g.Reserved, text("tandem.worker", d.Worker))
		if d.Slot > 0 {
			n.attrs = append(n.attrs, nanos("tandem.slot_wait_ns", d.Slot))
		}
	}
	if s.Prompted > 0 {
		prefill := a.add("prefill", s.At+s.Slot, s.At+s.Prompted, text("tandem.worker", s.Worker),
			number("tandem.tokens.prompt", s.Prompt), number("tandem.tokens.cached", s.Cached), nanos("tandem.slot_wait_ns", s.Slot))
		prefill.work("compute", s.At, s.Compute)
	}
	decoding := s.At + s.Prompted // colocated
	if d != nil {
		a.attrs = append(a.attrs, text("tandem.destination", d.Worker), text("tandem.destination.role", d.Role),
			text("tandem.target", string(h.Target)), text("tandem.mtp", string(h.MTP)))
		transfer(a, h)
		if h.Summary.Tail > 0 && s.Prompted > 0 {
			a.add("tail", s.At+s.Prompted, s.At+s.Prompted+h.Summary.Tail)
		}
		decoding = 0
		if d.Complete > 0 && d.Ready > 0 {
			a.add("commit", d.At+d.Complete, d.At+d.Ready, text("tandem.worker", d.Worker))
			decoding = d.At + d.Ready
		}
	}
	if decoding > 0 && (d != nil || s.Prompted > 0) {
		n := a.add("decode", decoding, g.Ended)
		if len(g.Tokens) > 1 {
			n.events = append(n.events, event{"second token", g.Tokens[1]})
		}
	}
}

// transfer is all that moved state, on both sides.
func transfer(a *node, h *telemetry.Handoff) {
	s, d, m := &h.Source, h.Destination, &h.Summary
	t := &node{name: "transfer", attrs: []attribute.KeyValue{
		text("tandem.lane", s.Stream.Lane), number("tandem.bytes", int(m.Bytes)), number("tandem.units", s.Stream.Units), number("tandem.pages", m.Pages),
		nanos("tandem.wire_busy_ns", s.Stream.Busy), nanos("tandem.rtt_ns", m.RTT), attribute.Float64("tandem.bytes_per_second", m.Bandwidth),
		number("tandem.tokens.skipped", s.Skipped), number("tandem.bytes.skipped", int(s.SkippedBytes)),
		attribute.Float64("tandem.overlap.time", m.Overlap.Time), attribute.Float64("tandem.overlap.bytes", m.Overlap.Bytes),
	}}
	for _, c := range s.Components {
		t.attrs = append(t.attrs, number("tandem.bytes."+c.Name, int(c.Bytes)))
	}
	for _, w := range []struct {
		name string
		at   time.Duration
		work telemetry.Work
	}{
		{"export", s.At, s.Export},
		{"seal", s.At, s.Seal},
		{"stall", s.At, s.Stall},
		{"verify", d.At, d.Verify},
		{"wait", d.At, d.Wait},
		{"import", d.At, d.Import},
	} {
		t.work(w.name, w.at, w.work)
	}
	if len(t.children) > 0 {
		t.hull()
		if s.Sent > 0 {
			t.end = max(t.end, s.At+s.Sent)
		}
		a.children = append(a.children, t)
	}
}

// build turns a request into spans, which gather takes as they end: children first.
func (e *Exporter) build(it *ended) {
	root := tree(it)
	ctx := context.Background()
	if it.parent.span.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, it.parent.span)
	}
	e.span(ctx, root, it.request.Arrived, trace.SpanKindServer)
}

func (e *Exporter) span(ctx context.Context, n *node, zero time.Time, kind trace.SpanKind) {
	ctx, s := e.tracer.Start(ctx, n.name, trace.WithTimestamp(zero.Add(n.begin)), trace.WithSpanKind(kind), trace.WithAttributes(n.attrs...))
	for _, ev := range n.events {
		s.AddEvent(ev.name, trace.WithTimestamp(zero.Add(ev.at)))
	}
	if n.failed != "" {
		s.SetStatus(codes.Error, n.failed)
	}
	if s.IsRecording() {
		for _, c := range n.children {
			e.span(ctx, c, zero, trace.SpanKindInternal)
		}
	}
	s.End(trace.WithTimestamp(zero.Add(n.end)))
}

func text(key, value string) attribute.KeyValue { return attribute.String(key, value) }

func number(key string, value int) attribute.KeyValue { return attribute.Int(key, value) }

func nanos(key string, d time.Duration) attribute.KeyValue {
	return attribute.Int64(key, d.Nanoseconds())
}
