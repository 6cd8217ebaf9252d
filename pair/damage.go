package pair

import (
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/state"
)

// Damage changes one handoff at a chosen place. Nil fields change nothing. It is for showing that
// damage is refused, or noticed where it cannot be refused; functions run on the caller's goroutine.
type Damage struct {
	// Claim changes the identity that the source claims before the handoff, as workers do by
	// registration; Identity the one that units and manifest carry.
	Claim, Identity func(*state.Identity)
	// Expected changes the binding for which the side that waits makes a ticket: the child, with Sending.Pull
	// this side.
	Expected func(*state.Binding)
	// Come changes the binding and the ticket with which the other side comes. The ticket is a copy.
	Come func(b *state.Binding, ticket *[]byte)
	// Reopen closes the data plane of the side that comes and opens it again before, as the same process: what
	// it remembers of tickets and handoffs is gone, as with a thief of its identity.
	Reopen bool
	// Expire waits until the ticket's time is over before anybody comes.
	Expire bool

	// Payload changes a payload before it is sealed, so that checksums and digests are right. unit is
	// the index of the page, in ascending order of tokens, or Snapshot.
	Payload func(unit int, payload []byte)
	// Sealed changes header and payload after sealing, and returns the payload, which may be shorter.
	Sealed func(unit int, h *state.UnitHeader, payload []byte) []byte
	// Skip leaves a unit out: it is sealed and not sent. Twice sends it again as it is.
	Skip, Twice func(unit int) bool
	// Again seals and sends a unit once more under the next index.
	Again func(unit int) bool

	// Manifest changes the manifest before it is sealed, Sampler and First included; ManifestBytes what
	// is sent of it.
	Manifest      func(*state.Manifest)
	ManifestBytes func([]byte) []byte
	// First changes the first token of the answer: in history and sampler, so that they agree.
	First func(engine.Token) engine.Token

	// At is asked at every boundary; with it the child commits only when it answers Go after the
	// manifest.
	At func(Boundary) Action
}

// Snapshot is the unit number of the snapshot for Damage.
const Snapshot = -1

// Boundary is a place between two parts of a handoff.
type Boundary struct {
	Kind BoundaryKind
	// Page is the number of pages sent before.
	Page int
}

// BoundaryKind says what comes next.
type BoundaryKind string

// The boundaries, in the order in which they are reached. At BeforeCommit the child has everything,
// found it valid, and waits.
const (
	BeforePage     BoundaryKind = "before page"
	BeforeSnapshot BoundaryKind = "before snapshot"
	BeforeManifest BoundaryKind = "before manifest"
	BeforeCommit   BoundaryKind = "before commit"
)

// Action is what happens at a boundary.
type Action int

// The actions.
const (
	Go           Action = iota // nothing
	CancelSource               // the source gives up
	CancelPeer                 // the destination gives up
	Disconnect                 // the connections break: this side's data plane closes, and opens as another process
)

// at asks Damage what happens at a boundary, and does it. errEnded means that nothing more is sent.
func (x *sending) at(kind BoundaryKind) error {
	if x.Damage.At == nil {
		return nil
	}
	action := x.Damage.At(Boundary{kind, x.m.Units})
	if kind == BeforeCommit {
		x.stopped = true // whatever happens now, the child does not notice by itself
	}
	if action != Go {
		select { // what nobody came to yet cannot be interrupted
		case <-x.opened:
		case <-x.quiesced:
			return errEnded
		case <-x.ctx.Done():
			return x.ctx.Err()
		}
	}
	switch action {
	case Go:
		if kind == BeforeCommit {
			_, err := x.p.call(x.ctx, request{Commit: true})
			return err
		}
		return nil
	case CancelSource:
		x.snd.Abort("cancelled")
	case CancelPeer:
		if _, err := x.p.call(x.ctx, request{Abort: "cancelled"}); err != nil {
			return err
		}
	case Disconnect:
		if err := x.p.Reconnect(); err != nil {
			return err
		}
	}
	return errEnded
}
