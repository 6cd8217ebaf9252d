package telemetry

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// registry is one process's metrics.
type registry struct {
	reg *prometheus.Registry
}

func newRegistry(version, role string) registry {
	r := registry{prometheus.NewRegistry()}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tandem_build_info", Help: "1; the labels say what runs.",
	}, []string{"version", "role"})
	build.WithLabelValues(version, role).Set(1)
	r.reg.MustRegister(build, collectors.NewGoCollector(),
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
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.reg.MustRegister(v)
	return v
}

func (r registry) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	r.reg.MustRegister(v)
	return v
}

func (r registry) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(histogram(name, help, buckets), labels)
	r.reg.MustRegister(v)
	return v
}
