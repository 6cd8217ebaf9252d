// Package serve drives OpenAI-compatible endpoints with streaming requests and
// measures what a client sees. It knows nothing of Tandem: llama-server, vLLM
// and SGLang are driven the same way, and two endpoints are driven in turn.
//
// Start with [Run]. A [Target] is an endpoint, a [Load] says what is asked of it:
// a closed loop of a number of streams, or an open loop of arrivals that do not
// wait for answers. In an open loop latency counts from the intended arrival, so
// a server that stalls is charged for everything that it keeps waiting.
//
// A stream counts as success only if it is whole: the right status and content
// type, well-formed events, text, a finish reason and the final [DONE]; and, where
// the length of the answer was fixed, that length. Everything else is a failure
// of one of a few kinds, and its tokens count nowhere.
//
// Memory does not grow with the length of a run: requests are made as they are
// sent, and latencies go into histograms.
package serve
