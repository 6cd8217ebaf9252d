package kvtest

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/kv"
)

// hostile gives keys that no chain makes: repeated, in any order, the same after
// different ones. What is found then means nothing, but nothing may break.
func hostile(t *testing.T, make func(kv.Config) (kv.Manager, error), check func(kv.Manager) error) {
	const seeds, ops = 60, 400
	t.Logf("%d operations, seeds 1 to %d", seeds*ops, seeds)
	for seed := uint64(1); seed <= seeds; seed++ {
		r := rand.New(rand.NewPCG(seed, 9))
		m, err := make(kv.Config{Blocks: 12, BlockTokens: 1, Slots: 5, Marked: r.IntN(2) == 0, MarkBytes: 9, Align: 1 + r.IntN(2), Events: true})
		if err != nil {
			t.Fatal(err)
		}
		keys := func() (k []kv.Key) {
			for range 1 + r.IntN(6) {
				k = append(k, kv.Key{15: byte(1 + r.IntN(3))})
			}
			return k
		}
		var seqs []kv.Seq
		for range ops {
			k := keys()
			switch r.IntN(6) {
			case 0, 1:
				if s, _, o := m.Start(kv.Need{Tokens: len(k) + r.IntN(2), Limit: 12, Keys: k}); o == kv.OK {
					seqs = append(seqs, s)
				}
			case 2:
				if s, _, o := m.Reserve(id(string(rune('a'+r.IntN(4)))), kv.Need{Tokens: len(k), Limit: 12, Keys: k}); o == kv.OK {
					seqs = append(seqs, s)
				}
			case 3:
				m.Activate(id(string(rune('a'+r.IntN(4)))), k)
			case 4, 5:
				if len(seqs) == 0 {
					continue
				}
				i := r.IntN(len(seqs))
				m.Publish(seqs[i], len(m.Blocks(seqs[i], nil)), k)
				m.Mark(seqs[i], 1+r.IntN(6), 4)
				if r.IntN(2) == 0 {
					m.Free(seqs[i])
					seqs = append(seqs[:i], seqs[i+1:]...)
				}
			}
			if err := check(m); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		for _, s := range seqs {
			m.Free(s)
		}
		if o := m.Reset(); o != kv.OK || m.Snapshot().Free != 12 {
			t.Fatalf("seed %d: %v, %+v", seed, o, m.Snapshot())
		}
	}
}
