// Package gateway is the live host of routing and requests: it serves the OpenAI-compatible HTTP
// API, chooses workers, and drives one handoff.Request machine for every sample it generates.
//
// # Wiring
//
//	g, err := gateway.New(gateway.Config{…})
//	conn, err := bus.Connect(ctx, bus.Options{…, Events: bus.Events{Disconnected: g.BusDown, Reconnected: g.BusUp}})
//	link, err := bus.ServeGateway(conn, incarnation, g.BusHandler())
//	err = g.Run(ctx, link, listener)
//
// Run serves HTTP on the listener until ctx ends and then shuts down in good order. Handler gives
// the HTTP handler alone.
//
// # Life of a request
//
// An HTTP request (a call) is decoded, it waits for admission, its prompts become tokens, and each
// of its samples becomes one request with its own machine, bookings and handoff attempts. A request
// reserves, dispatches prefill, runs, renews, cancels, retries, forwards and finishes only by
// executing an action that its machine returned; everything it learns (worker messages, command
// failures, the registry, timers, the client's departure) goes to the machine as a fact. Facts and
// actions are recorded in the lifecycle event stream, without content.
//
// A call's samples write to its outbox, which never blocks them; the call's own goroutine writes
// to the connection, under a deadline for each write. A client that reads too slowly fills the
// outbox and loses its request; it never holds up a worker or another client.
//
// # Attribution
//
// Every attempt has a record, telemetry.Handoff, which joins what both workers measured with what the
// gateway saw; attribution.go keeps it. Ended requests publish theirs to the metrics, the ring behind
// GET /tandem/handoffs, and the trace exporter. Nothing is decided by it.
//
// # Concurrency
//
// A request has no goroutine of its own: whoever brings a fact locks it and executes the resulting
// actions, none of which block (commands to workers are sent by goroutines that report back).
// Lock order: request.mu, then Gateway.mu, then fleet.mu, acks.mu, outbox.mu, admission.mu, or those
// of telemetry's ring and of the trace exporter, which are leaves. No lock is held while calling the bus's Command or writing to a connection.
package gateway
