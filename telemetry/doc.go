// Package telemetry is what Tandem's processes tell about themselves: Prometheus metrics and the
// typed lifecycle event stream.
//
// Metrics: a gateway makes one [Gateway], a worker one [Worker]; each owns a registry of its own
// (nothing is global) and serves it with Handler. A metric is defined in exactly one place, with
// its help text and unit, and is updated through a method whose labels are typed and come from
// small fixed sets: no label ever carries content, a request id, a tenant or anything a client
// chose, so the number of series is bounded whatever is asked.
//
// Events: an [Events] keeps the newest events of a process in a bounded ring, and, when asked,
// writes all of them as JSON lines to a sink. An [Event] is either a recorded transition of a
// handoff machine ([handoff.Record]: fact, actions, state) or a host's own observation, such as a
// page that was exported or imported, with counts. Events carry ids and counts and never prompt
// text, token ids, state or digests of them. Tests assert events instead of log lines, and recorded
// transitions can be replayed with [handoff.Replay].
//
// Everything is safe for concurrent use, never blocks its caller, and bounds its memory.
package telemetry
