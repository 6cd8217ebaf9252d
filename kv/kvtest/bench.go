package kvtest

import (
	"fmt"
	"testing"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

// cycles makes a function that does one reserve, activate and release of blocks
// blocks, with keys of its own each time, so that in steady state every block of
// the manager is cached and each cycle evicts as much as it stores.
func cycles(tb testing.TB, m kv.Manager, blocks int) func() {
	const prompts = 64
	var keys [prompts][]kv.Key
	var ids [prompts]handoff.ID
	for i := range prompts {
		c := kv.NewChain(kv.Salt{byte(i)}, 1)
		keys[i] = c.Tokens(make([]int32, blocks), nil)
		ids[i] = handoff.Mint(1, [10]byte{byte(i)})
	}
	bt := m.Config().BlockTokens
	i := 0
	return func() {
		i = (i + 1) % prompts
		n := kv.Need{Tokens: blocks * bt, Limit: (blocks + 8) * bt, Headroom: bt, Keys: keys[i]}
		if _, _, o := m.Reserve(ids[i], n); o != kv.OK {
			tb.Fatal(o)
		}
		if _, o := m.Activate(ids[i], keys[i]); o != kv.OK {
			tb.Fatal(o)
		}
		if o := m.Release(ids[i]); o != kv.OK {
			tb.Fatal(o)
		}
	}
}

// Benchmark measures reserve, activate and release of 1 and of 128 blocks: the
// difference over 127 is what a block costs.
func Benchmark(b *testing.B, make func(kv.Config) (kv.Manager, error)) {
	for _, blocks := range []int{1, 128} {
		b.Run(fmt.Sprintf("reserve-activate-release/blocks=%d", blocks), func(b *testing.B) {
			m, err := make(kv.Config{Blocks: 4096, BlockTokens: 16, Slots: 64})
			if err != nil {
				b.Fatal(err)
			}
			cycle := cycles(b, m, blocks)
			for range 8192 {
				cycle()
			}
			b.ReportAllocs()
			for b.Loop() {
				cycle()
			}
		})
	}
}

// steady sees that a manager whose memory is full allocates nothing.
func steady(t *testing.T, make func(kv.Config) (kv.Manager, error)) {
	m, err := make(kv.Config{Blocks: 256, BlockTokens: 16, Slots: 8, Marked: true, MarkBytes: 1000, Events: true})
	if err != nil {
		t.Fatal(err)
	}
	cycle := cycles(t, m, 9)
	keys := kv.NewChain(kv.Salt{1}, 1).Tokens(append([]int32(nil), 1, 2, 3, 4), nil)
	var events []kv.Event
	var blocks []int32
	one := func() {
		cycle()
		s, _, o := m.Start(kv.Need{Tokens: 40, Limit: 200, Headroom: 20, Keys: keys})
		if o != kv.OK {
			t.Fatal(o)
		}
		m.Publish(s, 40, keys)
		m.Mark(s, 32, 600)
		m.Touch(s)
		if _, o := m.Grow(s, 100); o != kv.OK {
			t.Fatal(o)
		}
		m.Hold(handoff.ID{1}, s)
		m.Rekey(handoff.ID{1}, handoff.ID{2})
		blocks = m.Blocks(s, blocks[:0])
		m.Release(handoff.ID{2})
		m.Quiet(s)
		events = m.Events(events[:0])
	}
	for range 200 {
		one()
	}
	if n := testing.AllocsPerRun(200, one); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if len(blocks) != 7 || m.Snapshot().Used() != 0 {
		t.Errorf("blocks %v, snapshot %+v", blocks, m.Snapshot())
	}
}
