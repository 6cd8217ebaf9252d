package mirror

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/block"
	"github.com/tandem-llm/tandem/kv/kvtest"
	"github.com/tandem-llm/tandem/kv/radix"
	"github.com/tandem-llm/tandem/sched"
)

// cell is the state of one token in one or more slots. What it holds is named by
// all tokens up to it.
type cell struct {
	content uint64
	users   int
}

// engine keeps cells by slot and position, as llama.cpp does.
type engine struct {
	slots []map[int]*cell
	cells int
}

func (e *engine) take(slot int32, pos int) {
	c := e.slots[slot][pos]
	delete(e.slots[slot], pos)
	if c.users--; c.users == 0 {
		e.cells--
	}
}

func (e *engine) do(op Op) error {
	s := e.slots[op.Slot]
	switch op.Kind {
	case Share:
		for pos := op.First; pos < op.End; pos++ {
			c := e.slots[op.From][pos]
			if c == nil || s[pos] != nil {
				return fmt.Errorf("%v: position %d", op, pos)
			}
			s[pos] = c
			c.users++
		}
	case Trim, Empty:
		for pos := range s {
			if op.Kind == Empty || pos >= op.First && (pos < op.End || op.End < 0) {
				e.take(op.Slot, pos)
			}
		}
	}
	return nil
}

func (e *engine) compute(slot int32, pos int, content uint64) error {
	if e.slots[slot][pos] != nil {
		return fmt.Errorf("slot %d has position %d already", slot, pos)
	}
	e.slots[slot][pos] = &cell{content, 1}
	e.cells++
	return nil
}

// request is what the host knows: its tokens, named with all before them.
type request struct {
	id       handoff.ID
	contents []uint64
	keys     []kv.Key
	seq      kv.Seq
	imports  bool
}

// host runs a scheduler on the engine through the mirror.
type host struct {
	rand *rand.Rand
	m    kv.Manager
	s    *sched.Scheduler
	mir  *Mirror
	e    *engine
	reqs map[handoff.ID]*request
	ids  []handoff.ID
	ops  []Op
	came int
}

func newHost(seed uint64) (*host, error) {
	r := rand.New(rand.NewPCG(seed, 5))
	cfg := kv.Config{Blocks: 8 + r.IntN(24), BlockTokens: 1 + r.IntN(3), Slots: 2 + r.IntN(4), Fixed: r.IntN(4) == 0, Events: true}
	var m kv.Manager
	var err error
	if r.IntN(2) == 0 {
		m, err = block.New(cfg)
	} else {
		m, err = radix.New(cfg)
	}
	if err != nil {
		return nil, err
	}
	s, err := sched.New(sched.Config{Budget: 32, Page: cfg.BlockTokens, Chunk: 6, Headroom: r.IntN(4)}, m)
	if err != nil {
		return nil, err
	}
	slots := cfg.Slots + 1 + r.IntN(4)
	h := &host{rand: r, m: m, s: s, mir: New(cfg, slots), e: &engine{}, reqs: map[handoff.ID]*request{}}
	for range slots {
		h.e.slots = append(h.e.slots, map[int]*cell{})
	}
	return h, nil
}

// add names a token with all before it, and a block when it is full.
func (h *host) add(q *request, token uint64) {
	f := fnv.New64a()
	var b [16]byte
	if n := len(q.contents); n > 0 {
		binary.LittleEndian.PutUint64(b[:], q.contents[n-1])
	}
	binary.LittleEndian.PutUint64(b[8:], token)
	f.Write(b[:])
	q.contents = append(q.contents, f.Sum64())
	if len(q.contents)%h.m.Config().BlockTokens == 0 {
		var k kv.Key
		binary.LittleEndian.PutUint64(k[8:], f.Sum64())
		q.keys = append(q.keys, k)
	}
}

func (h *host) prompt(imports bool) *request {
	h.came++
	q := &request{id: handoff.Mint(uint64(h.came), [10]byte{}), imports: imports}
	path := h.rand.IntN(32)
	for i := range 1 + h.rand.IntN(12) {
		h.add(q, uint64(path>>(i/2)&1))
	}
	return q
}

func (h *host) do(ops []Op) error {
	for _, op := range ops {
		if err := h.e.do(op); err != nil {
			return err
		}
	}
	h.ops = ops[:0]
	return nil
}

// sync does what the package's comment asks of a host.
func (h *host) sync() error {
	if err := h.events(); err != nil {
		return err
	}
	notices := h.s.Notices(nil)
	for _, n := range notices {
		q := h.reqs[n.ID]
		if q == nil {
			continue // released, and closed then
		}
		var err error
		switch n.Kind {
		case sched.NotePreempted, sched.NoteFailed:
			if h.m.Blocks(n.Seq, nil) == nil {
				err = h.do(h.mir.Close(n.Seq, h.ops))
			}
		case sched.NoteFreed:
			err = h.released(q)
		case sched.NoteFinished:
			h.s.Keys(0, n.ID, q.keys) // and with it the answer's blocks
			err = h.release(q)
		}
		if err != nil {
			return err
		}
	}
	for _, n := range notices {
		if n.Kind == sched.NoteAdmitted || n.Kind == sched.NoteGranted {
			if err := h.open(h.reqs[n.ID], n); err != nil {
				return err
			}
		}
	}
	if len(notices) > 0 {
		return h.sync() // of what the host did itself
	}
	return nil
}

func (h *host) events() error {
	for _, e := range h.m.Events(nil) {
		if err := h.do(h.mir.Apply(e, h.ops)); err != nil {
			return fmt.Errorf("%v: %w", e.Kind, err)
		}
	}
	return nil
}

func (h *host) open(q *request, n sched.Notice) error {
	blocks := h.m.Blocks(n.Seq, nil)
	if blocks == nil {
		return nil // preempted since
	}
	for {
		slot, ops, err := h.mir.Open(n.Seq, blocks, int(n.Tokens), h.ops)
		if err == nil {
			q.seq = n.Seq
			if err := h.do(ops); err != nil {
				return err
			}
			if n.Kind == sched.NoteGranted { // its pages come at once
				for pos := int(n.Tokens); pos < len(q.contents); pos++ {
					if err := h.e.compute(slot, pos, q.contents[pos]); err != nil {
						return err
					}
				}
			}
			return nil
		}
		if !errors.Is(err, ErrNoSlot) {
			return err
		}
		if h.m.Evict(1) == 0 {
			return fmt.Errorf("no slot, and nothing to evict: %+v %+v %v", h.mir.slots, h.m.Snapshot(), blocks)
		}
		if err := h.events(); err != nil {
			return err
		}
	}
}

func (h *host) release(q *request) error {
	if h.s.Release(0, q.id) == sched.Accepted {
		return h.released(q)
	}
	return nil
}

func (h *host) released(q *request) error {
	delete(h.reqs, q.id)
	for i, id := range h.ids {
		if id == q.id {
			h.ids = append(h.ids[:i], h.ids[i+1:]...)
			break
		}
	}
	if err := h.events(); err != nil {
		return err
	}
	if h.m.Blocks(q.seq, nil) == nil {
		return h.do(h.mir.Close(q.seq, h.ops))
	}
	return nil
}

// right sees that a slot holds exactly the first tokens of a request.
func (h *host) right(ref sched.Ref, q *request, tokens int) (int32, error) {
	slot, ok := h.mir.Slot(h.s.Info(ref).Seq)
	if !ok {
		return 0, errors.New("a row of a sequence that is not open")
	}
	for pos := range tokens {
		if c := h.e.slots[slot][pos]; c == nil || c.content != q.contents[pos] {
			return 0, fmt.Errorf("slot %d: position %d of %d holds %+v", slot, pos, tokens, c)
		}
	}
	if len(h.e.slots[slot]) != tokens {
		return 0, fmt.Errorf("slot %d holds %d positions, want %d", slot, len(h.e.slots[slot]), tokens)
	}
	return slot, nil
}

func (h *host) step() error {
	step := h.s.Plan(0)
	if err := h.sync(); err != nil {
		return err
	}
	if step.Empty() {
		return nil
	}
	byRef := map[sched.Ref]*request{}
	for _, q := range h.reqs {
		if ref, ok := h.s.Find(q.id); ok {
			byRef[ref] = q
		}
	}
	row := func(ref sched.Ref, first, end int) error {
		q := byRef[ref]
		slot, err := h.right(ref, q, first)
		for pos := first; pos < end && err == nil; pos++ {
			err = h.e.compute(slot, pos, q.contents[pos])
		}
		return err
	}
	for _, d := range step.Decodes {
		if err := row(d.Ref, int(d.Pos), int(d.Pos)+1); err != nil {
			return err
		}
	}
	for _, c := range step.Chunks {
		if err := row(c.Ref, int(c.First), int(c.End)); err != nil {
			return err
		}
	}
	for _, d := range step.Decodes {
		h.add(byRef[d.Ref], uint64(h.rand.IntN(2)))
	}
	for _, c := range step.Chunks {
		if q := byRef[c.Ref]; c.Last {
			h.add(q, uint64(h.rand.IntN(2)))
		}
	}
	h.s.Done(0, sched.Results{})
	return h.sync()
}

func (h *host) op() error {
	pick := func() *request {
		if len(h.ids) == 0 {
			return nil
		}
		return h.reqs[h.ids[h.rand.IntN(len(h.ids))]]
	}
	switch k := h.rand.IntN(20); {
	case k < 4:
		q := h.prompt(false)
		h.reqs[q.id] = q
		h.ids = append(h.ids, q.id)
		h.s.Submit(0, q.id, sched.Request{Prompt: len(q.contents), MaxTokens: 1 + h.rand.IntN(12), Held: h.rand.IntN(4) == 0, Keys: q.keys})
	case k < 6:
		q := h.prompt(true)
		h.reqs[q.id] = q
		h.ids = append(h.ids, q.id)
		h.s.Reserve(0, q.id, sched.Reservation{Prompt: len(q.contents), MaxTokens: 1 + h.rand.IntN(9), Keys: q.keys})
	case k < 8:
		if q := pick(); q != nil {
			if h.s.Activate(0, q.id) == sched.Accepted {
				h.add(q, uint64(h.rand.IntN(2))) // its source sampled it
			}
		}
	case k < 10:
		if q := pick(); q != nil {
			if err := h.release(q); err != nil {
				return err
			}
		}
	case k < 11:
		if q := pick(); q != nil {
			h.s.Touch(q.id)
		}
	case k < 13:
		if q := pick(); q != nil {
			h.s.Quiet(0, q.id)
		}
	case k < 14:
		h.m.Evict(h.rand.IntN(3))
	case k < 15:
		if q := pick(); q != nil {
			h.s.Keys(0, q.id, q.keys)
		}
	default:
		return h.step()
	}
	return h.sync()
}

// The engine never holds more than the manager counts, and every row finds
// exactly the state it needs, whatever was shared, evicted or preempted before.
func TestEngineHoldsWhatTheManagerCounts(t *testing.T) {
	const ops = 250
	first, end := kvtest.Seeds(t, 100_000, ops)
	for seed := first; seed < end; seed++ {
		h, err := newHost(seed)
		for i := 0; i < ops && err == nil; i++ {
			if err = h.op(); err == nil {
				err = h.check()
			}
			if err != nil {
				err = fmt.Errorf("operation %d: %w", i, err)
			}
		}
		if err == nil {
			err = h.drain()
		}
		if err != nil {
			t.Fatalf("reproduce with: go test -run %s -seed %d\n%v", t.Name(), seed, err)
		}
	}
}

func (h *host) check() error {
	n := h.m.Snapshot()
	if most := (n.Used() + n.Cached) * h.m.Config().BlockTokens; h.e.cells > most {
		return fmt.Errorf("the engine holds %d cells, the manager counts %d", h.e.cells, most)
	}
	open, retired := 0, 0
	for i := range h.mir.slots {
		q := &h.mir.slots[i]
		switch {
		case q.seq != 0:
			open++
		case q.held > 0:
			retired++
		case len(h.e.slots[i]) > 0:
			return fmt.Errorf("slot %d is empty and holds %d positions", i, len(h.e.slots[i]))
		}
	}
	if open+retired+h.mir.Empty() != len(h.mir.slots) || open != n.Slots {
		return fmt.Errorf("%d open, %d retired, %d empty slots; %d sequences", open, retired, h.mir.Empty(), n.Slots)
	}
	return nil
}

func (h *host) drain() error {
	for len(h.ids) > 0 {
		q := h.reqs[h.ids[0]]
		h.s.Quiet(0, q.id)
		if _, ok := h.s.Find(q.id); !ok {
			if err := h.released(q); err != nil {
				return err
			}
		} else if err := h.release(q); err != nil {
			return err
		}
		if err := h.sync(); err != nil {
			return err
		}
	}
	h.m.Reset()
	if err := h.events(); err != nil {
		return err
	}
	if h.e.cells != 0 || h.mir.Empty() != len(h.mir.slots) {
		return fmt.Errorf("%d cells and %d slots are left", h.e.cells, len(h.mir.slots)-h.mir.Empty())
	}
	return nil
}

// Opening and closing allocate nothing in steady state.
func TestSteadyStateDoesNotAllocate(t *testing.T) {
	cfg := kv.Config{Blocks: 64, BlockTokens: 4, Slots: 4, Events: true}
	manager, err := block.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m := New(cfg, 5)
	keys := kv.NewChain(kv.Salt{}, 1).Tokens([]int32{1, 2, 3, 4, 5}, nil)
	var ops []Op
	var events []kv.Event
	var blocks []int32
	one := func() {
		s, cached, o := manager.Start(kv.Need{Tokens: 20, Keys: keys})
		if o != kv.OK {
			t.Fatal(o)
		}
		blocks = manager.Blocks(s, blocks[:0])
		if _, ops, err = m.Open(s, blocks, cached, ops[:0]); err != nil {
			t.Fatal(err)
		}
		manager.Publish(s, 20, keys)
		manager.Free(s)
		manager.Evict(2)
		events = manager.Events(events[:0])
		for _, e := range events {
			ops = m.Apply(e, ops[:0])
		}
		ops = m.Close(s, ops[:0])
	}
	for range 10 {
		one()
	}
	if n := testing.AllocsPerRun(200, one); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Whatever was open before, the lowest empty slot is opened next.
func TestLowestSlotFirst(t *testing.T) {
	m := New(kv.Config{Blocks: 8, BlockTokens: 4}, 4)
	open := func(s kv.Seq) int32 {
		at, _, err := m.Open(s, nil, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for s := range kv.Seq(3) {
		if at := open(1 + s); at != int32(s) {
			t.Errorf("sequence %d is in slot %d", s, at)
		}
	}
	for _, s := range []kv.Seq{1, 3, 2} {
		m.Close(s, nil)
	}
	if at := open(4); at != 0 {
		t.Errorf("an idle engine opens slot %d first", at)
	}
}
