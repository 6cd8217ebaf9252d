package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// tlsLane is one TLS connection of a session: a pump for this side's handoffs, an intake for the peer's.
type tlsLane struct {
	conn lane
	pump *pump
}

// pick returns a pump for one handoff: of the TLS lane with the fewest handoffs, or of a new stream on the connection
// itself. It waits for the first probe of the peer's TLS port.
func (s *session) pick(ctx context.Context) (*pump, error) {
	select {
	case <-s.probed:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.mode != LaneQUIC {
		if p := s.leastLoaded(); p != nil {
			return p, nil
		}
		if s.mode == LaneTLS {
			return s.onlyTLS()
		}
	}
	b, err := s.link.openBulk(ctx)
	if err != nil {
		return nil, err
	}
	p := newPump(b, true)
	p.sent = func(n int, d time.Duration) { s.measure(true, n, d) }
	s.n.spawn(p.run)
	return p, nil
}

// onlyTLS is pick where QUIC streams are not allowed and there is no lane: one more attempt, if it is this side's.
func (s *session) onlyTLS() (*pump, error) {
	if s.dialed && s.to.TLS != "" {
		s.mu.Lock()
		s.dialing++
		s.mu.Unlock()
		s.dialLane(s.n.cfg.Timeouts.Handshake)
		if p := s.leastLoaded(); p != nil {
			return p, nil
		}
	}
	return nil, &Error{Code: ErrLane, Peer: s.peer.Worker}
}

func (s *session) leastLoaded() *pump {
	s.mu.Lock()
	defer s.mu.Unlock()
	var best *pump
	least := 0
	for _, l := range s.lanes {
		if n := l.pump.load(); best == nil || n < least {
			best, least = l.pump, n
		}
	}
	return best
}

// reprobe is the pause before a TLS port that did not answer is tried again.
const reprobe = 30 * time.Second

// grow (mu) dials another lane when there are more handoffs than lanes, so that the pool is warm for the next ones, and
// tries again after a probe that failed.
func (s *session) grow() {
	if !s.dialed || s.mode == LaneQUIC || !s.settled || s.to.TLS == "" {
		return
	}
	have := len(s.lanes) + s.dialing
	if have == 0 && !s.worked && time.Since(s.tried) < reprobe {
		return
	}
	if have < len(s.flows) && have < min(s.n.cfg.Lanes, max(s.to.Lanes, 1)) {
		s.dialing++
		s.n.spawn(func() { s.dialLane(s.n.cfg.Timeouts.Handshake) })
	}
}

// probe dials the first lane and tells the peer whether there are any.
func (s *session) probe() {
	limit := s.n.cfg.Timeouts.Handshake
	if s.mode == LaneAuto {
		limit = s.n.cfg.Timeouts.Probe
	}
	if s.to.TLS != "" {
		s.mu.Lock()
		s.dialing++
		s.mu.Unlock()
		s.dialLane(limit)
	}
	s.ctl.send(frameMsg(msgLanes, 0, nil))
	s.settle()
}

// dialLane adds one lane to the pool, or not.
func (s *session) dialLane(limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	defer context.AfterFunc(s.n.ctx, cancel)()
	l, err := s.n.t.dialLane(ctx, s.to, s.peer.Worker)
	if err == nil {
		if err = s.greet(l, limit); err != nil {
			l.stop()
		}
	}
	s.mu.Lock()
	s.dialing--
	s.tried = time.Now()
	s.mu.Unlock()
	if err == nil {
		s.addLane(l, func() error { return nil })
	}
}

// A lane hello is: magic, version u16, reserved u16, session id, proof. The answer is the magic alone. The proof ties
// the lane to the session; both ends' names were proven by the lane's own handshake.
const (
	laneMagic     uint32 = 0x4c444e54 // "TNDL" as little-endian bytes
	laneHelloSize        = 4 + 4 + sessionIDSize + proofSize
)

func (s *session) greet(l lane, limit time.Duration) error {
	secret, err := l.export("EXPORTER-tandem-lane", 32)
	if err != nil {
		return err
	}
	if s.n != nil {
		defer context.AfterFunc(s.n.ctx, l.stop)()
	}
	proof := laneProof(s.key, secret)
	b := make([]byte, 0, laneHelloSize)
	b = binary.LittleEndian.AppendUint32(b, laneMagic)
	b = binary.LittleEndian.AppendUint16(b, versionMax)
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = append(b, s.id[:]...)
	b = append(b, proof[:]...)
	l.SetWriteDeadline(time.Now().Add(limit))
	l.SetReadDeadline(time.Now().Add(limit))
	if _, err := l.Write(b); err != nil {
		return err
	}
	if err := l.flush(); err != nil {
		return err
	}
	var a [4]byte
	if _, err := io.ReadFull(l, a[:]); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(a[:]) != laneMagic {
		return &Error{Code: ErrProtocol, Detail: "lane hello was answered with something else"}
	}
	l.SetWriteDeadline(time.Time{})
	l.SetReadDeadline(time.Time{})
	return nil
}

// laneHello is a decoded lane hello.
type laneHello struct {
	version uint16
	session [sessionIDSize]byte
	proof   [proofSize]byte
}

func decodeLaneHello(b []byte) (laneHello, error) {
	d := &dec{b: b}
	magic := d.u32()
	h := laneHello{version: d.u16()}
	d.u16()
	copy(h.session[:], d.take(sessionIDSize))
	copy(h.proof[:], d.take(proofSize))
	if d.bad || magic != laneMagic {
		return h, &Error{Code: ErrProtocol, Detail: "not a lane hello"}
	}
	if h.version < versionMin || h.version > versionMax {
		return h, &Error{Code: ErrVersion, Detail: fmt.Sprintf("lane of version %d", h.version)}
	}
	return h, nil
}

// acceptLane takes an incoming, authenticated TLS connection into the pool of the session that it proves to belong to.
func (n *Node) acceptLane(l lane) {
	if err := n.admitLane(l); err != nil {
		l.stop()
	}
}

func (n *Node) admitLane(l lane) error {
	limit := time.Now().Add(n.cfg.Timeouts.Handshake)
	defer context.AfterFunc(n.ctx, l.stop)()
	l.SetReadDeadline(limit)
	l.SetWriteDeadline(limit)
	b := make([]byte, laneHelloSize)
	if _, err := io.ReadFull(l, b); err != nil {
		return err
	}
	h, err := decodeLaneHello(b)
	if err != nil {
		return err
	}
	n.mu.Lock()
	s := n.byID[h.session]
	n.mu.Unlock()
	if s == nil || s.dialed || s.peer.Worker != l.peer() {
		return &Error{Code: ErrIdentity, Peer: l.peer(), Detail: "lane of a connection that is not this peer's"}
	}
	secret, err := l.export("EXPORTER-tandem-lane", 32)
	if err != nil {
		return err
	}
	if !sameProof(h.proof, laneProof(s.key, secret)) {
		return &Error{Code: ErrIdentity, Peer: l.peer(), Detail: "lane proof is wrong"}
	}
	s.mu.Lock()
	full := len(s.lanes) >= n.cfg.Lanes || s.mode == LaneQUIC
	s.mu.Unlock()
	if full {
		return &Error{Code: ErrLimit, Peer: l.peer(), Detail: "more lanes than this worker accepts"}
	}
	// In the pool before the answer: what the dialler says next must find it there.
	s.addLane(l, func() error {
		if _, err := l.Write(b[:4]); err != nil {
			return err
		}
		if err := l.flush(); err != nil {
			return err
		}
		l.SetReadDeadline(time.Time{})
		l.SetWriteDeadline(time.Time{})
		return nil
	})
	return nil
}

// addLane puts a lane into the pool, lets answer write to it, and starts its two goroutines.
func (s *session) addLane(l lane, answer func() error) {
	t := &tlsLane{conn: l, pump: newPump(l, false)}
	in := &intake{sess: s, conn: l}
	t.pump.sent = func(n int, d time.Duration) { s.measure(true, n, d) }
	t.pump.onFail = func(error) { s.dropLane(t) }
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		l.stop()
		return
	}
	s.lanes = append(s.lanes, t)
	s.worked = true
	s.mu.Unlock()
	if err := answer(); err != nil {
		t.pump.fail(err)
		return
	}
	s.n.spawn(t.pump.run)
	s.n.spawn(func() {
		err := in.run()
		t.pump.fail(err)
		for _, r := range s.receivers() {
			r.laneFailed(in, err)
		}
	})
}

// dropLane forgets a broken lane. When a session that had lanes loses the last one, the peer's process is probably gone:
// a ping finds out sooner than QUIC's own timeout would.
func (s *session) dropLane(t *tlsLane) {
	s.mu.Lock()
	for i, v := range s.lanes {
		if v == t {
			s.lanes = append(s.lanes[:i], s.lanes[i+1:]...)
			break
		}
	}
	last := len(s.lanes) == 0 && !s.closed
	s.mu.Unlock()
	if last {
		s.n.spawn(s.checkPeer)
	}
}

func (s *session) checkPeer() {
	ctx, cancel := context.WithTimeout(s.n.ctx, s.n.cfg.Timeouts.Probe)
	_, err := s.ping(ctx, 0)
	cancel()
	if err != nil {
		s.link.close(ErrPeerLost, "the bulk lanes broke and the peer does not answer")
		return
	}
	s.mu.Lock()
	dial := s.dialed && !s.closed && len(s.lanes)+s.dialing == 0
	if dial {
		s.dialing++
	}
	s.mu.Unlock()
	if dial {
		s.dialLane(s.n.cfg.Timeouts.Handshake)
	}
}

func (s *session) receivers() []*Receiver {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l []*Receiver
	for _, x := range s.flows {
		if r, ok := x.half.(*Receiver); ok {
			l = append(l, r)
		}
	}
	return l
}
