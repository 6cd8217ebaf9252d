package route

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"

	"github.com/tandem-llm/tandem/kv"
)

// Policy says how a worker is chosen among those that can take a request. Every policy breaks ties
// round-robin: the next one by name after the one chosen last for the role.
type Policy uint8

const (
	// LeastLoaded takes the worker with the least booked: prompt tokens waiting, then requests
	// relative to slots, then tokens; for decode without the first.
	LeastLoaded Policy = iota
	// RoundRobin takes them in turn, whatever their load.
	RoundRobin
	// Random takes any with the same probability.
	Random
	// PowerOfTwo draws two and takes the less loaded one (Mitzenmacher: The Power of Two Choices in
	// Randomized Load Balancing, 2001).
	PowerOfTwo
	// KVAware weighs how much of the prompt a worker has already against its load. It takes the
	// highest score, and among equals the least loaded:
	//
	//	score = Affinity · overlap/prompt + (1 − Affinity) · min(tokens free/Cells, slots free/Slots)
	//
	// with lengths in whole keys of Request.Keys, and tokens and slots free of bookings; overbooked
	// workers have negative ones. This is the score of Megatron's inference coordinator, at its equal
	// weights by default. Its further ties (recency, queued, active) are LeastLoaded's here.
	KVAware
	policies
)

var policyNames = [policies]string{"least-loaded", "round-robin", "random", "power-of-two", "kv-aware"}

// String returns the policy's name.
func (p Policy) String() string {
	if p < policies {
		return policyNames[p]
	}
	return "unknown"
}

// ErrPolicy is wrapped by the errors of ParsePolicy.
var ErrPolicy = errors.New("unknown routing policy")

// ParsePolicy reads a policy's name.
func ParsePolicy(name string) (Policy, error) {
	for p, n := range policyNames {
		if n == name {
			return Policy(p), nil
		}
	}
	return 0, fmt.Errorf("route: %w: use %s", ErrPolicy, strings.Join(policyNames[:], ", "))
}

// ParsePolicies reads one name for both roles, or two with a comma between them: the prefill
// worker's, and the decode worker's.
func ParsePolicies(names string) (prefill, decode Policy, err error) {
	first, second, two := strings.Cut(names, ",")
	if prefill, err = ParsePolicy(strings.TrimSpace(first)); err != nil || !two {
		return prefill, prefill, err
	}
	decode, err = ParsePolicy(strings.TrimSpace(second))
	return prefill, decode, err
}

// MarshalText returns the policy's name.
func (p Policy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads the policy's name.
func (p *Policy) UnmarshalText(text []byte) error {
	read, err := ParsePolicy(string(text))
	if err == nil {
		*p = read
	}
	return err
}

// Options say how a Router chooses. The zero value is least loaded for both roles.
type Options struct {
	Prefill Policy // for the prefill worker of a pair, and for whole requests
	Decode  Policy

	Seed uint64 // of Random and PowerOfTwo

	// Affinity is KVAware's weight of overlap, below 1; load has the rest. 0 means 0.5.
	Affinity float64
	// Overlap says how many of Request.Keys, from the first, a live worker has: for hosts that know.
	// It must be deterministic. Nil: the router goes by what it was told with Learn.
	Overlap func(t Target, q Request) int
	// KeyTokens is the number of tokens that a key stands for, so that no more is remembered of a
	// worker than it can hold. 0 means 1.
	KeyTokens int
	// Every makes the router look at each so many-th key only, where keys are finer than what prompts
	// share: a key names all blocks before it too. 0 means 1.
	Every int
	// Remember is the most keys remembered of one worker, at about 60 bytes each. 0 means 16,384.
	Remember int
}

// Use sets how the router chooses from now on, and forgets what it learned. Options out of range
// count as the nearest ones.
func (r *Router) Use(o Options) {
	if o.Affinity == 0 {
		o.Affinity = 0.5
	}
	o.Affinity = min(max(o.Affinity, 0), 1)
	if o.Remember <= 0 {
		o.Remember = 16384
	}
	o.KeyTokens, o.Every = max(o.KeyTokens, 1), max(o.Every, 1)
	r.options = o
	r.random = newRandom(o.Seed)
	for _, e := range r.workers {
		e.prefixes = prefixes{}
	}
}

// Options returns how the router chooses, with defaults filled in.
func (r *Router) Options() Options { return r.options }

// WantsKeys reports whether Request.Keys and Learn make a difference.
func (r *Router) WantsKeys() bool {
	return r.options.Prefill == KVAware || r.options.Decode == KVAware
}

// Learn says that a worker will have the blocks of these keys, which go from the first block of a
// prompt on: the host calls it with what it sends there. What was learned longest ago is forgotten
// first, as the worker is thought to do. It does nothing when the worker is not live, or no policy
// asks.
func (r *Router) Learn(t Target, keys []kv.Key) {
	if r.options.Overlap != nil || !r.WantsKeys() {
		return
	}
	if e := r.live(t); e != nil {
		every := r.options.Every
		e.prefixes.add(keys, every, min(max(e.Cells/r.options.KeyTokens/every, 1), r.options.Remember))
	}
}

// policy returns how a worker is chosen for a role; Both stands for whole requests.
func (r *Router) policy(role Role) Policy {
	if role == Decode {
		return r.options.Decode
	}
	return r.options.Prefill
}

// pick chooses from list, which is not empty and ascending by name, and is not changed. It does not
// count as chosen yet.
func (r *Router) pick(role Role, list []*entry, q *Request) *entry {
	list = r.unlessAvoided(list, q.Avoid)
	switch r.policy(role) {
	case RoundRobin:
		return r.best(role, list, func(_, _ int) int { return 0 })
	case Random:
		return list[r.random.below(len(list))]
	case PowerOfTwo:
		if len(list) == 1 {
			return list[0]
		}
		i, j := r.random.below(len(list)), r.random.below(len(list)-1)
		if j >= i {
			j++ // another one than i
		}
		// Both orders are as likely, so a tie prefers nobody.
		if list[j].compare(role, list[i]) < 0 {
			return list[j]
		}
		return list[i]
	case KVAware:
		scores := r.scores[:0]
		for _, e := range list {
			scores = append(scores, r.score(role, e, q))
		}
		r.scores = scores
		return r.best(role, list, func(i, j int) int {
			switch {
			case scores[i] > scores[j]:
				return -1
			case scores[i] < scores[j]:
				return 1
			}
			return list[i].compare(role, list[j])
		})
	}
	return r.best(role, list, func(i, j int) int { return list[i].compare(role, list[j]) })
}

// best returns the first by compare, and among equals the next one by name after the one chosen last
// for the role.
func (r *Router) best(role Role, list []*entry, compare func(i, j int) int) *entry {
	first, next := 0, -1
	for i, e := range list {
		c := -1
		if i > 0 {
			c = compare(i, first)
		}
		if c < 0 {
			first, next = i, -1
		}
		if c <= 0 && next < 0 && e.Name > r.last[role] {
			next = i
		}
	}
	if next < 0 {
		next = first
	}
	return list[next]
}

// score is KVAware's, for a request on a worker.
func (r *Router) score(role Role, e *entry, q *Request) float64 {
	match := 0.0
	if n := len(q.Keys); n > 0 {
		have := 0
		if r.options.Overlap != nil {
			have = min(max(r.options.Overlap(e.Target(), *q), 0), n)
		} else {
			have = e.prefixes.match(q.Keys, r.options.Every)
		}
		match = float64(have) / float64(n)
	}
	tokens := e.tokens
	if role != Decode {
		tokens += e.prompts
	}
	cells := max(e.Cells, 1)
	free := min(float64(cells-tokens)/float64(cells), float64(e.slots()-e.requests)/float64(e.slots()))
	// Products are rounded by themselves, so that ties are the same on every machine.
	return float64(r.options.Affinity*match) + float64((1-r.options.Affinity)*free)
}

// unlessAvoided returns the workers of list that are not to be avoided, or list if there are none.
func (r *Router) unlessAvoided(list []*entry, avoid []Target) []*entry {
	if len(avoid) == 0 {
		return list
	}
	fresh := r.fresh[:0]
	for _, e := range list {
		if !contains(avoid, e) {
			fresh = append(fresh, e)
		}
	}
	r.fresh = fresh
	if len(fresh) == 0 {
		return list
	}
	return fresh
}

// random is the generator xorshift64* (Vigna: An experimental exploration of Marsaglia's xorshift
// generators, scrambled, 2016), which is enough to spread load. It is never 0.
type random uint64

func newRandom(seed uint64) random {
	r := random(seed*0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d)
	if r == 0 {
		r = 1
	}
	for range 8 { // similar seeds begin alike
		r.next()
	}
	return r
}

func (r *random) next() uint64 {
	x := *r
	x ^= x >> 12
	x ^= x << 25
	x ^= x >> 27
	*r = x
	return uint64(x) * 0x2545f4914f6cdd1d
}

// below returns a number from 0 to n−1.
func (r *random) below(n int) int {
	high, _ := bits.Mul64(r.next(), uint64(n))
	return int(high)
}
