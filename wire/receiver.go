package wire

// Receiver is a destination's end of one handoff. All methods are safe for concurrent use and never block.
type Receiver struct{}

// Ticket returns the expectation's 32-byte ticket for the control plane, or nil in pull mode. It is a secret.
func (r *Receiver) Ticket() []byte { return nil }

// Grant starts credit: the source may write from now on. It may be called before Opened; a second call does nothing.
func (r *Receiver) Grant() {}

// Commit tells the source that the destination took the handoff over, and repeats it until the source answers (event
// Committed) or Timeouts.Commit is over (event Failed with ErrCommit). It is an error before Manifest. A second call does
// nothing.
func (r *Receiver) Commit(o Outcome) error { return ErrState }

// Abort ends the handoff and tells the peer why (short, no content). Quiesced follows, Failed does not. A second call
// does nothing.
func (r *Receiver) Abort(reason string) {}

// Revoke kills the ticket of an expectation that nobody opened yet, which ends the handoff. Otherwise it does nothing.
func (r *Receiver) Revoke() {}

// ForceClose ends the handoff like Abort without waiting for anything. Quiesced follows at once.
func (r *Receiver) ForceClose() {}

// Stats returns what was measured so far.
func (r *Receiver) Stats() Stats { return Stats{} }
