package sweep

import (
	"context"

	"github.com/tandem-llm/tandem/replay/report"
)

// Setting gives one field of the configuration a value. Path names the field as
// pools[0].count or, for lists of things with a name, pools.decode.count. Value
// is a YAML scalar.
type Setting struct {
	Path  string `json:"path"`
	Value string `json:"value"`
}

// Cell is one run to make.
type Cell struct {
	Index    int
	Settings []Setting // in the order of the axes; those of a search come last

	// Config is the base configuration with the settings applied: what a YAML or
	// JSON decoder makes of a document (map[string]any, []any, scalars). The
	// function that runs the cell owns it.
	Config any
}

// Run makes the run of a cell. It is called from several goroutines at once, and
// must return soon after ctx ends. Charts of the result are not kept.
type Run func(ctx context.Context, c Cell) (*report.Result, error)
