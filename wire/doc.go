// Package wire is the data plane: it moves the state of one sequence from the worker that computed a prompt to the
// worker that will decode it, and carries the commit back.
//
// # Connections
//
// Two workers share one QUIC connection (ALPN "tandem/1"), whoever dialled it. Every handoff has a bidirectional stream
// on it for control: open, credit, manifest, commit, acknowledgement, cancel. Bulk bytes go over a lane: by default
// through memory that two processes of one host share, else over one of a few warm TLS 1.3 connections to the same peer,
// or over a unidirectional stream of the QUIC connection itself. Lanes are bound to the QUIC connection by an exported key.
// Peers prove their names with package mesh; every connection is mutually authenticated.
//
// # One handoff
//
// Either side may dial. The destination that reserved memory waits with [Node.Expect] and the source comes with
// [Node.Push]; or the source that pinned memory waits with [Node.Offer] and the destination comes with [Node.Pull].
// The waiting side has a one-time ticket for the other, which travels over the control plane. Afterwards there is a
// [Sender] and a [Receiver], the same for both directions:
//
//	snd: Opened → Room → Buffer/Send … Finish(manifest) → Sent → Committed → Quiesced
//	rcv: Opened → Grant → Unit … Manifest → Commit(outcome) → Committed → Quiesced
//
// Nothing is written before [Receiver.Grant]. [Sender.Send] never blocks: a sender without room says so in
// [Sender.Buffer] and calls SenderEvents.Room when that changes. A unit is read straight into the buffer that
// ReceiverEvents.Unit hands over; its bytes count against the window until [Unit.Release].
//
// # Ending
//
// Abort, Revoke, a lost peer, a deadline or ForceClose end a handoff early. However it ends, Quiesced is called exactly
// once, as the last event: after it wire neither reads nor writes any buffer of that handoff. Failed comes before it
// when the cause was not local. Units that the host still holds stay the host's until it releases them.
//
// A destination that has everything (event Manifest) does not fail when its source goes away or lets go: it learns by the
// answer to its commit, which is repeated over new streams and connections. A source that sent everything fails when
// no commit comes within Timeouts.Commit after its control stream was lost; as long as the peer is alive it waits.
//
// # Memory
//
// Either side holds at most max(4 × Config.PageBytes, Config.Window) payload bytes of one handoff, or one single unit
// where that is larger, and at most Config.Total over all handoffs in each direction. Manifests come on
// top. Buffers for sources are zeroed before reuse, and everything is zero soon after the last handoff ended.
//
// # Events
//
// Events of one handoff come one at a time, in order, on goroutines of this package, without locks held: they may call
// any method of the package except Node.Close, but must not block: the handoff's next event waits for them.
//
// docs/wire.md has the protocol, the lanes' measured costs, and tuning advice.
package wire
