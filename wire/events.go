package wire

import (
	"sync"

	"github.com/tandem-llm/tandem/state"
)

// SenderEvents are a source's callbacks. Nil fields are skipped. See the package comment for ordering and what a
// callback may do.
type SenderEvents struct {
	// Open decides about the peer's open of an offered handoff (pull mode only): nil accepts and redeems the ticket, an
	// error refuses and leaves the ticket valid; its text goes to the peer as detail. It may wait for the host's owner
	// goroutine, but not longer than Timeouts.FirstByte. It is not serialised with the other events. skip is what the
	// destination gave to Node.Pull: at most 2^31-1, and the host's to judge beyond that.
	Open func(skip uint32) error
	// Opened: both sides know each other; credit may follow.
	Opened func()
	// Room: Buffer, which said no before or was never asked, may succeed now.
	Room func()
	// Sent: the peer confirmed that every unit and the manifest arrived undamaged; no local buffer is in use any more.
	Sent func()
	// Committed: the destination committed with this outcome; the source may let go.
	Committed func(Outcome)
	// Failed: the handoff ended and not by a local Abort, Revoke or ForceClose.
	Failed func(error)
	// Quiesced: the last event, exactly once.
	Quiesced func()
}

// ReceiverEvents are a destination's callbacks. Nil fields are skipped.
type ReceiverEvents struct {
	// Open decides about the peer's open of an expected handoff (push mode only), as SenderEvents.Open.
	Open func() error
	// Opened: the source is there; it may write once Grant is called.
	Opened func()
	// Piece shows the next bytes of a unit while it arrives, from its byte off on: in order, all of them, before its Unit
	// and before the checksum was verified, and perhaps without a Unit to follow. The bytes may be read until it
	// returns. It is for digests, so it is not called where they do not cover the payload: on same-host lanes.
	Piece func(h *state.UnitHeader, off int, piece []byte)
	// Unit hands over one unit, checksum verified. The callee owns it and must Release it once.
	Unit func(*Unit)
	// Manifest hands over the source's manifest, after the last Unit. The callee owns the bytes.
	Manifest func([]byte)
	// Committed: the source answered the commit, with what it knew of the handoff: OutcomeActive for a live one,
	// OutcomeReleased or OutcomeUnknown where it had let go already.
	Committed func(Outcome)
	// Failed: the handoff ended and not by a local Abort, Revoke or ForceClose.
	Failed func(error)
	// Quiesced: the last event, exactly once.
	Quiesced func()
}

// Outcome is the state of a handoff as one worker tells the other.
type Outcome uint8

// The outcomes.
const (
	// OutcomeUnknown: the handoff is not known.
	OutcomeUnknown Outcome = 0
	// OutcomeActive: destination: restored and decoding. Source: held until this commit.
	OutcomeActive Outcome = 1
	// OutcomeReleased: ended before.
	OutcomeReleased Outcome = 2
)

// String returns the outcome's name.
func (o Outcome) String() string {
	switch o {
	case OutcomeActive:
		return "active"
	case OutcomeReleased:
		return "released"
	}
	return "unknown"
}

// Unit is one received unit. It has one owner at a time; see ReceiverEvents.Unit.
type Unit struct {
	// Header is the decoded header. Its fields beyond length and checksum are the host's to judge.
	Header state.UnitHeader
	// Payload is valid until Release. It must not be written to: on a same-host lane it is the source's memory.
	Payload []byte

	once    sync.Once
	release func(*Unit)
	raw     []byte // Payload as it came from the pool
	back    func() // gives shared memory back, or nil
}

// Release returns the buffer, for another unit or to be zeroed, and gives the bytes back to the sender as credit. It never
// blocks, may be called from any goroutine, also after the handoff ended, and a second call does nothing.
func (u *Unit) Release() {
	u.once.Do(func() {
		if u.release != nil {
			u.release(u)
		}
		u.Payload = nil
	})
}
