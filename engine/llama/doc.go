// Package llama computes with llama.cpp v0.5.0: it implements engine.Engine over
// an unpatched build of it, called from Go without cgo through yzma.
//
// [Open] loads the shared libraries (one directory per process, versions
// checked before anything else is called), a GGUF file that package model has
// accepted, and one context. [OpenVocab] loads a vocabulary alone, for hosts
// that only tokenize.
//
// # One owner
//
// A context is not safe for concurrent use. Every method of an [Engine] is
// called by one goroutine at a time, its owner; overlapping calls are answered
// with engine.ErrConcurrent. Several engines may live in one process, each with
// its owner. A [Vocab] is safe for any number of goroutines.
//
// # How state moves
//
// The context has one sequence more than slots, the scratch sequence T, empty
// between calls. A page is exported by sharing the cells of its range with T,
// taking T out of the window and recurrent memories, and reading T's blob into
// the caller's buffer. A page is imported by setting it into T and sharing T
// with the destination slot. The snapshot is the slot's own PARTIAL_ONLY blob,
// and goes into the slot last, because sharing pages afterwards would drop it.
//
// llama.cpp trusts the bytes it is given. Package blob checks every payload in
// full before llama.cpp sees it, and the engine makes the calls that kill the
// process or corrupt neighbours impossible: slots and positions are checked
// against its own books, sequences are only ever removed whole, an importing
// slot cannot be decoded, and any failed import empties its slot and T.
//
// # Exactness
//
// State bytes are always exact: what arrives is what left. Logits depend also
// on where llama.cpp puts cells and on the number of threads, because both
// decide the order of additions. A request that runs alone in its engine gives
// the same bits every time (an engine that becomes idle starts over at the
// first cell). Beside neighbours a request may get other bits, with and without
// a handoff.
package llama
