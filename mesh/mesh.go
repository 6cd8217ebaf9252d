// Package mesh is the identity of every Tandem process: who it is, and how two processes prove that to each other.
//
// One Ed25519 certificate authority (CA) stands for one deployment. It issues each process a leaf certificate whose only
// URI subject alternative name is
//
//	spiffe://tandem/<role>/<name>        for example spiffe://tandem/worker/decode-0
//
// All connections are TLS 1.3 with certificates on both sides. Verification happens in tls.Config.VerifyConnection and
// covers the chain to the CA, the validity period, the key usage, the role and, for a dialler, the name. Host names are
// not looked at: a worker is who its certificate says, wherever it listens. Leaves also carry DNS and IP names, so that
// stock NATS tools that do check host names can connect to a bus server.
//
// Typical use:
//
//	ca, err := mesh.NewCA(nil, 0)                         // once per deployment; ca.Save(dir) keeps it
//	id, err := ca.Issue(mesh.RoleWorker, "decode-0", []string{"localhost", "127.0.0.1"}, 0)
//	ln := tls.NewListener(l, id.ServerTLS([]string{"tandem/1"}, mesh.Allow(mesh.RoleWorker)))
//	c := tls.Client(conn, other.ClientTLS([]string{"tandem/1"}, mesh.Peer{Role: mesh.RoleWorker, Name: "decode-0"}))
//	peer, err := mesh.PeerOf(c.ConnectionState())
//
// Keys never leave the package except through Save, which writes them readable by their owner only.
package mesh

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"
)

// Role is what a process does in the mesh. The set is closed: a certificate with another role is refused.
type Role string

const (
	// RoleGateway serves HTTP and dispatches requests.
	RoleGateway Role = "gateway"
	// RoleWorker runs an engine, whatever its serving role (prefill, decode, both).
	RoleWorker Role = "worker"
	// RoleBus is a NATS server, embedded or external.
	RoleBus Role = "bus"
)

// Valid reports whether r is one of the roles of this package.
func (r Role) Valid() bool { return r == RoleGateway || r == RoleWorker || r == RoleBus }

// MaxName is the longest name in bytes. Names are also NATS subject tokens and NATS user names.
const MaxName = 64

// trustDomain is the host part of every mesh URI.
const trustDomain = "tandem"

// Peer names one process of the mesh. The zero Name in a wanted Peer means any name of that role.
type Peer struct {
	Role Role
	Name string
}

// String returns "role/name".
func (p Peer) String() string { return string(p.Role) + "/" + p.Name }

// URI returns the certificate URI of p, for example spiffe://tandem/worker/decode-0. It is also p's NATS user name.
func (p Peer) URI() string { return "spiffe://" + trustDomain + "/" + string(p.Role) + "/" + p.Name }

// ValidName reports whether name may be issued: 1 to MaxName ASCII letters, digits, '-' and '_'. Dots, spaces and
// wildcards are excluded because names become NATS subject tokens.
func ValidName(name string) bool {
	if len(name) == 0 || len(name) > MaxName {
		return false
	}
	for i := range len(name) {
		c := name[i]
		ok := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
		if !ok {
			return false
		}
	}
	return true
}

// ParseURI returns the peer that a certificate URI names. It accepts exactly what Peer.URI prints.
func ParseURI(uri string) (Peer, error) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "spiffe" || u.Host != trustDomain {
		return Peer{}, &Error{Kind: ErrNotMesh, Detail: "the certificate's URI is not spiffe://" + trustDomain + "/ROLE/NAME"}
	}
	role, name, ok := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	p := Peer{Role: Role(role), Name: name}
	// Comparing with the canonical form refuses user info, ports, queries, fragments and escapes in one go.
	if !ok || !p.Role.Valid() || !ValidName(name) || p.URI() != uri {
		return Peer{}, &Error{Kind: ErrNotMesh, Detail: "the certificate's URI names no role and name of this mesh"}
	}
	return p, nil
}

// PeerOf returns the peer at the other end of an established connection that a Config of this package verified. On a
// connection of another Config the answer proves nothing.
func PeerOf(cs tls.ConnectionState) (Peer, error) {
	if len(cs.PeerCertificates) == 0 {
		return Peer{}, &Error{Kind: ErrNoCertificate, Detail: "the peer sent no certificate"}
	}
	return peerOfCert(cs.PeerCertificates[0])
}

// peerOfCert reads the one mesh URI of a leaf.
func peerOfCert(leaf *x509.Certificate) (Peer, error) {
	if leaf.IsCA {
		return Peer{}, &Error{Kind: ErrNotMesh, Detail: "the peer presented a CA certificate as its own"}
	}
	if len(leaf.URIs) != 1 {
		return Peer{}, &Error{
			Kind:   ErrNotMesh,
			Detail: fmt.Sprintf("the peer's certificate has %d URI names, a mesh certificate has exactly one", len(leaf.URIs)),
		}
	}
	return ParseURI(leaf.URIs[0].String())
}
