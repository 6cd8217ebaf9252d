package worker

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/engine/llama"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/wire"
)

// limit is the longest wait for something that must happen.
const limit = time.Minute

// lab is a bus, workers in this process, and a gateway played by the test.
type lab struct {
	t    *testing.T
	ca   *mesh.CA
	srv  *bus.Server
	conn *bus.Conn
	link *bus.GatewayLink

	mu       sync.Mutex
	changed  *sync.Cond
	statuses map[handoff.ID][]*buspb.Status // by handoff; both sides
	seen     map[string]*buspb.Registration
	quiet    bool // do not acknowledge
	states   map[string][]byte
}

func newLab(t *testing.T) *lab {
	t.Helper()
	ca, err := mesh.NewCA(nil, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, ca: ca, statuses: map[handoff.ID][]*buspb.Status{}, seen: map[string]*buspb.Registration{}, states: map[string][]byte{}}
	l.changed = sync.NewCond(&l.mu)
	l.srv, err = bus.StartServer(bus.ServerOptions{Identity: l.issue(mesh.RoleBus, "bus")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.srv.Close)
	l.conn, err = bus.Connect(t.Context(), bus.Options{Identity: l.issue(mesh.RoleGateway, "gw"), URL: l.srv.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.conn.Close(context.Background()) })
	l.link, err = bus.ServeGateway(l.conn, 1, bus.GatewayHandler{
		Registration: func(r *buspb.Registration) { l.note(func() { l.seen[r.Worker] = r }) },
		Statuses:     l.take,
	})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		tick := time.NewTicker(bus.Beat)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				_ = l.link.Heartbeat()
			}
		}
	}()
	return l
}

func (l *lab) issue(role mesh.Role, name string) *mesh.Identity {
	id, err := l.ca.Issue(role, name, []string{"localhost", "127.0.0.1"}, time.Hour)
	if err != nil {
		l.t.Fatal(err)
	}
	return id
}

func (l *lab) note(fn func()) {
	l.mu.Lock()
	fn()
	l.mu.Unlock()
	l.changed.Broadcast()
}

// take stores statuses once each and acknowledges them, as a gateway does.
func (l *lab) take(s *buspb.Statuses) {
	var acks []*buspb.Ack
	l.note(func() {
		for _, st := range s.Statuses {
			id, _ := parseID(st.Handoff)
			have := l.statuses[id]
			if !slices.ContainsFunc(have, func(h *buspb.Status) bool { return h.Side == st.Side && h.Seq == st.Seq }) {
				l.statuses[id] = append(have, st)
			}
			acks = append(acks, &buspb.Ack{Handoff: st.Handoff, Side: st.Side, Seq: st.Seq})
		}
	})
	if !l.quiet {
		_ = l.link.Post(s.Worker, &buspb.Command{Body: &buspb.Command_Acks{Acks: &buspb.Acks{Acks: acks}}})
	}
}

// await returns the first status of a handoff that matches.
func (l *lab) await(id handoff.ID, what string, match func(*buspb.Status) bool) *buspb.Status {
	l.t.Helper()
	var found *buspb.Status
	l.until(what, func() bool {
		for _, s := range l.statuses[id] {
			if match(s) {
				found = s
				return true
			}
		}
		return false
	})
	return found
}

// until waits for a condition over the lab's state, called with the lock held.
func (l *lab) until(what string, ok func() bool) {
	l.t.Helper()
	late := false
	timer := time.AfterFunc(limit, func() { l.note(func() { late = true }) })
	defer timer.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !ok() {
		if late {
			l.t.Fatalf("not seen: %s", what)
		}
		l.changed.Wait()
	}
}

// worker starts a worker with a real engine.
func (l *lab) worker(name string, role Role, arch tiny.Arch, change func(*Config)) *Worker {
	l.t.Helper()
	lib, err := install.Ensure(l.t.Context(), install.Options{})
	if err != nil {
		l.t.Fatal(err)
	}
	file, err := tiny.Cached(arch)
	if err != nil {
		l.t.Fatal(err)
	}
	eng, err := llama.Open(llama.Options{Lib: lib.Dir, Model: file, Slots: 4, Cells: 8192, BatchTokens: 64, UBatch: 64, Threads: 1})
	if err != nil {
		l.t.Fatal(err)
	}
	cfg := Config{
		Engine: eng, Identity: l.issue(mesh.RoleWorker, name), Incarnation: uint64(time.Now().UnixNano()), Role: role, ModelName: "m",
		PageTokens: 64, Wire: wire.Config{Addr: "127.0.0.1:0"}, Bus: bus.Options{URL: l.srv.URL()},
		Metrics: telemetry.NewWorker("test", string(role)), Events: telemetry.NewEvents(name, 1<<14, func() time.Duration { return time.Duration(time.Now().UnixNano()) }),
		StateChecked: func(id string, side telemetry.Side, b []byte) { l.note(func() { l.states[id+string(side)] = b }) },
	}
	if change != nil {
		change(&cfg)
	}
	w, err := New(l.t.Context(), cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx, time.Second) }()
	l.t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				l.t.Errorf("%s ended with %v", name, err)
			}
		case <-time.After(limit):
			l.t.Errorf("%s does not end", name)
		}
	})
	l.until(name+" announced", func() bool { return l.seen[name] != nil })
	return w
}

func newID() handoff.ID {
	var entropy [10]byte
	_, _ = rand.Read(entropy[:])
	return handoff.Mint(uint64(time.Now().UnixMilli()), entropy)
}

// attempt is one handoff that the test drives as a gateway would.
type attempt struct {
	id          handoff.ID
	request     string
	terms       *buspb.Terms
	gen         *buspb.Generation
	source, dst string
}

func (l *lab) attempt(source, dst *Worker, tokens []int32, maxTokens uint32) *attempt {
	a := &attempt{id: newID(), source: source.cfg.Identity.Name(), dst: dst.cfg.Identity.Name()}
	a.request = "req-" + a.id.String()
	a.terms = &buspb.Terms{
		Tenant: "t", BudgetMs: 60_000, RemainingMs: 60_000, Policy: buspb.Policy_POLICY_DESTINATION_FIRST,
		Source:      &buspb.Peer{Worker: a.source, Incarnation: source.cfg.Incarnation},
		Destination: &buspb.Peer{Worker: a.dst, Incarnation: dst.cfg.Incarnation},
	}
	a.gen = &buspb.Generation{Tokens: tokens, MaxTokens: maxTokens, IgnoreEos: true, Sampling: &buspb.Sampling{Temperature: 0.8, Seed: 3, FrequencyPenalty: 0.2}}
	return a
}

func (l *lab) command(worker string, c *buspb.Command) *buspb.Reply {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), limit)
	defer cancel()
	r, err := l.link.Command(ctx, worker, c)
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

func (a *attempt) reserveCommand() *buspb.Command {
	return &buspb.Command{Handoff: a.id[:], Request: a.request, Body: &buspb.Command_Reserve{Reserve: &buspb.Reserve{
		Terms: a.terms, PromptTokens: uint32(len(a.gen.Tokens)), ForcedTokens: a.gen.ForcedTokens, MaxTokens: a.gen.MaxTokens,
	}}}
}

func (a *attempt) prefillCommand(r *buspb.Reserved) *buspb.Command {
	return &buspb.Command{Handoff: a.id[:], Request: a.request, Body: &buspb.Command_Prefill{Prefill: &buspb.Prefill{
		Terms: a.terms, Generation: a.gen, DestinationEndpoint: r.GetEndpoint(), DestinationTicket: r.GetTicket(),
	}}}
}

// reserve asks the destination and returns its reservation.
func (l *lab) reserve(a *attempt) *buspb.Reserved {
	l.t.Helper()
	if r := l.command(a.dst, a.reserveCommand()); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
		l.t.Fatalf("reserve: %v", r)
	}
	return l.await(a.id, "the reservation", func(s *buspb.Status) bool { return s.GetReserved() != nil }).GetReserved()
}

// released waits until a side has given everything back and returns the outcome.
func (l *lab) released(id handoff.ID, side buspb.Side) buspb.Outcome {
	l.t.Helper()
	s := l.await(id, fmt.Sprintf("release of the %v", side), func(s *buspb.Status) bool { return s.Side == side && s.GetReleased() != nil })
	return s.GetReleased().Outcome
}

// tokens returns the answer's tokens so far, by absolute index, from both sides.
func (l *lab) tokens(id handoff.ID) (ids []int32, finish buspb.Finish) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := map[uint32]int32{}
	for _, s := range l.statuses[id] {
		if m := s.GetTokens(); m != nil {
			for i, tok := range m.Tokens {
				if old, ok := at[m.From+uint32(i)]; ok && old != tok.Id {
					l.t.Errorf("token %d came twice and differs", m.From+uint32(i))
				}
				at[m.From+uint32(i)] = tok.Id
			}
			if m.Finish != 0 {
				finish = m.Finish
			}
		}
	}
	for i := range len(at) {
		id, ok := at[uint32(i)]
		if !ok {
			l.t.Errorf("token %d of %d is missing", i, len(at))
		}
		ids = append(ids, id)
	}
	return ids, finish
}

func (l *lab) colocated(w *Worker, a *attempt) []int32 {
	l.t.Helper()
	id := newID()
	terms := &buspb.Terms{Tenant: "t", BudgetMs: 60_000, RemainingMs: 60_000, Policy: buspb.Policy_POLICY_DISABLED}
	c := &buspb.Command{Handoff: id[:], Request: "run-" + id.String(), Body: &buspb.Command_Run{Run: &buspb.Run{Terms: terms, Generation: a.gen}}}
	if r := l.command(w.cfg.Identity.Name(), c); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
		l.t.Fatalf("run: %v", r)
	}
	if o := l.released(id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_FINISHED_AT_SOURCE {
		l.t.Fatalf("a colocated request ended as %v", o)
	}
	ids, _ := l.tokens(id)
	return ids
}

func testPrompt(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((i*i*31 + i*7 + 5) % 251)
	}
	return out
}

// idle waits until a worker owns nothing.
func (l *lab) idle(w *Worker) {
	l.t.Helper()
	name := w.cfg.Identity.Name()
	l.until(name+" idle", func() bool {
		r := l.seen[name]
		return len(r.Owned) == 0 && r.SlotsFree == r.SlotsTotal && r.CellsFree == r.CellsTotal
	})
}

func TestHandoffBetweenTwoWorkers(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			l := newLab(t)
			source, dst := l.worker("p", RolePrefill, arch, nil), l.worker("d", RoleDecode, arch, nil)
			a := l.attempt(source, dst, testPrompt(200), 12)
			want := l.colocated(source, a)
			if r := l.command(a.source, a.prefillCommand(l.reserve(a))); r.Verdict != buspb.Verdict_VERDICT_ACCEPTED {
				t.Fatalf("prefill: %v", r)
			}
			if o := l.released(a.id, buspb.Side_SIDE_DESTINATION); o != buspb.Outcome_OUTCOME_COMPLETED {
				t.Errorf("the destination ended as %v", o)
			}
			if o := l.released(a.id, buspb.Side_SIDE_SOURCE); o != buspb.Outcome_OUTCOME_HANDED_OFF {
				t.Errorf("the source ended as %v", o)
			}
			got, finish := l.tokens(a.id)
			if !slices.Equal(got, want) || len(got) != 12 || finish != buspb.Finish_FINISH_LENGTH {
				t.Errorf("the answer differs: %d tokens, finish %v; colocated %d tokens", len(got), finish, len(want))
			}
			l.mu.Lock()
			src, restored := l.states[a.id.String()+string(telemetry.Source)], l.states[a.id.String()+string(telemetry.Destination)]
			l.mu.Unlock()
			if len(src) == 0 || !bytes.Equal(src, restored) {
				t.Errorf("restored state of %d bytes differs from the exported %d bytes", len(restored), len(src))
			}
			l.checkAttribution(a, source.info, source.eng.Paged())
			l.idle(source)
			l.idle(dst)
		})
	}
}
