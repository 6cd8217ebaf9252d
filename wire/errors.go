package wire

import (
	"strings"

	"github.com/tandem-llm/tandem/handoff"
)

// Code classifies an error of this package. Codes travel between peers and keep their numbers. A Code is itself an
// error, for errors.Is(err, wire.ErrTicket).
type Code uint16

// The codes. What to do next is said in each text.
const (
	// ErrConfig: the configuration or an argument is wrong.
	ErrConfig Code = 1
	// ErrClosed: this node is closed.
	ErrClosed Code = 2
	// ErrUnreachable: the peer's endpoint does not answer.
	ErrUnreachable Code = 3
	// ErrIdentity: the peer is not who it should be, or another CA signed its certificate.
	ErrIdentity Code = 4
	// ErrVersion: the peer speaks no protocol version that this build does.
	ErrVersion Code = 5
	// ErrStale: an incarnation differs: the peer, or this worker, was restarted since.
	ErrStale Code = 6
	// ErrTicket: the ticket is wrong for this handoff, or the handoff is not expected here.
	ErrTicket Code = 7
	// ErrTicketUsed: the ticket was redeemed already.
	ErrTicketUsed Code = 8
	// ErrTicketExpired: the ticket's time is over.
	ErrTicketExpired Code = 9
	// ErrTicketRevoked: the ticket was revoked.
	ErrTicketRevoked Code = 10
	// ErrRefused: the host on the other side refused the open.
	ErrRefused Code = 11
	// ErrCancelled: the other side's host ended the handoff; Detail is its reason.
	ErrCancelled Code = 12
	// ErrPeerLost: the connection to the peer ended.
	ErrPeerLost Code = 13
	// ErrFirstByte: the peer accepted and stayed silent.
	ErrFirstByte Code = 14
	// ErrProgress: the peer stopped sending, reading or granting credit.
	ErrProgress Code = 15
	// ErrLane: no bulk lane to the peer.
	ErrLane Code = 16
	// ErrProtocol: the peer broke the protocol.
	ErrProtocol Code = 17
	// ErrLimit: a unit, message or count is over a declared limit.
	ErrLimit Code = 18
	// ErrCredit: bytes came that no credit covers.
	ErrCredit Code = 19
	// ErrChecksum: a payload was damaged.
	ErrChecksum Code = 20
	// ErrForced: the host closed the handoff's transport by force.
	ErrForced Code = 21
	// ErrCommit: the commit was not answered in time; the source may have learnt of it otherwise.
	ErrCommit Code = 22
	// ErrState: the call does not fit what the handoff has done so far.
	ErrState Code = 23
	// ErrDuplicate: this handoff is already known here.
	ErrDuplicate Code = 24
	// ErrInternal: a failure of the peer that has no code of its own.
	ErrInternal Code = 25
	// ErrIdle: the connection was closed because nobody used it. An open that crosses with this is repeated on a new one.
	ErrIdle Code = 26
)

var codeText = map[Code]struct{ name, text string }{
	ErrConfig:        {"config", "configuration or argument not usable"},
	ErrClosed:        {"closed", "this worker is shutting down; retry on another"},
	ErrUnreachable:   {"unreachable", "peer does not answer; check that it runs and that its port is open for UDP and TCP"},
	ErrIdentity:      {"identity", "peer is not who it should be; give both workers certificates of the same CA"},
	ErrVersion:       {"version", "no common protocol version; run the same Tandem version on both workers"},
	ErrStale:         {"stale", "a worker was restarted since; start a new handoff"},
	ErrTicket:        {"ticket", "ticket does not fit an expected handoff; reserve again"},
	ErrTicketUsed:    {"ticket_used", "ticket was used already; reserve again"},
	ErrTicketExpired: {"ticket_expired", "ticket expired; reserve again"},
	ErrTicketRevoked: {"ticket_revoked", "ticket was revoked; reserve again"},
	ErrRefused:       {"refused", "peer refused the handoff"},
	ErrCancelled:     {"cancelled", "peer cancelled the handoff"},
	ErrPeerLost:      {"peer_lost", "connection to the peer ended; retry the handoff"},
	ErrFirstByte:     {"first_byte", "peer accepted and then stayed silent; retry with another worker"},
	ErrProgress:      {"progress", "peer stopped making progress; retry with another worker"},
	ErrLane:          {"lane", "no bulk lane to the peer; open its TCP port or use --lane quic"},
	ErrProtocol:      {"protocol", "peer broke the protocol; run the same Tandem version on both workers"},
	ErrLimit:         {"limit", "over a declared limit; set PageBytes and LargestUnit alike on both workers"},
	ErrCredit:        {"credit", "peer sent more than it was granted"},
	ErrChecksum:      {"checksum", "payload was damaged on the way; retry the handoff"},
	ErrForced:        {"forced", "transport was closed by force"},
	ErrCommit:        {"commit", "commit was not answered; rely on the gateway's copy"},
	ErrState:         {"state", "call does not fit the handoff's progress"},
	ErrDuplicate:     {"duplicate", "handoff is already known here; ids are never reused"},
	ErrInternal:      {"internal", "peer failed"},
	ErrIdle:          {"idle", "connection was closed unused; retry the handoff"},
}

// Name returns the code's short stable name, for metrics.
func (c Code) Name() string {
	if t, ok := codeText[c]; ok {
		return t.name
	}
	return "unknown"
}

// Error returns the code's text.
func (c Code) Error() string {
	if t, ok := codeText[c]; ok {
		return "wire: " + t.text
	}
	return "wire: unknown failure"
}

// Error is any failure of this package: what, with whom and why. It never holds payload, tickets or content.
type Error struct {
	// Code classifies the failure.
	Code Code
	// Handoff is the handoff concerned, or zero.
	Handoff handoff.ID
	// Peer is the other worker's name, or empty.
	Peer string
	// Detail says more, or is empty. From a peer it is cut to printable ASCII.
	Detail string
	// Cause is the underlying error, or nil.
	Cause error
}

// Error returns "wire: " and everything known.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Code.Error())
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	if e.Peer != "" {
		b.WriteString(" (peer " + e.Peer + ")")
	}
	if e.Cause != nil {
		b.WriteString(": " + e.Cause.Error())
	}
	return b.String()
}

// Unwrap returns the code and the cause, for errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Code}
	}
	return []error{e.Code, e.Cause}
}

func configError(field, detail string) error {
	return &Error{Code: ErrConfig, Detail: field + " " + detail}
}
