package wire

import (
	"context"
	"sync"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/state"
)

// Endpoint is where a worker's data plane listens. It travels through the control plane, as JSON or field by field.
type Endpoint struct {
	// QUIC is the UDP host:port.
	QUIC string `json:"quic"`
	// TLS is the TCP host:port of the bulk lanes, or empty where they are disabled.
	TLS string `json:"tls,omitempty"`
	// Lanes is the largest number of TLS lanes that this worker accepts from one peer.
	Lanes int `json:"lanes,omitempty"`
}

// Node is one worker's data plane: listeners, connections to peers, and all handoffs. All methods are safe for
// concurrent use.
type Node struct {
	cfg    Config
	name   string
	limits state.Limits
	t      transport
	pool   pool
	budget budget
	quota  quota
	crew   crew
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu       sync.Mutex
	closed   bool
	sessions map[*session]struct{}
	byID     map[[sessionIDSize]byte]*session
	dials    map[state.Peer]*dial
	ends     map[state.Peer]Endpoint // where peers were last dialled or said to listen
	flows    map[flowKey]*exchange
	past     past
	failed   map[Code]int64
}

// flowKey names one end of one handoff on this node.
type flowKey struct {
	handoff handoff.ID
	peer    string
	sends   bool // this end is the source
}

// Listen opens the data plane.
func Listen(cfg Config) (*Node, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	t, err := listenNet(&cfg)
	if err != nil {
		return nil, err
	}
	return newNode(cfg, cfg.Identity.Name(), t), nil
}

// newNode starts a node on a transport.
func newNode(cfg Config, name string, t transport) *Node {
	n := &Node{
		cfg: cfg, name: name, t: t, limits: state.DefaultLimits(),
		sessions: make(map[*session]struct{}), byID: make(map[[sessionIDSize]byte]*session),
		dials: make(map[state.Peer]*dial), ends: make(map[state.Peer]Endpoint),
		flows: make(map[flowKey]*exchange), failed: make(map[Code]int64),
	}
	n.limits.UnitBytes = uint64(cfg.LargestUnit)
	n.pool.retain = cfg.Retain
	n.budget.total, n.quota.total = cfg.Total, cfg.Total
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.spawn(func() { t.serve(n.acceptLink, n.acceptLane) })
	return n
}

// spawn runs f on a goroutine that Close waits for.
func (n *Node) spawn(f func()) { n.crew.run(f) }

// Endpoint returns what peers need to dial this node.
func (n *Node) Endpoint() Endpoint { return n.t.endpoint() }

// Close ends every handoff, closes all connections and returns when no goroutine of the node runs any more. Handoffs get
// Failed with ErrClosed, and Quiesced, before it returns; so it must not be called from an event.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		n.crew.wait()
		return nil
	}
	n.closed = true
	var flows []*exchange
	for _, x := range n.flows {
		flows = append(flows, x)
	}
	var sessions []*session
	for s := range n.sessions {
		sessions = append(sessions, s)
	}
	n.mu.Unlock()
	n.cancel()
	for _, x := range flows {
		x.end(ending{err: x.errorf(ErrClosed, "", nil), tell: &refusal{ErrClosed, ""}, force: true})
	}
	for _, s := range sessions {
		s.link.close(ErrClosed, "the worker shuts down")
	}
	err := n.t.close()
	n.crew.wait()
	return err
}

// Expect makes a ticket for a source that will push this handoff. b must name this worker and incarnation as the
// destination. The ticket dies with Revoke, Abort, Close, or b.Deadline after this call.
func (n *Node) Expect(b state.Binding, ev ReceiverEvents) (*Receiver, error) {
	r := newReceiver(n, b, ev)
	if err := n.wait(&r.exchange, b.Destination); err != nil {
		return nil, err
	}
	return r, nil
}

// Offer makes a ticket for a destination that will pull this handoff. b must name this worker and incarnation as the
// source. The ticket dies as in Expect.
func (n *Node) Offer(b state.Binding, ev SenderEvents) (*Sender, error) {
	s := newSender(n, b, ev)
	if err := n.wait(&s.exchange, b.Source); err != nil {
		return nil, err
	}
	return s, nil
}

// Push dials a destination that expects this handoff. b must be the binding that the destination has, field by field. It
// returns at once; Opened or Failed follows.
func (n *Node) Push(b state.Binding, to Endpoint, ticket []byte, ev SenderEvents) (*Sender, error) {
	s := newSender(n, b, ev)
	if err := n.dial(&s.exchange, b.Source, to, ticket); err != nil {
		return nil, err
	}
	return s, nil
}

// Pull dials a source that offers this handoff. b must be the binding that the source has, field by field. The first
// skip tokens are here already and their pages need not come: the source's host learns it with the open. It returns
// at once; Opened or Failed follows.
func (n *Node) Pull(b state.Binding, from Endpoint, ticket []byte, skip uint32, ev ReceiverEvents) (*Receiver, error) {
	r := newReceiver(n, b, ev)
	if r.skip = skip; skip > maxTokens {
		return nil, r.errorf(ErrConfig, "more tokens are skipped than a sequence has", nil)
	}
	if err := n.dial(&r.exchange, b.Destination, from, ticket); err != nil {
		return nil, err
	}
	return r, nil
}

// dial starts an exchange as the side that dials.
func (n *Node) dial(x *exchange, self state.Peer, to Endpoint, ticket []byte) error {
	if len(ticket) != ticketSize {
		return x.errorf(ErrConfig, "the ticket does not have 32 bytes", nil)
	}
	ticket = append([]byte(nil), ticket...)
	if err := n.enlist(x, self); err != nil {
		return err
	}
	n.spawn(func() { x.connect(to, ticket) })
	return nil
}

// enlist checks the binding and makes the exchange known. It holds node.mu until the exchange is there, so that Close
// sees it or refuses it.
func (n *Node) enlist(x *exchange, self state.Peer) error {
	if self.Worker != n.name || self.Incarnation != n.cfg.Incarnation {
		return x.errorf(ErrStale, "the binding does not name this worker and incarnation", nil)
	}
	if x.peer.Worker == n.name || x.peer.Worker == "" || x.peer.Incarnation == 0 {
		return x.errorf(ErrConfig, "the binding does not name another worker and its incarnation", nil)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ended := n.past.get(x.key())
	switch {
	case n.closed:
		return x.errorf(ErrClosed, "", nil)
	case n.flows[x.key()] != nil || ended:
		return x.errorf(ErrDuplicate, "", nil)
	}
	n.flows[x.key()] = x
	n.pool.rest(false)
	return nil
}

// forget removes an exchange that ended, and remembers how for a while.
func (n *Node) forget(x *exchange, e ending) {
	x.mu.Lock()
	p := pastFlow{committed: x.committed, opened: x.opened}
	x.mu.Unlock()
	if err, ok := e.err.(*Error); ok {
		p.code = err.Code
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.flows[x.key()] == x {
		delete(n.flows, x.key())
		n.past.add(x.key(), p)
		if len(n.flows) == 0 {
			n.pool.rest(true)
			n.spawn(n.pool.scrub)
		}
	}
	if p.code != 0 {
		n.failed[p.code]++
	}
}

// pastFlow is what is remembered of an exchange that ended.
type pastFlow struct {
	committed bool
	opened    bool
	code      Code // of its failure, or 0
}

// past remembers the last ends, a bounded number.
type past struct {
	m     map[flowKey]pastFlow
	order []flowKey
}

const maxPast = 8192

func (p *past) get(k flowKey) (pastFlow, bool) {
	f, ok := p.m[k]
	return f, ok
}

func (p *past) add(k flowKey, f pastFlow) {
	if p.m == nil {
		p.m = make(map[flowKey]pastFlow)
	}
	if len(p.order) >= maxPast {
		delete(p.m, p.order[0])
		p.order = p.order[1:]
	}
	p.m[k] = f
	p.order = append(p.order, k)
}
