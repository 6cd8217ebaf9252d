package handoff

import "time"

// DestinationFact is one fact for a Destination. Only the fields that the Kind's
// comment names are read. It never carries content.
type DestinationFact struct {
	Kind         FactKind      `json:"kind"`
	Policy       Policy        `json:"policy,omitempty"`
	Part         uint8         `json:"part,omitempty"`          // source part, from 0; All where allowed
	Parts        uint8         `json:"parts,omitempty"`         // 1..MaxParts
	Reason       Reason        `json:"reason,omitempty"`        // why cancelled
	Finish       Finish        `json:"finish,omitempty"`        // how the completion ended
	Never        bool          `json:"never,omitempty"`         // will be refused again: do not retry here
	Stepping     bool          `json:"stepping,omitempty"`      // a step that reads the sequence is running at this instant
	PromptTokens int           `json:"prompt_tokens,omitempty"` // tokens whose state will arrive
	Headroom     int           `json:"headroom,omitempty"`      // completion tokens to keep room for
	SkipTokens   int           `json:"skip_tokens,omitempty"`   // leading tokens already here and locked
	Bytes        uint64        `json:"bytes,omitempty"`         // to receive after prefix reuse and page rounding
	Deadline     time.Duration `json:"deadline_ns,omitempty"`   // host time at which an unfinished handoff ends
	Quarantine   time.Duration `json:"quarantine_ns,omitempty"` // how long an aborted stream may take to quiesce; 0 = 5 s
	Incarnation  uint64        `json:"incarnation,omitempty"`   // of the source; 0 = not known
}

// DestinationAction is one action of a Destination; see ActionKind for what to
// do with it.
type DestinationAction struct {
	Kind         ActionKind    `json:"kind"`
	Part         uint8         `json:"part,omitempty"`
	Report       Report        `json:"report,omitempty"`
	Outcome      Outcome       `json:"outcome,omitempty"`
	Cause        FactKind      `json:"cause,omitempty"` // the fact that ended it
	Reason       Reason        `json:"reason,omitempty"`
	Finish       Finish        `json:"finish,omitempty"`
	Never        bool          `json:"never,omitempty"`
	Force        bool          `json:"force,omitempty"`
	PromptTokens int           `json:"prompt_tokens,omitempty"`
	Headroom     int           `json:"headroom,omitempty"`
	SkipTokens   int           `json:"skip_tokens,omitempty"`
	Bytes        uint64        `json:"bytes,omitempty"`
	At           time.Duration `json:"at_ns,omitempty"`
	Deadline     time.Duration `json:"deadline_ns,omitempty"`
}

// DestinationState is the state of a Destination.
type DestinationState uint8

// States of a Destination, in the order in which they can be left.
const (
	DestinationNotRouted DestinationState = iota // zero value: nothing known
	DestinationReserving                         // queued for slot, blocks and headroom
	DestinationReserved                          // reservation held, no stream accepted
	DestinationReceiving                         // at least one stream accepted, or state being activated
	DestinationActive                            // whole and valid: the sequence may be stepped
	DestinationDraining                          // ended; memory in quarantine until streams are done
	DestinationReleased                          // terminal
	destinationStates
)

var destinationStateNames = []string{"NotRouted", "Reserving", "Reserved", "Receiving", "Active", "Draining", "Released"}

// String returns the stable name.
func (s DestinationState) String() string {
	return nameOf("destination state", destinationStateNames, s)
}
