package sched

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/block"
	"github.com/tandem-llm/tandem/kv/radix"
)

func newScheduler(tb testing.TB, shape kv.Config, cfg Config) *Scheduler {
	tb.Helper()
	m, err := block.New(shape)
	if err != nil {
		tb.Fatal(err)
	}
	s, err := New(cfg, m)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func nth(i int) (id handoff.ID) {
	binary.LittleEndian.PutUint64(id[:], uint64(i)+1)
	return id
}

// run does one step and replaces each request that finishes by a new one, so that
// it can go on for ever.
type endless struct {
	tb    testing.TB
	s     *Scheduler
	next  int
	notes []Notice
	most  int
}

func (e *endless) submit() {
	if _, o := e.s.Submit(0, nth(e.next), Request{Prompt: 64, MaxTokens: e.most}); o != Accepted {
		e.tb.Fatal(o)
	}
	e.next++
}

func (e *endless) step() {
	if e.s.Plan(0).Empty() {
		e.tb.Fatal("nothing to run")
	}
	e.s.Done(0, Results{})
	e.notes = e.s.Notices(e.notes[:0])
	for _, n := range e.notes {
		if n.Kind == NoteFinished {
			e.s.Release(0, n.ID)
			e.submit()
		}
	}
}

func newEndless(tb testing.TB, running, most int) *endless {
	e := &endless{tb: tb, s: newScheduler(tb, kv.Config{Blocks: 1 << 16, BlockTokens: 16}, Config{Budget: 8192, Running: running, Headroom: 64}), most: most}
	for range running {
		e.submit()
	}
	for range 3 * most {
		e.step()
	}
	return e
}

// BenchmarkStep measures Plan and Done of 256 running requests, first where
// nobody ever finishes, then with a finish, a release, a prompt and a promotion
// for each of 128 tokens.
func BenchmarkStep(b *testing.B) {
	for _, most := range []int{1 << 18, 128} {
		b.Run(fmt.Sprintf("running=256/tokens=%d", most), func(b *testing.B) {
			e := &endless{tb: b, s: newScheduler(b, kv.Config{Blocks: 1 << 24, BlockTokens: 16}, Config{Budget: 8192, Running: 256, Headroom: 64}), most: most}
			for range 256 {
				e.submit()
			}
			for range 400 {
				e.step()
			}
			b.ReportAllocs()
			for b.Loop() {
				e.step()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*256), "ns/token")
		})
	}
}

// BenchmarkSkip measures skipping 100 steps of 256 running requests.
func BenchmarkSkip(b *testing.B) {
	s := newScheduler(b, kv.Config{Blocks: 1 << 22, BlockTokens: 16}, Config{Budget: 8192, Running: 256, Headroom: 64})
	fill := func() {
		for i := range 256 {
			s.Release(0, nth(i))
		}
		for i := range 256 {
			s.Submit(0, nth(i), Request{Prompt: 64, MaxTokens: 200_000})
		}
		for s.prefilling.n > 0 {
			s.Plan(0)
			s.Done(0, Results{})
		}
		s.notices = s.notices[:0]
	}
	fill()
	b.ReportAllocs()
	for b.Loop() {
		if s.Skip(100) == 0 {
			b.StopTimer()
			fill()
			b.StartTimer()
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*256*100), "ns/token")
}

// handoffs makes a function that does one reserve, activate and release of blocks
// blocks through the scheduler.
func handoffs(tb testing.TB, m kv.Manager, blocks int) func() {
	s, err := New(Config{Budget: 64, Running: 16, Headroom: 16}, m)
	if err != nil {
		tb.Fatal(err)
	}
	keys := kv.NewChain(kv.Salt{}, 1).Tokens(make([]int32, blocks), nil)
	var notes []Notice
	i := 0
	return func() {
		id := nth(i)
		i++
		if _, o := s.Reserve(0, id, Reservation{Prompt: blocks * m.Config().BlockTokens, MaxTokens: 100, Keys: keys[:i%2*blocks]}); o != Accepted {
			tb.Fatal(o)
		}
		s.Touch(id)
		s.Quiet(0, id)
		if o := s.Activate(0, id); o != Accepted {
			tb.Fatal(o)
		}
		if o := s.Release(0, id); o != Accepted {
			tb.Fatal(o)
		}
		notes = s.Notices(notes[:0])
	}
}

func BenchmarkHandoff(b *testing.B) {
	for _, blocks := range []int{1, 128} {
		b.Run(fmt.Sprintf("block/blocks=%d", blocks), func(b *testing.B) {
			m, _ := block.New(kv.Config{Blocks: 4096, BlockTokens: 16})
			benchHandoff(b, handoffs(b, m, blocks))
		})
		b.Run(fmt.Sprintf("radix/blocks=%d", blocks), func(b *testing.B) {
			m, _ := radix.New(kv.Config{Blocks: 4096, BlockTokens: 16, Slots: 32})
			benchHandoff(b, handoffs(b, m, blocks))
		})
	}
}

func benchHandoff(b *testing.B, one func()) {
	for range 1000 {
		one()
	}
	b.ReportAllocs()
	for b.Loop() {
		one()
	}
}

// In steady state neither steps nor handoffs allocate.
func TestSteadyStateDoesNotAllocate(t *testing.T) {
	e := newEndless(t, 32, 16)
	if n := testing.AllocsPerRun(300, e.step); n != 0 {
		t.Errorf("%v allocations in a step", n)
	}
	m, err := block.New(kv.Config{Blocks: 256, BlockTokens: 16})
	if err != nil {
		t.Fatal(err)
	}
	one := handoffs(t, m, 9)
	for range 100 {
		one()
	}
	if n := testing.AllocsPerRun(300, one); n != 0 {
		t.Errorf("%v allocations in a handoff", n)
	}
}
