package verify

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/pair"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// Placement names what else lies in the destination's engine.
type Placement string

// The placements. Alone is the only controlled one.
const (
	Alone      Placement = "alone"
	Shifted64  Placement = "offset 64"     // 64 cells of padding before it
	Shifted37  Placement = "offset 37"     // 37 cells of padding before it
	Neighbours Placement = "neighbours"    // two unrelated sequences, idle
	Busy       Placement = "busy"          // two unrelated sequences, decoding in the same batches
	Threads    Placement = "other threads" // alone, computed by another number of threads
)

// Orders of pages.
const (
	InOrder    = "in order"
	OutOfOrder = "out of order"
)

// Sources of the state that is sent.
const (
	Held = "held" // exported once, then sent
	Live = "live" // exported and sent while the prompt is computed
)

// Params are what distinguishes cells.
type Params struct {
	// Tokens is the prompt's length.
	Tokens int `json:"tokens"`
	// KVType is the element type of attention state.
	KVType string `json:"kv_type"`
	// Chunk is the tokens of one prefill step, Page those of one page.
	Chunk int `json:"chunk"`
	Page  int `json:"page,omitempty"`
	// Order is the order in which pages leave.
	Order string `json:"order,omitempty"`
	// Lane carries the bulk bytes.
	Lane wire.LaneMode `json:"lane"`
	// Placement is what else lies in the destination's engine.
	Placement Placement `json:"placement"`
	// Source says whether the state is sent from memory or while it is computed.
	Source string `json:"source"`
	// SourceFirst says that the destination comes for the state of a computed prompt. Otherwise it waits for it.
	SourceFirst bool `json:"source_first,omitempty"`
	// SourceHit is how many tokens the source finds in its prefix cache instead of computing them, DestinationHit how
	// many the destination has kept of an earlier handoff, so that their pages do not travel.
	SourceHit      int `json:"source_hit,omitempty"`
	DestinationHit int `json:"destination_hit,omitempty"`
}

// sourceFirst is the part of names that says it.
const sourceFirst = "source-first"

// Name is the cell's stable name, for --match.
func (p Params) Name() string {
	parts := []string{fmt.Sprint(p.Tokens), p.KVType, fmt.Sprint("chunk ", p.Chunk), fmt.Sprint("page ", p.Page), p.Order, string(p.Lane), string(p.Placement)}
	if p.Source == Live {
		parts = append(parts, Live)
	}
	if p.SourceFirst {
		parts = append(parts, sourceFirst)
	}
	if p.SourceHit > 0 {
		parts = append(parts, fmt.Sprint("source hit ", p.SourceHit))
	}
	if p.DestinationHit > 0 {
		parts = append(parts, fmt.Sprint("destination hit ", p.DestinationHit))
	}
	return strings.Join(parts, "/")
}

// controlled reports whether every bit must be equal to the source's, for a model with a sliding window of that
// many tokens (0: without one). A window that a prompt has passed lies in other cells at the destination: it is
// restored from the first cell on, while the source's has moved along or gone round.
func (p Params) controlled(window int) bool {
	return p.Placement == Alone && p.Order == InOrder && (window == 0 || p.Tokens <= window)
}

// layout is what Placement means for an engine.
func (p Params) layout(seed uint64) pair.Layout {
	l := pair.Layout{Seed: seed + 1000}
	switch p.Placement {
	case Shifted64:
		l.Padding = 64
	case Shifted37:
		l.Padding = 37
	case Neighbours, Busy:
		l.Neighbours, l.NeighbourTokens, l.Busy = 2, neighbourTokens, p.Placement == Busy
	}
	return l
}

// neighbourTokens is the prompt of each neighbour.
const neighbourTokens = 150

// extraCells is an upper bound of the cells that a layout takes beside the sequence that moves.
func extraCells(steps int) int { return max(64, 2*(neighbourTokens+steps)) }

// slots that the layouts need: the sequence, and padding or two neighbours.
const slots = 3

// axes are the values of each parameter that cells of one length are made from.
type axes struct {
	kv         []string
	chunk      []int
	page       []int
	order      []string
	lane       []wire.LaneMode
	placements []Placement
}

// sizes are the numbers of values, in the order of at.
func (a axes) sizes() []int {
	return []int{len(a.kv), len(a.chunk), len(a.page), len(a.order), len(a.lane), len(a.placements)}
}

// at makes the cell with the given value of each axis.
func (a axes) at(tokens int, v []int) Params {
	return Params{
		Tokens: tokens, KVType: a.kv[v[0]], Chunk: a.chunk[v[1]], Page: a.page[v[2]], Order: a.order[v[3]],
		Lane: a.lane[v[4]], Placement: a.placements[v[5]], Source: Held,
	}
}

// product lists all combinations; the last axis changes first.
func product(sizes []int) [][]int {
	if slices.Contains(sizes, 0) {
		return nil
	}
	var out [][]int
	row := make([]int, len(sizes))
	for {
		out = append(out, slices.Clone(row))
		i := len(row) - 1
		for ; i >= 0; i-- {
			if row[i]++; row[i] < sizes[i] {
				break
			}
			row[i] = 0
		}
		if i < 0 {
			return out
		}
	}
}

// pairwise lists combinations such that any two values of any two axes meet in one of them. It is
// greedy and always gives the same list: each row starts with the first pair that is still missing,
// and takes for every other axis the value that meets most missing partners among those chosen.
func pairwise(sizes []int) [][]int {
	if slices.Contains(sizes, 0) {
		return nil
	}
	if len(sizes) < 2 {
		return product(sizes)
	}
	type pairOf struct{ a, x, b, y int } // value x of axis a with value y of axis b, a < b
	missing := map[pairOf]bool{}
	var list []pairOf
	for a := range sizes {
		for b := a + 1; b < len(sizes); b++ {
			for x := range sizes[a] {
				for y := range sizes[b] {
					p := pairOf{a, x, b, y}
					missing[p] = true
					list = append(list, p)
				}
			}
		}
	}
	meet := func(a, x, b, y int) bool {
		if a > b {
			a, x, b, y = b, y, a, x
		}
		return missing[pairOf{a, x, b, y}]
	}
	var out [][]int
	for _, first := range list {
		if !missing[first] {
			continue
		}
		row := make([]int, len(sizes))
		for i := range row {
			row[i] = -1
		}
		row[first.a], row[first.b] = first.x, first.y
		for axis := range row {
			if row[axis] >= 0 {
				continue
			}
			best, most := 0, -1
			for v := range sizes[axis] {
				n := 0
				for other, w := range row {
					if w >= 0 && meet(axis, v, other, w) {
						n++
					}
				}
				// Of equal values the one that turns up least, so that cells spread.
				if n > most {
					best, most = v, n
				}
			}
			if most == 0 {
				best = len(out) % sizes[axis]
			}
			row[axis] = best
		}
		for a := range row {
			for b := a + 1; b < len(row); b++ {
				delete(missing, pairOf{a, row[a], b, row[b]})
			}
		}
		out = append(out, row)
	}
	return out
}

// dtypes are the KV types by name.
func dtype(name string) state.DType {
	t, _ := state.ParseDType(name)
	return t
}
