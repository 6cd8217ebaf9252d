// Package soak keeps a fleet of real processes under a random load for long, kills its
// workers meanwhile, and holds every answer against an idle engine of its own.
//
// [Run] drives a [Fleet] that its host started, in rounds. In a round requests of the
// seed's [Generator] are handed off, in both orders, while clients leave and workers
// are killed or drained; then a part of the same requests is served colocated with
// nobody dying. At the end some requests run alone. What must hold:
//
//   - each request has one end: a whole answer, a client that left, or, while workers
//     die, one clear error. One without an end fails, with the handoffs it was in;
//   - each token of a greedy answer is the reference's best one, or within the noise
//     that batching was measured to make ([Noise]);
//   - requests that run alone equal the reference's answer token for token;
//   - handed-off answers differ from the reference's no more often than colocated ones
//     do under the same load;
//   - the recorded facts of every life of every process lead fresh machines to the same
//     states and actions, each request ends once there and its bookings end with it;
//   - nothing is held anywhere at the end.
//
// The seed decides what is asked, who leaves and who dies; the machine decides only how
// that interleaves. Answers are checked while the load goes on and not kept, and the
// processes' event streams are read from pipes, so memory and disk do not grow with the
// number of requests, but for a few hundred bytes each that the replayed machines take.
//
// Everything runs on goroutines of Run, which returns when all of them have ended. The
// reference engine has one owner, the goroutine that checks.
package soak
