package blob

import (
	"encoding/binary"

	"github.com/tandem-llm/tandem/state"
)

// Depth is how far a check goes into the numbers of a payload. Structure,
// sizes, types and positions are always checked in full. A depth n above 1
// looks at one in n stretches of 64 bytes, which costs about a n-th: enough to
// notice a peer that computes nonsense, not one that hides a single number.
type Depth int

const (
	// Structure leaves the numbers alone: for bytes this process has just
	// exported itself.
	Structure Depth = 0
	// Everything refuses NaN and infinity anywhere in the numbers.
	Everything Depth = 1
)

// Scratch is memory that checks reuse. The zero value is ready. It belongs to
// one goroutine.
type Scratch struct {
	seen []uint64
}

// bitmap returns a cleared bitmap of n bits.
func (s *Scratch) bitmap(n int) []uint64 {
	words := (n + 63) / 64
	if cap(s.seen) < words {
		s.seen = make([]uint64, words)
	}
	s.seen = s.seen[:words]
	clear(s.seen)
	return s.seen
}

// CheckPage accepts b only when it is, byte for byte, a page of the positions
// [first, end) of this schema: exact length, every count, type and row size as
// the schema has it, the positions a permutation of [first, end), all sequence
// ids 0, no window and no recurrent cells, and, with Everything, only finite
// numbers. Errors are *Error.
func (s *Schema) CheckPage(b []byte, first, end int, depth Depth, scratch *Scratch) error {
	n := end - first
	if first < 0 || n <= 0 || end > 1<<31-1 {
		return fault(state.KindNone, -1, "no positions in [%d,%d)", first, end)
	}
	if !s.Memory.Attention() {
		return fault(state.AttentionKV, -1, "a %v memory has no pages", s.Memory)
	}
	if want := s.PageBytes(n); len(b) != want {
		return fault(state.KindNone, -1, "%d bytes, a page of %d tokens has %d", len(b), n, want)
	}
	c := checker{b: b, depth: depth, scratch: scratch}
	c.header()
	c.kv(state.AttentionKV, &s.Base, first, n)
	if s.Memory.Window() {
		c.kv(state.WindowKV, &s.Window, 0, 0)
	}
	if s.Memory.Recurrence() {
		c.rec(s, 0, 0)
	}
	return c.err
}

// CheckSnapshot accepts b only when it is, byte for byte, the snapshot of a
// sequence of tokens positions: the window holds the last positions, as many as
// WindowCells allows, and the recurrent cell is at position tokens-1. Otherwise
// as CheckPage.
func (s *Schema) CheckSnapshot(b []byte, tokens int, depth Depth, scratch *Scratch) error {
	if tokens <= 0 || tokens > 1<<31-1 {
		return fault(state.KindNone, -1, "no positions in [0,%d)", tokens)
	}
	if s.Memory == Dense {
		return fault(state.KindNone, -1, "a %v memory has no snapshot", s.Memory)
	}
	window, err := s.windowAt(b, headerBytes, tokens)
	if err != nil {
		return err
	}
	if want := s.SnapshotBytes(window); len(b) != want {
		return fault(state.KindNone, -1, "%d bytes, the snapshot has %d", len(b), want)
	}
	c := checker{b: b, depth: depth, scratch: scratch}
	c.header()
	c.tail(s, window, tokens)
	return c.err
}

// windowAt reads the number of cells of the window section at offset at, which
// must be one that WindowCells allows. It is 0 without a window.
func (s *Schema) windowAt(b []byte, at, tokens int) (int, error) {
	if !s.Memory.Window() {
		return 0, nil
	}
	if len(b) < at+kvCountBytes {
		return 0, fault(state.WindowKV, -1, "truncated")
	}
	n := int(binary.LittleEndian.Uint32(b[at+4:]))
	if least, most := s.WindowCells(tokens); n < least || n > most {
		return 0, fault(state.WindowKV, -1, "%d cells, expected %d or %d", n, least, most)
	}
	return n, nil
}

// checkFull is CheckPage for the whole state of a sequence, as llama.cpp
// writes it with flags 0 once its sequence ids are zeroed. The length of b is
// exact.
func (s *Schema) checkFull(b []byte, tokens, window int, scratch *Scratch) error {
	c := checker{b: b, depth: Structure, scratch: scratch}
	c.header()
	if s.Memory.Attention() {
		c.kv(state.AttentionKV, &s.Base, 0, tokens)
	}
	c.tail(s, window, tokens)
	return c.err
}

// checker walks a blob whose length is already exact, so that no step can run
// past the end. The first fault stops it.
type checker struct {
	b       []byte
	depth   Depth
	scratch *Scratch
	err     error
}

func (c *checker) fail(k state.Kind, layer int, format string, args ...any) {
	if c.err == nil {
		c.err = fault(k, layer, format, args...)
	}
}

// next cuts n bytes off the front.
func (c *checker) next(n int) []byte {
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

// expect reads a u32 that has only one right value.
func (c *checker) expect(k state.Kind, layer int, what string, want uint32) {
	if c.err != nil {
		return
	}
	if got := binary.LittleEndian.Uint32(c.next(4)); got != want {
		c.fail(k, layer, "%s is %d, expected %d", what, int32(got), int32(want))
	}
}

func (c *checker) header() {
	c.expect(state.KindNone, -1, "magic", Magic)
	c.expect(state.KindNone, -1, "sequence id", 0)
}

// tail checks the sections that a snapshot has.
func (c *checker) tail(s *Schema, window, tokens int) {
	if s.Memory.Window() {
		c.kv(state.WindowKV, &s.Window, tokens-window, window)
	}
	if s.Memory.Recurrence() {
		c.rec(s, 1, tokens-1)
	}
}

func (c *checker) kv(kind state.Kind, kv *KV, first, n int) {
	c.expect(kind, -1, "n_stream", 1)
	c.expect(kind, -1, "cell count", uint32(n))
	if c.err != nil || n == 0 {
		return
	}
	c.cells(kind, c.next(n*kvCellBytes), first, n)
	c.expect(kind, -1, "v_trans", 0)
	c.expect(kind, -1, "layer count", uint32(len(kv.K)))
	c.tensors(kind, "K", kv.K, n)
	c.tensors(kind, "V", kv.V, n)
}

// cells checks that the positions are a permutation of [first, first+n).
func (c *checker) cells(kind state.Kind, meta []byte, first, n int) {
	i := 0
	for ; i < n; i++ { // nearly always in order
		m := meta[i*kvCellBytes : i*kvCellBytes+kvCellBytes]
		if binary.LittleEndian.Uint32(m) != uint32(first+i) ||
			binary.LittleEndian.Uint64(m[4:]) != 1 { // n_seq_id 1, sequence id 0
			break
		}
	}
	if i == n {
		return
	}
	seen := c.scratch.bitmap(n)
	for i := range n {
		m := meta[i*kvCellBytes : i*kvCellBytes+kvCellBytes]
		pos := int(int32(binary.LittleEndian.Uint32(m))) - first
		switch {
		case pos < 0 || pos >= n:
			c.fail(kind, -1, "cell %d is outside of its positions [%d,%d)", i, first, first+n)
		case seen[pos/64]&(1<<(pos%64)) != 0:
			c.fail(kind, -1, "cell %d repeats a position", i)
		case binary.LittleEndian.Uint32(m[4:]) != 1:
			c.fail(kind, -1, "cell %d has not exactly one sequence", i)
		case binary.LittleEndian.Uint32(m[8:]) != 0:
			c.fail(kind, -1, "cell %d has a sequence id other than 0", i)
		default:
			seen[pos/64] |= 1 << (pos % 64)
			continue
		}
		return
	}
}

func (c *checker) rec(s *Schema, cells, pos int) {
	kind := state.Recurrent
	c.expect(kind, -1, "cell count", uint32(cells))
	if cells == 1 {
		c.expect(kind, -1, "position", uint32(pos))
		c.expect(kind, -1, "n_seq_id", 0)
	}
	c.expect(kind, -1, "s_trans", 0)
	c.expect(kind, -1, "trunk layer count", s.Trunk)
	c.tensors(state.Conv, "conv", s.R, cells)
	c.tensors(state.Recurrent, "ssm", s.S, cells)
}

func (c *checker) tensors(kind state.Kind, part string, list []Tensor, cells int) {
	for i, t := range list {
		if c.err != nil {
			return
		}
		h := c.next(tensorHdrBytes)
		if got := Type(int32(binary.LittleEndian.Uint32(h))); got != t.Type {
			c.fail(kind, i, "%s has type %d, expected %v", part, int32(got), t.Type)
			return
		}
		if got := binary.LittleEndian.Uint64(h[4:]); got != t.Row {
			c.fail(kind, i, "%s has rows of %d bytes, expected %d", part, got, t.Row)
			return
		}
		rows := c.next(cells * int(t.Row))
		if c.depth != Structure && !finite(t.Type, rows, int(c.depth)) {
			c.fail(kind, i, "%s holds a NaN or an infinity", part)
			return
		}
	}
}
