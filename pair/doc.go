// Package pair moves one sequence from an engine in this process to an engine in a child process,
// over the real data plane and under the caller's control, cell by cell.
//
// It is what `tandem verify` and `tandem bench handoff` stand on. State leaves and enters exactly as
// between two workers: pages and snapshot are exported into buffers of package wire, sealed by a
// state.Sealer, sent over a TLS or QUIC lane with mutually authenticated identities of package mesh,
// hashed on the stream's goroutine while the engine's owner imports the unit before, checked by a
// state.Assembly against the manifest, committed, and acknowledged. What workers add around it
// (admission, registration, HTTP) is absent.
//
// # The two processes
//
// The parent calls Start, which runs a child (this same executable with a hidden subcommand, or what
// Options says) whose main calls Serve. They speak over the child's standard input and output:
// requests and replies, one at a time, each a 4-byte big-endian length and that much JSON, at most
// MaxMessage. Every request has a deadline; a child that misses it is killed. A child ends when its
// standard input does, whatever it is computing, so that no parent leaves one behind. A child that
// ended gives ErrPeerGone.
//
// # One handoff
//
//	p, err := pair.Start(ctx, pair.Options{})
//	info, err := p.Open(ctx, pair.EngineOptions{…}, pair.Transport{…})
//	err = p.Place(ctx, pair.Layout{Padding: 64})       // what else lies in the child's engine
//	moved, err := p.Send(ctx, pair.Sending{Export: x, Lane: wire.LaneTLS})
//	steps, err := p.Continue(ctx, 32)
//	err = p.Clear(ctx)
//
// By default the order is destination-first: the child makes a ticket, and this side pushes. With
// Sending.Pull it is source-first: this side makes one, and the child comes for the state.
//
// Host does the same steps in this process, for the local continuation and for control runs.
//
// Errors of the child arrive as *RemoteError, which matches the same sentinels with errors.Is as the
// error did over there. A handoff that fails gives a *HandoffError with what each side says.
//
// Damage changes what is sent at a chosen place. It exists so that refusals can be shown.
package pair
