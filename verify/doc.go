// Package verify shows that a model's sequences continue in another process as they would have at
// home, or says where they do not.
//
// Run prefills a prompt in this process, exports its state, lets the local engine go on, hands the
// export to a child process over the real data plane (package pair), lets that one go on too, and
// compares. It does so for every cell of a matrix: prompt lengths, chunk and page sizes, KV types,
// order of pages, lanes, what else lies in the destination's engine, and which side comes to the other. One prefill serves all
// cells that share length, KV type and chunk size, because these change bits in plain local runs.
//
// # What a cell asserts
//
// Always: the canonical state that the destination re-exports equals the source's, byte for byte
// (its length and BLAKE3 are compared).
//
// Controlled cells (same thread count, first cell at the same offset, nothing else in the engine,
// pages in order): every step's full logits equal bit for bit, and so do the tokens and the state
// after the last step. For models with a sliding window that holds for prompts no longer than the
// window: beyond it the window's cells have moved along at the source and start anew at the
// destination, which no import can help, so these cells count as under load.
//
// Cells under load (a neighbour, other threads, another offset, cells in another order or place): the engine
// adds floating point numbers in another order there, with or without a handoff. Where any step's
// logits differ, a control run decides. The control is an engine of this process, the source's own,
// opened with the destination's settings (threads, slots, cells), with the same padding and
// neighbours placed by the same steps, into which the very same export is restored directly, pages
// in the same order: no other process, no sealing, no wire. It must give the destination's logits
// bit for bit at every step, and the same state before the first and after the last. If it does,
// what differs from the reference is the layout's doing: the cell passed where the tokens agree
// anyway, and is explained where they do not. If it does not, the cell failed.
//
// Refusal cells damage one handoff, expect a typed error, then that the child owns nothing of it and
// that the next handoff is good.
//
// # Results
//
// A Report lists every cell of the plan with a status; cells that do not apply to a model's family,
// or did not fit the machine, or are not built yet, are in it with the reason. A run without a
// failure can be certified: see Certificate.
package verify
