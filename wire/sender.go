package wire

import "github.com/tandem-llm/tandem/state"

// Sender is a source's end of one handoff. All methods are safe for concurrent use and never block.
type Sender struct{}

// Ticket returns the offer's 32-byte ticket for the control plane, or nil in push mode. It is a secret.
func (s *Sender) Ticket() []byte { return nil }

// Buffer returns a zeroed buffer of n bytes for one unit's payload, or false when the outstanding bound is reached, the
// destination has not granted credit yet, or the handoff ended; Room tells when to ask again. The caller fills it and
// passes it to Send, or to Discard.
func (s *Sender) Buffer(n int) (*Buffer, bool) { return nil, false }

// Send takes buf over and queues it as the next unit. The header must be complete: length equal to buf's, checksum,
// index. An error means that buf was discarded: ErrState after Finish or the end, ErrLimit over LargestUnit.
func (s *Sender) Send(h state.UnitHeader, buf *Buffer) error { return ErrState }

// Finish queues the manifest after every unit sent so far; no Send may follow. The sender keeps the slice.
func (s *Sender) Finish(manifest []byte) error { return ErrState }

// Abort ends the handoff and tells the peer why (short, no content). Quiesced follows, Failed does not. A second call
// does nothing.
func (s *Sender) Abort(reason string) {}

// Revoke kills the ticket of an offer that nobody opened yet, which ends the handoff. Otherwise it does nothing.
func (s *Sender) Revoke() {}

// ForceClose ends the handoff like Abort, but does not wait for the peer: it closes the lane under a write that does not
// come back, which also fails other handoffs on that lane. Quiesced follows at once.
func (s *Sender) ForceClose() {}

// Stats returns what was measured so far.
func (s *Sender) Stats() Stats { return Stats{} }

// Buffer is one payload buffer on its way from the engine to the wire.
type Buffer struct {
	// Bytes has the requested length. Send may be given a shorter one: reslice Bytes.
	Bytes []byte
}

// Discard zeroes and returns a buffer that will not be sent.
func (b *Buffer) Discard() {}
