package mesh

import "errors"

// Kinds of failure, for errors.Is. The error value itself is an *Error and says what to do next.
var (
	// ErrExpired: a certificate's validity period has ended.
	ErrExpired = errors.New("certificate expired")
	// ErrNotYetValid: a certificate's validity period has not begun; usually a wrong clock.
	ErrNotYetValid = errors.New("certificate not valid yet")
	// ErrOtherCA: a certificate was not issued by this mesh's CA.
	ErrOtherCA = errors.New("certificate of another CA")
	// ErrWrongRole: a genuine peer whose role may not be here.
	ErrWrongRole = errors.New("wrong role")
	// ErrWrongName: a genuine peer of the right role with another name than the one dialled.
	ErrWrongName = errors.New("wrong name")
	// ErrNoCertificate: the peer presented no certificate.
	ErrNoCertificate = errors.New("no certificate")
	// ErrNotMesh: a certificate of the CA without a usable mesh identity.
	ErrNotMesh = errors.New("not a mesh certificate")
	// ErrProtocol: TLS version or application protocol (ALPN) not the one this endpoint speaks.
	ErrProtocol = errors.New("wrong protocol")
	// ErrBadInput: a name, role, host or lifetime that no certificate may have.
	ErrBadInput = errors.New("bad input")
	// ErrFiles: key or certificate files are missing, unreadable, malformed, or do not belong together.
	ErrFiles = errors.New("unusable mesh files")
)

// next says what a person does about each kind.
var next = map[error]string{
	ErrExpired:       "issue a new certificate from the mesh CA (tandem up does so at start) and check both clocks",
	ErrNotYetValid:   "check the clocks of both machines",
	ErrOtherCA:       "give every process certificates of the same CA directory",
	ErrWrongRole:     "connect to the address of the right process, or issue a certificate with the right role",
	ErrWrongName:     "another process listens at this address: check the address, or wait for the new registration",
	ErrNoCertificate: "give the peer a mesh certificate; anonymous connections are never accepted",
	ErrNotMesh:       "issue the certificate with this mesh's CA",
	ErrProtocol:      "run the same Tandem release on both sides and check the port",
	ErrBadInput:      "correct the value and try again",
	ErrFiles:         "check the directory, or remove it to have new files made",
}

// Error is every error of this package: what was wrong, and the next step. errors.Is matches Kind; Peer, where known, is
// who the other side proved to be.
type Error struct {
	Kind   error  // one of the Err values of this package
	Detail string // what was found and what was expected
	Peer   Peer   // zero where the peer proved nothing
	Cause  error  // may be nil
}

// Error implements error.
func (e *Error) Error() string {
	s := "mesh: " + e.Kind.Error()
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s + "; " + next[e.Kind]
}

// Unwrap gives errors.Is the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}
