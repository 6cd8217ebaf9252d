package wire

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"

	"github.com/tandem-llm/tandem/state"
)

// ticketSize and proofSize are in bytes.
const (
	ticketSize = 32
	proofSize  = sha256.Size
)

// newTicket returns fresh random bytes.
func newTicket() []byte {
	t := make([]byte, ticketSize)
	rand.Read(t) // never fails, it ends the process instead
	return t
}

// proofOf shows possession of a ticket for exactly this binding and direction. Neither travels: equal proofs mean equal
// tickets and bindings, field by field.
func proofOf(ticket []byte, b state.Binding, openerSends bool) [proofSize]byte {
	m := hmac.New(sha256.New, ticket)
	m.Write([]byte{'t', 'a', 'n', 'd', 'e', 'm', ' ', 'o', 'p', 'e', 'n', b2u(openerSends)})
	m.Write(b.Append(nil))
	var p [proofSize]byte
	m.Sum(p[:0])
	return p
}

// sameProof compares in constant time.
func sameProof(a, b [proofSize]byte) bool { return hmac.Equal(a[:], b[:]) }

// laneProof binds a bulk connection to a session: key is exported from the session's handshake, exported from the
// lane's own, so that a proof is of no use on any other connection.
func laneProof(key, exported []byte) [proofSize]byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte("tandem lane"))
	m.Write(exported)
	var p [proofSize]byte
	m.Sum(p[:0])
	return p
}
