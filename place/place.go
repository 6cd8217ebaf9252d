// Package place decides how a request is served: by one worker, or by two with a
// handoff between them, in which order, and whether state that a worker holds from
// an earlier attempt is taken over. Which workers, it asks route.
//
// It is pure: a gateway and a replay place alike. Today the decision follows from
// the mode alone; a decision by cost belongs here.
package place

import (
	"errors"
	"slices"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/route"
)

// Mode says how requests may be served.
type Mode string

const (
	// Auto hands off where a compatible pair lives and serves colocated otherwise.
	Auto Mode = "auto"
	// Disaggregated always hands off; without a pair the request is refused.
	Disaggregated Mode = "disaggregated"
	// Colocated never hands off.
	Colocated Mode = "colocated"
)

// ErrMode is wrapped by the errors of ParseMode.
var ErrMode = errors.New("unknown mode: use auto, disaggregated or colocated")

// ParseMode reads a mode's name.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case Auto, Disaggregated, Colocated:
		return m, nil
	}
	return "", ErrMode
}

// Ask is what a placement is wanted for.
type Ask struct {
	Mode    Mode
	Order   handoff.Policy // of a handoff: DestinationFirst, the default, or SourceFirst
	Request route.Request
	Holder  route.Target // a source that holds state to take over, or none
	Only    bool         // no other source than Holder will do
}

// Decision is where an attempt runs, and how.
type Decision struct {
	Policy              handoff.Policy
	Source, Destination route.Target // no destination when Policy is Disabled
	Rebind              bool         // the source takes over the state that it holds
}

// Decide chooses. The error is that of route's choice.
func Decide(r *route.Router, a Ask) (Decision, error) {
	q := a.Request
	if a.Mode == Colocated {
		t, err := r.ChooseWhole(q)
		return Decision{Policy: handoff.Disabled, Source: t}, err
	}
	if !a.Holder.IsZero() && (a.Only || r.Live(a.Holder)) {
		q.Source = a.Holder
		p, err := r.ChoosePair(q)
		if err == nil || a.Only {
			return Decision{a.order(), p.Prefill, p.Decode, true}, err
		}
		q.Source = route.Target{}
	}
	p, err := r.ChoosePair(q)
	if err == nil {
		return Decision{a.order(), p.Prefill, p.Decode, false}, nil
	}
	if a.Mode == Auto {
		if t, whole := r.ChooseWhole(q); whole == nil {
			return Decision{Policy: handoff.Disabled, Source: t}, nil
		}
	}
	return Decision{}, err
}

func (a *Ask) order() handoff.Policy {
	if a.Order == handoff.SourceFirst {
		return handoff.SourceFirst
	}
	return handoff.DestinationFirst
}

// Check returns the error that Decide would for a request without a holder, and
// chooses nothing.
func Check(r *route.Router, m Mode, q route.Request) error {
	if m == Colocated {
		return r.CheckWhole(q)
	}
	err := r.CheckPair(q)
	if err != nil && m == Auto && r.CheckWhole(q) == nil {
		return nil
	}
	return err
}

// GoesBack reports whether a decision goes back to a worker that failed the request
// before. What a source holds is a reason to go back to it, unless it has just
// refused.
func (d Decision) GoesBack(failed []route.Target, refuser route.Target) bool {
	if !d.Destination.IsZero() && slices.Contains(failed, d.Destination) {
		return true
	}
	return d.Source == refuser || !d.Rebind && slices.Contains(failed, d.Source)
}

// Hopeless reports whether waiting for workers cannot help after Decide failed with
// this error. first: it is the request's first attempt.
func Hopeless(err error, first bool) bool {
	var refused *route.RefusedError
	return !errors.As(err, &refused) || first && (refused.Has(route.Incompatible) || refused.Has(route.TooLong))
}
