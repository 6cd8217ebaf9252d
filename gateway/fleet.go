package gateway

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/place"
	"github.com/tandem-llm/tandem/route"
	"github.com/tandem-llm/tandem/state"
)

// maxWorkers bounds the registry.
const maxWorkers = 1_024

// fleet is what the gateway knows of workers: the bus's registry of who lives, and the router's view
// of it with the bookings. It is safe for concurrent use.
type fleet struct {
	model     string
	tokenizer state.Digest
	secret    [32]byte // the salts of prompts' keys are made of; never leaves the process

	mu       sync.Mutex
	registry *bus.Registry
	router   *route.Router
	prints   map[route.Target]string // fingerprint of each live worker's identity; guarded by mu
	suspects map[route.Target]bool   // live ones that could not be reached since they announced themselves
	timeout  time.Duration
	paused   bool          // the bus is down: silence says nothing
	grace    time.Duration // no worker expires before

	hadPair, hadWhole   bool // a request could have been served so, at some time
	longPair, longWhole int  // the most tokens that it could have had, when there was somebody last
}

// change is one worker that came or went.
type change struct {
	joined bool // or can be reached again
	target route.Target
	detail string // its role, or why it left
}

func newFleet(model string, tokenizer state.Digest, timeout time.Duration) *fleet {
	f := &fleet{
		model: model, tokenizer: tokenizer, timeout: timeout,
		registry: bus.NewRegistry(timeout, maxWorkers),
		prints:   make(map[route.Target]string),
		suspects: make(map[route.Target]bool),
	}
	f.router = route.New(f.compatible)
	_, _ = rand.Read(f.secret[:]) // it never fails
	return f
}

// compatible is asked by the router, under mu, about live workers.
func (f *fleet) compatible(source, destination route.Target) error {
	a, b := f.registry.Worker(source.Worker), f.registry.Worker(destination.Worker)
	if a == nil || b == nil {
		return errGone
	}
	return bus.Compatible(a, b)
}

var errGone = fmt.Errorf("it is gone")

// announce takes a registration and returns who came and went.
func (f *fleet) announce(now time.Duration, reg *buspb.Registration) ([]change, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list, err := f.registry.Announce(now, reg, nil)
	if err != nil {
		return nil, err
	}
	return f.apply(list), nil
}

// expire returns who was silent for too long.
func (f *fleet) expire(now time.Duration) []change {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.paused || now < f.grace {
		return nil
	}
	return f.apply(f.registry.Expire(now, nil))
}

// pause stops expiry while the bus is down; revive starts it again after everybody had time to
// announce itself.
func (f *fleet) pause() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = true
}

func (f *fleet) revive(now time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused, f.grace = false, now+f.timeout
}

// apply brings the router up to date. mu is held.
func (f *fleet) apply(list []bus.Change) (out []change) {
	for _, c := range list {
		t := route.Target{Worker: c.Worker, Incarnation: c.Incarnation}
		switch c.Kind {
		case bus.Left:
			f.router.Remove(t)
			delete(f.prints, t)
			delete(f.suspects, t)
			out = append(out, change{target: t, detail: why(c.Why)})
		case bus.Joined, bus.Updated:
			w := f.worker(c.Registration)
			f.router.Update(w)
			if c.Kind == bus.Joined || f.suspects[t] {
				delete(f.suspects, t)
				f.prints[t] = fingerprint(c.Registration)
				out = append(out, change{joined: true, target: t, detail: w.Role.String()})
			}
		}
	}
	f.hadPair = f.hadPair || f.router.CheckPair(route.Request{Model: f.model}) == nil
	f.hadWhole = f.hadWhole || f.router.CheckWhole(route.Request{Model: f.model}) == nil
	whole := f.router.Longest(route.Prefill, f.model)
	pair := min(whole, f.router.Longest(route.Decode, f.model))
	f.longWhole, f.longPair = cmp.Or(whole, f.longWhole), cmp.Or(pair, f.longPair)
	return out
}

// suspect notes that nobody of that name listened when a command was sent: the worker is not chosen
// until it announces itself again. Whether it is gone the registry decides.
func (f *fleet) suspect(t route.Target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.router.Workers() {
		if w.Target() == t {
			w.Unreachable = true
			f.router.Update(w)
			f.suspects[t] = true
		}
	}
}

// wasReady reports whether requests of the mode could be served at some time: then a missing worker
// is probably being restarted.
func (f *fleet) wasReady(mode Mode) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if mode == Disaggregated {
		return f.hadPair
	}
	return f.hadWhole
}

func why(w bus.Why) string {
	switch w {
	case bus.Restarted:
		return "restarted"
	case bus.Goodbye:
		return "took leave"
	}
	return "silent"
}

// worker translates a registration for the router. A worker whose tokenizer is not the gateway's
// would read other tokens than it is sent: its model is another one, whatever its name.
func (f *fleet) worker(r *buspb.Registration) route.Worker {
	w := route.Worker{
		Name: r.GetWorker(), Incarnation: r.GetIncarnation(), Model: r.GetModelName(),
		Slots: int(r.GetSlotsTotal()), Cells: clampInt(r.GetCellsTotal()), Context: int(r.GetContextTokens()),
		Draining: r.GetDraining() || r.GetLeaving(),
	}
	switch r.GetRole() {
	case "prefill":
		w.Role = route.Prefill
	case "decode":
		w.Role = route.Decode
	case "both":
		w.Role = route.Both
	}
	if f.tokenizer != (state.Digest{}) {
		// An identity of another schema cannot be read: such a worker is never paired, and may serve alone.
		id, err := decodeIdentity(r)
		if err == nil && id.Tokenizer != f.tokenizer {
			w.Model += " (another tokenizer)"
		}
	}
	return w
}

func decodeIdentity(r *buspb.Registration) (state.Identity, error) {
	lim := state.DefaultLimits()
	return state.DecodeIdentity(r.GetIdentity(), &lim)
}

func clampInt(v uint64) int { return int(min(v, 1<<40)) }

// fingerprint names weights and build for clients: equal fingerprints and seeds repeat an answer.
func fingerprint(r *buspb.Registration) string {
	id, err := decodeIdentity(r)
	if err != nil {
		return ""
	}
	d := id.Digest()
	return fmt.Sprintf("fp_%x", d[:5])
}

// anyFingerprint returns the fingerprint of the first worker by name.
func (f *fleet) anyFingerprint() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.router.Workers() {
		if p := f.prints[w.Target()]; p != "" && w.Model == f.model {
			return p
		}
	}
	return ""
}

// count returns the live workers of each role.
func (f *fleet) count() (prefill, decode, both int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.router.Workers() {
		switch w.Role {
		case route.Prefill:
			prefill++
		case route.Decode:
			decode++
		case route.Both:
			both++
		}
	}
	return prefill, decode, both
}

// keyTokens is the number of prompt tokens that the router's knowledge of prefixes is counted in. A
// worker's prefix hits end at its pages, which are a multiple of it by default.
const keyTokens = 128

// keys names the blocks of a prompt for the router, nil when its policies do not ask. They are derived
// from content and stay in this process.
func (f *fleet) keys(tenant string, prompt []int32) []kv.Key {
	f.mu.Lock()
	wanted := f.router.WantsKeys()
	f.mu.Unlock()
	if !wanted || len(prompt) < keyTokens {
		return nil
	}
	chain := kv.NewChain(kv.SaltFor(f.secret[:], tenant), keyTokens)
	return chain.Tokens(prompt, make([]kv.Key, 0, len(prompt)/keyTokens))
}

// learn tells the router which prompt is sent to a placement's workers.
func (f *fleet) learn(d place.Decision, keys []kv.Key) {
	if len(keys) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.router.Learn(d.Source, keys)
	if !d.Destination.IsZero() {
		f.router.Learn(d.Destination, keys)
	}
}

// place chooses how and where an attempt runs.
func (f *fleet) place(a place.Ask) (place.Decision, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a.Request.Model = f.model
	return place.Decide(f.router, a)
}

// check returns the error that place would, and chooses nothing.
func (f *fleet) check(mode Mode, q route.Request) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	q.Model = f.model
	return place.Check(f.router, mode, q)
}

// longest is the most tokens that a request of that mode can have: as the live workers say, or as
// they said while there were any; 0 when there never were.
func (f *fleet) longest(mode Mode) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch mode {
	case Disaggregated:
		return f.longPair
	case Colocated:
		return f.longWhole
	}
	return max(f.longPair, f.longWhole)
}

// role returns the role of a live worker.
func (f *fleet) role(t route.Target) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.registered(t); w != nil {
		return w.GetRole()
	}
	return ""
}

// registered returns what a live worker announced of itself, nil without it. mu is held.
func (f *fleet) registered(t route.Target) *buspb.Registration {
	w := f.registry.Worker(t.Worker)
	if w == nil || w.GetIncarnation() != t.Incarnation {
		return nil
	}
	return w
}

// findsPrefixes reports whether a destination looks for tokens of a reservation in a prefix cache, and
// whether what it finds ends where a chunk of the source does: within a chunk the source would compute
// other last bits.
func (f *fleet) findsPrefixes(source, destination route.Target) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, to := f.registered(source), f.registered(destination)
	return from != nil && to != nil && slices.Contains(to.GetCapabilities(), bus.CapPrefix) &&
		from.GetPageTokens() > 0 && to.GetPageTokens()%from.GetPageTokens() == 0
}

func (f *fleet) live(t route.Target) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.router.Live(t)
}

func (f *fleet) book(id handoff.ID, b handoff.Booking, t route.Target, tokens int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.router.Book(id, b, t, tokens)
}

func (f *fleet) unbook(id handoff.ID, b handoff.Booking) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.router.Unbook(id, b)
}

// bookings is the number of bookings that have not ended.
func (f *fleet) bookings() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.router.Bookings()
}
