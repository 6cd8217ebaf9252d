package soak

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/tandem-llm/tandem/sample"
)

// Shape is what a Generator has to know of the fleet.
type Shape struct {
	Vocab   []int32 // tokens that prompts are made of, at least one
	Page    int     // tokens of one page of transfer
	Context int     // most tokens of a sequence
}

// Order is a value of the header Tandem-Order.
type Order string

// The orders of a handoff.
const (
	DestinationFirst Order = "destination-first"
	SourceFirst      Order = "source-first"
)

// Request is one request of a load.
type Request struct {
	Index     int
	Prompt    []int32 // nobody changes it
	Max       int     // tokens of the answer, at least 1
	Stream    bool
	IgnoreEOS bool
	Order     Order
	Sampling  sample.Params // the zero value: greedy
	Leave     Leave
}

// greedy reports whether the answer is the likeliest tokens.
func (r *Request) greedy() bool { return r.Sampling.Temperature == 0 }

// Leave says when the client goes away. The zero value stays to the end.
type Leave struct {
	Tokens int           // when it has as many tokens of a stream; 0: does not count
	After  time.Duration // or as long after it asked; 0: does not count
}

// Disruption is the end of a worker's life.
type Disruption struct {
	At     int           // the request with which it is due
	Worker int           // which of the fleet's
	Drain  bool          // SIGTERM, to finish what it has; else SIGKILL
	State  string        // of a handoff: the worker dies when it reports to be in it
	Nth    int           // for the how manieth time, from 1
	After  time.Duration // where there is no State: how long after it was due
}

// Generator makes the load of a seed. Requests are a function of seed, shape and index,
// so any of them can be made again at any time. It is safe for concurrent use.
type Generator struct {
	seed  uint64
	shape Shape
}

// NewGenerator returns the generator of a seed.
func NewGenerator(seed uint64, shape Shape) *Generator { return &Generator{seed, shape} }

// Streams of random numbers that must not repeat each other.
const (
	saltRequest = iota
	saltGroup
	saltTurn
	saltDisruption
	saltControl
)

func (g *Generator) rng(salt, n uint64) *rand.Rand {
	return rand.New(rand.NewPCG(g.seed, salt<<32|n&(1<<32-1)))
}

// groupLife is how many requests a set of shared prefixes serves before others take its
// place, groups how many there are at a time, and talks how many conversations each has.
const (
	groupLife = 200
	groups    = 6
	talks     = 4
	turns     = 4
)

// Request makes request i.
func (g *Generator) Request(i int) Request {
	r := g.rng(saltRequest, uint64(i))
	q := Request{Index: i, Stream: r.IntN(10) < 7, IgnoreEOS: r.IntN(10) < 8, Order: DestinationFirst, Max: g.answer(r)}
	if r.IntN(2) == 0 {
		q.Order = SourceFirst
	}
	most := g.shape.Context - q.Max
	if r.IntN(2) == 0 {
		q.Prompt = g.shared(r, i, most)
	} else {
		q.Prompt = g.tokens(r, nil, min(g.length(r), most))
	}
	if r.IntN(20) < 3 {
		q.Sampling = sampling(r)
	}
	if r.IntN(100) < 12 {
		q.Leave = leave(r, q)
	}
	return q
}

// answer draws the length of an answer: some end with their first token, which never
// leaves the source, most are short, and a few outlive many others.
func (g *Generator) answer(r *rand.Rand) int {
	var n int
	switch x := r.IntN(100); {
	case x < 6:
		n = 1
	case x < 65:
		n = 2 + r.IntN(30)
	case x < 93:
		n = 32 + r.IntN(80)
	default:
		n = 112 + r.IntN(100)
	}
	return min(n, max(1, g.shape.Context/4))
}

// length draws the length of a prompt that nobody shares: around the boundaries of
// pages, or anywhere.
func (g *Generator) length(r *rand.Rand) int {
	p := g.shape.Page
	switch x := r.IntN(100); {
	case x < 8:
		return 1 + r.IntN(3)
	case x < 28:
		return max(1, p*(1+r.IntN(3))-1+r.IntN(3))
	case x < 80:
		return 1 + r.IntN(3*p)
	default:
		return 1 + r.IntN(max(1, g.shape.Context/2))
	}
}

// shared makes a prompt that begins as others do: the prefix of a group, then the first
// turns of one of its conversations.
func (g *Generator) shared(r *rand.Rand, i, most int) []int32 {
	group := uint64(i/groupLife*groups + r.IntN(groups))
	gr := g.rng(saltGroup, group)
	n := 1 + gr.IntN(4*g.shape.Page)
	if gr.IntN(3) == 0 {
		n = g.shape.Page * (1 + gr.IntN(3))
	}
	prompt := g.tokens(gr, nil, n)
	talk := group*talks + uint64(r.IntN(talks))
	for turn := range uint64(r.IntN(turns + 1)) {
		tr := g.rng(saltTurn, talk*turns+turn)
		prompt = g.tokens(tr, prompt, 5+tr.IntN(90))
	}
	return prompt[:min(len(prompt), most)]
}

func (g *Generator) tokens(r *rand.Rand, to []int32, n int) []int32 {
	for range n {
		to = append(to, g.token(r))
	}
	return to
}

// other makes a prompt for a neighbour, of at most so many tokens. Most are short, for
// what they cost.
func (g *Generator) other(r *rand.Rand, most int) []int32 {
	n := 1 + r.IntN(g.shape.Page)
	if r.IntN(4) == 0 {
		n = g.length(r)
	}
	return g.tokens(r, nil, max(0, min(n, most)))
}

func (g *Generator) token(r *rand.Rand) int32 { return g.shape.Vocab[r.IntN(len(g.shape.Vocab))] }

func sampling(r *rand.Rand) sample.Params {
	// Values that JSON and float32 write alike.
	p := sample.Params{Temperature: float32(4+r.IntN(9)) / 8, Seed: uint64(1 + r.IntN(1<<30)), TopP: 1, RepetitionPenalty: 1}
	if r.IntN(2) == 0 {
		p.TopP = float32(4+r.IntN(4)) / 8
	}
	if r.IntN(2) == 0 {
		p.TopK = 1 + r.IntN(100)
	}
	if r.IntN(3) == 0 {
		p.FrequencyPenalty, p.RepetitionPenalty = float32(r.IntN(5))/4, 1+float32(r.IntN(5))/8
	}
	return p
}

func leave(r *rand.Rand, q Request) Leave {
	if q.Stream && r.IntN(2) == 0 {
		return Leave{Tokens: 1 + r.IntN(q.Max)}
	}
	// From at once to two seconds, each order of magnitude alike.
	return Leave{After: time.Duration(float64(time.Millisecond) * math.Pow(10, 3.3*r.Float64()))}
}

// states are those of handoffs that workers of a role report.
var states = map[Role][]string{
	Prefill: {"source/Computing", "source/Pinned", "source/AwaitingReader", "source/Draining", "source/Released"},
	Decode: {
		"destination/Reserving", "destination/Reserved", "destination/Receiving", "destination/Active", "destination/Draining",
		"destination/Released",
	},
}

// Disruption makes disruption k of a fleet whose workers die once in every requests on
// average.
func (g *Generator) Disruption(k, every int, workers []Worker) Disruption {
	r := g.rng(saltDisruption, uint64(k))
	d := Disruption{At: k*every + r.IntN(every), Worker: r.IntN(len(workers)), Drain: r.IntN(4) == 0}
	list := states[workers[d.Worker].Role]
	if len(list) > 0 && r.IntN(3) > 0 {
		d.State, d.Nth = list[r.IntN(len(list))], 1+r.IntN(5)
	} else {
		d.After = time.Duration(r.IntN(1000)) * time.Millisecond
	}
	return d
}
