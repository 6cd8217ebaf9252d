package workload

import (
	"container/heap"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"

	"github.com/tandem-llm/tandem/engine/timed"
	"github.com/tandem-llm/tandem/internal/splitmix"
)

// ErrTooLong says that a generator's arrivals leave what virtual time holds.
var ErrTooLong = errors.New("workload: arrivals come after more than 106 days of virtual time: ask for fewer requests, or a higher rate")

// Generator is a Source that draws requests. What a session is made of depends
// on the seed and its number alone, not on the order in which a host ends
// turns: two fleets get the same sessions.
//
// Memory is that of the sessions alive. A request does not allocate.
type Generator struct {
	spec     Spec
	sessions bool // turns or closed: requests carry a session and wait for its end
	sharing  bool // requests have hashes
	end      timed.Time

	starts  starts
	start   timed.Time // of the next open session
	number  uint64     // of the last session started
	made    int        // requests handed out
	err     error      // final
	turns   turns      // waiting for their arrival
	waiting map[uint64]*session
	free    []*session

	draws    rand.PCG // reseeded for everything drawn
	rand     *rand.Rand
	groups   []int     // tokens of each group's prefix
	sums     []float64 // of the groups' weights up to here; nil: all alike
	tenants  []string
	hashes   []uint64
	answered []uint64
}

// session is a conversation that is alive.
type session struct {
	number  uint64
	arrival timed.Time
	turn    int // of the request below, from 1
	last    int // turn
	prompt  int
	answer  int
	group   int // -1: none
}

// New returns a generator. The error is a *SpecError.
func New(s Spec) (*Generator, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if s.HashTokens == 0 {
		s.HashTokens = MooncakeBlock
	}
	g := &Generator{
		spec:     s,
		sessions: !s.Turns.IsZero() || s.Arrivals == Closed,
		sharing:  !s.Turns.IsZero() || s.Groups > 0,
		end:      timed.Never,
		waiting:  map[uint64]*session{},
		answered: []uint64{},
	}
	if s.Seconds > 0 {
		g.end = timed.OfSeconds(s.Seconds)
	}
	g.rand = rand.New(&g.draws)
	g.setGroups()
	for i := range s.Tenants {
		g.tenants = append(g.tenants, "tenant-"+strconv.Itoa(i))
	}
	if s.Arrivals == Closed {
		g.start = timed.Never
		for range s.Sessions {
			g.follow(0)
		}
	} else {
		g.starts = newStarts(&g.spec)
		g.start = g.starts.next()
	}
	return g, nil
}

func (g *Generator) setGroups() {
	if g.spec.Groups == 0 {
		return
	}
	g.groups = make([]int, g.spec.Groups)
	if g.spec.Zipf > 0 {
		g.sums = make([]float64, g.spec.Groups)
	}
	sum := 0.0
	for i := range g.groups {
		g.groups[i] = g.spec.Prefix.tokens(g.about(uint64(i), 0, drawPrefix))
		if g.sums != nil {
			sum += math.Pow(float64(i+1), -g.spec.Zipf)
			g.sums[i] = sum
		}
	}
}

// drawn is what a number is drawn for.
type drawn uint64

const (
	drawInput drawn = iota
	drawOutput
	drawTurns
	drawThink
	drawGroup
	drawPrefix
	drawTenant
	drawStart
	drawn8 // all fit three bits
)

// about returns the randomness for one quantity of one turn of a session. Each
// has its own, so that another distribution of one quantity leaves all others
// as they were.
func (g *Generator) about(session uint64, turn int, what drawn) *rand.Rand {
	seedPCG(&g.draws, g.spec.Seed, session, uint64(turn)*uint64(drawn8)+uint64(what))
	return g.rand
}

// seedPCG seeds by all bits of three numbers. PCG alone would give similar
// streams for similar seeds.
func seedPCG(p *rand.PCG, seed, number, what uint64) {
	high := mix(mix(seed) + number)
	low := mix(high + what)
	p.Seed(mix(high^low), low)
}

// mix is a bijection that spreads each bit, of 0 too.
func mix(x uint64) uint64 { return splitmix.Mix(x + splitmix.Step) }

// Peek returns the next request's arrival, like Source.
func (g *Generator) Peek() (timed.Time, bool, error) {
	if g.err != nil || g.spec.Requests > 0 && g.made >= g.spec.Requests {
		return 0, false, g.err
	}
	at := g.start
	if len(g.turns) > 0 {
		at = min(at, g.turns[0].arrival)
	}
	if at < g.end {
		return at, true, nil
	}
	if at == timed.Never && g.spec.Arrivals != Closed && g.spec.Seconds == 0 {
		g.err = ErrTooLong
	}
	return 0, false, g.err
}

// Next takes the next request, like Source. The error is ErrTooLong.
func (g *Generator) Next() (Request, bool, error) {
	at, ok, err := g.Peek()
	if !ok {
		return Request{}, false, err
	}
	g.made++
	var s *session
	if len(g.turns) > 0 && g.turns[0].arrival == at {
		s = heap.Pop(&g.turns).(*session)
	} else {
		s = g.begin(at)
		g.start = g.starts.next()
	}
	q := Request{Arrival: at, Input: s.prompt, Output: s.answer, Tenant: g.tenant(s)}
	if g.sharing {
		g.share(s, &q)
	}
	if g.sessions {
		q.Session, q.Turn = s.number, s.turn
		g.waiting[s.number] = s
	} else {
		g.free = append(g.free, s)
	}
	return q, true, nil
}

// Finished ends a turn, like Source: the session's next one, or in a closed
// loop another session's first, arrives after a pause.
func (g *Generator) Finished(number uint64, at timed.Time) {
	s := g.waiting[number]
	if s == nil {
		return
	}
	delete(g.waiting, number)
	if s.turn < s.last {
		s.turn++
		history := s.prompt + s.answer
		s.prompt = history + g.spec.Input.tokens(g.about(number, s.turn, drawInput))
		s.answer = g.spec.Output.tokens(g.about(number, s.turn, drawOutput))
		if total := s.prompt + s.answer; total <= maxDrawn && (g.spec.Context == 0 || total <= g.spec.Context) {
			s.arrival = g.pause(s, at)
			heap.Push(&g.turns, s)
			return
		}
	}
	g.free = append(g.free, s)
	if g.spec.Arrivals == Closed {
		g.follow(at)
	}
}

// follow starts another session of a closed loop.
func (g *Generator) follow(at timed.Time) {
	s := g.begin(at)
	s.arrival = g.pause(s, at)
	heap.Push(&g.turns, s)
}

// pause returns when the session's turn arrives if the one before ended at at.
func (g *Generator) pause(s *session, at timed.Time) timed.Time {
	if g.spec.Think.IsZero() {
		return at
	}
	pause := timed.OfSeconds(g.spec.Think.draw(g.about(s.number, s.turn, drawThink)))
	return later(at, pause)
}

// begin draws a session and its first turn.
func (g *Generator) begin(at timed.Time) *session {
	var s *session
	if n := len(g.free); n > 0 {
		s, g.free = g.free[n-1], g.free[:n-1]
	} else {
		s = new(session)
	}
	g.number++
	n := g.number
	*s = session{number: n, arrival: at, turn: 1, last: 1, group: -1}
	if !g.spec.Turns.IsZero() {
		s.last = g.spec.Turns.tokens(g.about(n, 0, drawTurns))
	}
	s.prompt = g.spec.Input.tokens(g.about(n, 1, drawInput))
	s.answer = g.spec.Output.tokens(g.about(n, 1, drawOutput))
	if len(g.groups) > 0 {
		r := g.about(n, 0, drawGroup)
		if g.sums != nil {
			s.group = pick(g.sums, r)
		} else {
			s.group = r.IntN(len(g.groups))
		}
		s.prompt += g.groups[s.group]
	}
	if most := g.spec.Context; most > 0 {
		s.prompt = min(s.prompt, most-1)
		s.answer = min(s.answer, most-s.prompt)
	}
	return s
}

func (g *Generator) tenant(s *session) string {
	switch {
	case len(g.tenants) == 0:
		return ""
	case s.group >= 0:
		return g.tenants[s.group%len(g.tenants)]
	}
	return g.tenants[g.about(s.number, 0, drawTenant).IntN(len(g.tenants))]
}

// share fills in the ids of the blocks that the prompt has, and the answer
// completes.
func (g *Generator) share(s *session, q *Request) {
	size := g.spec.HashTokens
	own := mix(mix(g.spec.Seed) + s.number)
	shared := uint64(0)
	common := 0 // blocks that lie within the group's prefix
	if s.group >= 0 {
		shared = mix(mix(^g.spec.Seed) + uint64(s.group))
		common = min(g.groups[s.group], s.prompt) / size
	}
	id := func(block int) uint64 {
		if block < common {
			return mix(shared + uint64(block))
		}
		return mix(own + uint64(block))
	}
	full := s.prompt / size
	g.hashes = g.hashes[:0]
	for block := range full {
		g.hashes = append(g.hashes, id(block))
	}
	if s.prompt%size > 0 {
		// A part of a block is another content than the whole one.
		g.hashes = append(g.hashes, mix(id(full)+uint64(s.turn)))
	}
	q.Hashes, q.HashTokens = g.hashes, size
	if s.turn < s.last {
		g.answered = g.answered[:0]
		for block := full; block < (s.prompt+s.answer)/size; block++ {
			g.answered = append(g.answered, id(block))
		}
		q.Answer = g.answered
	}
}

// turns is a heap of sessions by arrival, then number.
type turns []*session

func (h turns) Len() int { return len(h) }
func (h turns) Less(i, j int) bool {
	if h[i].arrival != h[j].arrival {
		return h[i].arrival < h[j].arrival
	}
	return h[i].number < h[j].number
}
func (h turns) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *turns) Push(x any)   { *h = append(*h, x.(*session)) }
func (h *turns) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
