package sched

import (
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

// side of a worker: what a request uses is charged to the share of its side.
type side uint8

const (
	source      side = iota // its prompt is computed here
	destination             // its state comes from elsewhere
)

// request is one entry of Scheduler.requests. Which queue it is in follows from
// its state: Waiting and Reserving from queue[side], Ready from ready, Prefilling
// from prefilling, Decoding from running; otherwise none.
type request struct {
	id        handoff.ID
	keys      []kv.Key
	seq       kv.Seq        // zero without memory
	deadline  time.Duration // of a reservation; 0: none
	order     uint64        // of arrival; a preempted request keeps it
	state     State
	side      side
	held      bool // Pinned follows the prompt
	activated bool // its reservation was
	touched   bool // between Touch and Quiet; the manager knows it too, while there is memory
	lent      bool // seq belongs to the request that took it over; only Quiet concerns it
	borrowed  bool // a transfer of a request that lent its memory may still touch it
	chunk     bool // it has a chunk in the running step
	finished  bool // set by Done before it looks at the rows
	failed    bool // the same
	stop      bool // cancelled during the running step
	release   bool // released during the running step; stop is set too

	prompt     int32 // tokens of the prompt
	most       int32 // tokens to generate
	computed   int32 // tokens whose state is here; while Decoding, see Decode.Pos
	target     int32 // tokens to compute before the next one is sampled
	charge     int32 // blocks that its side's share is charged; 0 without memory
	at         int32 // place in running, while Decoding
	prev, next Ref   // in its queue; none: -1
}

// limit is the most tokens whose state the request can ever have.
func (r *request) limit() int32 {
	if r.held {
		return r.prompt
	}
	return r.prompt + r.most - 1 // the last token of the answer is never computed
}

// generated is the number of tokens sampled after pos tokens were computed.
func (r *request) generated(pos int32) int32 { return max(0, pos-r.prompt+1) }

// Scheduler schedules one engine. Make it with New.
type Scheduler struct {
	cfg   Config
	kv    kv.Manager
	size  int32 // tokens of a block
	split bool  // there are shares, and the sides wait independently

	requests []request
	spare    []Ref
	ids      map[handoff.ID]Ref
	order    uint64

	queue      [2]list // prompts and reservations that wait, by side, in order of arrival
	ready      list    // active sequences that wait for a running slot, in order
	prefilling list    // in order of admission
	running    []Decode
	context    int64 // sum of Pos over running

	used  [2]Share // what the sides have
	dirty bool     // something ended or came that may let a waiting request in

	stepping bool
	inStep   int // leading entries of running that are in the step
	chunks   []Chunk

	notices []Notice
}

// New makes a scheduler over a manager, which from then on only the scheduler
// changes; the host calls Mark, Evict and Events, asks what it likes, and may Reset
// it when the scheduler is Drained. The error is a *ConfigError.
func New(cfg Config, manager kv.Manager) (*Scheduler, error) {
	shape := manager.Config()
	cfg, err := cfg.check(shape)
	if err != nil {
		return nil, err
	}
	s := &Scheduler{cfg: cfg, kv: manager, size: int32(shape.BlockTokens), ids: map[handoff.ID]Ref{}}
	s.split = cfg.Source.Blocks > 0
	if s.cfg.Running == 0 {
		s.cfg.Running = shape.Slots
	}
	for _, l := range []*list{&s.queue[source], &s.queue[destination], &s.ready, &s.prefilling} {
		l.head, l.tail = none, none
	}
	return s, nil
}

// Idle reports whether Plan has nothing to give until a command comes. Between
// Plan and Done it is false.
func (s *Scheduler) Idle() bool {
	return !s.stepping && !s.dirty && len(s.running) == 0 && s.prefilling.n == 0
}

// Drained reports whether no request is left, in whatever state.
func (s *Scheduler) Drained() bool { return len(s.ids) == 0 }

// Load is how many requests are where. O(1).
type Load struct {
	Waiting    int // prompts and, on their side, requests preempted
	Reserving  int // of the receiving side: reservations, and requests preempted
	Ready      int
	Prefilling int
	Decoding   int
	Requests   int   // all
	Context    int64 // sum of tokens over Decoding
}

// Load returns how many requests are where.
func (s *Scheduler) Load() Load {
	return Load{
		Waiting: s.queue[source].n, Reserving: s.queue[destination].n, Ready: s.ready.n,
		Prefilling: s.prefilling.n, Decoding: len(s.running), Requests: len(s.ids), Context: s.context,
	}
}

// Find returns the Ref of a request.
func (s *Scheduler) Find(id handoff.ID) (Ref, bool) {
	ref, ok := s.ids[id]
	return ref, ok
}

// Info describes a request. StateGone: there is none under that Ref.
func (s *Scheduler) Info(ref Ref) Info {
	if ref < 0 || int(ref) >= len(s.requests) {
		return Info{}
	}
	r := &s.requests[ref]
	i := Info{State: r.state, Seq: r.seq, Computed: int(r.computed), Target: int(r.target), Touched: r.touched}
	if r.lent {
		i.Seq = 0
	}
	if r.state == StateDecoding {
		i.Computed = int(s.running[r.at].Pos)
	}
	switch {
	case r.state == StateReserving || r.state == StateReserved:
	case r.state == StatePrefilling || r.state == StateWaiting:
		i.Tokens = int(r.generated(r.target - 1))
	default:
		i.Tokens = int(r.generated(int32(i.Computed)))
	}
	return i
}

// Notices appends what happened since the last call and forgets it.
func (s *Scheduler) Notices(dst []Notice) []Notice {
	dst = append(dst, s.notices...)
	s.notices = s.notices[:0]
	return dst
}

func (s *Scheduler) note(kind NoticeKind, ref Ref, tokens int32) {
	r := &s.requests[ref]
	s.notices = append(s.notices, Notice{Kind: kind, Ref: ref, ID: r.id, Tokens: tokens, Seq: r.seq})
}

// blocks is the number of blocks that tokens take.
func (s *Scheduler) blocks(tokens int32) int32 {
	return (tokens + s.size - 1) / s.size
}

// add makes an entry for a request.
func (s *Scheduler) add(id handoff.ID, r request) Ref {
	ref := Ref(len(s.requests))
	if n := len(s.spare); n > 0 {
		ref = s.spare[n-1]
		s.spare = s.spare[:n-1]
	} else {
		s.requests = append(s.requests, request{})
	}
	r.id, r.prev, r.next = id, none, none
	s.requests[ref] = r
	s.ids[id] = ref
	return ref
}

// forget removes the entry of a request that has nothing any more.
func (s *Scheduler) forget(ref Ref) {
	delete(s.ids, s.requests[ref].id)
	s.requests[ref] = request{}
	s.spare = append(s.spare, ref)
}
