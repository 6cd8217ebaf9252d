package pair

import (
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// bind makes the binding of a handoff that nobody had before.
func (x *sending) bind() {
	var entropy [10]byte
	_, _ = rand.Read(entropy[:])
	p := x.p
	id := handoff.Mint(uint64(time.Now().UnixMilli()), entropy)
	x.b = state.Binding{
		Handoff: id, Request: "pair-" + id.String(), Tenant: "pair", Deadline: x.Budget,
		Source:      state.Peer{Worker: sourceName, Incarnation: p.incarnation},
		Destination: state.Peer{Worker: p.peerName, Incarnation: p.peerInc},
	}
}

// push is the destination-first order: the child makes a ticket, and this side comes. An error is Send's.
func (x *sending) push() error {
	a, err := x.p.call(x.ctx, request{Expect: x.expect(x.awaited())})
	if err != nil {
		return &HandoffError{Destination: err}
	}
	x.seal(a.Ticket)
	if err := x.dial(a.Ticket, a.Endpoint); err != nil {
		return x.settle(err)
	}
	return nil
}

func (x *sending) dial(ticket []byte, to wire.Endpoint) error {
	if x.Damage.Reopen {
		if err := errors.Join(x.p.nodes.close(), x.p.reopen()); err != nil {
			return err
		}
	}
	if x.Damage.Expire {
		if _, err := x.p.call(x.ctx, request{Await: awaitEnd}); err != nil {
			return err
		}
	}
	b, ticket := x.comes(ticket)
	x.began = time.Now()
	var err error
	x.snd, err = x.p.nodes[x.Lane].Push(b, to, ticket, x.events())
	return err
}

// pull is the source-first order: this side makes a ticket, and the child comes with it. An error is Send's.
func (x *sending) pull() error {
	node := x.p.nodes[x.Lane]
	snd, err := node.Offer(x.awaited(), x.events())
	if err != nil {
		return &HandoffError{Source: err}
	}
	x.snd = snd
	x.seal(snd.Ticket())
	if x.Damage.Expire {
		select {
		case <-x.quiesced:
		case <-x.ctx.Done():
		}
	}
	b, ticket := x.comes(snd.Ticket())
	q := x.expect(b)
	q.Pull = &pullRequest{Ticket: ticket, From: node.Endpoint(), Reopen: x.Damage.Reopen}
	x.began = time.Now()
	a, err := x.p.call(x.ctx, request{Expect: q})
	switch {
	case err != nil: // it did not come, and has nothing to report
		x.snd.Abort("nobody comes")
		<-x.quiesced
		return &HandoffError{Source: x.failure, Destination: err}
	case a.Received != nil && a.Received.Err != nil: // it came in vain
		return x.settle(nil)
	}
	select { // the child hears of it before this side's events
	case <-x.opened:
	case <-x.quiesced:
	case <-x.ctx.Done():
	}
	return nil
}

// awaited is the binding of the side that waits.
func (x *sending) awaited() state.Binding {
	b := x.b
	if x.Damage.Expected != nil {
		x.Damage.Expected(&b)
	}
	return b
}

// comes is what the other side comes with.
func (x *sending) comes(ticket []byte) (state.Binding, []byte) {
	b, ticket := x.b, slices.Clone(ticket)
	if x.Damage.Come != nil {
		x.Damage.Come(&b, &ticket)
	}
	return b, ticket
}

// expect makes the child ready for this handoff.
func (x *sending) expect(b state.Binding) *expectRequest {
	claimed := x.identity()
	if x.Damage.Claim != nil {
		x.Damage.Claim(&claimed)
	}
	return &expectRequest{
		Binding: b.Encode(), Lane: x.Lane, Tokens: uint32(len(x.prompt)), Skip: uint32(x.Skip), Identity: claimed.Encode(), Hold: x.Damage.At != nil,
	}
}

// seal makes the sealer of a handoff with this ticket.
func (x *sending) seal(ticket []byte) {
	key := state.DeriveKey(ticket, x.b)
	x.sealer = state.NewSealer(state.SealerConfig{
		Handoff: x.b.Handoff, Identity: x.sealed(), Inventory: x.inv,
		Codec: state.CodecLlamaSeq, Key: key, Limits: limits(&x.p.info.Transport),
	})
	if d := x.Damage; d.Sealed == nil && d.Skip == nil && d.Twice == nil {
		x.hasher = state.NewDigester(key)
		x.sealer.Defer()
	}
}

func (x *sending) identity() state.Identity {
	if x.Sending.Export != nil {
		return x.Sending.Export.Identity
	}
	return x.Host.Engine.Info().Identity
}

// sealed is the identity that units and manifest carry.
func (x *sending) sealed() state.Identity {
	id := x.identity()
	if x.Damage.Identity != nil {
		x.Damage.Identity(&id)
	}
	return id
}

// events are what the wire tells this side.
func (x *sending) events() wire.SenderEvents {
	return wire.SenderEvents{
		Room: func() {
			select {
			case x.room <- struct{}{}:
			default:
			}
		},
		Committed: func(wire.Outcome) { close(x.committed) },
		Opened:    func() { close(x.opened) },
		Failed:    func(err error) { x.failure = err },
		Quiesced:  func() { close(x.quiesced) },
	}
}
