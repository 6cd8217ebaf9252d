package gateway

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/state"
	"google.golang.org/protobuf/proto"
)

// scripted is a bus with workers that behave well unless a test says otherwise. It has the method
// set of *bus.GatewayLink. Virtual time makes its pauses free.
type scripted struct {
	g *Gateway

	mu      sync.Mutex
	workers map[string]*worker
	down    bool
	beats   int
	left    bool
}

// worker is a scripted worker of one role. Its answers are a function of the prompt: token i of the
// answer is the i-th token that the test asked for, so a retry that did not force what was sent would
// show.
type worker struct {
	b    *scripted
	name string
	role string

	// onCommand, when set, sees every command first. It runs on the commander's
	// goroutine. Returning handled=false lets the script go on.
	onCommand func(cmd *buspb.Command) (reply *buspb.Reply, handled bool)
	// onStatus, when set, may change or drop (nil) a status, or add others.
	onStatus func(st *buspb.Status) []*buspb.Status

	keeps bool   // stays pinned when its stream breaks, for a rebind
	older bool   // lacks the capability to hand over
	drain bool   // takes nothing new
	finds bool   // looks for the tokens of reservations in a prefix cache
	pages uint32 // tokens of a page; 0: 16

	mu          sync.Mutex
	incarnation uint64
	silent      bool // accepts and never answers
	gone        bool // killed
	seq         map[string]uint64
	log         []string                  // names of commands, in order
	cancelled   map[string]buspb.Reason   // by handoff
	held        map[string]*buspb.Reserve // reservations, by handoff
	sent        []*buspb.Status
	acked       map[string]uint64
	reused      []string  // handoff that each prefill took over, or ""
	forced      [][]int32 // forced tokens of each dispatch
}

const answerText = "Hello, wörld!"

// answerTokens is what every scripted worker generates: the bytes of the text, and EOS.
func answerTokens() []int32 {
	var out []int32
	for _, b := range []byte(answerText) {
		out = append(out, int32(b))
	}
	return append(out, vocabEOS)
}

func newScripted() *scripted { return &scripted{workers: make(map[string]*worker)} }

func (b *scripted) add(name, role string) *worker {
	w := &worker{b: b, name: name, role: role, incarnation: 1}
	w.reset()
	b.mu.Lock()
	b.workers[name] = w
	b.mu.Unlock()
	return w
}

func (w *worker) reset() {
	w.seq, w.cancelled, w.held, w.acked = map[string]uint64{}, map[string]buspb.Reason{}, map[string]*buspb.Reserve{}, map[string]uint64{}
}

func testIdentity() state.Identity {
	return state.Identity{
		Schema: state.SchemaVersion, Architecture: "llama", Layers: 2, EngineBuild: "test", Endian: state.LittleEndian,
		Rope: state.Rope{Scaling: state.RopeUnscaled, FreqBase: 10000, FreqScale: 1},
	}
}

func (w *worker) registration() *buspb.Registration {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq[""]++
	id := testIdentity()
	capabilities := []string{bus.CapHandoff, "future/9"}
	switch {
	case w.older:
		capabilities = nil
	case w.finds:
		capabilities = append(capabilities, bus.CapPrefix)
	}
	return &buspb.Registration{
		Worker: w.name, Incarnation: w.incarnation, Seq: w.seq[""], Role: w.role, Version: "test",
		Identity: id.Encode(), SchemaMin: 1, SchemaMax: 1, Capabilities: capabilities,
		ModelName: "tiny", ContextTokens: 200, PageTokens: cmp.Or(w.pages, 16), SlotsTotal: 4, SlotsFree: 4, CellsTotal: 1000, CellsFree: 1000,
		Draining: w.drain,
		Mtp:      &buspb.MTP{Reason: "not built"}, Endpoint: &buspb.Endpoint{Tls: "127.0.0.1:1", Quic: "127.0.0.1:1", Lanes: 1},
	}
}

// announce sends a registration, if the worker and the bus live.
func (w *worker) announce() {
	w.mu.Lock()
	gone := w.gone
	w.mu.Unlock()
	w.b.mu.Lock()
	down := w.b.down
	w.b.mu.Unlock()
	if !gone && !down {
		w.b.g.registration(w.registration())
	}
}

// kill makes the worker disappear without a word; restart brings a new incarnation.
func (w *worker) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = true
}

// leave says goodbye, as the last thing that a worker does.
func (w *worker) leave() {
	reg := w.registration()
	reg.Leaving = true
	w.b.g.registration(reg)
}

func (w *worker) restart() {
	w.mu.Lock()
	w.gone = false
	w.incarnation++
	w.reset()
	w.mu.Unlock()
	w.announce()
}

// run announces every worker once a beat until ctx ends.
func (b *scripted) run(ctx context.Context) {
	t := time.NewTicker(bus.Beat)
	defer t.Stop()
	for {
		for _, w := range b.all() {
			w.announce()
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

func (b *scripted) all() []*worker {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*worker
	for _, w := range b.workers {
		out = append(out, w)
	}
	slices.SortFunc(out, func(x, y *worker) int { return bytes.Compare([]byte(x.name), []byte(y.name)) })
	return out
}

func (b *scripted) setDown(down bool) {
	b.mu.Lock()
	b.down = down
	b.mu.Unlock()
	if down {
		b.g.BusDown(bus.ErrDisconnected)
	} else {
		b.g.BusUp()
	}
}

func (b *scripted) Hello() error { return nil }

func (b *scripted) Heartbeat() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.beats++
	return nil
}

func (b *scripted) Goodbye() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = true
	return nil
}

func (b *scripted) Post(name string, cmd *buspb.Command) error {
	b.mu.Lock()
	w := b.workers[name]
	b.mu.Unlock()
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range cmd.GetAcks().GetAcks() {
		k := string(a.GetHandoff()) + a.GetSide().String()
		w.acked[k] = max(w.acked[k], a.GetSeq())
	}
	return nil
}

func (b *scripted) Command(ctx context.Context, name string, cmd *buspb.Command) (*buspb.Reply, error) {
	b.mu.Lock()
	w, down := b.workers[name], b.down
	b.mu.Unlock()
	if down {
		return nil, &bus.Error{Kind: bus.ErrDisconnected}
	}
	if w == nil {
		return nil, &bus.Error{Kind: bus.ErrNoWorker}
	}
	w.mu.Lock()
	gone, silent, incarnation := w.gone, w.silent, w.incarnation
	w.log = append(w.log, commandName(cmd))
	w.mu.Unlock()
	switch {
	case gone:
		return nil, &bus.Error{Kind: bus.ErrNoWorker}
	case silent:
		<-ctx.Done()
		return nil, &bus.Error{Kind: bus.ErrTimeout}
	case cmd.GetWorkerIncarnation() != incarnation:
		return &buspb.Reply{Verdict: buspb.Verdict_VERDICT_REFUSED, Code: buspb.Code_CODE_RESTARTED, Retry: true}, nil
	}
	// What a real bus carries is bytes: the two sides share no memory.
	copied := proto.Clone(cmd).(*buspb.Command)
	if w.onCommand != nil {
		if r, handled := w.onCommand(copied); handled {
			return r, nil
		}
	}
	return w.command(copied), nil
}

func commandName(cmd *buspb.Command) string {
	return fmt.Sprintf("%T", cmd.GetBody())[len("*buspb.Command_"):]
}

var accepted = &buspb.Reply{Verdict: buspb.Verdict_VERDICT_ACCEPTED}

// command is how a well-behaved worker takes a command.
func (w *worker) command(cmd *buspb.Command) *buspb.Reply {
	id := string(cmd.GetHandoff())
	switch c := cmd.GetBody().(type) {
	case *buspb.Command_Reserve:
		w.mu.Lock()
		w.held[id] = c.Reserve
		w.mu.Unlock()
		w.later(func() {
			w.status(id, buspb.Side_SIDE_DESTINATION, &buspb.Status{Body: &buspb.Status_Reserved{Reserved: &buspb.Reserved{
				Endpoint: &buspb.Endpoint{Tls: w.name + ":1", Lanes: 1}, Ticket: []byte("ticket of " + w.name),
			}}})
		})
	case *buspb.Command_Prefill:
		w.later(func() { w.prefill(id, c.Prefill) })
	case *buspb.Command_Run:
		w.later(func() { w.generate(id, buspb.Side_SIDE_SOURCE, c.Run.GetGeneration(), 0, -1) })
	case *buspb.Command_Query:
		w.later(func() { w.repeat(id) })
	case *buspb.Command_Cancel:
		w.mu.Lock()
		w.cancelled[id] = c.Cancel.GetReason()
		w.mu.Unlock()
	}
	return accepted
}

// later runs f after a moment, as work takes time.
func (w *worker) later(f func()) { time.AfterFunc(5*time.Millisecond, f) }

// prefill computes, reports token 0, and lets the destination take over.
func (w *worker) prefill(id string, p *buspb.Prefill) {
	gen := p.GetGeneration()
	w.note(gen)
	w.mu.Lock()
	w.reused = append(w.reused, string(p.GetReuse()))
	w.mu.Unlock()
	w.status(id, buspb.Side_SIDE_SOURCE, &buspb.Status{Body: &buspb.Status_Pinned{Pinned: &buspb.Pinned{
		Usage: &buspb.Usage{Prompt: uint32(len(gen.GetTokens())) - gen.GetForcedTokens(), Cached: 2},
	}}})
	if w.generate(id, buspb.Side_SIDE_SOURCE, gen, 0, 1) {
		w.status(id, buspb.Side_SIDE_SOURCE, ended(buspb.Outcome_OUTCOME_FINISHED_AT_SOURCE))
		return
	}
	w.b.mu.Lock()
	d := w.b.workers[p.GetTerms().GetDestination().GetWorker()]
	w.b.mu.Unlock()
	d.mu.Lock()
	_, reserved := d.held[id]
	ready := reserved && !d.gone && d.incarnation == p.GetTerms().GetDestination().GetIncarnation() &&
		string(p.GetDestinationTicket()) == "ticket of "+d.name && p.GetDestinationEndpoint().GetTls() == d.name+":1"
	d.mu.Unlock()
	if !ready && w.keeps {
		w.status(id, buspb.Side_SIDE_SOURCE, &buspb.Status{Body: &buspb.Status_StreamFailed{StreamFailed: &buspb.StreamFailed{
			Code: buspb.Code_CODE_TRANSFER,
		}}})
		return
	}
	if !ready {
		w.status(id, buspb.Side_SIDE_SOURCE, &buspb.Status{Body: &buspb.Status_Ended{Ended: &buspb.Ended{
			Outcome: buspb.Outcome_OUTCOME_FAILED, Code: buspb.Code_CODE_TRANSFER,
		}}})
		return
	}
	d.later(func() {
		d.status(id, buspb.Side_SIDE_DESTINATION, &buspb.Status{Body: &buspb.Status_Committed{Committed: &buspb.Committed{}}})
		w.status(id, buspb.Side_SIDE_SOURCE, ended(buspb.Outcome_OUTCOME_HANDED_OFF))
		w.status(id, buspb.Side_SIDE_SOURCE, &buspb.Status{Body: &buspb.Status_Released{Released: &buspb.Released{
			Outcome: buspb.Outcome_OUTCOME_HANDED_OFF,
		}}})
		d.generate(id, buspb.Side_SIDE_DESTINATION, gen, 1, -1)
	})
}

func ended(o buspb.Outcome) *buspb.Status {
	return &buspb.Status{Body: &buspb.Status_Ended{Ended: &buspb.Ended{Outcome: o}}}
}

func (w *worker) note(gen *buspb.Generation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(gen.GetTokens()) - int(gen.GetForcedTokens())
	w.forced = append(w.forced, slices.Clone(gen.GetTokens()[n:]))
}

// status numbers a status and delivers it.
func (w *worker) status(id string, side buspb.Side, st *buspb.Status) {
	w.mu.Lock()
	k := id + side.String()
	w.seq[k]++
	st.Handoff, st.Side, st.Seq = []byte(id), side, w.seq[k]
	list := []*buspb.Status{st}
	w.mu.Unlock()
	if w.onStatus != nil {
		if list = w.onStatus(st); len(list) == 0 {
			w.mu.Lock()
			w.sent = append(w.sent, st) // lost on the way: it can be repeated
			w.mu.Unlock()
		}
	}
	w.deliver(list...)
}

func (w *worker) deliver(list ...*buspb.Status) {
	w.mu.Lock()
	w.sent = append(w.sent, list...)
	incarnation, gone := w.incarnation, w.gone
	w.mu.Unlock()
	w.b.mu.Lock()
	down := w.b.down
	w.b.mu.Unlock()
	if gone || down || len(list) == 0 {
		return
	}
	w.b.g.statuses(proto.Clone(&buspb.Statuses{
		Worker: w.name, Incarnation: incarnation, GatewayIncarnation: 1, Statuses: list,
	}).(*buspb.Statuses))
}

// repeat delivers again what was not acknowledged of a handoff.
func (w *worker) repeat(id string) {
	w.mu.Lock()
	var list []*buspb.Status
	for _, st := range w.sent {
		if string(st.GetHandoff()) == id && st.GetSeq() > w.acked[id+st.GetSide().String()] {
			list = append(list, st)
		}
	}
	w.sent = slices.DeleteFunc(w.sent, func(st *buspb.Status) bool { return slices.Contains(list, st) })
	w.mu.Unlock()
	w.deliver(list...)
}

// commands returns the names of the commands that came, without cancels and relays.
func (w *worker) commands() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.log)
}

// reason returns why a handoff was cancelled, 0 when it was not.
func (w *worker) reason(id handoff.ID) buspb.Reason {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cancelled[string(id[:])]
}

// known returns up to where the gateway acknowledged, and the number of the last status.
func (w *worker) known(id string, side buspb.Side) (acked, last uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acked[id+side.String()], w.seq[id+side.String()]
}

// reservations returns the handoffs that were reserved.
func (w *worker) reservations() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.held))
}

// tenant returns the tenant of any reservation.
func (w *worker) tenant() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.held {
		return r.GetTerms().GetTenant()
	}
	return ""
}

func (w *worker) count(name string) int {
	n := 0
	for _, c := range w.commands() {
		if c == name {
			n++
		}
	}
	return n
}

// handoffOf returns the id of the only handoff that the worker has a reservation for.
func (w *worker) handoffOf(t *testing.T) handoff.ID {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var id handoff.ID
	if len(w.held) != 1 {
		t.Fatalf("%d reservations", len(w.held))
	}
	for k := range w.held {
		copy(id[:], k)
	}
	return id
}
