package wire

import (
	"github.com/tandem-llm/tandem/state"
)

// Endpoint is where a worker's data plane listens. It travels through the control plane, as JSON or field by field.
type Endpoint struct {
	// QUIC is the UDP host:port.
	QUIC string `json:"quic"`
	// TLS is the TCP host:port of the bulk lanes, or empty where they are disabled.
	TLS string `json:"tls,omitempty"`
	// Lanes is the largest number of TLS lanes that this worker accepts from one peer.
	Lanes int `json:"lanes,omitempty"`
}

// Node is one worker's data plane: listeners, connections to peers, and all handoffs. All methods are safe for
// concurrent use.
type Node struct {
	cfg Config
}

// Listen opens the data plane.
func Listen(cfg Config) (*Node, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Node{cfg: cfg}, nil
}

// Endpoint returns what peers need to dial this node.
func (n *Node) Endpoint() Endpoint { return Endpoint{} }

// Close ends every handoff, closes all connections and returns when no goroutine of the node runs any more. Handoffs get
// Failed(ErrClosed) and Quiesced before it returns; so it must not be called from an event.
func (n *Node) Close() error { return nil }

// Expect makes a ticket for a source that will push this handoff. b must name this worker and incarnation as the
// destination. The ticket dies with Revoke, Abort, Close, or b.Deadline after this call.
func (n *Node) Expect(b state.Binding, ev ReceiverEvents) (*Receiver, error) { return nil, ErrState }

// Push dials a reserved destination. It returns at once; Opened or Failed follows.
func (n *Node) Push(b state.Binding, to Endpoint, ticket []byte, ev SenderEvents) (*Sender, error) {
	return nil, ErrState
}

// Offer makes a ticket for a destination that will pull this handoff. b must name this worker and incarnation as the
// source. The ticket dies as in Expect.
func (n *Node) Offer(b state.Binding, ev SenderEvents) (*Sender, error) { return nil, ErrState }

// Pull dials a pinned source. It returns at once; Opened or Failed follows.
func (n *Node) Pull(b state.Binding, from Endpoint, ticket []byte, ev ReceiverEvents) (*Receiver, error) {
	return nil, ErrState
}
