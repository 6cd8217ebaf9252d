package mesh

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// Identity is one process's certificate, key and trust anchor. It is immutable and safe for concurrent use; the Config
// values that it returns belong to the caller.
type Identity struct {
	peer  Peer
	ca    *x509.Certificate
	roots *x509.CertPool
	leaf  *x509.Certificate
	cert  tls.Certificate
	clock func() time.Time
}

// newIdentity checks that the pieces belong together. Validity in time is checked at each connection instead, so that an
// expired identity can still be loaded, named and replaced.
func newIdentity(ca, leaf *x509.Certificate, key ed25519.PrivateKey, clock func() time.Time) (*Identity, error) {
	p, err := peerOfCert(leaf)
	if err != nil {
		return nil, err
	}
	if err := leaf.CheckSignatureFrom(ca); err != nil {
		return nil, &Error{Kind: ErrOtherCA, Detail: "the certificate was not issued by the CA beside it", Peer: p, Cause: err}
	}
	if pub, ok := leaf.PublicKey.(ed25519.PublicKey); !ok || !pub.Equal(key.Public()) {
		return nil, &Error{Kind: ErrFiles, Detail: "the key does not belong to the certificate", Peer: p}
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	return &Identity{
		peer: p, ca: ca, roots: roots, leaf: leaf, clock: orNow(clock),
		cert: tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf},
	}, nil
}

// Peer returns who this identity is.
func (id *Identity) Peer() Peer { return id.peer }

// Role returns the identity's role.
func (id *Identity) Role() Role { return id.peer.Role }

// Name returns the identity's name, unique within its role.
func (id *Identity) Name() string { return id.peer.Name }

// Expires returns the end of the certificate's validity.
func (id *Identity) Expires() time.Time { return id.leaf.NotAfter }

// Allow returns an accept function for ServerTLS that admits any name of the given roles.
func Allow(roles ...Role) func(Peer) error {
	return func(p Peer) error {
		for _, r := range roles {
			if p.Role == r {
				return nil
			}
		}
		return &Error{Kind: ErrWrongRole, Detail: fmt.Sprintf("peer %s, allowed roles %v", p, roles), Peer: p}
	}
}

// ServerTLS returns the configuration of a listener: TLS 1.3 only, client certificate required, chain, validity and
// usage verified, then accept (nil: any member of the mesh) asked about the verified peer. Its error ends the handshake.
// With alpn given, the client must offer one of its protocols, as QUIC demands anyway.
//
// In TLS 1.3 a client learns of a refusal with its first read, not from its handshake.
func (id *Identity) ServerTLS(alpn []string, accept func(Peer) error) *tls.Config {
	c := id.config(alpn)
	// Request, not require: VerifyConnection runs on every handshake, with a certificate or without, and refuses with a
	// typed error. No ClientCAs: as a hint to clients it would make those of another CA send nothing, and hide the cause.
	c.ClientAuth = tls.RequestClientCert
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		p, err := id.verify(cs, alpn, x509.ExtKeyUsageClientAuth)
		if err != nil {
			return err
		}
		if accept == nil {
			return nil
		}
		return accept(p)
	}
	return c
}

// ClientTLS returns the configuration of a dialler: TLS 1.3 only, own certificate presented, the server's chain,
// validity, usage, role and name verified to be want's. An empty want.Name accepts any name of that role (for the bus,
// whose servers are interchangeable). Host names are not verified, see the package comment.
func (id *Identity) ClientTLS(alpn []string, want Peer) *tls.Config {
	c := id.config(alpn)
	// The standard verification is replaced, not skipped: it insists on host names, VerifyConnection on role and name.
	c.InsecureSkipVerify = true
	c.RootCAs = id.roots
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		p, err := id.verify(cs, alpn, x509.ExtKeyUsageServerAuth)
		if err != nil {
			return err
		}
		switch {
		case p.Role != want.Role:
			return &Error{Kind: ErrWrongRole, Detail: fmt.Sprintf("connected to %s, wanted %s", p, want), Peer: p}
		case want.Name != "" && p.Name != want.Name:
			return &Error{Kind: ErrWrongName, Detail: fmt.Sprintf("connected to %s, wanted %s", p, want), Peer: p}
		}
		return nil
	}
	return c
}

func (id *Identity) config(alpn []string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		MaxVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{id.cert},
		NextProtos:             append([]string(nil), alpn...),
		Time:                   id.clock,
		SessionTicketsDisabled: true, // every connection proves its certificate anew
	}
}

// verify checks one established handshake and returns who the peer is.
func (id *Identity) verify(cs tls.ConnectionState, alpn []string, usage x509.ExtKeyUsage) (Peer, error) {
	if cs.Version != tls.VersionTLS13 {
		return Peer{}, &Error{Kind: ErrProtocol, Detail: "the connection is not TLS 1.3"}
	}
	if len(alpn) > 0 && cs.NegotiatedProtocol == "" {
		return Peer{}, &Error{Kind: ErrProtocol, Detail: fmt.Sprintf("the peer speaks none of %q", alpn)}
	}
	if len(cs.PeerCertificates) == 0 {
		return Peer{}, &Error{Kind: ErrNoCertificate, Detail: "the peer sent no certificate"}
	}
	return id.verifyLeaf(cs.PeerCertificates[0], usage)
}

func (id *Identity) verifyLeaf(leaf *x509.Certificate, usage x509.ExtKeyUsage) (Peer, error) {
	now := id.clock()
	// No intermediates: the CA's path length is zero.
	_, err := leaf.Verify(x509.VerifyOptions{Roots: id.roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return Peer{}, id.classify(leaf, now, err)
	}
	return peerOfCert(leaf)
}

// Trust says why the two sides of a connection that needs no TLS, because both are in this process, would
// refuse each other's certificates over one, with id as the client; nil: they would not. The error is an *Error.
func (id *Identity) Trust(server *Identity) error {
	if _, err := id.verifyLeaf(server.leaf, x509.ExtKeyUsageServerAuth); err != nil {
		return err
	}
	_, err := server.verifyLeaf(id.leaf, x509.ExtKeyUsageClientAuth)
	return err
}

// classify names the cause of a failed chain verification. The issuer is looked at first: dates of a stranger's
// certificate are of no interest.
func (id *Identity) classify(leaf *x509.Certificate, now time.Time, err error) error {
	if leaf.CheckSignatureFrom(id.ca) != nil {
		return &Error{Kind: ErrOtherCA, Detail: "the peer's certificate was not issued by this mesh's CA"}
	}
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		p, _ := peerOfCert(leaf) // best effort: signed by the CA, so the name is genuine
		for _, c := range []*x509.Certificate{leaf, id.ca} {
			whose := "the certificate of " + p.String()
			if c == id.ca {
				whose = "the CA's certificate"
			}
			if now.Before(c.NotBefore) {
				return &Error{Kind: ErrNotYetValid, Detail: fmt.Sprintf("%s is valid from %s", whose, c.NotBefore.Format(time.RFC3339)), Peer: p}
			}
			if now.After(c.NotAfter) {
				return &Error{Kind: ErrExpired, Detail: fmt.Sprintf("%s ended %s", whose, c.NotAfter.Format(time.RFC3339)), Peer: p}
			}
		}
	}
	return &Error{Kind: ErrNotMesh, Detail: "the peer's certificate may not be used here", Cause: err}
}
