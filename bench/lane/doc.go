// Package lane measures the data plane: what a handoff's lane moves, against a
// bare connection of the same kind that moves the same bytes without a protocol.
//
// Two processes, as in a fleet: [Run] is the source, and starts this same program
// again as the destination, which runs [Child]. For each lane the sides take turns:
// one handoff of a number of pages through package wire, from the grant until the
// manifest has arrived, and the same pages over a warm bare connection. Both
// processes count their own CPU time. The last figure is the round trip of a small
// control message on the idle pair.
package lane
