package worker

import (
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/sched"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/wire"
)

// task is one handoff, or one colocated request, on this worker: its machine
// and what the machine's actions have taken so far. Only the owner goroutine
// touches it.
type task struct {
	id      handoff.ID
	request string
	tenant  string
	side    side
	gateway gatewayID
	arrived time.Duration // when the command came; the owner may have been computing

	src handoff.Source      // side source
	dst handoff.Destination // side destination
	// wakes numbers the machine's timer: an alarm of an earlier number is stale.
	wakes uint64

	ref      sched.Ref // what the scheduler calls it; -1: it does not know it, or not any more
	slot     int32     // of the engine; -1 while the task has no memory
	touched  bool      // a stream can reach its memory, or will
	prompt   int       // tokens to compute or to receive before the first new one
	most     int       // tokens that may follow them here, the first included
	computed int       // positions of the sequence that are in the engine
	stepped  uint64    // tokens that this worker computed for the task

	// The first skip tokens of the prompt are on the destination already, and their pages
	// do not travel.
	skip   int
	tokens []int32       // of a reservation, if it named them, until the state has come; secret
	imp    engine.Import // the uncommitted session of a reservation; nil before and after

	gen      *generation
	chain    *kv.Chain // names the blocks of history; nil without a prefix cache
	keys     []kv.Key
	named    int    // tokens of history that are in chain
	parts    int    // tokens in which an earlier prompt was the same; 0: unknown
	prompted bool   // the token after the prompt was sampled
	finish   finish // how the answer ended
	usage    state.Usage

	binding  state.Binding
	order    handoff.Policy
	endpoint wire.Endpoint // of the side that waits for the stream
	ticket   []byte        // opens the stream; a secret
	snd      *sending
	rcv      *receiving

	out outbox
	m   measure
}

// sending is a source's end of a stream.
type sending struct {
	snd    *wire.Sender // nil when dialling failed at once
	seal   *seal
	hasher *state.Digester // of the goroutine that hashes while units travel
	sent   int             // prompt tokens whose pages were queued
	final  bool            // the machine asked for the snapshot and the manifest
	done   bool            // snapshot and manifest are queued, or will be without the owner
	ended  bool            // the machine aborted it; nothing more is exported
	first  token
}

// receiving is a destination's end of a stream.
type receiving struct {
	rcv      *wire.Receiver
	asm      *state.Assembly
	digester *state.Digester
	manifest *state.Manifest
	ended    bool // the machine aborted it; nothing more is imported
	quiesced bool
}

// gatewayID is one life of a gateway.
type gatewayID struct {
	name        string
	incarnation uint64
}

// telemetrySide names the task's side in metrics.
func (t *task) telemetrySide() telemetry.Side {
	switch {
	case t.side == sideDestination:
		return telemetry.Destination
	case t.binding.Destination.Worker == "":
		return telemetry.Local
	}
	return telemetry.Source
}
