package workload

import (
	"errors"
	"math"

	"github.com/tandem-llm/tandem/engine/timed"
)

// ErrSpeed says that a speed is no number above 0.
var ErrSpeed = errors.New("workload: speed must be a number above 0")

// Speed returns src with time running factor times as fast: arrivals, and the
// pauses of sessions, come factor times as close. Its methods return ErrSpeed
// when factor is not above 0.
func Speed(src Source, factor float64) Source {
	if factor == 1 {
		return src
	}
	return &faster{src: src, factor: factor}
}

type faster struct {
	src    Source
	factor float64
	last   timed.Time // what was handed out last or ended last
}

func (f *faster) err() error {
	if f.factor > 0 && !math.IsInf(f.factor, 0) {
		return nil
	}
	return ErrSpeed
}

func (f *faster) Peek() (timed.Time, bool, error) {
	if err := f.err(); err != nil {
		return 0, false, err
	}
	at, ok, err := f.src.Peek()
	if !ok {
		return 0, false, err
	}
	return f.scaled(at), true, nil
}

func (f *faster) Next() (Request, bool, error) {
	if err := f.err(); err != nil {
		return Request{}, false, err
	}
	q, ok, err := f.src.Next()
	if ok {
		q.Arrival = f.scaled(q.Arrival)
		f.last = q.Arrival
	}
	return q, ok, err
}

func (f *faster) Finished(session uint64, at timed.Time) {
	if session == 0 {
		return
	}
	f.last = max(f.last, at)
	f.src.Finished(session, timed.OfSeconds(at.Seconds()*f.factor))
}

// scaled converts a time of src. Rounding must not bring it before what has
// already happened.
func (f *faster) scaled(at timed.Time) timed.Time {
	return max(timed.OfSeconds(at.Seconds()/f.factor), f.last)
}

// Window is the part of a source that Cut keeps: the requests that arrive in
// [From, To), and of those, after Skip, at most Limit.
type Window struct {
	From, To    timed.Time // To 0: to the end
	Skip, Limit int        // Limit 0: all
}

// Cut returns the part of src within w. Arrivals count from w.From. A turn
// before From counts as ended at From, one that is skipped at its arrival.
func Cut(src Source, w Window) Source {
	if w == (Window{}) {
		return src
	}
	if w.To <= 0 {
		w.To = timed.Never
	}
	return &cut{src: src, window: w}
}

type cut struct {
	src     Source
	window  Window
	skipped int
	taken   int
}

func (c *cut) Peek() (timed.Time, bool, error) {
	for {
		if c.window.Limit > 0 && c.taken >= c.window.Limit {
			return 0, false, nil
		}
		at, ok, err := c.src.Peek()
		if !ok || at >= c.window.To {
			return 0, false, err
		}
		inside := at >= c.window.From
		if inside && c.skipped >= c.window.Skip {
			return at - c.window.From, true, nil
		}
		if inside {
			c.skipped++
		}
		q, _, err := c.src.Next()
		if err != nil {
			return 0, false, err
		}
		c.src.Finished(q.Session, max(at, c.window.From))
	}
}

func (c *cut) Next() (Request, bool, error) {
	at, ok, err := c.Peek()
	if !ok {
		return Request{}, false, err
	}
	q, ok, err := c.src.Next()
	if ok {
		q.Arrival = at
		c.taken++
	}
	return q, ok, err
}

func (c *cut) Finished(session uint64, at timed.Time) {
	c.src.Finished(session, at+min(c.window.From, timed.Never-at))
}
