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

// SealSnapshot is SealPage for a snapshot. It returns the number of window
// cells, which Components needs.
func (s *Schema) SealSnapshot(b []byte, tokens int, scratch *Scratch) (window int, err error) {
	window, err = s.windowAt(b, headerBytes, tokens)
	if err != nil || tokens <= 0 || s.Memory == Dense || len(b) != s.SnapshotBytes(window) {
		return 0, s.CheckSnapshot(b, tokens, Structure, scratch) // names the fault
	}
	zeroSeq(b[4:])
	if window > 0 {
		zeroCells(b[headerBytes+kvCountBytes:], window)
	}
	return window, s.CheckSnapshot(b, tokens, Structure, scratch)
}

// AppendEmptyREC appends a REC section without a cell to b: setting it takes a
// sequence out of the recurrent memory.
func (s *Schema) AppendEmptyREC(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, 0) // cells
	b = binary.LittleEndian.AppendUint32(b, 0) // s_trans
	b = binary.LittleEndian.AppendUint32(b, s.Trunk)
	for _, list := range [][]Tensor{s.R, s.S} {
		for _, t := range list {
			b = binary.LittleEndian.AppendUint32(b, uint32(t.Type))
			b = binary.LittleEndian.AppendUint64(b, t.Row)
		}
	}
	return b
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
// ascending position, sequence ids 0, no window cell that the next token cannot
// see. Equal state has equal canonical bytes and the converse. full is modified
// (its sequence ids), the result is new memory.
func (s *Schema) Canonical(full []byte, tokens int, scratch *Scratch) ([]byte, error) {
	if tokens <= 0 {
		return nil, fault(state.KindNone, -1, "no positions in [0,%d)", tokens)
	}
	at := headerBytes
	if s.Memory.Attention() {
		at += s.Base.bytes(tokens)
	}
	window, err := s.windowAt(full, at, tokens)
	if err != nil {
		return nil, err
	}
	if want := s.FullBytes(tokens, window); len(full) != want {
		return nil, fault(state.KindNone, -1, "%d bytes, the state of %d tokens has %d", len(full), tokens, want)
	}
	zeroSeq(full[4:])
	if s.Memory.Attention() {
		zeroCells(full[headerBytes+kvCountBytes:], tokens)
	}
	if window > 0 {
		zeroCells(full[at+kvCountBytes:], window)
	}
	if err := s.checkFull(full, tokens, window, scratch); err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(full))
	out = append(out, full[:headerBytes]...)
	if s.Memory.Attention() {
		out = sortedSection(out, full[headerBytes:at], &s.Base, tokens, tokens)
	}
	if s.Memory.Window() {
		size := s.Window.bytes(window)
		least, _ := s.WindowCells(tokens)
		out = sortedSection(out, full[at:at+size], &s.Window, window, least)
		at += size
	}
	return append(out, full[at:]...), nil
}

// sortedSection appends sec, a checked KV section of n cells, to out with the
// last keep of its cells in ascending position.
func sortedSection(out, sec []byte, kv *KV, n, keep int) []byte {
	meta := sec[kvCountBytes:]
	pos := func(i int) int32 { return int32(binary.LittleEndian.Uint32(meta[i*kvCellBytes:])) }
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	byPos := func(a, b int) bool { return pos(order[a]) < pos(order[b]) }
	if keep == n && sort.SliceIsSorted(order, byPos) {
		return append(out, sec...)
	}
	sort.Slice(order, byPos)
	order = order[n-keep:]
	out = append(out, sec[:4]...)
	out = binary.LittleEndian.AppendUint32(out, uint32(keep))
	if keep == 0 {
		return out
	}
	pick := func(rows []byte, size int) {
		for _, i := range order {
			out = append(out, rows[i*size:(i+1)*size]...)
		}
	}
	pick(meta, kvCellBytes)
	rest := meta[n*kvCellBytes:]
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
