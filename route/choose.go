package route

import "slices"

// Request is what choosing needs to know about a request.
type Request struct {
	Model   string
	Tokens  int      // prompt plus the most tokens it may generate
	Source  Target   // when set: the only prefill worker of a pair, which holds state to take over
	Avoid   []Target // failed this request before: taken only when they are all that is left
	Exclude []Target // can never serve this request
}

// Pair is a decision for a disaggregated request.
type Pair struct {
	Prefill, Decode Target
}

// ChoosePair picks a prefill worker, and a decode worker that it can hand state to. A worker never
// hands to itself. Workers to avoid are taken only when they are all that is left: a retry on the
// same worker is better than none. The error is a *RefusedError.
func (r *Router) ChoosePair(q Request) (Pair, error) {
	able, partners, err := r.pairs(q)
	if err != nil {
		return Pair{}, err
	}
	source := r.pick(Prefill, able, q.Avoid)
	sink := r.pick(Decode, partners[source.Name], q.Avoid)
	return Pair{source.Target(), sink.Target()}, nil
}

// CheckPair returns the error that ChoosePair would, and chooses nothing.
func (r *Router) CheckPair(q Request) error {
	_, _, err := r.pairs(q)
	return err
}

// pairs returns the prefill workers that have a partner, and their partners.
func (r *Router) pairs(q Request) (able []*entry, partners map[string][]*entry, err error) {
	sources, refused := r.filter(Prefill, q)
	sinks, refusedSinks := r.filter(Decode, q)
	if len(sinks) == 0 {
		return nil, nil, &RefusedError{Decode, refusedSinks}
	}
	partners = make(map[string][]*entry, len(sources))
	for _, s := range sources {
		list, why := r.partners(s, sinks)
		if len(list) == 0 {
			refused = append(refused, Refusal{s.Name, Incompatible, why})
			continue
		}
		partners[s.Name] = list
		able = append(able, s)
	}
	if len(able) == 0 {
		slices.SortFunc(refused, byName)
		return nil, nil, &RefusedError{Prefill, refused}
	}
	return able, partners, nil
}

// ChooseWhole picks a worker that computes prompts, for a request that it serves alone. Workers to
// avoid are taken only when they are all that is left. The error is a *RefusedError.
func (r *Router) ChooseWhole(q Request) (Target, error) {
	list, refused := r.filter(Prefill, q)
	if len(list) == 0 {
		return Target{}, &RefusedError{Prefill, refused}
	}
	return r.pick(Both, list, q.Avoid).Target(), nil
}

// CheckWhole returns the error that ChooseWhole would, and chooses nothing.
func (r *Router) CheckWhole(q Request) error {
	if list, refused := r.filter(Prefill, q); len(list) == 0 {
		return &RefusedError{Prefill, refused}
	}
	return nil
}

// Longest returns the most tokens that a worker of this role and model can hold, 0 without one.
func (r *Router) Longest(role Role, model string) int {
	longest := 0
	for _, e := range r.workers {
		if e.Model == model && (e.Role == role || e.Role == Both) {
			longest = max(longest, e.holds())
		}
	}
	return longest
}

// filter returns the workers that can take the role, in the order of their names, and why the
// others cannot.
func (r *Router) filter(role Role, q Request) (able []*entry, refused []Refusal) {
	for _, e := range r.workers {
		switch {
		case e.Model != q.Model:
			refused = append(refused, Refusal{e.Name, WrongModel, ""})
		case e.Role != role && e.Role != Both:
			refused = append(refused, Refusal{e.Name, WrongRole, ""})
		case slices.Contains(q.Exclude, e.Target()):
			refused = append(refused, Refusal{e.Name, Excluded, ""})
		case role == Prefill && !q.Source.IsZero() && e.Target() != q.Source:
			refused = append(refused, Refusal{e.Name, NotHolder, ""})
		case e.Unreachable:
			refused = append(refused, Refusal{e.Name, Unreachable, ""})
		case e.Draining:
			refused = append(refused, Refusal{e.Name, Draining, ""})
		case q.Tokens > e.holds():
			refused = append(refused, Refusal{e.Name, TooLong, ""})
		default:
			able = append(able, e)
		}
	}
	return able, refused
}

// partners returns the workers that the source can hand state to, and one reason when there are
// none.
func (r *Router) partners(source *entry, sinks []*entry) (list []*entry, why string) {
	for _, d := range sinks {
		if d == source {
			if why == "" {
				why = "it is the only one and does not hand to itself"
			}
			continue
		}
		if err := r.compatible(source.Target(), d.Target()); err != nil {
			why = d.Name + ": " + err.Error()
			continue
		}
		list = append(list, d)
	}
	return list, why
}

// pick is scorer and picker: the least loaded, and among equals the next one by name after the one
// chosen last for this role. list is not empty and ascending by name.
func (r *Router) pick(role Role, list []*entry, avoid []Target) *entry {
	if fresh := without(list, avoid); len(fresh) > 0 {
		list = fresh
	}
	ties := list[:0:0]
	for _, e := range list {
		switch c := 1; {
		case len(ties) == 0:
			ties = append(ties, e)
		default:
			if c = e.compare(role, ties[0]); c < 0 {
				ties = append(ties[:0], e)
			} else if c == 0 {
				ties = append(ties, e)
			}
		}
	}
	chosen := ties[0]
	for _, e := range ties {
		if e.Name > r.last[role] {
			chosen = e
			break
		}
	}
	r.last[role] = chosen.Name
	return chosen
}

func without(list []*entry, avoid []Target) []*entry {
	if len(avoid) == 0 {
		return list
	}
	var out []*entry
	for _, e := range list {
		if !slices.Contains(avoid, e.Target()) {
			out = append(out, e)
		}
	}
	return out
}

func byName(a, b Refusal) int {
	switch {
	case a.Worker < b.Worker:
		return -1
	case a.Worker > b.Worker:
		return 1
	}
	return 0
}
