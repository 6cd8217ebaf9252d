// Package bus is the control plane: workers register and live, gateways dispatch, tokens and handoff facts return. It
// carries the messages of package buspb over NATS, embedded in the gateway by default, or an external cluster.
//
// A gateway process starts a Server (or is given a URL), calls Connect and ServeGateway; a worker process calls Connect
// and ServeWorker:
//
//	srv, err := bus.StartServer(bus.ServerOptions{Identity: busID, Listen: "127.0.0.1:0"})
//	conn, err := bus.Connect(ctx, bus.Options{Identity: gatewayID, Server: srv})
//	link, err := bus.ServeGateway(conn, incarnation, bus.GatewayHandler{Registration: …, Statuses: …})
//	reply, err := link.Command(ctx, "decode-0", &buspb.Command{…})
//
// # Who may say what
//
// Every connection between processes is mutual TLS under the mesh CA, and what a process may publish and subscribe follows from the name in
// its certificate (see Permissions): a worker speaks only as itself and hears only what is for it. The sender's name is
// part of every subject, the server enforces it, and links refuse messages whose content claims another one.
//
// # What is promised about delivery
//
// Messages of one sender on one connection arrive in order per subject. Nothing is promised across a reconnect: messages
// may be lost and, where a host repeats, doubled. So every message is idempotent, hosts repeat what is not answered, and
// nothing is buffered while disconnected: a send fails at once with ErrDisconnected. Waiting commands fail then too.
// Buffers are bounded; a receiver that is too slow loses messages and hears so (Events.Problem with ErrSlow).
//
// # What it does not do
//
// The package starts no timers for heartbeats and expiry: hosts call Announce and Heartbeat once a Beat, and tell Registry
// the time. Registry and Compatible are pure.
//
// docs/bus.md describes subjects, permissions and external clusters.
package bus
