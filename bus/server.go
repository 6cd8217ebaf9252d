package bus

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tandem-llm/tandem/mesh"
)

// MaxPayload is the largest message that embedded servers, and external ones with our configuration, carry. A prompt of
// two million tokens fits.
const MaxPayload = 8 << 20

const (
	replyWithin = 2 * time.Minute  // how long a worker may answer a command
	serverPing  = 10 * time.Second // how often the server looks for dead clients; two missed pings end them
	serverStart = 10 * time.Second // more than a loaded machine needs
)

// ServerOptions configures StartServer.
type ServerOptions struct {
	// Identity is of role bus; its hosts should include those that stock NATS tools use.
	Identity *mesh.Identity
	// Listen is host:port; port 0 picks a free one [127.0.0.1:0].
	Listen string
	// Log receives warnings and errors of the server; may be nil. They hold names and addresses, never contents.
	Log *slog.Logger
}

// Server is an embedded NATS server. It admits members of the mesh only, with the permissions of PermissionsOf. All
// methods are safe for concurrent use.
type Server struct {
	ns       *server.Server
	host     string
	identity *mesh.Identity

	mu       sync.Mutex
	admitted map[string]mesh.Peer // who may connect from this process, by token; guarded by mu
}

// StartServer starts an embedded server and returns when it accepts connections.
func StartServer(opts ServerOptions) (*Server, error) {
	if opts.Identity == nil || opts.Identity.Role() != mesh.RoleBus {
		return nil, &Error{Kind: ErrConfig, Detail: "a bus server needs an identity of role bus"}
	}
	host, port, err := splitListen(opts.Listen, "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	s := &Server{host: host, identity: opts.Identity}
	log := &serverLog{log: opts.Log, fatal: make(chan string, 1)}
	s.ns, err = server.NewServer(&server.Options{
		ServerName: opts.Identity.Name(),
		Host:       host,
		Port:       port,

		TLS:         true,
		TLSConfig:   opts.Identity.ServerTLS(nil, mesh.Allow(mesh.RoleGateway, mesh.RoleWorker)),
		TLSVerify:   true,
		TLSTimeout:  5,
		AuthTimeout: 5,

		CustomClientAuthentication: s,

		MaxPayload:      MaxPayload,
		PingInterval:    serverPing,
		MaxPingsOut:     2,
		NoSigs:          true,
		NoSystemAccount: true,
	})
	if err != nil {
		return nil, &Error{Kind: ErrConfig, Detail: "the embedded server refused its options", Cause: err}
	}
	s.ns.SetLoggerV2(log, false, false, false)
	s.ns.Start()
	if !s.ns.ReadyForConnections(0) {
		select {
		case text := <-log.fatal:
			s.Close()
			return nil, &Error{Kind: ErrListen, Detail: net.JoinHostPort(host, strconv.Itoa(max(port, 0))) + ": " + text}
		default:
		}
		if !s.ns.ReadyForConnections(serverStart) {
			s.Close()
			return nil, &Error{Kind: ErrListen, Detail: "the embedded server did not come up in " + serverStart.String()}
		}
	}
	return s, nil
}

// URL is what other processes connect to. A server that listens on all addresses names this machine's loopback: other
// machines replace the host.
func (s *Server) URL() string {
	host := s.host
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	port := 0
	if a, ok := s.ns.Addr().(*net.TCPAddr); ok {
		port = a.Port
	}
	return "tls://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// Close ends all connections and returns when everything has stopped.
func (s *Server) Close() {
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
}

// Check decides about one connection; it makes Server a server.Authentication. The TLS configuration has verified the
// certificate; without TLS only a token counts that this process was given.
func (s *Server) Check(c server.ClientAuthentication) bool {
	if c.Kind() != server.CLIENT {
		return false
	}
	var peer mesh.Peer
	if state := c.GetTLSConnectionState(); state != nil {
		var err error
		if peer, err = mesh.PeerOf(*state); err != nil {
			return false
		}
	} else {
		var ok bool
		if peer, ok = s.admittedPeer(c.GetOpts().Token); !ok {
			return false
		}
	}
	p, ok := PermissionsOf(peer)
	if !ok {
		return false
	}
	perms := &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: p.Publish},
		Subscribe: &server.SubjectPermission{Allow: p.Subscribe},
	}
	if p.Responses {
		perms.Response = &server.ResponsePermission{MaxMsgs: 1, Expires: replyWithin}
	}
	c.RegisterUser(&server.User{Username: peer.URI(), Permissions: perms})
	return true
}

// splitListen parses host:port, with a default.
func splitListen(listen, def string) (host string, port int, err error) {
	if listen == "" {
		listen = def
	}
	host, p, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, &Error{Kind: ErrConfig, Detail: "the listen address must be host:port", Cause: err}
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, &Error{Kind: ErrConfig, Detail: "the listen port must be a number from 0 to 65535", Cause: err}
	}
	return host, int(n), nil
}

// serverLog passes the server's log on and keeps the first fatal text: the server calls Fatalf where a program of its own
// would exit.
type serverLog struct {
	log   *slog.Logger
	fatal chan string
}

func (l *serverLog) Fatalf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	select {
	case l.fatal <- text:
	default:
	}
	l.write(slog.LevelError, text)
}

func (l *serverLog) Errorf(format string, v ...any) {
	l.write(slog.LevelError, fmt.Sprintf(format, v...))
}

func (l *serverLog) Warnf(format string, v ...any) {
	l.write(slog.LevelWarn, fmt.Sprintf(format, v...))
}
func (l *serverLog) Noticef(string, ...any) {}
func (l *serverLog) Debugf(string, ...any)  {}
func (l *serverLog) Tracef(string, ...any)  {}

func (l *serverLog) write(level slog.Level, text string) {
	if l.log != nil {
		l.log.Log(context.Background(), level, "bus server: "+strings.TrimSpace(text))
	}
}
