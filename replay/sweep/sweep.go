package sweep

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/replay/report"
)

// Setting gives one field of the configuration a value. Path is that of Set.
// Value is a scalar: true, false, a number, or text.
type Setting struct {
	Path  string `json:"path"`
	Value string `json:"value"`
}

// Cell is one run to make.
type Cell struct {
	Index    int
	Settings []Setting // in the order of the axes; the load of a search comes last

	// Config is a configuration with the settings applied: what a YAML or
	// JSON decoder makes of a document (map[string]any, []any, scalars). The
	// function that runs the cell owns it.
	Config any
}

// Run makes the run of a cell. It is called from several goroutines at once, and
// must return soon after ctx ends. Charts of the result are not kept.
type Run func(ctx context.Context, c Cell) (*report.Result, error)

// Base is a configuration that cells change; it stays as it is.
type Base struct {
	Name   string
	Config any
}

// BaseAxis is the path of the first axis of results with several bases. It is no
// field of a configuration.
const BaseAxis = "fleet"

// Sweep is what to run.
type Sweep struct {
	Base any    // the configuration
	Name string // its name, beside others
	With []Base // others to compare it with: with any, their names are the first axis
	Axes []Axis // none: one cell for each configuration
	Find *Find  // search each cell for its goodput, or nil: one run a cell

	// Load is the path of the field that says how much load there is: if it is on
	// an axis, results are drawn over it. A search has its own.
	Load string

	// Inputs names everything else that results depend on: the version of the
	// program, a digest of the trace, SLOs, a seed. Runs in the store count as
	// finished only under the same.
	Inputs string

	Run      Run
	Parallel int    // cells at once; 0: one for each core
	Store    *Store // nil: nothing is kept

	// Progress is called after each cell, from one goroutine at a time; nil: not.
	Progress func(Progress)
}

// Progress is how far a sweep is.
type Progress struct {
	Cells, Done  int // cells in all, and finished
	Runs, Reused int // runs made now, and found in the store
	Failed       int // cells that failed
	Elapsed      time.Duration
	Left         time.Duration // estimate, 0 while there is none
}

// String is one line for a terminal.
func (p Progress) String() string {
	text := fmt.Sprintf("%d of %d cells, %d runs", p.Done, p.Cells, p.Runs)
	if p.Reused > 0 {
		text += fmt.Sprintf(", %d found finished", p.Reused)
	}
	if p.Failed > 0 {
		text += fmt.Sprintf(", %d cells failed", p.Failed)
	}
	if p.Left > 0 {
		text += fmt.Sprintf(", about %s left", p.Left.Round(time.Second))
	}
	return text
}

// left estimates the time that is left from the cells that took time.
func left(elapsed time.Duration, worked, remaining int) time.Duration {
	if worked == 0 {
		return 0
	}
	return time.Duration(float64(elapsed) / float64(worked) * float64(remaining))
}

// Do runs the sweep. A cell that fails is a result with an error, and the others
// go on. When ctx ends, the results so far come with its error; what is in the
// store need not run again. Any other error means that nothing could be run, or
// that the store cannot be written.
func (s *Sweep) Do(ctx context.Context) (*Results, error) {
	bases := s.bases()
	for i := range bases {
		if slices.ContainsFunc(bases[:i], func(b Base) bool { return b.Name == bases[i].Name }) {
			return nil, fmt.Errorf("%w: two configurations have the name %q", ErrAxis, bases[i].Name)
		}
	}
	axes := s.axes()
	n, err := cells(axes)
	if err != nil {
		return nil, err
	}
	if s.Find != nil {
		if err := s.Find.check(axes); err != nil {
			return nil, err
		}
	}
	res := &Results{Schema: Schema, Axes: axes, Find: s.Find, Cells: make([]CellResult, n)}
	switch {
	case s.Find != nil:
		res.Load = s.Find.Path
	case slices.Contains(res.paths(), s.Load):
		res.Load = s.Load
	}
	w := &work{sweep: s, progress: Progress{Cells: n}, start: time.Now()}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	// Cells are handed out in order; each result has its place.
	next := make(chan int)
	var group sync.WaitGroup
	parallel := s.Parallel
	if parallel <= 0 {
		parallel = runtime.GOMAXPROCS(0)
	}
	for range min(parallel, n) {
		group.Go(func() {
			for i := range next {
				out := &res.Cells[i]
				out.Index, out.Settings = i, settings(axes, i)
				if err := w.cell(ctx, out); err != nil {
					stop(err)
					return
				}
			}
		})
	}
hand:
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
			break hand
		}
	}
	close(next)
	group.Wait()

	if err := context.Cause(ctx); err != nil {
		var done []CellResult
		for _, c := range res.Cells {
			if c.Result != nil || c.Error != "" {
				done = append(done, c)
			}
		}
		res.Cells = done
		return res, err
	}
	return res, nil
}

func (s *Sweep) bases() []Base { return append([]Base{{s.Name, s.Base}}, s.With...) }

// axes returns those of the results.
func (s *Sweep) axes() []Axis {
	axes := []Axis{}
	if len(s.With) > 0 {
		a := Axis{Paths: []string{BaseAxis}}
		for _, b := range s.bases() {
			a.Values = append(a.Values, []string{b.Name})
		}
		axes = append(axes, a)
	}
	return append(axes, s.Axes...)
}

// config returns a cell's configuration.
func (s *Sweep) config(settings []Setting) (config any, err error) {
	config = s.Base
	if len(s.With) > 0 {
		bases := s.bases()
		i := slices.IndexFunc(bases, func(b Base) bool { return b.Name == settings[0].Value })
		config, settings = bases[i].Config, settings[1:]
	}
	config = clone(config)
	for _, x := range settings {
		if config, err = Set(config, x.Path, x.Value); err != nil {
			return nil, err
		}
	}
	return config, nil
}

// work is what the goroutines of one sweep share.
type work struct {
	sweep *Sweep
	start time.Time

	mu       sync.Mutex
	progress Progress
	worked   int // cells with a run of their own
}

// cell runs one cell, with all runs of its search. An error ends the sweep.
func (w *work) cell(ctx context.Context, out *CellResult) error {
	ran := false
	var fatal error
	run := func(more ...Setting) (*report.Result, error) {
		r, fresh, err := w.run(ctx, out.Index, append(out.Settings[:len(out.Settings):len(out.Settings)], more...))
		ran = ran || fresh
		var store *storeError
		if errors.As(err, &store) {
			fatal = err
		}
		return r, err
	}
	var err error
	if w.sweep.Find != nil {
		err = w.sweep.Find.search(run, out)
	} else {
		out.Result, err = run()
	}
	if fatal != nil {
		return fatal
	}
	if cause := context.Cause(ctx); cause != nil {
		out.Result, out.Error = nil, "" // half a cell is none
		return cause
	}
	if err != nil {
		out.Result, out.Error = nil, err.Error()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.progress
	p.Done++
	if err != nil {
		p.Failed++
	}
	if ran {
		w.worked++
	}
	p.Elapsed = time.Since(w.start)
	p.Left = left(p.Elapsed, w.worked, p.Cells-p.Done)
	if w.sweep.Progress != nil {
		w.sweep.Progress(*p)
	}
	return nil
}

// storeError is a result that could not be kept.
type storeError struct{ error }

func (e *storeError) Unwrap() error { return e.error }

// run makes one run, or finds it in the store.
func (w *work) run(ctx context.Context, index int, settings []Setting) (r *report.Result, fresh bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	c := Cell{Index: index, Settings: settings}
	if c.Config, err = w.sweep.config(settings); err != nil {
		return nil, false, err
	}
	k, err := key(c.Config, w.sweep.Inputs)
	if err != nil {
		return nil, false, err
	}
	if r := w.sweep.Store.get(k); r != nil {
		w.count(func(p *Progress) { p.Reused++ })
		return r, false, nil
	}
	r, err = w.sweep.Run(ctx, c)
	w.count(func(p *Progress) { p.Runs++ })
	if err != nil {
		return nil, true, err
	}
	kept := *r
	kept.Charts = nil
	if err := w.sweep.Store.put(k, &kept); err != nil {
		return nil, true, &storeError{err}
	}
	return &kept, true, nil
}

func (w *work) count(change func(p *Progress)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.progress)
}
