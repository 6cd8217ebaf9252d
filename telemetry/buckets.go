package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Histogram bounds in seconds. Each histogram also has native buckets, for servers that take them.
var (
	// requestBuckets covers a token on a small model to a long answer on a slow machine.
	requestBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	// stageBuckets covers one small page to a large snapshot over a slow link.
	stageBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30}
)

// Bounds of histograms that are not seconds.
var (
	// byteBuckets covers a small page to the state of a long context: 4 KiB to 64 GiB.
	byteBuckets = prometheus.ExponentialBuckets(4<<10, 4, 13)
	// rateBuckets covers a slow wide-area link to a fast one between machines, bytes per second.
	rateBuckets = prometheus.ExponentialBuckets(1<<20, 4, 8)
	// pageBuckets covers a snapshot alone to a context of millions of tokens.
	pageBuckets = []float64{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096}
	// shareBuckets are tenths.
	shareBuckets = prometheus.LinearBuckets(0, .1, 11)
)

func histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor:    1.1,
		NativeHistogramMaxBucketNumber: 160,
	}
}
