package blob

import (
	"encoding/binary"
	"sort"

	"github.com/tandem-llm/tandem/state"
)

// SealPage turns the blob llama.cpp wrote for a page into the payload that
// travels: it writes sequence id 0 everywhere and checks the structure. After
// an error b is not a page.
func (s *Schema) SealPage(b []byte, first, end int, scratch *Scratch) error {
	n := end - first
	if n <= 0 || len(b) != s.PageBytes(n) || !s.Memory.Attention() {
		return s.CheckPage(b, first, end, Structure, scratch) // names the fault
	}
	zeroSeq(b[4:])
	zeroCells(b[headerBytes+kvCountBytes:], n)
	return s.CheckPage(b, first, end, Structure, scratch)
}

// SealSnapshot is SealPage for a snapshot.
func (s *Schema) SealSnapshot(b []byte, tokens int, scratch *Scratch) error {
	if tokens <= 0 || len(b) != s.SnapshotBytes(tokens) || s.Memory == Dense {
		return s.CheckSnapshot(b, tokens, Structure, scratch)
	}
	zeroSeq(b[4:])
	if s.Memory.Window() {
		zeroCells(b[headerBytes+kvCountBytes:], s.WindowCells(tokens))
	}
	return s.CheckSnapshot(b, tokens, Structure, scratch)
}

func zeroSeq(b []byte) { binary.LittleEndian.PutUint32(b, 0) }

// zeroCells zeroes the sequence ids of n cells.
func zeroCells(meta []byte, n int) {
	for i := range n {
		zeroSeq(meta[i*kvCellBytes+8:])
	}
}

// Canonical rewrites full, the blob (flags 0) of a whole sequence of tokens
// positions, into the form that does not depend on cell placement: cells in
// ascending position, sequence ids 0. Equal state has equal canonical bytes and
// the converse. full is modified (its sequence ids), the result is new memory.
func (s *Schema) Canonical(full []byte, tokens int, scratch *Scratch) ([]byte, error) {
	if tokens <= 0 || len(full) != s.FullBytes(tokens) {
		return nil, s.checkFull(full, tokens, scratch)
	}
	zeroSeq(full[4:])
	at := headerBytes
	if s.Memory.Attention() {
		zeroCells(full[at+kvCountBytes:], tokens)
		at += s.Base.bytes(tokens)
	}
	if s.Memory.Window() {
		zeroCells(full[at+kvCountBytes:], s.WindowCells(tokens))
	}
	if err := s.checkFull(full, tokens, scratch); err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(full))
	out = append(out, full[:headerBytes]...)
	rest := full[headerBytes:]
	section := func(kv *KV, n int) {
		size := kv.bytes(n)
		out = sortedSection(out, rest[:size], kv, n)
		rest = rest[size:]
	}
	if s.Memory.Attention() {
		section(&s.Base, tokens)
	}
	if s.Memory.Window() {
		section(&s.Window, s.WindowCells(tokens))
	}
	return append(out, rest...), nil
}

// sortedSection appends sec, a checked KV section of n cells, to out with its
// cells in ascending position.
func sortedSection(out, sec []byte, kv *KV, n int) []byte {
	if n == 0 {
		return append(out, sec...)
	}
	meta := sec[kvCountBytes : kvCountBytes+n*kvCellBytes]
	pos := func(i int) int32 { return int32(binary.LittleEndian.Uint32(meta[i*kvCellBytes:])) }
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	byPos := func(a, b int) bool { return pos(order[a]) < pos(order[b]) }
	if sort.SliceIsSorted(order, byPos) {
		return append(out, sec...)
	}
	sort.Slice(order, byPos)
	out = append(out, sec[:kvCountBytes]...)
	pick := func(rows []byte, size int) {
		for _, i := range order {
			out = append(out, rows[i*size:(i+1)*size]...)
		}
	}
	pick(meta, kvCellBytes)
	rest := sec[kvCountBytes+len(meta):]
	out = append(out, rest[:layoutBytes]...)
	rest = rest[layoutBytes:]
	for _, list := range [][]Tensor{kv.K, kv.V} {
		for _, t := range list {
			out = append(out, rest[:tensorHdrBytes]...)
			pick(rest[tensorHdrBytes:], int(t.Row))
			rest = rest[tensorHdrBytes+n*int(t.Row):]
		}
	}
	return out
}

// SlicePage writes the page of [from, to) to dst, cut out of page, a checked
// page of [first, end) whose cells are in ascending position, and returns its
// size. It serves a destination that already holds a part of a page.
func (s *Schema) SlicePage(dst, page []byte, first, end, from, to int) (int, error) {
	n, m := end-first, to-from
	size := s.PageBytes(m)
	switch {
	case !s.Memory.Attention() || n <= 0 || len(page) != s.PageBytes(n):
		return 0, fault(state.KindNone, -1, "%d bytes are not a page of %d tokens", len(page), n)
	case from < first || to > end || m <= 0:
		return 0, fault(state.KindNone, -1, "[%d,%d) is not a part of [%d,%d)", from, to, first, end)
	case len(dst) < size:
		return 0, fault(state.KindNone, -1, "%d bytes of room, the page has %d", len(dst), size)
	}
	skip := from - first
	meta := page[headerBytes+kvCountBytes:]
	for i := range n {
		if binary.LittleEndian.Uint32(meta[i*kvCellBytes:]) != uint32(first+i) {
			return 0, fault(state.AttentionKV, -1, "cells are not in ascending position")
		}
	}
	out := append(dst[:0], page[:headerBytes+4]...)
	out = binary.LittleEndian.AppendUint32(out, uint32(m))
	out = append(out, meta[skip*kvCellBytes:(skip+m)*kvCellBytes]...)
	rest := meta[n*kvCellBytes:]
	out = append(out, rest[:layoutBytes]...)
	rest = rest[layoutBytes:]
	for _, list := range [][]Tensor{s.Base.K, s.Base.V} {
		for _, t := range list {
			row := int(t.Row)
			out = append(out, rest[:tensorHdrBytes]...)
			out = append(out, rest[tensorHdrBytes+skip*row:tensorHdrBytes+(skip+m)*row]...)
			rest = rest[tensorHdrBytes+n*row:]
		}
	}
	out = append(out, rest...)
	return len(out), nil
}
