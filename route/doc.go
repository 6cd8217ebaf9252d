// Package route chooses workers for requests and keeps the router's bookings. It is pure and
// deterministic: equal calls in equal order give equal answers, with no clock, goroutine or I/O and
// no randomness but a seed's, so a gateway and a replay route alike.
//
// A [Router] holds what the host knows of each live worker ([Worker], replaced at every
// registration) and what it has booked itself. Choosing is a profile of three parts, in the field's
// words: filters drop workers that cannot take the request, each with a [Reason]; a scorer orders
// the rest as the role's [Policy] says; a picker breaks ties round-robin. [Router.ChoosePair] picks a
// prefill and a decode worker that may hand state to each other, [Router.ChooseWhole] one worker that
// serves the request alone. Both return a [*RefusedError] with every worker's reason when nobody is
// left. [Router.Use] sets the policies; least loaded is the default.
//
// [KVAware] needs to know what workers have cached. A live router sees no cache, but it knows which
// prompts it sent where: the host names the blocks of a prompt by a chain of keys ([kv.Chain]) in
// [Request].Keys, tells with [Router.Learn] where it sent them, and the router keeps as many of each
// worker's latest keys as the worker can hold. A host that does know gives Options.Overlap instead.
//
// Load is the router's own estimate: bookings made at selection and not yet ended. It never stands in
// for a reservation, which the worker alone grants, and is never added to the occupancy that workers
// report. The bookings of a request ([handoff.Booking]) end at different times (prefill load at the
// end of prefill, ownership on the prefill worker at its release, the decode booking at completion);
// each ends exactly once. When a worker restarts, bookings on its old incarnation no longer count
// against it, and are still ended by whoever made them.
//
// A Router is not safe for concurrent use; its host serializes the calls.
package route
