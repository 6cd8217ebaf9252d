package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
)

// attribution is the part of a gateway's metrics that is made from records of requests and
// handoffs. Every label comes from a small fixed set: workers are not among them, their own metrics
// tell them apart.
type attribution struct {
	slo                                       SLO
	handoffs, verdicts, good, goodTokens      *prometheus.CounterVec
	moved, positions, spans, chosen, skipped  *prometheus.CounterVec
	targets                                   *prometheus.GaugeVec
	stages, bytes, pages, overlap, rate, rtts *prometheus.HistogramVec
}

func newAttribution(r registry) attribution {
	a := attribution{
		handoffs:   r.counter("tandem_handoffs_total", "Attempts by how they were served, over which lane, and how they ended.", "mode", "lane", "ending"),
		chosen:     r.counter("tandem_placements_total", "Attempts by why they were served in their mode: pair, asked (colocated by request or --mode), fallback (auto found no pair).", "choice"),
		stages:     r.histogram("tandem_handoff_seconds", "Stages of one attempt, sums over its units; docs/telemetry.md says from when to when each lasts.", stageBuckets, "stage"),
		bytes:      r.histogram("tandem_handoff_bytes", "Payload bytes of one handoff, by component.", byteBuckets, "component"),
		pages:      r.histogram("tandem_handoff_pages", "Pages of one handoff.", pageBuckets),
		overlap:    r.histogram("tandem_handoff_overlap_ratio", "Share of one handoff's work that was done when prefill ended: of its time (export, seal, wire, import), or of its bytes.", shareBuckets, "of"),
		rate:       r.histogram("tandem_handoff_bytes_per_second", "Bytes per second of one handoff while a unit was under way, by lane.", rateBuckets, "lane"),
		rtts:       r.histogram("tandem_handoff_rtt_seconds", "Smoothed round trip between the two workers of one handoff, by lane.", stageBuckets, "lane"),
		positions:  r.counter("tandem_handoff_tokens_total", "Tokens of attempts by side: prompt (handed over or computed there), of them cached, and computed by that worker's engine.", "side", "kind"),
		skipped:    r.counter("tandem_handoff_skipped_bytes_total", "Bytes of pages that did not travel because the destination had them in its prefix cache."),
		moved:      r.counter("tandem_handoff_mtp_total", "Handoffs by what became of multi-token-prediction state.", "mtp"),
		verdicts:   r.counter("tandem_slo_requests_total", "Requests by objective (ttft, tpot) and whether they met it; failures did not, cancelled ones are not counted. Nothing is counted for an objective that is off.", "slo", "result"),
		good:       r.counter("tandem_goodput_requests_total", "Requests answered to their end within every objective that is on."),
		goodTokens: r.counter("tandem_goodput_tokens_total", "Completion tokens of those requests."),
		targets:    r.gauge("tandem_slo_target_seconds", "The configured objectives; 0: off.", "slo"),
		spans:      r.counter("tandem_trace_spans_total", "Spans by what became of them: exported, dropped (the queue was full) or failed (the collector did not take them).", "result"),
	}
	for _, s := range gatewayStages {
		a.stages.WithLabelValues(string(s))
	}
	for _, o := range []string{"time", "bytes"} {
		a.overlap.WithLabelValues(o)
	}
	for _, s := range []SpanResult{SpansExported, SpansDropped, SpansFailed} {
		a.spans.WithLabelValues(string(s))
	}
	a.skipped.WithLabelValues()
	a.pages.WithLabelValues()
	a.good.WithLabelValues()
	a.goodTokens.WithLabelValues()
	a.targets.WithLabelValues("ttft")
	a.targets.WithLabelValues("tpot")
	return a
}

// SetSLO says which objectives requests are judged by. It is called before the first request.
func (g *Gateway) SetSLO(s SLO) {
	g.slo = s
	g.targets.WithLabelValues("ttft").Set(s.TTFT.Seconds())
	g.targets.WithLabelValues("tpot").Set(s.TPOT.Seconds())
}

// Judged compares an ended request with the objectives, counts the result and returns it.
func (g *Gateway) Judged(r *Request) Verdicts {
	v := g.slo.Judge(r)
	for slo, verdict := range map[string]Verdict{"ttft": v.TTFT, "tpot": v.TPOT} {
		if verdict == VerdictWithin || verdict == VerdictOutside {
			g.verdicts.WithLabelValues(slo, string(verdict)).Inc()
		}
	}
	if v.Good {
		g.good.WithLabelValues().Inc()
		g.goodTokens.WithLabelValues().Add(float64(r.Completion))
	}
	return v
}

// Handoff observes a finished record.
func (g *Gateway) Handoff(h *Handoff) {
	lane := LaneName(h.Source.Stream.Lane)
	g.handoffs.WithLabelValues(string(h.Mode), lane, string(h.Ending)).Inc()
	g.chosen.WithLabelValues(string(h.Chosen)).Inc()
	for _, s := range gatewayStages {
		if took, ok := h.stage(s); ok {
			g.stages.WithLabelValues(string(s)).Observe(took.Seconds())
		}
	}
	g.counted(Source, h.Mode, &h.Source)
	if h.Destination == nil {
		return
	}
	g.counted(Destination, h.Mode, h.Destination)
	g.moved.WithLabelValues(string(h.MTP)).Inc()
	g.skipped.WithLabelValues().Add(float64(h.Source.SkippedBytes))
	if h.Source.Stream.Units == 0 {
		return
	}
	g.pages.WithLabelValues().Observe(float64(h.Summary.Pages))
	g.rate.WithLabelValues(lane).Observe(h.Summary.Bandwidth)
	g.rtts.WithLabelValues(lane).Observe(h.Summary.RTT.Seconds())
	for _, c := range h.Source.Components {
		g.bytes.WithLabelValues(c.Name).Observe(float64(c.Bytes))
	}
	if h.Source.Prompted > 0 {
		g.overlap.WithLabelValues("time").Observe(h.Summary.Overlap.Time)
		g.overlap.WithLabelValues("bytes").Observe(h.Summary.Overlap.Bytes)
	}
}

func (g *Gateway) counted(side Side, mode Mode, p *Part) {
	if mode == Colocated {
		side = Local
	}
	g.positions.WithLabelValues(string(side), "prompt").Add(float64(p.Prompt))
	g.positions.WithLabelValues(string(side), "cached").Add(float64(p.Cached))
	g.positions.WithLabelValues(string(side), "computed").Add(float64(p.Computed))
}

// LaneName keeps a lane's name to a fixed set, whatever a worker says: tls, quic, local, other for
// those of a newer release, and none where no byte moved.
func LaneName(lane string) string {
	switch lane {
	case "tls", "quic", "local":
		return lane
	case "", "none":
		return "none"
	}
	return "other"
}

// SpanResult is what became of trace spans.
type SpanResult string

const (
	SpansExported SpanResult = "exported" // the collector took them
	SpansDropped  SpanResult = "dropped"  // the queue was full, or the process ended
	SpansFailed   SpanResult = "failed"   // the collector was down, hung or refused
)

// Spans counts trace spans.
func (g *Gateway) Spans(r SpanResult, n int) { g.spans.WithLabelValues(string(r)).Add(float64(n)) }
