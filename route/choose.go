package route

import (
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/kv"
)

// Request is what choosing needs to know about a request.
type Request struct {
	Model   string
	Tokens  int      // prompt plus the most tokens it may generate
	Source  Target   // when set: the only prefill worker of a pair, which holds state to take over
	Avoid   []Target // failed this request before: taken only when they are all that is left
	Exclude []Target // can never serve this request

	// Keys are those of the prompt's full blocks, from the first, in one chain for all workers of the
	// router. They are only read during the call, and only by KVAware: see WantsKeys.
	Keys []kv.Key
}

// Pair is a decision for a disaggregated request.
type Pair struct {
	Prefill, Decode Target
}

// ChoosePair picks a prefill worker, and a decode worker that it can hand state to, by the policies
// of their roles. A worker never hands to itself. Workers to avoid are taken only when they are all
// that is left: a retry on the same worker is better than none. The error is a *RefusedError.
//
// It costs O(workers), compatible being asked about the chosen prefill worker only, and about the
// next one as long as nobody can take over from it; with KVAware O(workers · log keys).
func (r *Router) ChoosePair(q Request) (Pair, error) {
	r.sources = r.filter(r.sources[:0], Prefill, &q)
	r.sinks = r.filter(r.sinks[:0], Decode, &q)
	for list := r.sources; len(list) > 0 && len(r.sinks) > 0; {
		source := r.pick(Prefill, list, &q)
		r.able = r.partners(r.able[:0], source, r.sinks)
		if len(r.able) > 0 {
			sink := r.pick(Decode, r.able, &q)
			r.last[Prefill], r.last[Decode] = source.Name, sink.Name
			return Pair{source.Target(), sink.Target()}, nil
		}
		list = slices.Delete(list, slices.Index(list, source), slices.Index(list, source)+1)
	}
	return Pair{}, r.refusedPair(&q)
}

// CheckPair returns the error that ChoosePair would, and chooses nothing.
func (r *Router) CheckPair(q Request) error {
	r.sinks = r.filter(r.sinks[:0], Decode, &q)
	for _, source := range r.workers {
		if r.refuses(Prefill, &q, source) != "" {
			continue
		}
		if r.able = r.partners(r.able[:0], source, r.sinks); len(r.able) > 0 {
			return nil
		}
	}
	return r.refusedPair(&q)
}

// refusedPair says why there is no pair.
func (r *Router) refusedPair(q *Request) error {
	if len(r.sinks) == 0 {
		return r.refused(Decode, q)
	}
	e := r.refused(Prefill, q)
	for _, source := range r.workers {
		if r.refuses(Prefill, q, source) == "" {
			e.Refusals = append(e.Refusals, Refusal{source.Name, Incompatible, r.stranger(source)})
		}
	}
	slices.SortFunc(e.Refusals, func(a, b Refusal) int { return strings.Compare(a.Worker, b.Worker) })
	return e
}

// ChooseWhole picks a worker that computes prompts, for a request that it serves alone. Workers to
// avoid are taken only when they are all that is left. The error is a *RefusedError.
func (r *Router) ChooseWhole(q Request) (Target, error) {
	r.sources = r.filter(r.sources[:0], Prefill, &q)
	if len(r.sources) == 0 {
		return Target{}, r.refused(Prefill, &q)
	}
	chosen := r.pick(Both, r.sources, &q)
	r.last[Both] = chosen.Name
	return chosen.Target(), nil
}

// CheckWhole returns the error that ChooseWhole would, and chooses nothing.
func (r *Router) CheckWhole(q Request) error {
	if r.sources = r.filter(r.sources[:0], Prefill, &q); len(r.sources) == 0 {
		return r.refused(Prefill, &q)
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

// filter appends the workers that can take the role, in the order of their names.
func (r *Router) filter(able []*entry, role Role, q *Request) []*entry {
	for _, e := range r.workers {
		if r.refuses(role, q, e) == "" {
			able = append(able, e)
		}
	}
	return able
}

// refuses says why a worker cannot take the role, empty if it can.
func (r *Router) refuses(role Role, q *Request, e *entry) Reason {
	switch {
	case e.Model != q.Model:
		return WrongModel
	case e.Role != role && e.Role != Both:
		return WrongRole
	case contains(q.Exclude, e):
		return Excluded
	case role == Prefill && !q.Source.IsZero() && e.Target() != q.Source:
		return NotHolder
	case e.Unreachable:
		return Unreachable
	case e.Draining && (role != Prefill || q.Source.IsZero()): // what it holds may still be taken over
		return Draining
	case q.Tokens > e.holds():
		return TooLong
	}
	return ""
}

// refused lists why workers cannot take the role, in the order of their names.
func (r *Router) refused(role Role, q *Request) *RefusedError {
	out := &RefusedError{Side: role}
	for _, e := range r.workers {
		if why := r.refuses(role, q, e); why != "" {
			out.Refusals = append(out.Refusals, Refusal{e.Name, why, ""})
		}
	}
	return out
}

// partners appends the workers of sinks that the source can hand state to.
func (r *Router) partners(list []*entry, source *entry, sinks []*entry) []*entry {
	for _, d := range sinks {
		if d != source && r.compatible(source.Target(), d.Target()) == nil {
			list = append(list, d)
		}
	}
	return list
}

// stranger gives one reason why a source has no partner.
func (r *Router) stranger(source *entry) string {
	why := ""
	for _, d := range r.sinks {
		if d != source {
			if err := r.compatible(source.Target(), d.Target()); err != nil {
				why = d.Name + ": " + err.Error()
			}
		} else if why == "" {
			why = "it is the only one and does not hand to itself"
		}
	}
	return why
}

func contains(list []Target, e *entry) bool {
	return len(list) > 0 && slices.Contains(list, e.Target())
}
