package kvtest

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
)

var (
	seedFlag = flag.Uint64("seed", 0, "run only the random episode with this seed")
	opsFlag  = flag.Int("ops", 0, "random operations instead of the default number")
)

const episode = 150 // operations of one manager's life

// world is one manager beside its model, and the handles and ids that the driver
// plays with, stale ones included.
type world struct {
	rand  *rand.Rand
	real  kv.Manager
	model *model
	live  []kv.Seq
	stale []kv.Seq
	ids   []handoff.ID
	paths map[kv.Seq]int // prompt of a sequence, as a path of prompts
	got   []kv.Event
	step  string // the operation that was just done, for messages
}

// prompts is a small universe of prompts with many common prefixes: block i of a
// path has one of two contents. keysOf[p] are the keys of path p.
const depth = 6

var keysOf = func() (all [1 << depth][]kv.Key) {
	for p := range all {
		c := kv.NewChain(kv.SaltFor([]byte("test"), "tenant"), 1)
		for i := range depth {
			all[p] = c.Tokens([]int32{int32(p >> i & 1)}, all[p])
		}
	}
	return all
}()

func randomConfig(r *rand.Rand) kv.Config {
	return kv.Config{
		Blocks: 4 + r.IntN(20), BlockTokens: 1 + r.IntN(4), Slots: 2 + r.IntN(6), Align: 1 + r.IntN(2),
		Marked: r.IntN(3) == 0, MarkBytes: int64(r.IntN(12)), Fixed: r.IntN(5) == 0, Events: true,
	}
}

// Seeds returns the seeds [first, end) of a random test of about that many operations, in
// episodes with a seed each, and logs them. The flags -seed and -ops of every test
// that uses it choose one seed, or another number.
func Seeds(t testing.TB, ops, episode int) (first, end uint64) {
	if *opsFlag > 0 {
		ops = *opsFlag
	}
	first, end = 1, uint64(ops/episode+2)
	if *seedFlag != 0 {
		first, end = *seedFlag, *seedFlag+1
	}
	t.Logf("%d operations, seeds %d to %d", (end-first)*uint64(episode), first, end-1)
	return first, end
}

// random runs operations in episodes of their own seeds and reports the first
// failure with its seed.
func random(t *testing.T, make func(kv.Config) (kv.Manager, error), check func(kv.Manager) error, ops int) {
	first, end := Seeds(t, ops, episode)
	for seed := first; seed < end; seed++ {
		if err := run(seed, make, check); err != nil {
			t.Fatalf("reproduce with: go test -run %s -seed %d\n%v", t.Name(), seed, err)
		}
	}
}

func run(seed uint64, make func(kv.Config) (kv.Manager, error), check func(kv.Manager) error) (err error) {
	w := &world{rand: rand.New(rand.NewPCG(seed, 1))}
	cfg := randomConfig(w.rand)
	w.real, err = make(cfg)
	if err != nil {
		return err
	}
	w.model = newModel(cfg)
	w.paths = map[kv.Seq]int{}
	for i := range 8 {
		w.ids = append(w.ids, handoff.Mint(uint64(i), [10]byte{byte(i)}))
	}
	for i := range episode {
		err := w.op()
		if err == nil {
			err = w.compare()
		}
		if err == nil && i%8 == 0 {
			err = check(w.real)
		}
		if err != nil {
			return fmt.Errorf("operation %d: %s: %w (%+v)", i, w.step, err, cfg)
		}
	}
	return w.drain(check)
}

// drain ends everything and sees that nothing is left.
func (w *world) drain(check func(kv.Manager) error) error {
	for _, s := range w.live {
		for w.real.Quiet(s) == kv.OK {
		}
		w.real.Free(s)
	}
	if err := check(w.real); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	if s := w.real.Snapshot(); s.Used() != 0 || s.Slots != 0 || s.Headroom != 0 || s.Cached+s.Free != s.Blocks {
		return fmt.Errorf("leaked at the end: %+v", s)
	}
	if o := w.real.Reset(); o != kv.OK {
		return fmt.Errorf("reset at the end: %v", o)
	}
	if s := w.real.Snapshot(); s.Free != s.Blocks || s.Marks != 0 {
		return fmt.Errorf("after reset: %+v", s)
	}
	return nil
}

// compare sees that both tell the same story.
func (w *world) compare() error {
	if d := cmp.Diff(w.model.snapshot(), w.real.Snapshot()); d != "" {
		return fmt.Errorf("snapshots (-model +manager):\n%s", d)
	}
	s := w.real.Snapshot()
	if s.Used()+s.Cached+s.Free != s.Blocks || s.Headroom > s.Cached+s.Free || min(s.Active, s.Pinned, s.Reserved, s.Cached, s.Free, s.Headroom) < 0 {
		return fmt.Errorf("parts do not add up: %+v", s)
	}
	w.got = w.real.Events(w.got[:0])
	same := slices.EqualFunc(w.got, w.model.events, func(a, b kv.Event) bool {
		return a.Kind == b.Kind && a.Index == b.Index && a.Key == b.Key
	})
	if !same {
		return fmt.Errorf("events differ: manager %v, model %v", w.got, w.model.events)
	}
	w.model.events = w.model.events[:0]
	return nil
}

// seq draws a handle: mostly a valid one.
func (w *world) seq() kv.Seq {
	switch r := w.rand.IntN(40); {
	case r == 0:
		return kv.Seq(w.rand.Uint64())
	case r == 1:
		return 0
	case r == 2 && len(w.stale) > 0:
		return w.stale[w.rand.IntN(len(w.stale))]
	case len(w.live) > 0:
		return w.live[w.rand.IntN(len(w.live))]
	}
	return 0
}

func (w *world) id() handoff.ID {
	if w.rand.IntN(50) == 0 {
		return handoff.ID{}
	}
	return w.ids[w.rand.IntN(len(w.ids))]
}

// keys are those of a path, sometimes fewer, sometimes with a gap.
func (w *world) keys(path int) []kv.Key {
	keys := keysOf[path]
	switch w.rand.IntN(12) {
	case 0:
		return keys[:w.rand.IntN(len(keys)+1)]
	case 1:
		keys = slices.Clone(keys)
		keys[w.rand.IntN(len(keys))] = kv.Key{}
	}
	return keys
}

// need draws a prompt, sometimes an impossible one.
func (w *world) need() (kv.Need, int) {
	bt := w.real.Config().BlockTokens
	path := w.rand.IntN(len(keysOf))
	n := kv.Need{Tokens: 1 + w.rand.IntN(depth*bt), Headroom: w.rand.IntN(2 * bt), Keys: w.keys(path)}
	if w.rand.IntN(3) > 0 {
		n.Limit = n.Tokens + w.rand.IntN(3*bt)
	}
	switch w.rand.IntN(60) {
	case 0:
		n.Tokens = -w.rand.IntN(2)
	case 1:
		n.Limit = n.Tokens - 1
	case 2:
		n.Limit = w.rand.IntN(1 << 40)
	case 3:
		n.Headroom = -1
	case 4:
		n.Headroom = 1 << 62
	}
	return n, path
}

var errOutcome = errors.New("outcomes differ")

func differ(real, model any) error {
	return fmt.Errorf("%w: manager %v, model %v", errOutcome, real, model)
}

// made enters a new sequence.
func (w *world) made(s kv.Seq, path int) {
	w.live = append(w.live, s)
	w.paths[s] = path
}

// gone takes sequences that ended out of the list.
func (w *world) gone() {
	w.live = slices.DeleteFunc(w.live, func(s kv.Seq) bool {
		if w.model.seqs[s] != nil {
			return false
		}
		w.stale = append(w.stale, s)
		return true
	})
}
