package bus

import (
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/mesh"
)

// WorkerHandler is what a worker does with messages. Each function is called from one goroutine of its own, in order of
// arrival, and must not block: post to the owner and return. Functions may be nil, except Command.
type WorkerHandler struct {
	// Command handles one command; reply answers it, once, from any goroutine, now or later (within two minutes). A nil
	// reply, or none, leaves the gateway to repeat it. The message belongs to the callee; cmd.Gateway is verified; a
	// command for another incarnation and one without a known body have been refused already.
	Command func(cmd *buspb.Command, reply func(*buspb.Reply))
	// Hello: a gateway wants an announcement now.
	Hello func(gateway string, incarnation uint64)
	// GatewaySeen: a heartbeat. Leaving is the last one.
	GatewaySeen func(gateway string, incarnation uint64, leaving bool)
}

// WorkerLink is a worker's end of the bus. All methods are safe for concurrent use. Sending waits at most for the kernel,
// and fails at once while disconnected.
type WorkerLink struct {
	conn        *Conn
	name        string
	incarnation uint64
	handler     WorkerHandler
	subs        []*nats.Subscription

	mu  sync.Mutex // orders announcements and statuses; held while sending
	seq uint64     // of the last announcement
	buf []byte     // reused for encoding, cleared after use
}

// ServeWorker subscribes to what is for this worker. It returns when the server has confirmed the subscriptions.
func ServeWorker(c *Conn, incarnation uint64, h WorkerHandler) (*WorkerLink, error) {
	switch {
	case c.peer.Role != mesh.RoleWorker:
		return nil, &Error{Kind: ErrConfig, Detail: "the connection of " + c.peer.String() + " cannot serve as a worker"}
	case h.Command == nil:
		return nil, &Error{Kind: ErrConfig, Detail: "WorkerHandler.Command is missing"}
	case incarnation == 0:
		return nil, &Error{Kind: ErrConfig, Detail: "incarnation 0"}
	}
	l := &WorkerLink{conn: c, name: c.peer.Name, incarnation: incarnation, handler: h}
	var err error
	l.subs, err = c.subscribe([]subscription{
		{prefixGateways + "*", l.onBeat},
		{prefixHello + "*", l.onHello},
		{prefixCommand + l.name + ".*", l.onCommand},
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Announce publishes a registration to all gateways. It fills in worker, incarnation and seq; the rest is the caller's.
// Call it once a Beat and on every change that gateways should know at once.
func (l *WorkerLink) Announce(r *buspb.Registration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	r.Worker, r.Incarnation, r.Seq = l.name, l.incarnation, l.seq
	if err := CheckRegistration(r); err != nil {
		return err
	}
	return l.send(prefixWorkers+l.name, r, MaxRegistration)
}

// Goodbye announces that this incarnation is gone for good.
func (l *WorkerLink) Goodbye() error { return l.Announce(&buspb.Registration{Leaving: true}) }

// Statuses sends what happened to one gateway, in order. It fills in worker and incarnation, and sends several messages
// where one would be too large.
func (l *WorkerLink) Statuses(gateway string, s *buspb.Statuses) error {
	if !mesh.ValidName(gateway) {
		return &Error{Kind: ErrConfig, Detail: "no valid gateway name"}
	}
	s.Worker, s.Incarnation = l.name, l.incarnation
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.statuses(prefixStatus+gateway+"."+l.name, s)
}

func (l *WorkerLink) statuses(subject string, s *buspb.Statuses) error {
	n := len(s.Statuses)
	if n > 1 && proto.Size(s) > MaxStatuses {
		for _, half := range [][]*buspb.Status{s.Statuses[:n/2], s.Statuses[n/2:]} {
			part := &buspb.Statuses{Worker: s.Worker, Incarnation: s.Incarnation, GatewayIncarnation: s.GatewayIncarnation, Statuses: half}
			if err := l.statuses(subject, part); err != nil {
				return err
			}
		}
		return nil
	}
	return l.send(subject, s, MaxStatuses)
}

// send encodes and publishes; l.mu is held.
func (l *WorkerLink) send(subject string, m proto.Message, limit int) error {
	data, err := proto.MarshalOptions{}.MarshalAppend(l.buf[:0], m)
	if err != nil {
		return &Error{Kind: ErrMalformed, Detail: "encoding", Cause: err}
	}
	l.buf = data
	defer clear(data) // nats.go has copied it; no text stays behind
	if len(data) > limit {
		return tooLarge(len(data), int64(limit))
	}
	return l.conn.publish(subject, data)
}

// Close stops taking messages; the connection stays open.
func (l *WorkerLink) Close() error { return l.conn.unsubscribe(l.subs) }

func (l *WorkerLink) onBeat(msg *nats.Msg) {
	var m buspb.GatewayBeat
	if err := decode(msg.Data, maxBeat, &m); err != nil {
		l.conn.bad(msg.Subject, "gateway heartbeat", err)
		return
	}
	if m.Gateway != sender(msg.Subject) || m.Incarnation == 0 {
		l.conn.bad(msg.Subject, "a gateway heartbeat in another name, or of incarnation 0", nil)
		return
	}
	if l.handler.GatewaySeen != nil {
		l.handler.GatewaySeen(m.Gateway, m.Incarnation, m.Leaving)
	}
}

func (l *WorkerLink) onHello(msg *nats.Msg) {
	var m buspb.Hello
	if err := decode(msg.Data, maxBeat, &m); err != nil {
		l.conn.bad(msg.Subject, "hello", err)
		return
	}
	if m.Gateway != sender(msg.Subject) || m.Incarnation == 0 {
		l.conn.bad(msg.Subject, "a hello in another name, or of incarnation 0", nil)
		return
	}
	if l.handler.Hello != nil {
		l.handler.Hello(m.Gateway, m.Incarnation)
	}
}

func (l *WorkerLink) onCommand(msg *nats.Msg) {
	gateway := sender(msg.Subject)
	reply := l.replier(msg.Reply, gateway)
	cmd := &buspb.Command{}
	err := decode(msg.Data, MaxPayload, cmd)
	problem := ""
	switch {
	case err != nil:
		problem = "command"
	case cmd.Gateway != gateway || cmd.GatewayIncarnation == 0:
		problem = "a command in another name, or of incarnation 0"
	case cmd.WorkerIncarnation != 0 && cmd.WorkerIncarnation != l.incarnation:
		r := refusal(buspb.Code_CODE_RESTARTED, "the worker has another incarnation now")
		r.Retry = true // it can serve, under that one
		reply(r)
		return
	case cmd.Body == nil:
		reply(refusal(buspb.Code_CODE_UNSUPPORTED, "this release does not know the command"))
		return
	case len(cmd.Handoff) != HandoffBytes && cmd.GetAcks() == nil:
		problem = "a command without a handoff id"
	}
	if problem != "" {
		l.conn.bad(msg.Subject, problem, err)
		reply(refusal(buspb.Code_CODE_BAD_REQUEST, "malformed command"))
		return
	}
	l.handler.Command(cmd, reply)
}

func refusal(code buspb.Code, message string) *buspb.Reply {
	return &buspb.Reply{Verdict: buspb.Verdict_VERDICT_REFUSED, Code: code, Message: message}
}

// replier returns the function that answers one command. It answers into the sender's own inbox only: otherwise a gateway
// could make a worker publish anywhere that replies are permitted.
func (l *WorkerLink) replier(inbox, gateway string) func(*buspb.Reply) {
	if !strings.HasPrefix(inbox, prefixInbox+gateway+".") {
		return func(*buspb.Reply) {}
	}
	var once sync.Once
	return func(r *buspb.Reply) {
		if r == nil {
			return
		}
		once.Do(func() {
			r.WorkerIncarnation = l.incarnation
			data, err := proto.Marshal(r)
			if err == nil && len(data) > maxReply {
				err = tooLarge(len(data), maxReply)
			}
			if err == nil {
				err = l.conn.publish(inbox, data)
			}
			if err != nil {
				// The gateway repeats the command.
				l.conn.problem(err)
			}
		})
	}
}
