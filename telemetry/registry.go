package telemetry

import (
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// registry is one process's metrics.
type registry struct {
	reg  *prometheus.Registry
	defs *[]Definition
}

// Definition is one metric, as docs/telemetry.md lists it.
type Definition struct {
	Name, Type, Help string
	Labels           []string
}

// Definitions returns the metrics of this process in the order of their definition, without those
// of the Go runtime and the process.
func (r registry) Definitions() []Definition { return slices.Clone(*r.defs) }

func (r registry) define(kind, name, help string, labels []string) {
	*r.defs = append(*r.defs, Definition{Name: name, Type: kind, Help: help, Labels: labels})
}

func newRegistry(version, role string) registry {
	r := registry{prometheus.NewRegistry(), new([]Definition)}
	r.gauge("tandem_build_info", "1; the labels say what runs.", "version", "role").WithLabelValues(version, role).Set(1)
	r.reg.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Handler serves the metrics in Prometheus's formats, those of the process and the Go runtime
// (goroutines, file descriptors, memory) included.
func (r registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.reg, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// Gatherer gives access to the collected values, for tests and for re-export.
func (r registry) Gatherer() prometheus.Gatherer { return r.reg }

func (r registry) counter(name, help string, labels ...string) *prometheus.CounterVec {
	r.define("counter", name, help, labels)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.reg.MustRegister(v)
	return v
}

func (r registry) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	r.define("gauge", name, help, labels)
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	r.reg.MustRegister(v)
	return v
}

func (r registry) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	r.define("histogram", name, help, labels)
	v := prometheus.NewHistogramVec(histogram(name, help, buckets), labels)
	r.reg.MustRegister(v)
	return v
}
