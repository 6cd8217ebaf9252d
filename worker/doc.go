// Package worker is the live host of one engine: it connects the engine to the
// control plane (package bus), the data plane (package wire) and the pure
// machines of package handoff, and steps the engine's sequences.
//
// # One owner
//
// One goroutine, the one that calls [Worker.Run], owns everything: the engine,
// the machines, the queues, the timers. Callbacks of the bus and the wire only
// post to its mailbox, so nothing else in this package needs a lock, and no
// callback waits for an engine step (but for the wire's question whether a stream
// is welcome, which waits for the machine's answer). What a source seals is the
// one thing that the owner shares with another goroutine.
//
// The owner's loop is: run what was posted, run the timers that are due, send
// what is new to the gateways, compute one step. Facts go to a machine in
// machines.go, and only there; whatever a worker reserves, pins, exports,
// imports, activates, releases or cancels is the execution of an action that a
// machine returned. An action that yields a new fact queues it; it is told after
// the current machine's actions are done.
//
// # One handoff
//
// At the source, a prompt is computed chunk by chunk; after each chunk its page
// is exported into a buffer of the wire, if the stream has room. If it has none
// the page stays in the engine, where attention state does not change, and is
// exported when room appears: a slow destination costs no memory here and does
// not stop prefill. The first token is sampled here and goes to the client at
// once; then follow the last page, the snapshot and the manifest. Over a network
// lane units are hashed while they travel, and whoever has the last digest sends
// the manifest: it does not wait for the owner (seal.go).
//
// At the destination, pages go into an uncommitted session of the engine as they
// arrive. The manifest completes the validation; the session is committed, the
// commit acknowledged to source and gateway, and the sequence decodes.
//
// Source-first the state is pinned under a lease when the prompt is done, and waits
// for the destination to pull it; everything else is the same.
//
// # Exactness
//
// Prompt chunks are multiples of the page and batches of their own; decodes of
// all sequences share a batch. A request that is alone on a worker therefore
// computes the same bits whether it was handed over or not, and whether it runs
// for the first or the hundredth time. docs/exactness.md says what holds under
// load.
package worker
