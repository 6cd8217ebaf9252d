package wire

import "time"

// Stats is what one side measured of one handoff.
type Stats struct {
	// Lane is "tls", "quic", or empty before the first byte.
	Lane string
	// Peer is the other worker.
	Peer string
	// Units and Bytes count whole units and all payload bytes, written or read.
	Units uint32
	Bytes int64
	// Open is the time from the open to its answer; FirstByte from the grant to the first payload byte.
	Open, FirstByte time.Duration
	// Wire is the time during which at least one unit was under way; Bytes/Wire is the rate that the handoff got.
	Wire time.Duration
	// RTT is the control connection's smoothed round trip.
	RTT time.Duration
	// Held is the number of payload bytes in buffers of this handoff now, and Peak its largest value so far.
	Held, Peak int64
}

// LinkStats is what a node knows of its connection to one peer.
type LinkStats struct {
	// Peer and Incarnation say who.
	Peer        string
	Incarnation uint64
	// RTT is the smoothed round trip of the control connection, 0 before the first sample.
	RTT time.Duration
	// SendRate and ReceiveRate estimate the bandwidth that one handoff gets, in bytes per second; 0 before a first
	// measurement.
	SendRate, ReceiveRate float64
	// Sent and Received count payload bytes.
	Sent, Received int64
	// Lanes is the number of TLS lanes that are up; 0 means QUIC streams.
	Lanes int
	// Handoffs is the number of live handoffs.
	Handoffs int
}

// NodeStats is a snapshot of a node for metrics.
type NodeStats struct {
	// Links has one entry per connected peer.
	Links []LinkStats
	// Sending and Receiving count payload bytes in buffers of live handoffs; Granted what receivers took from
	// Config.Total.
	Sending, Receiving, Granted int64
	// Free is the size of the zeroed buffers kept for reuse.
	Free int64
	// Handoffs is the number of live handoffs, expected ones included; Tickets the number of live tickets.
	Handoffs, Tickets int
	// Failed counts handoffs that ended by code.
	Failed map[Code]int64
}

// Stats returns a snapshot.
func (n *Node) Stats() NodeStats { return NodeStats{} }
