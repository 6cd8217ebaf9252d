package telemetry

import (
	"time"

	"github.com/tandem-llm/tandem/handoff"
)

// EventKind names what an event tells.
type EventKind string

const (
	// Transition is one fact applied to a handoff machine; Record holds it.
	Transition EventKind = "transition"

	// PageExported and PageImported: one page left or entered the engine. First and
	// End are its token range, Bytes its payload.
	PageExported EventKind = "page_exported"
	PageImported EventKind = "page_imported"
	// SnapshotExported and SnapshotImported: the state that pages do not hold left
	// or entered the engine. Bytes is its payload.
	SnapshotExported EventKind = "snapshot_exported"
	SnapshotImported EventKind = "snapshot_imported"
	// ChunkComputed: the engine consumed the prompt tokens [First, End).
	ChunkComputed EventKind = "chunk_computed"
	// CapacityChanged: a worker's memory is used in another way: Cells.
	CapacityChanged EventKind = "capacity"
	// StreamDone: a stream of a handoff has ended. Bytes is what it carried, Took
	// its time on the wire, Detail the lane.
	StreamDone EventKind = "stream_done"

	// WorkerSeen and WorkerLost: the gateway's registry gained or lost Worker.
	WorkerSeen EventKind = "worker_seen"
	WorkerLost EventKind = "worker_lost"
	// WorkerHolds: Worker, which has just joined, still holds End handoffs for an
	// earlier life of this gateway, and is about to end them.
	WorkerHolds EventKind = "worker_holds"
	// GatewaySeen and GatewayLost: a worker heard of Worker, a gateway, or gave it
	// up.
	GatewaySeen EventKind = "gateway_seen"
	GatewayLost EventKind = "gateway_lost"
	// BusUp and BusDown: the connection to the bus came or went.
	BusUp   EventKind = "bus_up"
	BusDown EventKind = "bus_down"
)

// Event is one line of the lifecycle event stream. It carries ids, counts and times, never prompt
// text, token ids, state or digests derived from them.
type Event struct {
	Seq     uint64        `json:"seq"`    // from 1, without gaps in one process
	Now     time.Duration `json:"now_ns"` // the process's own time
	Process string        `json:"process"`
	Kind    EventKind     `json:"kind"`

	Record *handoff.Record `json:"record,omitempty"` // of a Transition; not changed any more

	Handoff handoff.ID    `json:"handoff,omitzero"`
	Request string        `json:"request,omitempty"`
	Worker  string        `json:"worker,omitempty"` // the other process
	First   int           `json:"first,omitempty"`  // tokens
	End     int           `json:"end,omitempty"`    // tokens
	Bytes   int64         `json:"bytes,omitempty"`
	Took    time.Duration `json:"took_ns,omitempty"`
	Detail  string        `json:"detail,omitempty"` // constant text: a lane, a reason
	Cells   *Capacity     `json:"cells,omitempty"`  // not changed any more
}
