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
// The owner's loop is: run what was posted, run the timers that are due, send what
// is new to the gateways, compute one step that package sched plans. Facts go to a
// machine in machines.go, and only there; whatever a worker reserves, pins,
// exports, imports, activates, releases or cancels is the execution of an action
// that a machine returned. An action that yields a new fact queues it; it is told
// after the current machine's actions are done.
//
// # Memory and steps
//
// Package sched decides who is admitted, what a step computes, and whose memory is
// pinned, reserved, stopped or given back; its manager (kv/block) counts blocks of
// attention cells, and kv/mirror says in which slot of the engine a sequence is. No
// rule of theirs is repeated here: actions of machines become their commands, notices
// become facts (memory.go), and a step is computed as planned (step.go). Between Plan
// and Done nothing else happens on the owner. While a stream can reach memory the
// scheduler knows (touch, quiet), and it learns that none can any more before the
// machine does, which may release the memory then.
//
// Whoever is admitted has room for its prompt and some of its answer
// (Config.Headroom). When memory is short beyond that, the youngest request that no
// stream can reach loses its own, and computes its prompt and what it has answered
// again when there is room; its client sees a pause. A worker that computes no prompts
// fails it instead, and the gateway may have another one compute it.
//
// With a prefix cache (prefix.go) sequences that end leave what they computed in slots
// that are kept for it, and snapshots of state that pages do not hold are kept in the
// host (snapshot.go). A prompt that begins alike is given whole pages of that before its
// first chunk; what it is not given it computes, and hands over everything. A
// decode worker keeps pages of what it received and generated, and is sent what it lacks.
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
// load. The state that a prompt takes from the prefix cache has the bits it would have
// computed; what it computes after that has them where it runs alone and one thread
// computes.
package worker
