// Package kv owns the physical memory of attention state: which blocks a
// sequence has, which prefixes are cached, and what is promised to whom. It
// knows sequences and content keys, never text or tokens, and nothing of
// transports or time.
//
// A Manager holds a fixed number of blocks of BlockTokens tokens each. There are
// two: kv/block (fixed blocks under hash-chained keys, vLLM's shape) and kv/radix
// (a page-aligned radix tree with locked paths and request slots, SGLang's
// shape). Both keep every promise of the Manager interface, and kv/kvtest checks
// that they do.
//
// # The life of a sequence
//
//	Start ─→ active ──Hold(id)──→ pinned ──Resume──→ active
//	Reserve(id) ─→ reserved ──Activate(id)──→ active
//	any of them ──Free, Release(id)──→ blocks cached or free
//
// Start locks the longest cached prefix and allocates the rest, all or nothing.
// Grow adds blocks. Publish makes full computed blocks prefix hits. Hold and
// Reserve are keyed by handoff id and may be repeated. Blocks of a reservation
// are no prefix hit until Activate, which publishes them once.
//
// Touch says that a transfer can read or write the memory of a sequence from now
// on, Quiet that it no longer can. A sequence that is freed while touched stays
// where it is counted (quarantine), and Quiet frees it.
//
// # Accounting
//
// Every block is in exactly one class, so that
//
//	Active + Pinned + Reserved + Cached + Free = Blocks
//
// holds after every operation. A block that several sequences share counts once,
// for the strongest: active before pinned before reserved. Cached blocks have a
// key and no sequence; they are what eviction takes, least recently used first,
// and of one prefix the last block first. Headroom is the growth promised to
// sequences that exist: at every moment Headroom ≤ Cached + Free, so a sequence
// that grows within its promise cannot fail. It is a constraint on what else may
// be admitted, and no class of blocks.
//
// # Keys
//
// A Key names a full block by its content and everything before it. Chain makes
// keys from tokens, or from the ids of traces that have no tokens. Chains start
// from a tenant's Salt, so equal prompts of two tenants share nothing.
//
// # Recurrent models
//
// Families with recurrent state can continue from a boundary only where a
// snapshot of that state was kept. With Config.Marked a prefix hit of Start ends
// at the longest boundary that has both: cached blocks up to it and a Mark on it.
// The bytes of the snapshots are the host's; the manager bounds their sum and
// says with Unmarked which one to drop. Reserve ignores marks, because the
// recurrent state of a handoff always comes from its source.
//
// # Hosts
//
// A host with an engine that keeps state by sequence maps one to the other with
// kv/mirror. Where such an engine cannot exchange a part of a sequence's state for
// an equal one, Config.Fixed says so.
//
// Blocks tells which physical blocks a sequence has, in the order of its tokens.
// Events tells, in order, what became a hit, what was evicted, what was exchanged
// for an equal block, and which snapshot is to be dropped. They are recorded only
// with Config.Events, and the host must take them after each operation or they
// pile up.
//
// Managers are not safe for concurrent use, hold no clock, and answer bad input
// with an Outcome. In steady state no operation allocates. Costs, with n the
// blocks concerned: Find, Snapshot, Touch, Quiet, Rekey O(1); everything else
// O(n), and kv/radix adds O(log nodes) per evicted node and O(depth of the path
// in nodes). A block costs about 40 bytes in both (kv/radix: 48 more for each node), 16
// more with Marked, and 4 for each sequence that has it.
package kv
