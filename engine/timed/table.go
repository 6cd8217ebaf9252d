package timed

import (
	"errors"
	"fmt"
	"sort"
)

// Table are measured times on two grids, between which times are interpolated
// linearly. Below a grid's first line its first line holds; beyond its last one
// times rise on as they did between the last two.
//
// Several chunks in one step count as one, with as many tokens that see as many.
// In a step of chunks and decodes, what any step takes (the least time of the
// tables) counts once.
type Table struct {
	// PrefillMS[i][j] is milliseconds of New[i] tokens on top of Past[j].
	New       []int       `yaml:"new,flow" json:"new"`
	Past      []int       `yaml:"past,flow" json:"past"`
	PrefillMS [][]float64 `yaml:"prefill_ms,flow" json:"prefill_ms"`
	// DecodeMS[i][j] is milliseconds of a step of Batch[i] sequences with Context[j]
	// tokens each.
	Batch    []int       `yaml:"batch,flow" json:"batch"`
	Context  []int       `yaml:"context,flow" json:"context"`
	DecodeMS [][]float64 `yaml:"decode_ms,flow" json:"decode_ms"`
}

// NewTable makes a model of tables.
func NewTable(t Table, o Common) (*Model, error) {
	for _, g := range []struct {
		name   string
		grid   grid
		lx, ly int
	}{
		{"new × past", grid{t.New, t.Past, t.PrefillMS}, 1, 0},
		{"batch × context", grid{t.Batch, t.Context, t.DecodeMS}, 1, 0},
	} {
		if err := g.grid.check(g.lx, g.ly); err != nil {
			return nil, fmt.Errorf("timed: table %s: %w", g.name, err)
		}
	}
	tb := table{prefill: grid{t.New, t.Past, t.PrefillMS}, decode: grid{t.Batch, t.Context, t.DecodeMS}}
	tb.shared = min(tb.prefill.least(), tb.decode.least())
	return build("table", tb, o)
}

type table struct {
	prefill, decode grid
	shared          float64 // milliseconds
}

func (table) same() bool { return false }

func (t table) curve(decodes int) (curve, error) {
	points := make([]point, len(t.decode.y))
	for j := range points {
		points[j] = point{
			context: int64(t.decode.y[j]) * int64(decodes),
			ps:      t.decode.at(float64(decodes), float64(t.decode.y[j])) * millisecond,
		}
	}
	for len(points) > 1 && points[len(points)-1].context >= maxContext {
		points = points[:len(points)-1]
	}
	return through(points, true).seal()
}

func (t table) mixed(b *Batch) float64 {
	var prefill, decode float64
	if rows := float64(b.Decodes + b.Drafts); b.Decodes > 0 {
		decode = t.decode.at(rows, float64(b.Context)/float64(b.Decodes))
	}
	var tokens, pairs float64
	for _, c := range b.Chunks {
		tokens += float64(c.New)
		pairs += c.pairs()
	}
	if tokens > 0 {
		prefill = t.prefill.at(tokens, max(0, pairs/tokens-float64(tokens/2)))
	}
	if prefill == 0 || decode == 0 {
		return (prefill + decode) * millisecond
	}
	return max(prefill, decode, prefill+decode-t.shared) * millisecond
}

// A grid is values v[i][j] at x[i], y[j].
type grid struct {
	x, y []int
	v    [][]float64
}

// maxGrid bounds the lines of a grid.
const maxGrid = 256

func (g *grid) check(leastX, leastY int) error {
	for _, axis := range []struct {
		at    []int
		least int
	}{{g.x, leastX}, {g.y, leastY}} {
		if len(axis.at) == 0 || len(axis.at) > maxGrid {
			return fmt.Errorf("an axis has %d lines, and must have 1 to %d", len(axis.at), maxGrid)
		}
		for i, x := range axis.at {
			if x < axis.least || x > maxSize || i > 0 && x <= axis.at[i-1] {
				return fmt.Errorf("lines of an axis ascend, from %d to %d", axis.least, maxSize)
			}
		}
	}
	if len(g.v) != len(g.x) {
		return fmt.Errorf("there are %d rows for %d lines", len(g.v), len(g.x))
	}
	for _, row := range g.v {
		if len(row) != len(g.y) {
			return fmt.Errorf("a row has %d values for %d lines", len(row), len(g.y))
		}
		for _, v := range row {
			if !(v > 0 && v <= 1e12) {
				return errors.New("times are above 0 and at most 1e12 ms")
			}
		}
	}
	return nil
}

func (g *grid) least() float64 {
	least := g.v[0][0]
	for _, row := range g.v {
		for _, v := range row {
			least = min(least, v)
		}
	}
	return least
}

// at interpolates.
func (g *grid) at(x, y float64) float64 {
	i, fx := place(g.x, x)
	j, fy := place(g.y, y)
	a := along(g.v[i][j], g.v[i][min(j+1, len(g.y)-1)], fy)
	if len(g.x) == 1 {
		return a
	}
	return along(a, along(g.v[i+1][j], g.v[i+1][min(j+1, len(g.y)-1)], fy), fx)
}

// place returns the interval of an axis that x counts to, and how far along it x
// lies: from 0, and above 1 beyond the axis' end.
func place(axis []int, x float64) (int, float64) {
	if len(axis) == 1 || x <= float64(axis[0]) {
		return 0, 0
	}
	i := min(sort.SearchInts(axis, int(x)+1)-1, len(axis)-2)
	lo, hi := float64(axis[i]), float64(axis[i+1])
	return i, (x - lo) / (hi - lo)
}

// along goes from a to b, and beyond b only if that rises.
func along(a, b, f float64) float64 {
	if f > 1 && b < a {
		f = 1
	}
	return a + float64((b-a)*f)
}
