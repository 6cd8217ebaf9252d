package replay

import (
	"errors"
	"sort"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/replay/fleet"
)

var errSkip = errors.New("replay: a stretch was cut short by the scheduler")

// cost is what a pool's steps take.
type cost struct {
	model *timed.Model

	// Layer split: every step passes through a second box, after its activations
	// went there.
	second            *timed.Model
	perStep, perToken timed.Time

	// Speculation: a step yields so many tokens for a sequence in the mean, and
	// proposes drafts for each.
	yield  float64
	drafts float64
}

func newCost(p *fleet.Pool) cost {
	c := cost{model: p.Model()}
	if s := p.Split; s != nil {
		c.second = p.SecondModel()
		c.perStep = timed.Of(s.RTT)
		c.perToken = timed.OfSeconds(float64(s.ActivationBytes) / bytesPerSecond(s.Gbps))
	}
	if s := c.model.Speculation(); s != nil {
		c.yield, c.drafts = s.Expected(), float64(s.Draft)
		if s.Hit > 0 {
			c.drafts *= s.Hit
		}
	}
	return c
}

// stretches reports whether steps have a closed form.
func (c *cost) stretches() bool { return c.yield == 0 }

// step is the time of a step. With speculation the scheduler's step is one token of
// every sequence, and takes that part of the engine's, which yields several.
func (c *cost) step(b *timed.Batch) timed.Time {
	if c.yield > 0 && b.Decodes > 0 {
		verify := timed.Batch{Decodes: b.Decodes, Context: b.Context, Drafts: int(c.drafts*float64(b.Decodes) + 0.5)}
		whole := c.whole(&verify)
		part := timed.Time(float64(whole) / c.yield)
		if len(b.Chunks) == 0 {
			return max(1, part)
		}
		verify.Chunks = b.Chunks
		return max(1, c.whole(&verify)-whole+part)
	}
	return c.whole(b)
}

func (c *cost) whole(b *timed.Batch) timed.Time {
	t := max(1, c.model.Step(b))
	if c.second != nil {
		tokens := b.Decodes + b.Drafts
		for i := range b.Chunks {
			tokens += b.Chunks[i].New
		}
		t += c.second.Step(b) + c.perStep + timed.Time(tokens)*c.perToken
	}
	return t
}

// stretch is the time of so many steps of decodes, as sched counts them.
func (c *cost) stretch(decodes int, context int64, steps int) timed.Time {
	t := c.model.Stretch(decodes, context, steps)
	if c.second != nil && t != timed.Never {
		u := c.second.Stretch(decodes, context, steps)
		if u == timed.Never {
			return u
		}
		t += u + timed.Time(steps)*(c.perStep+timed.Time(decodes)*c.perToken)
	}
	return t
}

// within is the number of a stretch's steps that end within a time.
func (c *cost) within(decodes int, context int64, within timed.Time, most int) int {
	if c.second == nil {
		return c.model.StepsWithin(decodes, context, within, most)
	}
	return sort.Search(most, func(n int) bool { return c.stretch(decodes, context, n+1) > within })
}

// gaps visits the times of a stretch's steps, in runs that count in one bucket of
// the report: the shortest and the longest of count steps, and their sum.
func (c *cost) gaps(decodes int, context int64, steps int, visit func(shortest, longest timed.Time, count int, sum timed.Time)) {
	if c.second != nil {
		for i := range steps {
			b := timed.Batch{Decodes: decodes, Context: context + int64(i)*int64(decodes)}
			t := c.whole(&b)
			visit(t, t, 1, t)
		}
		return
	}
	c.model.StretchITL(decodes, context, steps, func(_ timed.Time, count int) {
		end := context + int64(count)*int64(decodes)
		first, last := c.model.Stretch(decodes, context, 1), c.model.Stretch(decodes, end-int64(decodes), 1)
		visit(min(first, last), max(first, last), count, c.model.Stretch(decodes, context, count))
		context = end
	})
}

// geometry is how large a sequence's state is, over both boxes.
func (c *cost) geometry() timed.Geometry {
	g := c.model.Geometry()
	if c.second != nil {
		h := c.second.Geometry()
		g.AttentionPerToken += h.AttentionPerToken
		g.WindowPerToken += h.WindowPerToken
		g.MTPPerToken += h.MTPPerToken
		g.Recurrent += h.Recurrent
		g.Conv += h.Conv
	}
	return g
}
