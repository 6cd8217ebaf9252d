// Package sched decides what one engine computes next, and whose memory is
// whose: admission, chunked prefill, continuous batching of decodes, preemption,
// pinned prefills and the reservations of incoming state. It runs live and on a
// virtual clock, and knows no clock, socket, text or tokens.
//
// A Scheduler owns a kv.Manager. The host gives commands, each keyed by handoff
// id, and runs steps:
//
//	step := s.Plan(now)          // what to compute; empty: nothing can run
//	... compute step.Decodes as one batch and each of step.Chunks as one ...
//	s.Done(now, sched.Results{}) // what came of it
//	for _, n := range s.Notices(buf[:0]) { ... }
//
// Notices say what happened to requests, in order; the host takes them after
// every call. One goroutine uses a Scheduler; between Plan and Done commands may
// come, and take effect on requests of the running step when it is done.
//
// # Requests
//
//	Submit             Waiting → Prefilling → Decoding → Finished
//	Submit, Held       Waiting → Prefilling → Pinned
//	Reserve, Activate  Reserving → Reserved → Ready → Decoding → Finished
//	Rebind             Pinned (of another id) → Pinned, or Ready → Prefilling or Decoding
//	Cancel             any → Stopped
//	Release            any → gone, or Quarantine until Quiet
//
// A request has its memory until Release, also when it is Finished, Pinned or
// Stopped. The transition that completes a held prefill pins its memory.
//
// # Order
//
// Prompts and reservations wait in the order in which they came. One that lacks
// memory holds up everything behind it, so nobody is overtaken and nobody
// starves; one that lacks only a running slot holds up the prompts behind it, but
// no reservation, which needs none. With shares for the two sides of a worker
// each side is a queue of its own. What can never fit is refused at once.
//
// Blocks for a whole prompt are taken on admission, with headroom for its answer.
// So a prompt never waits half computed, and reservations get only what is not
// promised to running requests. A decode that needs a block when none is left
// preempts the youngest request, which starts again from the front of the queue,
// over what is cached of it by then; or, where prompts are not computed, fails
// it. Memory that a transfer can touch is never taken.
//
// # Running slots
//
// Config.Running bounds how many requests prefill or decode. A reservation takes
// none: an activated request is Ready until one is free and then goes on with the
// memory it has. Managers with request slots (kv.Config.Slots) count every
// sequence from its reservation on; then Running may be 0.
//
// # Ends
//
// Idle and Drained are different questions: Idle says that Plan has nothing to
// give, Drained that no request is left. Pinned, reserved and quarantined memory
// makes a scheduler not Drained, and never not Idle.
//
// # Virtual time
//
// Where the same requests decode step after step and nobody can join, Steady says
// for how many steps, and Skip takes them at once. The result equals that of as
// many Plan and Done.
//
// Costs: Plan and Done O(rows); commands O(1) beside what kv says, plus a scan of
// the running requests for a cancel. In steady state nothing allocates.
package sched
