package bus

import "github.com/tandem-llm/tandem/mesh"

// ExternalOptions describes the processes and files that an external NATS server's configuration names.
type ExternalOptions struct {
	// Peers are all gateways and workers that may connect; NATS permissions are per user, so each must be named.
	Peers []mesh.Peer
	// Dir holds the server's ca.pem, cert.pem and key.pem (role bus).
	Dir string
	// Listen is host:port [0.0.0.0:4222].
	Listen string
}

// ExternalConfig returns the text of a nats-server configuration that gives an external server the same TLS, users,
// permissions and limits as the embedded one.
func ExternalConfig(opts ExternalOptions) (string, error) { return "", nil }
