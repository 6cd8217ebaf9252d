// Package blob reads, checks, cuts and normalises the per-sequence state blobs
// of llama.cpp (llama_state_seq_get_data_ext, v0.5.0, host flavour).
//
// llama.cpp trusts these bytes: some faults in them stop the process, others
// poison neighbouring sequences without a sign. So nothing reaches
// llama_state_seq_set_data_ext that [Schema.CheckPage] or
// [Schema.CheckSnapshot] has not accepted in full.
//
// # Layout
//
// Everything is little endian and unaligned. A blob is a header and the
// sections its [Memory] has:
//
//	header   u32 magic, i32 sequence id
//	KV       u32 n_stream = 1, u32 cells; nothing more when cells = 0;
//	         cells × (i32 position, u32 n_seq_id = 1, i32 sequence id);
//	         u32 v_trans = 0, u32 layers;
//	         layers × (i32 type, u64 row, cells × row bytes)  keys
//	         layers × (i32 type, u64 row, cells × row bytes)  values
//	REC      u32 cells (0 or 1); cells × (i32 position, u32 n_seq_id = 0);
//	         u32 s_trans = 0, u32 trunk layers;
//	         recurrent layers × (i32 type, u64 row, cells × row bytes)  conv
//	         recurrent layers × (i32 type, u64 row, cells × row bytes)  ssm
//
// Cells come in cell index order, which is not always position order.
//
// A page is a whole blob (flags 0) of one token range whose window section has
// no cells and whose REC section has none. A snapshot is a PARTIAL_ONLY blob:
// the window section and the REC section. Tandem writes 0 for every sequence
// id, so that equal state has equal bytes whatever slot it lay in.
//
// # Use
//
// [Learn] reads the [Schema] of a context from one of its own blobs. From then
// on sizes are arithmetic ([Schema.PageBytes]), and checking compares every
// byte that is not a number of the model with the only value it may have, and
// every number with infinity and NaN. Nothing here copies payloads except
// [Schema.Canonical] and [Schema.SlicePage]; checking does not allocate, but
// for a bitmap when positions are out of order, which [Scratch] keeps.
package blob
