// Package replay runs requests through a fleet on a virtual clock: the unchanged
// machines of handoff, schedulers of sched, managers of kv and router of route,
// with a host that executes their actions and takes time from cost models
// (engine/timed) and shared links (replay/link) instead of doing anything.
//
//	result, err := replay.Run(ctx, config, source, replay.Options{SLO: slo})
//
// It decides nothing: what is reserved, pinned, streamed, activated, released,
// retried or cancelled follows from the machines' actions, what runs next from
// the scheduler's plans, where from the router. Messages between gateway and
// workers take half a round trip and arrive in order; none is lost, except with
// a worker that dies.
//
// # Determinism
//
// A run belongs to one goroutine and has no clock, no randomness but its seed's,
// and iterates over no map. Of events at the same time the ends of steps come
// first, by worker; then transfers; then messages in the order in which they were
// sent; then timers in the order in which they were set; then arrivals. Time is
// counted in whole picoseconds. So equal input gives equal bytes, on every
// machine and beside any number of other runs.
//
// # Stretches
//
// While the same requests decode step after step and nobody can join, the steps
// are taken at once, in closed form (sched.Scheduler.Steady, timed.Model.Stretch).
// A command that arrives meanwhile cuts the stretch: the steps that have ended by
// then are taken, the one that runs goes on. The report equals that of a run step
// by step (Options.StepByStep), byte for byte.
//
// # Cost
//
// Memory is bounded by the requests in flight, and by the tombstones of ten
// minutes; the source is read as the clock reaches it. In steady state nothing is
// allocated per token.
package replay
