package wire

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"
)

// Stats is what one side measured of one handoff.
type Stats struct {
	// Lane is "tls", "quic" or "local", or empty before the first byte.
	Lane string
	// Peer is the other worker.
	Peer string
	// Units and Bytes count whole units and all payload bytes, written or read.
	Units uint32
	Bytes int64
	// Open is the time from dialling to the open's answer, on the side that dials. FirstByte is the time from the grant
	// to the first unit.
	Open, FirstByte time.Duration
	// Wire is the time during which a unit was under way; Bytes/Wire is the rate that the handoff got.
	Wire time.Duration
	// RTT is the control connection's smoothed round trip.
	RTT time.Duration
	// Held is the number of payload bytes in buffers of this handoff now, each unit counted as 4 KiB at least, and Peak its
	// largest value so far.
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
	// Sent and Received count payload bytes of whole units.
	Sent, Received int64
	// Lanes is the number of TLS and same-host lanes that are up; 0 means QUIC streams.
	Lanes int
	// Handoffs is the number of live handoffs.
	Handoffs int
}

// NodeStats is a snapshot of a node for metrics.
type NodeStats struct {
	// Links has one entry per connection, ordered by peer.
	Links []LinkStats
	// Sending and Receiving count payload bytes in buffers of live handoffs; Granted is what receivers took from
	// Config.Total.
	Sending, Receiving, Granted int64
	// Free is the size of the zeroed buffers kept for reuse.
	Free int64
	// Handoffs is the number of live handoffs, expected ones included; Tickets that of live tickets.
	Handoffs, Tickets int
	// Failed counts failed handoffs by code since the start.
	Failed map[Code]int64
}

// Stats returns a snapshot.
func (n *Node) Stats() NodeStats {
	n.mu.Lock()
	st := NodeStats{Handoffs: len(n.flows), Failed: maps.Clone(n.failed)}
	flows := slices.Collect(maps.Values(n.flows))
	sessions := slices.Collect(maps.Keys(n.sessions))
	n.mu.Unlock()
	for _, x := range flows {
		x.mu.Lock()
		if x.ticket != nil && !x.opened {
			st.Tickets++
		}
		if !x.sends {
			st.Receiving += x.stats.Held
		}
		x.mu.Unlock()
	}
	for _, s := range sessions {
		st.Links = append(st.Links, s.snapshot())
	}
	slices.SortFunc(st.Links, func(a, b LinkStats) int { return strings.Compare(a.Peer, b.Peer) })
	st.Sending, st.Granted, st.Free = n.quota.inUse(), n.budget.inUse(), n.pool.kept()
	return st
}

// Ping measures one round trip of a control message of size bytes to a connected peer; ErrUnreachable where there is no
// connection.
func (n *Node) Ping(ctx context.Context, worker string, size int) (time.Duration, error) {
	n.mu.Lock()
	var s *session
	for c := range n.sessions {
		if c.peer.Worker == worker {
			s = c
		}
	}
	n.mu.Unlock()
	if s == nil {
		return 0, &Error{Code: ErrUnreachable, Peer: worker, Detail: "not connected"}
	}
	return s.ping(ctx, size)
}
