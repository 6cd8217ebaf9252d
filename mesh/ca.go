package mesh

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"time"
)

const (
	// DefaultCATTL is the lifetime of a CA made with ttl 0.
	DefaultCATTL = 10 * 365 * 24 * time.Hour
	// DefaultTTL is the lifetime of a leaf issued with ttl 0.
	DefaultTTL = 90 * 24 * time.Hour
	// Backdate is how far before its issue a certificate is valid, so that peers whose clocks run behind accept it.
	Backdate = 5 * time.Minute
	// MaxHosts bounds the DNS and IP names of one leaf.
	MaxHosts = 64
)

// CA issues the certificates of one deployment. Its methods are safe for concurrent use.
type CA struct {
	cert  *x509.Certificate
	key   ed25519.PrivateKey
	clock func() time.Time
}

// NewCA makes a CA with a fresh Ed25519 key, valid for ttl (0: DefaultCATTL). clock gives the time of issue here and, by
// inheritance, the time at which identities issued by this CA verify peers; nil means time.Now. Inside a synctest bubble
// make the CA inside the bubble too: its time starts in the year 2000.
func NewCA(clock func() time.Time, ttl time.Duration) (*CA, error) {
	clock = orNow(clock)
	if ttl < 0 {
		return nil, &Error{Kind: ErrBadInput, Detail: "negative CA lifetime"}
	}
	if ttl == 0 {
		ttl = DefaultCATTL
	}
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("mesh: making the CA key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := clock()
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: fmt.Sprintf("Tandem mesh CA %x", serial.Bytes()[:4])},
		NotBefore:             now.Add(-Backdate),
		NotAfter:              now.Add(ttl),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // no intermediate: a leaf key can never issue
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, pub, key)
	if err != nil {
		return nil, fmt.Errorf("mesh: signing the CA certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("mesh: reading back the CA certificate: %w", err)
	}
	return &CA{cert: cert, key: key, clock: clock}, nil
}

// Issue makes a key and a leaf certificate for role and name, valid for ttl (0: DefaultTTL) but never beyond the CA
// itself. hosts are the DNS names and IP addresses (no ports) at which stock TLS clients may look for it; they may be
// empty for processes that only Tandem connects to.
func (ca *CA) Issue(role Role, name string, hosts []string, ttl time.Duration) (*Identity, error) {
	if !role.Valid() {
		return nil, &Error{Kind: ErrBadInput, Detail: fmt.Sprintf("role %q is not gateway, worker or bus", role)}
	}
	if !ValidName(name) {
		return nil, &Error{
			Kind:   ErrBadInput,
			Detail: fmt.Sprintf("name %q must be 1 to %d letters, digits, '-' or '_'", name, MaxName),
		}
	}
	if len(hosts) > MaxHosts {
		return nil, &Error{Kind: ErrBadInput, Detail: fmt.Sprintf("%d host names, at most %d", len(hosts), MaxHosts)}
	}
	if ttl < 0 {
		return nil, &Error{Kind: ErrBadInput, Detail: "negative certificate lifetime"}
	}
	if ttl == 0 {
		ttl = DefaultTTL
	}
	now := ca.clock()
	if !now.Before(ca.cert.NotAfter) {
		return nil, &Error{Kind: ErrExpired, Detail: "the mesh CA itself has expired; make a new CA"}
	}
	p := Peer{Role: role, Name: name}
	uri, err := url.Parse(p.URI())
	if err != nil {
		return nil, &Error{Kind: ErrBadInput, Detail: "name", Cause: err}
	}
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("mesh: making a key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	notAfter := now.Add(ttl)
	if notAfter.After(ca.cert.NotAfter) {
		notAfter = ca.cert.NotAfter
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: p.String()},
		NotBefore:             now.Add(-Backdate),
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{uri},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			continue
		}
		if !validHost(h) {
			return nil, &Error{Kind: ErrBadInput, Detail: fmt.Sprintf("host %q is neither an IP address nor a DNS name", h)}
		}
		template.DNSNames = append(template.DNSNames, h)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, pub, ca.key)
	if err != nil {
		return nil, fmt.Errorf("mesh: signing the certificate of %s: %w", p, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("mesh: reading back the certificate of %s: %w", p, err)
	}
	return newIdentity(ca.cert, leaf, key, ca.clock)
}

// validHost accepts what a DNS name in a certificate may look like, underscores included (container names have them).
func validHost(h string) bool {
	if len(h) == 0 || len(h) > 253 {
		return false
	}
	label := 0
	for i := range len(h) {
		c := h[i]
		switch {
		case c == '.':
			if label == 0 {
				return false
			}
			label = 0
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-' && label > 0:
			if label++; label > 63 {
				return false
			}
		default:
			return false
		}
	}
	return label > 0
}

// newSerial returns a random 127-bit certificate serial number, never zero.
func newSerial() (*big.Int, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return nil, fmt.Errorf("mesh: reading randomness: %w", err)
	}
	b[0] = b[0]&0x7f | 0x40 // positive, and of fixed length
	return new(big.Int).SetBytes(b), nil
}

func orNow(clock func() time.Time) func() time.Time {
	if clock == nil {
		return time.Now
	}
	return clock
}
