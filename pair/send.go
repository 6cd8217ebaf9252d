package pair

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// Sending is one handoff to the child. The state is either an Export or comes straight out of an
// engine.
type Sending struct {
	// Export is state held in memory: every payload is copied into a buffer of the wire.
	Export *Export

	// Host has the sequence in its Slot otherwise, or computes it: Prompt is its tokens, PageTokens the
	// size of its pages, which are exported right into buffers of the wire. With Chunk above 0 the slot
	// is empty, and the prompt is computed during the handoff, in chunks of that many tokens, each
	// page leaving as soon as it is computed and the destination has room.
	Host       *Host
	Prompt     []engine.Token
	PageTokens int
	Chunk      int

	// Lane is one of Transport.Lanes; the first by default.
	Lane wire.LaneMode
	// Order is the order in which pages leave, as indices; nil is ascending. Not with Chunk.
	Order []int
	// Pull is the source-first order: this side offers the state, which is computed by then, with a ticket of its
	// own, and the child comes for it. By default the child waits with a ticket, and this side comes. Not with Chunk.
	Pull bool
	// Skip is the tokens at the prompt's beginning that the child has kept (KeepPrefix): a page ends there. Their
	// pages do not leave. Not with Order.
	Skip int
	// Budget is the binding's deadline [5m].
	Budget time.Duration
	// Damage changes what is sent; nil sends what is true.
	Damage *Damage
}

// Moved is a handoff that was committed.
type Moved struct {
	// Bytes and Units are what was sent, manifest aside.
	Bytes int64
	Units int
	// Early is how much of Bytes had been written by the end of Chunk's prefill.
	Early int64
	// First is the token that the child's first step consumes.
	First engine.Token
	// Open is the time from the push, with Pull from the child's pull, to the peer's answer, Export that spent in
	// the engine (or copying an Export), Seal that spent on headers and checksums (keyed digests are computed
	// while units travel), Blocked that spent waiting for room, Compute that of Chunk's prefill. All but Open on
	// the caller's goroutine.
	Open, Export, Seal, Blocked, Compute time.Duration
	// Total is the time from the push, with Pull from where the child is told to come, to the commit's arrival;
	// Tail is that from the end of the prefill, or without Chunk from the last unit's queueing, to there.
	Total, Tail time.Duration
	// Wire is what this end of the stream measured, Received what the child says.
	Wire     wire.Stats
	Received Received
}

// sending is a Sending under way.
type sending struct {
	Sending
	p      *Pair
	ctx    context.Context
	b      state.Binding
	sealer *state.Sealer
	snd    *wire.Sender
	hashes hashes
	hasher *state.Digester // hashes units while they travel, as workers do; nil where damage must be hashed before
	prompt []engine.Token
	first  engine.Token
	inv    state.Inventory
	paged  bool
	kept   int // pages that do not leave

	room                chan struct{}
	opened              chan struct{}
	committed, quiesced chan struct{}
	failure             error // valid once quiesced is closed
	stopped             bool  // by an action of Damage: nothing more is sent

	began, end time.Time // of the push or pull; of the last unit or of the prefill
	m          Moved
}

// hashes are the digests of units that were queued.
type hashes struct {
	missing sync.WaitGroup
	mu      sync.Mutex
	list    []hash
}

type hash struct {
	unit   uint32
	digest state.Digest
}

// Send hands one sequence over, until the child has committed it and said so. A handoff that fails gives
// a *HandoffError; the child has discarded it then and both ends are quiet, unless the child is gone
// or late, or Options.Budget is over (ErrPeerGone, ErrTimeout). The caller's goroutine owns the engine of Host for that long.
func (p *Pair) Send(ctx context.Context, s Sending) (*Moved, error) {
	ctx, cancel := context.WithTimeout(ctx, p.budget)
	defer cancel()
	x := &sending{
		Sending: s, p: p, ctx: ctx,
		room: make(chan struct{}, 1), opened: make(chan struct{}), committed: make(chan struct{}), quiesced: make(chan struct{}),
	}
	if err := x.check(); err != nil {
		return nil, err
	}
	x.bind()
	open := x.push
	if x.Pull {
		open = x.pull
	}
	if err := open(); err != nil {
		return nil, err
	}
	if err := x.stream(); err != nil && !errors.Is(err, errEnded) {
		x.snd.Abort("export failed")
		return nil, x.settle(err)
	}
	return x.finish()
}

// errEnded: the stream ended, or was ended by Damage; its own events say why.
var errEnded = errors.New("pair: the stream ended")

func (x *sending) check() error {
	d := x.p.info
	switch {
	case d == nil:
		return fmt.Errorf("%w: no engine is open in the peer", ErrCall)
	case (x.Sending.Export == nil) == (x.Host == nil):
		return fmt.Errorf("%w: either Export or Host", ErrCall)
	case x.Host != nil && (x.PageTokens < 1 || len(x.Prompt) == 0 || x.Chunk < 0):
		return fmt.Errorf("%w: pages of %d tokens of a prompt of %d", ErrCall, x.PageTokens, len(x.Prompt))
	case x.Chunk > 0 && x.Order != nil:
		return fmt.Errorf("%w: pages leave in the order in which they are computed", ErrCall)
	case x.Chunk > 0 && x.Pull:
		return fmt.Errorf("%w: a prompt is computed before its state is pulled", ErrCall)
	}
	if x.Lane == "" {
		x.Lane = d.Transport.Lanes[0]
	}
	if x.p.nodes[x.Lane] == nil {
		return fmt.Errorf("%w: lane %q was not opened", ErrCall, x.Lane)
	}
	if x.Budget <= 0 {
		x.Budget = 5 * time.Minute
	}
	if x.Damage == nil {
		x.Damage = &Damage{}
	}
	if e := x.Sending.Export; e != nil {
		x.prompt, x.first, x.inv, x.paged = e.Prompt, e.First, e.Inventory, len(e.Pages) > 0
	} else {
		x.prompt, x.first = x.Prompt, x.Host.next
		x.inv, x.paged = x.Host.Engine.Info().Inventory, x.Host.Engine.Paged()
	}
	if err := x.skip(); err != nil {
		return err
	}
	if x.Order != nil && len(x.Order) != x.pages() {
		return fmt.Errorf("%w: an order of %d pages, there are %d", ErrCall, len(x.Order), x.pages())
	}
	return nil
}

// skip finds the first page that leaves.
func (x *sending) skip() error {
	for x.Skip > 0 && x.kept < x.pages() {
		x.kept++
		if x.pageEnd(x.kept-1) == x.Skip {
			break
		}
	}
	if x.Skip < 0 || x.Skip > 0 && (x.Order != nil || x.kept == 0 || x.pageEnd(x.kept-1) != x.Skip) {
		return fmt.Errorf("%w: %d tokens are skipped, where no page ends", ErrCall, x.Skip)
	}
	return nil
}

// pages is the number of pages, those that are kept included.
func (x *sending) pages() int {
	switch {
	case x.Sending.Export != nil:
		return len(x.Sending.Export.Pages)
	case !x.paged:
		return 0
	}
	return (len(x.prompt) + x.PageTokens - 1) / x.PageTokens
}

// pageEnd is where a page ends.
func (x *sending) pageEnd(i int) int {
	if e := x.Sending.Export; e != nil {
		return e.Pages[i].End
	}
	return min((i+1)*x.PageTokens, len(x.prompt))
}

// finish waits for the commit and for both ends to be quiet.
func (x *sending) finish() (*Moved, error) {
	select {
	case <-x.committed:
		x.m.Total = time.Since(x.began)
		x.m.Tail = time.Since(x.end)
	case <-x.quiesced:
	case <-x.ctx.Done():
		x.snd.Abort("caller gone")
		<-x.quiesced
	}
	if err := x.settle(nil); err != nil {
		return nil, err
	}
	x.m.Wire, x.m.First = x.snd.Stats(), x.first
	x.m.Bytes, x.m.Open = x.m.Wire.Bytes, x.m.Wire.Open
	if x.Pull {
		x.m.Open = x.m.Received.Wire.Open
	}
	return &x.m, nil
}

// noticing is how long a destination may take to see that its source is gone, before it is told: longer than
// a connection's death takes to be noticed.
const noticing = 15 * time.Second

// settle ends what is left on either side and collects what both say. It returns nil for a handoff that
// was committed.
func (x *sending) settle(own error) error {
	committed := false
	if x.snd != nil {
		select {
		case <-x.committed:
			committed = true
		default:
			x.snd.Abort("over")
		}
		select {
		case <-x.quiesced:
		case <-x.ctx.Done():
			x.snd.ForceClose()
			<-x.quiesced
		}
		if own == nil {
			own = x.failure
		}
	}
	if err := x.ctx.Err(); err != nil {
		return errors.Join(err, own)
	}
	if !committed {
		if !x.stopped {
			// Whoever was there notices by itself that the source left.
			select {
			case <-x.opened:
				a, err := x.p.call(x.ctx, request{Await: awaitEnd, Within: noticing})
				if err == nil && a.Received != nil {
					break
				}
				if !errors.Is(err, ErrTimeout) || errors.Is(err, ErrPeerGone) {
					return errors.Join(err, own)
				}
			default:
			}
		}
		if _, err := x.p.call(x.ctx, request{Abort: "over"}); err != nil {
			return errors.Join(err, own)
		}
	}
	a, err := x.p.call(x.ctx, request{Await: awaitEnd, Within: 2 * time.Minute})
	if err != nil {
		return errors.Join(err, own)
	}
	if a.Received == nil {
		return fmt.Errorf("%w: no report", ErrMessage)
	}
	x.m.Received = *a.Received
	if committed && a.Received.Active {
		return nil
	}
	if !a.Received.Active && a.Received.Err != nil && !(own == nil && committed) {
		return &HandoffError{Source: own, Destination: a.Received.Err}
	}
	return &HandoffError{Source: own, Destination: fmt.Errorf("%w: committed %v, active %v", ErrAborted, committed, a.Received.Active)}
}
