package mesh_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go"
	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is one mesh with a clock that the test moves.
type fixture struct {
	now time.Time
	ca  *mesh.CA
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	ca, err := mesh.NewCA(func() time.Time { return f.now }, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.ca = ca
	return f
}

func (f *fixture) issue(t *testing.T, role mesh.Role, name string) *mesh.Identity {
	t.Helper()
	id, err := f.ca.Issue(role, name, []string{"localhost", "127.0.0.1"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// handshake runs both sides over a TCP connection and returns each side's error and what the server saw.
func handshake(t *testing.T, server, client *tls.Config) (peer mesh.Peer, serverErr, clientErr error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	b, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return handshakeOver(server, client, a, b)
}

// handshakeOver is handshake over given ends of a connection: a the server's, b the client's.
func handshakeOver(server, client *tls.Config, a, b net.Conn) (peer mesh.Peer, serverErr, clientErr error) {
	done := make(chan struct{})
	s := tls.Server(a, server)
	go func() {
		defer close(done)
		if serverErr = s.Handshake(); serverErr == nil {
			peer, serverErr = mesh.PeerOf(s.ConnectionState())
		}
		a.Close()
	}()
	c := tls.Client(b, client)
	clientErr = c.Handshake()
	if clientErr == nil {
		// In TLS 1.3 a refusal of the client's certificate arrives here.
		_, clientErr = c.Read(make([]byte, 1))
		if errors.Is(clientErr, net.ErrClosed) || clientErr != nil && clientErr.Error() == "EOF" {
			clientErr = nil
		}
	}
	b.Close()
	<-done
	return peer, serverErr, clientErr
}

func TestMutualHandshake(t *testing.T) {
	f := newFixture(t)
	server, client := f.issue(t, mesh.RoleWorker, "d0"), f.issue(t, mesh.RoleGateway, "gw_1")
	peer, serr, cerr := handshake(t,
		server.ServerTLS([]string{"tandem/1"}, mesh.Allow(mesh.RoleGateway)),
		client.ClientTLS([]string{"tandem/1"}, mesh.Peer{Role: mesh.RoleWorker, Name: "d0"}))
	if serr != nil || cerr != nil {
		t.Fatalf("handshake: server %v, client %v", serr, cerr)
	}
	if want := (mesh.Peer{Role: mesh.RoleGateway, Name: "gw_1"}); peer != want {
		t.Fatalf("the server saw %v, want %v", peer, want)
	}
	// Any name of the role, and no ALPN: how the bus is dialled.
	bus := f.issue(t, mesh.RoleBus, "b0")
	if _, serr, cerr = handshake(t, bus.ServerTLS(nil, nil), client.ClientTLS(nil, mesh.Peer{Role: mesh.RoleBus})); serr != nil || cerr != nil {
		t.Fatalf("bus handshake: server %v, client %v", serr, cerr)
	}
}

// TestClientRefuses: what a dialler refuses, each with its kind.
func TestClientRefuses(t *testing.T) {
	f, stranger := newFixture(t), newFixture(t)
	client := f.issue(t, mesh.RoleWorker, "p0")
	short, err := f.ca.Issue(mesh.RoleWorker, "d0", nil, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	want := mesh.Peer{Role: mesh.RoleWorker, Name: "d0"}
	for _, tc := range []struct {
		name   string
		server *mesh.Identity
		alpn   []string
		skew   time.Duration
		want   error
	}{
		{name: "wrong name", server: f.issue(t, mesh.RoleWorker, "d1"), want: mesh.ErrWrongName},
		{name: "wrong role", server: f.issue(t, mesh.RoleGateway, "d0"), want: mesh.ErrWrongRole},
		{name: "other CA", server: stranger.issue(t, mesh.RoleWorker, "d0"), want: mesh.ErrOtherCA},
		{name: "expired", server: short, skew: 2 * time.Hour, want: mesh.ErrExpired},
		{name: "not yet valid", server: short, skew: -time.Hour, want: mesh.ErrNotYetValid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			start := f.now
			defer func() { f.now = start }()
			// The server does not look at the client here: the client's verdict is under test.
			scfg := tc.server.ServerTLS(nil, nil)
			scfg.VerifyConnection = nil
			f.now = start.Add(tc.skew)
			_, _, cerr := handshake(t, scfg, client.ClientTLS(nil, want))
			checkError(t, cerr, tc.want)
		})
	}
}

// TestServerRefuses: what a listener refuses, each with its kind; the client never gets through either.
func TestServerRefuses(t *testing.T) {
	f, stranger := newFixture(t), newFixture(t)
	server := f.issue(t, mesh.RoleWorker, "d0")
	want := mesh.Peer{Role: mesh.RoleWorker, Name: "d0"}
	alpn := []string{"tandem/1"}
	good := f.issue(t, mesh.RoleWorker, "p0").ClientTLS(alpn, want)
	mutate := func(c *tls.Config, fn func(*tls.Config)) *tls.Config { c = c.Clone(); fn(c); return c }
	busy := errors.New("busy")
	for _, tc := range []struct {
		name   string
		client *tls.Config
		accept func(mesh.Peer) error
		want   error
	}{
		{name: "no certificate", client: mutate(good, func(c *tls.Config) { c.Certificates = nil }), want: mesh.ErrNoCertificate},
		{name: "TLS 1.2", client: mutate(good, func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 })},
		{name: "no ALPN", client: mutate(good, func(c *tls.Config) { c.NextProtos = nil; c.VerifyConnection = nil }), want: mesh.ErrProtocol},
		{name: "other ALPN", client: mutate(good, func(c *tls.Config) { c.NextProtos = []string{"h2"} })},
		{name: "other CA", client: func() *tls.Config {
			c := stranger.issue(t, mesh.RoleWorker, "p0").ClientTLS(alpn, want)
			c.VerifyConnection = nil
			return c
		}(), want: mesh.ErrOtherCA},
		{name: "self-made certificate naming a worker", client: mutate(good, func(c *tls.Config) {
			c.Certificates = []tls.Certificate{selfSigned(t, f.now, "spiffe://tandem/worker/p0")}
		}), want: mesh.ErrOtherCA},
		{name: "role not allowed", client: good, accept: mesh.Allow(mesh.RoleGateway, mesh.RoleBus), want: mesh.ErrWrongRole},
		{name: "accept says no", client: good, accept: func(mesh.Peer) error { return busy }, want: busy},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, serr, cerr := handshake(t, server.ServerTLS(alpn, tc.accept), tc.client)
			if cerr == nil && tc.want == nil {
				t.Error("the client believes it got through")
			}
			if tc.want == nil && serr == nil {
				t.Fatal("the server let the client in")
			}
			if tc.want != nil && !errors.Is(serr, tc.want) {
				t.Fatalf("server error %v, want kind %v", serr, tc.want)
			}
			if tc.want != nil && tc.want != busy {
				checkError(t, serr, tc.want)
			}
		})
	}
}

// TestLeafCannotIssue: the key of a leaf signs another identity; nobody believes it.
func TestLeafCannotIssue(t *testing.T) {
	f := newFixture(t)
	dir := t.TempDir()
	if err := f.issue(t, mesh.RoleWorker, "evil").Save(dir); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, mesh.CertFile), filepath.Join(dir, mesh.KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	template := leafTemplate(t, f.now, "spiffe://tandem/gateway/gw")
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, pair.Leaf, pub, pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	server := f.issue(t, mesh.RoleWorker, "d0")
	client := f.issue(t, mesh.RoleWorker, "p0").ClientTLS(nil, mesh.Peer{Role: mesh.RoleWorker, Name: "d0"})
	client.Certificates = []tls.Certificate{{Certificate: [][]byte{der, pair.Leaf.Raw}, PrivateKey: key}}
	_, serr, _ := handshake(t, server.ServerTLS(nil, nil), client)
	checkError(t, serr, mesh.ErrOtherCA)
}

// TestQUIC: the same configurations drive quic-go, and a refusal keeps its type through it.
func TestQUIC(t *testing.T) {
	ca, err := mesh.NewCA(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ca.Issue(mesh.RoleWorker, "d0", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	client, err := ca.Issue(mesh.RoleWorker, "p0", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	alpn := []string{"tandem/1"}
	// One transport for both ends: closing it ends every goroutine of quic-go.
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	transport := &quic.Transport{Conn: udp}
	defer transport.Close()
	ln, err := transport.Listen(server.ServerTLS(alpn, mesh.Allow(mesh.RoleWorker)), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	seen := make(chan mesh.Peer, 1)
	go func() {
		c, err := ln.Accept(ctx)
		if err != nil {
			close(seen)
			return
		}
		p, err := mesh.PeerOf(c.ConnectionState().TLS)
		if err != nil {
			t.Error(err)
		}
		seen <- p
	}()
	c, err := transport.Dial(ctx, ln.Addr(), client.ClientTLS(alpn, server.Peer()), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := <-seen; got != client.Peer() {
		t.Errorf("the server saw %v, want %v", got, client.Peer())
	}
	c.CloseWithError(0, "")

	_, err = transport.Dial(ctx, ln.Addr(), client.ClientTLS(alpn, mesh.Peer{Role: mesh.RoleWorker, Name: "d9"}), nil)
	checkError(t, err, mesh.ErrWrongName)
}

// TestSynctest: a mesh made inside a bubble works at the bubble's time, in the year 2000.
func TestSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, err := mesh.NewCA(nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		a, err := ca.Issue(mesh.RoleWorker, "a", nil, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if y := a.Expires().Year(); y != 2000 {
			t.Fatalf("expires in %d, want the bubble's 2000", y)
		}
		// Real sockets do not belong in a bubble. A pipe has no buffer, so a refusal (both sides writing) needs deadlines.
		piped := func() (serverErr, clientErr error) {
			s, c := net.Pipe()
			for _, conn := range []net.Conn{s, c} {
				if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
					t.Fatal(err)
				}
			}
			_, serverErr, clientErr = handshakeOver(a.ServerTLS(nil, nil), a.ClientTLS(nil, a.Peer()), s, c)
			return serverErr, clientErr
		}
		if serr, cerr := piped(); serr != nil || cerr != nil {
			t.Fatalf("fresh: %v, %v", serr, cerr)
		}
		time.Sleep(2 * time.Hour)
		serr, cerr := piped()
		if !errors.Is(cerr, mesh.ErrExpired) && !errors.Is(serr, mesh.ErrExpired) {
			t.Fatalf("two hours later: server %v, client %v, want expired", serr, cerr)
		}
	})
}

func TestSaveLoad(t *testing.T) {
	f := newFixture(t)
	dir := filepath.Join(t.TempDir(), "new", "mesh")
	id := f.issue(t, mesh.RoleBus, "nats")
	// Twice: the second replaces, also a key file that somebody made readable.
	for range 2 {
		if err := errors.Join(f.ca.Save(dir), id.Save(dir)); err != nil {
			t.Fatal(err)
		}
		if runtime.GOOS != "windows" {
			for _, name := range []string{mesh.CAKeyFile, mesh.KeyFile} {
				st, err := os.Stat(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				if st.Mode().Perm() != 0o600 {
					t.Errorf("%s has mode %v, want 0600", name, st.Mode().Perm())
				}
				if err := os.Chmod(filepath.Join(dir, name), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left over: %v (%v)", left, err)
	}
	clock := func() time.Time { return f.now }
	loaded, err := mesh.Load(dir, clock)
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Peer() != id.Peer() || !loaded.Expires().Equal(id.Expires()) {
		t.Errorf("loaded %v until %v, want %v until %v", loaded.Peer(), loaded.Expires(), id.Peer(), id.Expires())
	}
	ca, err := mesh.LoadCA(dir, clock)
	if err != nil {
		t.Fatal(err)
	}
	w, err := ca.Issue(mesh.RoleWorker, "w", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, serr, cerr := handshake(t, loaded.ServerTLS(nil, nil), w.ClientTLS(nil, id.Peer())); serr != nil || cerr != nil {
		t.Fatalf("after a reload: server %v, client %v", serr, cerr)
	}
}

func TestLoadRefuses(t *testing.T) {
	f, stranger := newFixture(t), newFixture(t)
	save := func(t *testing.T) string {
		t.Helper()
		dir := t.TempDir()
		if err := errors.Join(f.ca.Save(dir), f.issue(t, mesh.RoleWorker, "w").Save(dir)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	write := func(t *testing.T, dir, name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, dir string)
		want  error
	}{
		{"missing key", func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, mesh.KeyFile)) }, mesh.ErrFiles},
		{"empty certificate", func(t *testing.T, dir string) { write(t, dir, mesh.CertFile, nil) }, mesh.ErrFiles},
		{"garbage inside PEM", func(t *testing.T, dir string) {
			write(t, dir, mesh.CertFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))
		}, mesh.ErrFiles},
		{"huge key file", func(t *testing.T, dir string) { write(t, dir, mesh.KeyFile, make([]byte, 1<<20)) }, mesh.ErrFiles},
		{"key of another", func(t *testing.T, dir string) {
			other := save(t)
			data, err := os.ReadFile(filepath.Join(other, mesh.KeyFile))
			if err != nil {
				t.Fatal(err)
			}
			write(t, dir, mesh.KeyFile, data)
		}, mesh.ErrFiles},
		{"CA of another", func(t *testing.T, dir string) { write(t, dir, mesh.CAFile, stranger.ca.PEM()) }, mesh.ErrOtherCA},
		{"CA certificate as own", func(t *testing.T, dir string) { write(t, dir, mesh.CertFile, f.ca.PEM()) }, mesh.ErrNotMesh},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := save(t)
			tc.spoil(t, dir)
			_, err := mesh.Load(dir, nil)
			checkError(t, err, tc.want)
		})
	}
	dir := save(t)
	write(t, dir, mesh.CAFile, stranger.ca.PEM())
	_, err := mesh.LoadCA(dir, nil)
	checkError(t, err, mesh.ErrFiles)
}

func TestIssueRefuses(t *testing.T) {
	f := newFixture(t)
	for _, tc := range []struct {
		role  mesh.Role
		name  string
		hosts []string
		ttl   time.Duration
	}{
		{"admin", "x", nil, 0},
		{mesh.RoleWorker, "", nil, 0},
		{mesh.RoleWorker, "a.b", nil, 0},
		{mesh.RoleWorker, "a*", nil, 0},
		{mesh.RoleWorker, "a>", nil, 0},
		{mesh.RoleWorker, "a/b", nil, 0},
		{mesh.RoleWorker, "a b", nil, 0},
		{mesh.RoleWorker, strings.Repeat("a", mesh.MaxName+1), nil, 0},
		{mesh.RoleWorker, "a", []string{"bad host"}, 0},
		{mesh.RoleWorker, "a", []string{"host:80"}, 0},
		{mesh.RoleWorker, "a", make([]string, mesh.MaxHosts+1), 0},
		{mesh.RoleWorker, "a", nil, -1},
	} {
		_, err := f.ca.Issue(tc.role, tc.name, tc.hosts, tc.ttl)
		checkError(t, err, mesh.ErrBadInput)
	}
	// A leaf never outlives its CA, and an expired CA issues nothing.
	id, err := f.ca.Issue(mesh.RoleWorker, "a", nil, 2*mesh.DefaultCATTL)
	if err != nil {
		t.Fatal(err)
	}
	if end := f.now.Add(mesh.DefaultCATTL); id.Expires().After(end) {
		t.Errorf("leaf until %v, CA until %v", id.Expires(), end)
	}
	f.now = f.now.Add(2 * mesh.DefaultCATTL)
	_, err = f.ca.Issue(mesh.RoleWorker, "a", nil, 0)
	checkError(t, err, mesh.ErrExpired)
}

// TestStockTLS: a TLS client that knows only the CA and the host name, as NATS tools do, verifies the bus.
func TestStockTLS(t *testing.T) {
	f := newFixture(t)
	bus := f.issue(t, mesh.RoleBus, "b")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(f.ca.PEM())
	for host, ok := range map[string]bool{"localhost": true, "127.0.0.1": true, "example.org": false} {
		cfg := f.issue(t, mesh.RoleGateway, "g").ClientTLS(nil, mesh.Peer{})
		cfg.InsecureSkipVerify, cfg.VerifyConnection = false, nil
		cfg.RootCAs, cfg.ServerName = pool, host
		if _, _, cerr := handshake(t, bus.ServerTLS(nil, nil), cfg); (cerr == nil) != ok {
			t.Errorf("%s: %v, want accepted %v", host, cerr, ok)
		}
	}
}

func FuzzParseURI(f *testing.F) {
	for _, s := range []string{
		"spiffe://tandem/worker/w0", "spiffe://tandem/worker/", "spiffe://tandem/worker/a/b", "spiffe://tandem/worker/a?x",
		"spiffe://user@tandem/worker/a", "spiffe://tandem:1/worker/a", "https://tandem/worker/a", "spiffe://tandem/worker/%61", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := mesh.ParseURI(s)
		if err != nil {
			checkError(t, err, mesh.ErrNotMesh)
			return
		}
		if p.URI() != s || !p.Role.Valid() || !mesh.ValidName(p.Name) {
			t.Errorf("%q parsed to %v", s, p)
		}
	})
}

func TestParseURI(t *testing.T) {
	got, err := mesh.ParseURI("spiffe://tandem/worker/w0")
	if want := (mesh.Peer{Role: mesh.RoleWorker, Name: "w0"}); err != nil || got != want {
		t.Fatalf("got %v, %v", got, err)
	}
	for _, s := range []string{
		"spiffe://tandem/worker/", "spiffe://tandem/worker/a/b", "spiffe://tandem/worker/a?x", "spiffe://tandem/boss/a",
		"spiffe://other/worker/a", "spiffe://user@tandem/worker/a", "spiffe://tandem:1/worker/a", "https://tandem/worker/a",
		"spiffe://tandem/worker/%61", "spiffe://tandem//worker/a", "",
	} {
		if p, err := mesh.ParseURI(s); err == nil {
			t.Errorf("%q accepted as %v", s, p)
		}
	}
}

// checkError asserts kind, type and that the text tells what to do.
func checkError(t *testing.T, err, kind error) {
	t.Helper()
	var e *mesh.Error
	if !errors.Is(err, kind) || !errors.As(err, &e) {
		t.Fatalf("error %v, want kind %v", err, kind)
	}
	if s := e.Error(); !strings.HasPrefix(s, "mesh: ") || !strings.Contains(s, "; ") {
		t.Errorf("error text %q lacks prefix or next step", s)
	}
}

func leafTemplate(t *testing.T, now time.Time, uri string) *x509.Certificate {
	t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	return &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, URIs: []*url.URL{u},
	}
}

func selfSigned(t *testing.T, now time.Time, uri string) tls.Certificate {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := leafTemplate(t, now, uri)
	der, err := x509.CreateCertificate(rand.Reader, template, template, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
