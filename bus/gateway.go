package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/mesh"
)

// DefaultTimeout bounds a Command whose context has no deadline.
const DefaultTimeout = 5 * time.Second

// GatewayHandler is what a gateway does with messages. Each function is called from one goroutine of its own, in order of
// arrival, and must not block. Messages belong to the callee.
type GatewayHandler struct {
	// Registration: a worker announced itself (or, with Leaving, took leave). Feed it to a Registry.
	Registration func(*buspb.Registration)
	// Statuses: what happened on a worker; s.Worker is verified. A status without a body is of a newer release.
	Statuses func(s *buspb.Statuses)
}

// GatewayLink is a gateway's end of the bus. All methods are safe for concurrent use.
type GatewayLink struct {
	conn        *Conn
	name        string
	incarnation uint64
	handler     GatewayHandler
	subs        []*nats.Subscription
}

// ServeGateway subscribes to what is for this gateway. It returns when the server has confirmed the subscriptions; call
// Hello then, to learn of the workers that are there.
func ServeGateway(c *Conn, incarnation uint64, h GatewayHandler) (*GatewayLink, error) {
	switch {
	case c.peer.Role != mesh.RoleGateway:
		return nil, &Error{Kind: ErrConfig, Detail: "the connection of " + c.peer.String() + " cannot serve as a gateway"}
	case h.Registration == nil || h.Statuses == nil:
		return nil, &Error{Kind: ErrConfig, Detail: "GatewayHandler.Registration or Statuses is missing"}
	case incarnation == 0:
		return nil, &Error{Kind: ErrConfig, Detail: "incarnation 0"}
	}
	l := &GatewayLink{conn: c, name: c.peer.Name, incarnation: incarnation, handler: h}
	var err error
	l.subs, err = c.subscribe([]subscription{
		{prefixStatus + l.name + ".*", l.onStatuses},
		{prefixWorkers + "*", l.onRegistration},
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// stamp says who sends the command.
func (l *GatewayLink) stamp(worker string, cmd *buspb.Command) (subject string, data []byte, err error) {
	if !mesh.ValidName(worker) {
		return "", nil, &Error{Kind: ErrConfig, Detail: "no valid worker name"}
	}
	cmd.Gateway, cmd.GatewayIncarnation = l.name, l.incarnation
	data, err = proto.Marshal(cmd)
	if err != nil {
		return "", nil, &Error{Kind: ErrMalformed, Detail: "encoding", Cause: err}
	}
	if limit := min(l.conn.nc.MaxPayload(), MaxPayload); int64(len(data)) > limit {
		return "", nil, tooLarge(len(data), limit)
	}
	return prefixCommand + worker + "." + l.name, data, nil
}

// Command sends one command and waits for its reply, until ctx ends (5 s where ctx has no deadline). It fills in gateway
// and its incarnation. Errors: ErrNoWorker, ErrTimeout, ErrDisconnected, ErrTooLarge, ErrClosed, or ctx's cause when
// it was cancelled. A refusal by the worker is a Reply, not an error.
func (l *GatewayLink) Command(ctx context.Context, worker string, cmd *buspb.Command) (*buspb.Reply, error) {
	subject, data, err := l.stamp(worker, cmd)
	if err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultTimeout)
		defer cancel()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Registered before the connection is looked at: a break after the look fails the wait, a break before it is seen.
	w := l.conn.wait(func() { cancel(&Error{Kind: ErrDisconnected, Detail: "while waiting for " + worker}) })
	defer l.conn.forget(w)
	if !l.conn.Connected() {
		return nil, l.conn.unusable()
	}
	msg, err := l.conn.nc.RequestWithContext(ctx, subject, data)
	if err != nil {
		return nil, l.failed(ctx, worker, err)
	}
	reply := &buspb.Reply{}
	if err := decode(msg.Data, maxReply, reply); err != nil {
		return nil, &Error{Kind: ErrMalformed, Detail: "the reply of " + worker, Cause: err}
	}
	return reply, nil
}

// failed names the cause of a failed request.
func (l *GatewayLink) failed(ctx context.Context, worker string, err error) error {
	var ours *Error
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return &Error{Kind: ErrNoWorker, Detail: worker}
	case errors.As(context.Cause(ctx), &ours):
		return ours
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return &Error{Kind: ErrTimeout, Detail: worker, Cause: context.DeadlineExceeded}
	case errors.Is(err, context.Canceled):
		return context.Cause(ctx)
	}
	return l.conn.translate(err)
}

// Post sends one command without waiting for, or wanting, a reply: for acknowledgements. It fails at once while
// disconnected.
func (l *GatewayLink) Post(worker string, cmd *buspb.Command) error {
	subject, data, err := l.stamp(worker, cmd)
	if err != nil {
		return err
	}
	return l.conn.publish(subject, data)
}

// Hello asks every worker to announce itself now.
func (l *GatewayLink) Hello() error {
	return l.send(prefixHello+l.name, &buspb.Hello{Gateway: l.name, Incarnation: l.incarnation})
}

// Heartbeat tells every worker that this gateway lives. Call it once a Beat.
func (l *GatewayLink) Heartbeat() error {
	return l.send(prefixGateways+l.name, &buspb.GatewayBeat{Gateway: l.name, Incarnation: l.incarnation})
}

// Goodbye is the last heartbeat: workers may end what they own for this gateway.
func (l *GatewayLink) Goodbye() error {
	return l.send(prefixGateways+l.name, &buspb.GatewayBeat{Gateway: l.name, Incarnation: l.incarnation, Leaving: true})
}

func (l *GatewayLink) send(subject string, m proto.Message) error {
	data, err := proto.Marshal(m)
	if err != nil {
		return &Error{Kind: ErrMalformed, Detail: "encoding", Cause: err}
	}
	return l.conn.publish(subject, data)
}

// Close stops taking messages; the connection stays open.
func (l *GatewayLink) Close() error { return l.conn.unsubscribe(l.subs) }

func (l *GatewayLink) onRegistration(msg *nats.Msg) {
	r := &buspb.Registration{}
	err := decode(msg.Data, MaxRegistration, r)
	if err == nil {
		err = CheckRegistration(r)
	}
	if err != nil {
		l.conn.bad(msg.Subject, "registration", err)
		return
	}
	if r.Worker != sender(msg.Subject) {
		l.conn.bad(msg.Subject, "a registration in another name", nil)
		return
	}
	l.handler.Registration(r)
}

func (l *GatewayLink) onStatuses(msg *nats.Msg) {
	s := &buspb.Statuses{}
	if err := decode(msg.Data, MaxStatuses, s); err != nil {
		l.conn.bad(msg.Subject, "statuses", err)
		return
	}
	if s.Worker != sender(msg.Subject) || s.Incarnation == 0 {
		l.conn.bad(msg.Subject, "statuses in another name, or of incarnation 0", nil)
		return
	}
	for _, st := range s.Statuses {
		if len(st.Handoff) != HandoffBytes {
			l.conn.bad(msg.Subject, "a status without a handoff id", nil)
			return
		}
	}
	l.handler.Statuses(s)
}
