// Package state defines what moves when a sequence changes workers: the kinds of components a
// model has, the unit of transfer and its binary header, the manifest that ends a handoff, the
// identity two workers must share, and the validation a destination runs before any byte reaches
// an engine.
//
// # The pieces
//
// An [Inventory] lists the components of one model (attention KV, sliding-window KV, recurrent and
// convolution state, speculation state) with their sizes; [Geometry.Inventory] computes it. An
// [Identity] holds everything that changes numerics or meaning; two workers pair only when theirs
// are equal, and [Identity.Match] names the first field that is not. A [Binding] stands beside it:
// which handoff, whose request, which two processes.
//
// State travels in units. A unit is one page (the attention KV of one token range) or one snapshot
// (everything that is overwritten rather than appended, exported once at the end). Each unit has a
// [UnitHeader] of [HeaderSize] bytes, then its payload. After the last unit comes the [Manifest]:
// token history, position, sampler, generation parameters, usage, and the keyed digest of every
// unit.
//
// # Sending and receiving
//
// A source makes one [Sealer] per part and calls [Sealer.Page] and [Sealer.Snapshot] for each
// payload, then [Sealer.Manifest]. A destination makes one [Assembly] per handoff, from what it
// expects, and feeds it units and manifests as they arrive, in any order; [Assembly.Complete] is
// true once nothing is missing and nothing was wrong. The first error is final: partial state is
// discarded, never resumed.
//
// # Properties
//
// The package is pure: no clock, goroutine, log or I/O. Nothing panics on outside input, and
// nothing is allocated for a declared length before [Limits] allowed it. Encoding and decoding a
// unit header allocates nothing. Errors are typed (see [Error]) and never hold tokens, text,
// payload bytes or digests of them. The byte layout is documented in docs/state-format.md.
package state
