package replay

import (
	"errors"

	"github.com/tandem-llm/tandem/engine/timed"
)

var errSkip = errors.New("replay: a stretch was cut short by the scheduler")

// cost is what a pool's steps take.
type cost struct {
	model *timed.Model
}

func newCost(m *timed.Model) cost { return cost{model: m} }

func (c *cost) step(b *timed.Batch) timed.Time { return max(1, c.model.Step(b)) }

func (c *cost) stretch(decodes int, context int64, steps int) timed.Time {
	return c.model.Stretch(decodes, context, steps)
}

// within is the number of a stretch's steps that end within a time.
func (c *cost) within(decodes int, context int64, within timed.Time, most int) int {
	return c.model.StepsWithin(decodes, context, within, most)
}

func (c *cost) gaps(decodes int, context int64, steps int, visit func(timed.Time, int)) {
	c.model.StretchITL(decodes, context, steps, visit)
}
