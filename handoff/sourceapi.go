package handoff

import "time"

// SourceFact is one fact for a Source. Only the fields that the Kind's comment
// names are read; the zero values of Part and Reader are right for the plain
// case of one part and one reader. It never carries content.
type SourceFact struct {
	Kind         FactKind      `json:"kind"`
	Policy       Policy        `json:"policy,omitempty"`
	Part         uint8         `json:"part,omitempty"`          // source part, from 0
	Reader       uint8         `json:"reader,omitempty"`        // reader, from 0; All where allowed
	Parts        uint8         `json:"parts,omitempty"`         // 1..MaxParts
	Readers      uint8         `json:"readers,omitempty"`       // 1..MaxReaders
	Reason       Reason        `json:"reason,omitempty"`        // why cancelled
	Finish       Finish        `json:"finish,omitempty"`        // how the completion ended
	Never        bool          `json:"never,omitempty"`         // will fail again anywhere: do not retry
	PromptTokens int           `json:"prompt_tokens,omitempty"` // tokens to compute, forced ones included
	MaxTokens    int           `json:"max_tokens,omitempty"`    // completion tokens still allowed; 0 = no limit
	SkipTokens   int           `json:"skip_tokens,omitempty"`   // leading tokens the destination already holds
	Blocks       int           `json:"blocks,omitempty"`        // pinned allocation units
	Seq          uint64        `json:"seq,omitempty"`           // lease renewal number
	For          time.Duration `json:"for_ns,omitempty"`        // lease length from now
	Deadline     time.Duration `json:"deadline_ns,omitempty"`   // host time at which the whole handoff ends
	Quarantine   time.Duration `json:"quarantine_ns,omitempty"` // how long an aborted stream may take to quiesce; 0 = 5 s
	Incarnation  uint64        `json:"incarnation,omitempty"`   // of the peer; 0 = not known
	Reuse        ID            `json:"reuse,omitzero"`          // pinned handoff to take over
}

// SourceAction is one action of a Source; see ActionKind for what to do with it.
type SourceAction struct {
	Kind       ActionKind    `json:"kind"`
	Part       uint8         `json:"part,omitempty"`
	Reader     uint8         `json:"reader,omitempty"`
	Report     Report        `json:"report,omitempty"`
	Outcome    Outcome       `json:"outcome,omitempty"`
	Cause      FactKind      `json:"cause,omitempty"` // the fact that ended it
	Reason     Reason        `json:"reason,omitempty"`
	Finish     Finish        `json:"finish,omitempty"`
	Never      bool          `json:"never,omitempty"`
	Force      bool          `json:"force,omitempty"`
	SkipTokens int           `json:"skip_tokens,omitempty"`
	At         time.Duration `json:"at_ns,omitempty"`
	Reuse      ID            `json:"reuse,omitzero"`
}

// SourceState is the state of a Source.
type SourceState uint8

// States of a Source, in the order in which they can be left.
const (
	SourceNotStarted     SourceState = iota // zero value: nothing known
	SourceComputing                         // prompt queued or being computed (Disabled: until the end)
	SourcePinned                            // computed, pinned under the lease, not all sent
	SourceAwaitingReader                    // all sent; only the readers' word is missing
	SourceDraining                          // ended; memory in quarantine until steps and streams are done
	SourceReleased                          // terminal
	sourceStates
)

var sourceStateNames = []string{"NotStarted", "Computing", "Pinned", "AwaitingReader", "Draining", "Released"}

// String returns the stable name.
func (s SourceState) String() string { return nameOf("source state", sourceStateNames, s) }
