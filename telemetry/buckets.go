package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Histogram bounds in seconds. Each histogram also has native buckets, for servers that take them.
var (
	// requestBuckets covers a token on a small model to a long answer on a slow machine.
	requestBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	// stageBuckets covers one small page to a large snapshot over a slow link.
	stageBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30}
)

func histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor:    1.1,
		NativeHistogramMaxBucketNumber: 160,
	}
}
