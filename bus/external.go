package bus

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem/mesh"
)

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
// permissions and limits as the embedded one. The certificate's URI is the user (verify_and_map). A cluster of servers
// needs a cluster block besides, in a file that includes this one.
func ExternalConfig(opts ExternalOptions) (string, error) {
	host, port, err := splitListen(opts.Listen, "0.0.0.0:4222")
	if err != nil {
		return "", err
	}
	if port == 0 {
		return "", &Error{Kind: ErrConfig, Detail: "an external server needs a fixed port"}
	}
	if opts.Dir == "" {
		return "", &Error{Kind: ErrConfig, Detail: "no directory with the server's certificate"}
	}
	if len(opts.Peers) == 0 {
		return "", &Error{Kind: ErrConfig, Detail: "no gateways and workers named; nobody could connect"}
	}
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	p("# nats-server configuration for Tandem. Users are the URIs of mesh certificates.\n")
	p("host: %s\nport: %d\n", strconv.Quote(host), port)
	p("max_payload: %d\nping_interval: %s\nping_max: 2\n\n", MaxPayload, strconv.Quote(serverPing.String()))
	p("tls {\n")
	for _, f := range [][2]string{{"ca_file", mesh.CAFile}, {"cert_file", mesh.CertFile}, {"key_file", mesh.KeyFile}} {
		p("  %s: %s\n", f[0], strconv.Quote(filepath.Join(opts.Dir, f[1])))
	}
	p("  verify_and_map: true\n  min_version: \"1.3\"\n  timeout: 5\n}\n\nauthorization {\n  users: [\n")
	for i, peer := range opts.Peers {
		perms, ok := PermissionsOf(peer)
		if !ok {
			return "", &Error{Kind: ErrConfig, Detail: fmt.Sprintf("%q is no gateway or worker", peer.String())}
		}
		if slices.Contains(opts.Peers[:i], peer) {
			return "", &Error{Kind: ErrConfig, Detail: peer.String() + " is named twice"}
		}
		p("    { user: %s, permissions: {\n", strconv.Quote(peer.URI()))
		p("        publish: { allow: [%s] }\n", quoted(perms.Publish))
		p("        subscribe: { allow: [%s] }\n", quoted(perms.Subscribe))
		if perms.Responses {
			p("        allow_responses: { max: 1, expires: %s }\n", strconv.Quote(replyWithin.String()))
		}
		p("    } }\n")
	}
	p("  ]\n}\n")
	return b.String(), nil
}

func quoted(list []string) string {
	q := make([]string, len(list))
	for i, s := range list {
		q[i] = strconv.Quote(s)
	}
	return strings.Join(q, ", ")
}
