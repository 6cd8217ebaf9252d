package wire

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/state"
)

// session is one control connection after its hello: the peer process is known, handoffs and lanes belong to it.
type session struct {
	n      *Node
	link   link
	peer   state.Peer
	dialed bool     // this side dialled, so it also dials the lanes
	to     Endpoint // where the peer listens
	near   string   // where it listens on this host, if it is there
	mode   LaneMode // what both sides want
	id     [sessionIDSize]byte
	key    []byte   // lane proofs
	ctl    *control // the first stream: lanes, ping
	probed chan struct{}

	mu       sync.Mutex
	flows    map[handoff.ID]*exchange
	strays   strays
	lanes    []*sharedLane
	dialing  int // lanes being dialled
	holds    int // streams being opened or served: they may become flows, so the connection is not idle
	tried    time.Time
	worked   bool // there was a lane once
	settled  bool // probed is closed
	closed   bool
	idle     *time.Timer
	pings    map[uint64]chan struct{}
	nextPing uint64
	stats    LinkStats
}

const sessionIDSize = 16

// newSession is called once the hellos were exchanged on first.
func (n *Node) newSession(l link, first stream, h hello, dialed bool, to Endpoint) (*session, error) {
	s := &session{
		n: n, link: l, peer: state.Peer{Worker: h.worker, Incarnation: h.incarnation}, dialed: dialed, to: to, near: h.local,
		probed: make(chan struct{}), flows: make(map[handoff.ID]*exchange), pings: make(map[uint64]chan struct{}),
	}
	mode, ok := commonLane(n.cfg.Lane, h.lane)
	if !ok {
		return nil, &Error{Code: ErrLane, Peer: h.worker, Detail: fmt.Sprintf("this worker uses lane %s, the peer %s", n.cfg.Lane, h.lane)}
	}
	s.mode = mode
	id, err := l.export("EXPORTER-tandem-session", sessionIDSize)
	if err != nil {
		return nil, err
	}
	copy(s.id[:], id)
	if s.key, err = l.export("EXPORTER-tandem-lane", 32); err != nil {
		return nil, err
	}
	s.ctl = newControl(first, n.cfg.Timeouts.Progress)
	s.idle = time.AfterFunc(n.cfg.Timeouts.Idle, s.idled)
	s.stats = LinkStats{Peer: h.worker, Incarnation: h.incarnation}
	if mode == LaneQUIC {
		s.settle()
	}
	return s, nil
}

// commonLane returns the mode that both sides can live with.
func commonLane(a, b LaneMode) (LaneMode, bool) {
	switch {
	case a == b || b == LaneAuto:
		return a, true
	case a == LaneAuto:
		return b, true
	}
	return "", false
}

// run serves the connection until it ends.
func (s *session) run() {
	n := s.n
	n.spawn(s.ctl.writeLoop)
	n.spawn(func() {
		s.link.close(codeOf(s.ctl.readLoop(0, s.control)), "control stream of the connection ended")
	})
	n.spawn(s.acceptStreams)
	n.spawn(s.acceptBulk)
	if s.dialed && s.mode != LaneQUIC {
		n.spawn(s.probe)
	}
	<-s.link.done()
	s.mu.Lock()
	s.closed = true
	s.idle.Stop()
	lanes := s.lanes
	s.lanes = nil
	s.mu.Unlock()
	s.settle()
	s.ctl.finish()
	for _, l := range lanes {
		l.pump.fail(s.link.cause())
	}
	n.dropSession(s)
}

// control handles a message on the connection's own stream.
func (s *session) control(kind msgKind, p []byte) error {
	switch kind {
	case msgPing:
		s.ctl.replace(frameMsg(msgPong, 0, p))
	case msgPong:
		d := dec{b: p}
		id := d.u64()
		s.mu.Lock()
		c := s.pings[id]
		delete(s.pings, id)
		s.mu.Unlock()
		if c != nil {
			close(c)
		}
	case msgLanes:
		s.settle()
	case msgAlive:
	default:
		return &Error{Code: ErrProtocol, Detail: fmt.Sprintf("message %d does not belong on the first stream", kind)}
	}
	return nil
}

// settle marks the question of lanes as answered: whoever waits in pick takes what there is.
func (s *session) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.settled {
		s.settled = true
		close(s.probed)
	}
}

// add makes an exchange one of this connection's.
func (s *session) add(x *exchange) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return &Error{Code: ErrPeerLost, Detail: "the connection closed"}
	}
	if s.flows[x.b.Handoff] != nil {
		return &Error{Code: ErrDuplicate}
	}
	s.flows[x.b.Handoff] = x
	s.idle.Stop()
	s.grow()
	return nil
}

// drop forgets an exchange that ended.
func (s *session) drop(x *exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flows[x.b.Handoff] != x {
		return
	}
	delete(s.flows, x.b.Handoff)
	if !x.sends && !x.through {
		s.strays.add(x.b.Handoff, s.n.cfg.charge()+strayFrames)
	}
	s.rest()
}

// hold keeps the connection from being closed as idle until release, and reports false if it is closed.
func (s *session) hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.holds++
	s.idle.Stop()
	return true
}

func (s *session) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds--
	s.rest()
}

// rest (mu) starts the idle time once nobody uses the connection.
func (s *session) rest() {
	if len(s.flows) == 0 && s.holds == 0 && !s.closed {
		s.idle.Reset(s.n.cfg.Timeouts.Idle)
	}
}

// receiver returns the destination's end of a handoff that may get bytes on this connection, or nil.
func (s *session) receiver(id handoff.ID) *Receiver {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.flows[id]; x != nil {
		r, _ := x.half.(*Receiver)
		return r
	}
	return nil
}

// through notes that no frame of a live handoff will follow.
func (s *session) through(id handoff.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.flows[id]; x != nil {
		x.through = true
	} else {
		delete(s.strays.left, id)
	}
}

func (s *session) allowStray(f *frame) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.strays.allow(f)
}

// idled closes a connection that nobody used for Timeouts.Idle.
func (s *session) idled() {
	s.mu.Lock()
	unused := len(s.flows) == 0 && s.holds == 0
	if unused {
		s.closed = true
	}
	s.mu.Unlock()
	if unused {
		s.link.close(ErrIdle, "idle")
	}
}

// measure keeps the link's rate: a moving average over units that are large enough to say something.
func (s *session) measure(sent bool, bytes int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rate, sum := &s.stats.ReceiveRate, &s.stats.Received
	if sent {
		rate, sum = &s.stats.SendRate, &s.stats.Sent
	}
	*sum += int64(bytes)
	if bytes < piece || took <= 0 {
		return
	}
	now := float64(bytes) / took.Seconds()
	if *rate == 0 {
		*rate = now
	} else {
		*rate += (now - *rate) / 4
	}
}

// ping measures one round trip of a control message with size extra bytes.
func (s *session) ping(ctx context.Context, size int) (time.Duration, error) {
	done := make(chan struct{})
	s.mu.Lock()
	s.nextPing++
	id := s.nextPing
	s.pings[id] = done
	s.mu.Unlock()
	var e enc
	e.u64(id)
	e.raw(make([]byte, min(size, maxPing-8)))
	start := time.Now()
	s.ctl.send(frameMsg(msgPing, 0, e))
	select {
	case <-done:
		return time.Since(start), nil
	case <-s.link.done():
		return 0, s.link.cause()
	case <-ctx.Done():
		s.mu.Lock()
		delete(s.pings, id)
		s.mu.Unlock()
		return 0, ctx.Err()
	}
}

// acceptStreams serves the handoffs and commits that the peer opens.
func (s *session) acceptStreams() {
	for {
		st, err := s.link.accept(context.Background())
		if err != nil {
			return
		}
		if !s.hold() {
			continue // the end of the connection answers
		}
		s.n.spawn(func() {
			defer s.release()
			s.n.serveStream(s, st)
		})
	}
}

// acceptBulk reads the bulk streams that the peer opens on the connection itself.
func (s *session) acceptBulk() {
	for {
		b, err := s.link.acceptBulk(context.Background())
		if err != nil {
			return
		}
		s.n.spawn(func() {
			in := &intake{sess: s, conn: b, single: true}
			err := in.run()
			b.stop()
			// A stream that ended or was reset says less than the control stream will: wait for that, but not for ever.
			if r := in.owner; r != nil && err != errStreamDone && !r.over() {
				r.laneGone(in)
			}
		})
	}
}

func (s *session) snapshot() LinkStats {
	s.mu.Lock()
	st := s.stats
	st.Lanes, st.Handoffs = len(s.lanes), len(s.flows)
	s.mu.Unlock()
	st.RTT = s.link.rtt()
	return st
}
