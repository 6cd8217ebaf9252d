// Package otlp exports one trace for each request over OTLP/HTTP, made from the same records as the
// metrics and `tandem handoffs`.
//
// A trace is built after its request has ended, on the exporter's own goroutine: serving costs a place
// in a bounded queue and nothing else. When the queue is full because the collector is slow, hangs or
// is down, traces are dropped and their spans counted; nobody waits. [Exporter.Close] sends what is
// queued, for as long as its context lets it.
//
// The tree of one request:
//
//	request                       arrival to end; a server span, child of the caller's if it sent a traceparent
//	├─ admission                  waiting for a place
//	└─ attempt                    one for each attempt, numbered
//	   ├─ reserve                 command to ticket
//	   ├─ prefill                 slot to first token sampled
//	   │  └─ compute              the prompt's chunks
//	   ├─ transfer                first page exported to all arrived
//	   │  ├─ export, seal, stall  at the source
//	   │  └─ verify, wait, import at the destination
//	   ├─ tail                    first token sampled to the destination ready
//	   ├─ commit                  everything there and valid to decodable
//	   └─ decode                  to the end
//
// Spans that stand for many pieces, such as the export of every page, last from the first to the last
// of them and have their number and the time that was really spent as attributes. Attributes are
// names, ids and counts, never content.
//
// The sampling decision of an incoming traceparent is honoured. Endpoint, headers, certificates,
// timeouts, sampler and resource follow the standard OTEL_ environment variables; a URL that is given
// goes before the endpoint there.
package otlp
