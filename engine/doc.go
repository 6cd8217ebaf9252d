// Package engine is the seam between Tandem's hosts and whatever computes
// tokens: the [Engine] interface, its value types and its typed errors.
//
// An engine owns one model, one context and a fixed number of sequence slots.
// It decodes batches of rows, and it lets the exact continuation state of a
// sequence leave and enter: attention pages after each prefill chunk
// ([Engine.ExportPage]), everything that is overwritten in place once at the
// end ([Engine.ExportSnapshot]), and the converse as a transaction
// ([Engine.BeginImport]). It decides nothing: which rows make a batch, which
// slot a request gets and when memory is free is the caller's business.
//
// # Sequences
//
// A sequence is named by a slot number in [0, Info.Slots). It is empty,
// importing, or holds the positions [0, Tokens(seq)). Decode appends to an
// empty or held sequence and refuses an importing one; Drop empties any of
// them; Commit turns an importing one into a held one. There is no way to
// remove only a part of a sequence: recurrent state cannot be rolled back.
//
// # Ownership and concurrency
//
// All methods of one Engine, and of every [Import] it began, are called from
// one goroutine at a time, its owner. Implementations detect overlapping calls
// and answer [ErrConcurrent]. A [Vocab] has no state that calls change, so it
// may be used from any goroutine until its engine is closed.
//
// # Conformance
//
// Package engine/enginetest checks any implementation against this contract.
package engine
