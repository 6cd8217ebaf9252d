package report

import (
	"slices"

	"github.com/tandem-llm/tandem/engine/timed"
)

// grid divides the run into at most so many buckets of equal width, which
// doubles when the run gets longer: what is kept over time has a fixed size. All
// series of a recorder share one grid.
type grid struct {
	width   timed.Time
	points  int
	folders []func() // add up neighbours in pairs, before the width doubles
}

const firstWidth = timed.Microsecond

// cover makes room for points in time up to at.
func (g *grid) cover(at timed.Time) {
	for at/timed.Time(g.points) >= g.width {
		for _, fold := range g.folders {
			fold()
		}
		g.width *= 2
	}
}

func (g *grid) index(at timed.Time) int { return int(at / g.width) }

// part returns how much of the span from one time to another lies in the bucket
// where it begins.
func (g *grid) part(from, to timed.Time) timed.Time { return min(g.width-from%g.width, to-from) }

// fold adds up neighbours and clears the upper half.
func fold[T any](v []T, add func(into *T, from *T)) {
	for i := range len(v) / 2 {
		v[i] = v[2*i]
		add(&v[i], &v[2*i+1])
	}
	clear(v[len(v)/2:])
}

// levels integrates heights that hold for a span of time, bucket by bucket, at a
// cost that does not depend on how many buckets a span covers.
type levels struct {
	done []float64 // integrals of spans added before the last doubling
	part []float64 // integrals over buckets that a span covers in part
	step []float64 // by how much the height over full buckets changes at the bucket's start
}

func newLevels(g *grid) levels {
	l := levels{make([]float64, g.points), make([]float64, g.points+1), make([]float64, g.points+2)}
	g.folders = append(g.folders, func() {
		copy(l.done, l.integrals(g.width))
		clear(l.part)
		clear(l.step)
		fold(l.done, func(into, from *float64) { *into += *from })
	})
	return l
}

// add holds height between from, in bucket i, and to, in bucket j.
func (l *levels) add(g *grid, from, to timed.Time, i, j int, height float64) {
	if i == j {
		l.part[i] += height * float64(to-from)
		return
	}
	l.part[i] += height * float64(timed.Time(i+1)*g.width-from)
	l.part[j] += height * float64(to-timed.Time(j)*g.width)
	l.step[i+1] += height
	l.step[j] -= height
}

// integrals returns the integral over each bucket, in height times picoseconds.
func (l *levels) integrals(width timed.Time) []float64 {
	out := slices.Clone(l.done)
	level := 0.0
	for i := range out {
		level += l.step[i]
		out[i] += l.part[i] + level*float64(width)
	}
	return out
}
