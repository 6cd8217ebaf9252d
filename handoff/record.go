package handoff

import "time"

// Record is one application of a fact to a machine, as a live host wrote it
// down: enough to check later that the machine decides the same again.
type Record struct {
	Host    string        `json:"host,omitempty"`    // who ran the machine: worker and incarnation, or gateway
	Role    Role          `json:"role"`              // which machine
	Handoff ID            `json:"handoff,omitzero"`  // key of a Source or Destination
	Request string        `json:"request,omitempty"` // key of a Request; optional elsewhere
	Now     time.Duration `json:"now_ns"`            // the host's time
	Result  Result        `json:"result,omitempty"`  // unset when Err is set
	Err     string        `json:"error,omitempty"`   // text of the refusal
	State   string        `json:"state"`             // the machine's state afterwards

	SourceFact         *SourceFact         `json:"source_fact,omitempty"`
	SourceActions      []SourceAction      `json:"source_actions,omitempty"`
	DestinationFact    *DestinationFact    `json:"destination_fact,omitempty"`
	DestinationActions []DestinationAction `json:"destination_actions,omitempty"`
	RequestFact        *RequestFact        `json:"request_fact,omitempty"`
	RequestActions     []RequestAction     `json:"request_actions,omitempty"`
}
