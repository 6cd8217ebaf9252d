package wire

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/state"
)

// seqNo makes ids unique within a run.
var seqNo struct {
	sync.Mutex
	n uint64
}

func newID() handoff.ID {
	seqNo.Lock()
	defer seqNo.Unlock()
	seqNo.n++
	return handoff.Mint(uint64(time.Now().UnixMilli()), [10]byte{2: byte(seqNo.n >> 8), 3: byte(seqNo.n), 9: 7})
}

// memNode starts a node on the memory network. Call inside the bubble; close before it ends.
func memNode(t testing.TB, net *memNet, name string, mod func(*Config)) *Node {
	t.Helper()
	cfg := Config{Addr: "mem", Incarnation: 1, PageBytes: 64 << 10, LargestUnit: 1 << 20, Window: 256 << 10}
	if mod != nil {
		mod(&cfg)
	}
	cfg, err := cfg.fill()
	if err != nil {
		t.Fatal(err)
	}
	return newNode(cfg, name, net.listen(name))
}

// realLanes are the lanes that this system has.
func realLanes() []LaneMode {
	if runtime.GOOS == "linux" {
		return []LaneMode{LaneTLS, LaneQUIC, LaneLocal}
	}
	return []LaneMode{LaneTLS, LaneQUIC}
}

// netNodes starts two nodes on real sockets under one CA.
func netNodes(t testing.TB, mod func(*Config)) (*Node, *Node) {
	t.Helper()
	ca, err := mesh.NewCA(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return netNode(t, ca, "source", mod), netNode(t, ca, "destination", mod)
}

func netNode(t testing.TB, ca *mesh.CA, name string, mod func(*Config)) *Node {
	t.Helper()
	id, err := ca.Issue(mesh.RoleWorker, name, []string{"127.0.0.1"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Identity: id, Incarnation: 1, Addr: "127.0.0.1:0"}
	if mod != nil {
		mod(&cfg)
	}
	n, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

func binding(src, dst *Node) state.Binding {
	return state.Binding{
		Handoff: newID(), Request: "request-1", Tenant: "tenant-a",
		Source:      state.Peer{Worker: src.name, Incarnation: src.cfg.Incarnation},
		Destination: state.Peer{Worker: dst.name, Incarnation: dst.cfg.Incarnation},
		Deadline:    time.Hour,
	}
}

// payload returns n bytes that differ from unit to unit.
func payload(seed, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	r.Read(b)
	return b
}

func header(id handoff.ID, index int, p []byte) state.UnitHeader {
	return state.UnitHeader{
		Handoff: id, Unit: state.UnitPage, Component: state.AttentionKV, Codec: state.CodecRaw, DType: state.F16, DTypeV: state.F16,
		Index: uint32(index), Layers: state.Range{End: 1}, Tokens: state.Range{First: uint32(index), End: uint32(index) + 1},
		Length: uint64(len(p)), Checksum: state.UpdateChecksum(0, p),
	}
}

// watcher records one side's events and lets a test wait for them.
type watcher struct {
	mu       sync.Mutex
	log      []string
	changed  chan struct{}
	err      error
	units    []*Unit
	manifest []byte
	outcome  Outcome
	quiesced int
	keep     bool // do not release units
	late     string
}

func newWatcher() *watcher { return &watcher{changed: make(chan struct{})} }

func (w *watcher) note(name string, f func()) func() {
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.quiesced > 0 {
			w.late = name
		}
		w.log = append(w.log, name)
		if f != nil {
			f()
		}
		close(w.changed)
		w.changed = make(chan struct{})
	}
}

func (w *watcher) sender() SenderEvents {
	return SenderEvents{
		Opened: w.note("opened", nil), Room: w.note("room", nil), Sent: w.note("sent", nil),
		Committed: func(o Outcome) { w.note("committed", func() { w.outcome = o })() },
		Failed:    func(err error) { w.note("failed", func() { w.err = err })() },
		Quiesced:  w.note("quiesced", func() { w.quiesced++ }),
	}
}

func (w *watcher) receiver() ReceiverEvents {
	return ReceiverEvents{
		Opened: w.note("opened", nil),
		Unit: func(u *Unit) {
			w.note("unit", func() {
				w.units = append(w.units, u)
				if !w.keep {
					u.Release()
				}
			})()
		},
		Manifest:  func(m []byte) { w.note("manifest", func() { w.manifest = m })() },
		Committed: func(o Outcome) { w.note("committed", func() { w.outcome = o })() },
		Failed:    func(err error) { w.note("failed", func() { w.err = err })() },
		Quiesced:  w.note("quiesced", func() { w.quiesced++ }),
	}
}

// wait returns once cond holds.
func (w *watcher) wait(t testing.TB, what string, cond func() bool) {
	t.Helper()
	limit := time.NewTimer(60 * time.Second)
	defer limit.Stop()
	for {
		w.mu.Lock()
		ok, ch := cond(), w.changed
		log := slices.Clone(w.log)
		err := w.err
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-ch:
		case <-limit.C:
			t.Fatalf("no %s; events so far %v, error %v", what, log, err)
		}
	}
}

// has reports whether an event was seen so far.
func (w *watcher) has(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.log, name)
}

// saw is a condition for wait.
func (w *watcher) saw(name string) func() bool {
	return func() bool { return slices.Contains(w.log, name) }
}

func (w *watcher) await(t testing.TB, name string) {
	t.Helper()
	w.wait(t, name, w.saw(name))
}

// failedWith waits for the end and checks its cause.
func (w *watcher) failedWith(t testing.TB, code Code) {
	t.Helper()
	w.await(t, "quiesced")
	w.mu.Lock()
	defer w.mu.Unlock()
	if !errors.Is(w.err, code) {
		t.Fatalf("failed with %v, want %v; events %v", w.err, code, w.log)
	}
}

// check verifies what holds for every handoff that ended: one Quiesced, as the last event.
func (w *watcher) check(t testing.TB) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.quiesced != 1 || w.late != "" {
		t.Errorf("quiesced %d times, then %q; events %v", w.quiesced, w.late, w.log)
	}
}

// flow is one handoff between two nodes under test.
type flow struct {
	b     state.Binding
	snd   *Sender
	rcv   *Receiver
	src   *watcher
	dst   *watcher
	got   [][]byte // copies of what the destination received
	gotMu sync.Mutex
}

// start opens a handoff in push or pull mode; hold keeps units unreleased.
func start(t testing.TB, src, dst *Node, pull, hold bool) *flow {
	t.Helper()
	f := &flow{b: binding(src, dst), src: newWatcher(), dst: newWatcher()}
	f.dst.keep = hold
	ev := f.dst.receiver()
	note := ev.Unit
	ev.Unit = func(u *Unit) {
		f.gotMu.Lock()
		f.got = append(f.got, bytes.Clone(u.Payload))
		f.gotMu.Unlock()
		note(u)
	}
	var err error
	if pull {
		if f.snd, err = src.Offer(f.b, f.src.sender()); err == nil {
			f.rcv, err = dst.Pull(f.b, src.Endpoint(), f.snd.Ticket(), 0, ev)
		}
	} else {
		if f.rcv, err = dst.Expect(f.b, ev); err == nil {
			f.snd, err = src.Push(f.b, dst.Endpoint(), f.rcv.Ticket(), f.src.sender())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// put sends one unit, waiting for room.
func (f *flow) put(t testing.TB, index int, p []byte) bool {
	t.Helper()
	for {
		f.src.mu.Lock()
		seen := len(f.src.log)
		over := f.src.quiesced > 0 || f.src.err != nil
		f.src.mu.Unlock()
		if over {
			return false
		}
		if b, ok := f.snd.Buffer(len(p)); ok {
			copy(b.Bytes, p)
			if err := f.snd.Send(header(f.b.Handoff, index, p), b); err != nil {
				return false
			}
			return true
		}
		f.src.wait(t, "room", func() bool { return len(f.src.log) > seen })
	}
}

// run moves units of the given sizes and commits.
func (f *flow) run(t testing.TB, sizes ...int) {
	t.Helper()
	f.rcv.Grant()
	var want [][]byte
	for i, n := range sizes {
		p := payload(i, n)
		want = append(want, p)
		if !f.put(t, i, p) {
			t.Fatalf("no room for unit %d: %v, destination %v", i, f.src.err, f.dst.err)
		}
	}
	if err := f.snd.Finish([]byte("manifest")); err != nil {
		t.Fatal(err)
	}
	f.dst.await(t, "manifest")
	f.src.await(t, "sent")
	if err := f.rcv.Commit(OutcomeActive); err != nil {
		t.Fatal(err)
	}
	f.src.await(t, "quiesced")
	f.dst.await(t, "quiesced")
	f.src.check(t)
	f.dst.check(t)
	if f.src.err != nil || f.dst.err != nil || f.src.outcome != OutcomeActive || f.dst.outcome != OutcomeActive {
		t.Fatalf("source %v %v, destination %v %v", f.src.err, f.src.outcome, f.dst.err, f.dst.outcome)
	}
	if !slices.EqualFunc(f.got, want, bytes.Equal) {
		t.Fatalf("%d units arrived, want %d equal ones", len(f.got), len(want))
	}
	if string(f.dst.manifest) != "manifest" {
		t.Fatalf("manifest %q", f.dst.manifest)
	}
}

func mode(pull bool) string {
	if pull {
		return "pull"
	}
	return "push"
}

// dirty (mu) counts the buffers that may hold state.
func (p *pool) dirty() int {
	n := 0
	for _, l := range p.used {
		n += len(l)
	}
	return n
}

// idle fails the test if a node holds anything of an ended handoff.
func idle(t testing.TB, nodes ...*Node) {
	t.Helper()
	for _, n := range nodes {
		var st NodeStats
		for range 200 {
			st = n.Stats()
			if st.Handoffs == 0 && st.Sending == 0 && st.Receiving == 0 && st.Granted == 0 {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		if st.Handoffs != 0 || st.Tickets != 0 || st.Sending != 0 || st.Receiving != 0 || st.Granted != 0 {
			t.Errorf("%s still holds %+v", n.name, st)
		}
		n.pool.mu.Lock()
		for range 1000 { // what was received is zeroed soon after the last handoff ended
			if n.pool.dirty() == 0 {
				break
			}
			n.pool.mu.Unlock()
			time.Sleep(5 * time.Millisecond)
			n.pool.mu.Lock()
		}
		if d := n.pool.dirty(); d > 0 {
			t.Errorf("%s keeps %d buffers that are not zeroed", n.name, d)
		}
		for c, l := range n.pool.free {
			for _, b := range l {
				if !bytes.Equal(b[:cap(b)], make([]byte, c)) {
					t.Errorf("%s: a free buffer of %d bytes is not zero", n.name, c)
				}
			}
		}
		n.pool.mu.Unlock()
	}
}
