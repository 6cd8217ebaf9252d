package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// sharedLane is one bulk connection of a session beside its QUIC connection: a pump for this side's handoffs, an intake
// for the peer's.
type sharedLane struct {
	conn lane
	pump *pump
}

// pick returns a pump for one handoff: of the lane with the fewest handoffs, or of a new stream on the connection
// itself. It waits for the first probe of the peer's lanes.
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
		if s.mode != LaneAuto {
			return s.onlyLanes()
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

// onlyLanes is pick where QUIC streams are not allowed and there is no lane: one more attempt, if it is this side's.
func (s *session) onlyLanes() (*pump, error) {
	if s.dialed {
		s.dialLanes(s.n.cfg.Timeouts.Handshake)
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
	if !s.dialed || !s.mode.has(LaneTLS) || !s.settled || s.to.TLS == "" {
		return
	}
	if len(s.lanes) > 0 && s.lanes[0].pump.own != nil {
		return // one lane that moves no bytes is enough
	}
	have := len(s.lanes) + s.dialing
	if have == 0 && !s.worked && time.Since(s.tried) < reprobe {
		return
	}
	if have < len(s.flows) && have < min(s.n.cfg.Lanes, max(s.to.Lanes, 1)) {
		s.dialing++
		s.n.spawn(func() { s.dialLane(s.n.cfg.Timeouts.Handshake, s.dialTLS) })
	}
}

// probe dials the first lane and tells the peer whether there are any.
func (s *session) probe() {
	limit := s.n.cfg.Timeouts.Handshake
	if s.mode == LaneAuto {
		limit = s.n.cfg.Timeouts.Probe
	}
	s.dialLanes(limit)
	s.ctl.send(frameMsg(msgLanes, 0, nil))
	s.settle()
}

// dialLanes adds the best lane that the peer can be reached by, if any: on this host, else over TLS.
func (s *session) dialLanes(limit time.Duration) {
	for _, way := range []struct {
		mode LaneMode
		to   string
		dial func(context.Context) (lane, error)
	}{
		{LaneLocal, s.near, func(ctx context.Context) (lane, error) { return s.n.t.dialLocal(ctx, s.near) }},
		{LaneTLS, s.to.TLS, s.dialTLS},
	} {
		if way.to == "" || !s.mode.has(way.mode) {
			continue
		}
		s.mu.Lock()
		s.dialing++
		s.mu.Unlock()
		if s.dialLane(limit, way.dial) {
			return
		}
	}
}

func (s *session) dialTLS(ctx context.Context) (lane, error) {
	return s.n.t.dialLane(ctx, s.to, s.peer.Worker)
}

// dialLane adds one lane to the pool and reports whether that worked.
func (s *session) dialLane(limit time.Duration, dial func(context.Context) (lane, error)) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	defer context.AfterFunc(s.n.ctx, cancel)()
	l, err := dial(ctx)
	if err == nil {
		if err = s.greet(l, limit); err != nil {
			l.stop()
			l.unmap()
		}
	}
	s.mu.Lock()
	s.dialing--
	s.tried = time.Now()
	s.mu.Unlock()
	if err == nil {
		s.addLane(l, func() error { return nil })
	}
	return err == nil
}

// A lane hello is: magic, version u16, reserved u16, session id, proof. The answer is the magic and a proof of the
// answering side. The proofs tie the lane to the session.
const (
	laneMagic      uint32 = 0x4c444e54 // "TNDL" as little-endian bytes
	laneHelloSize         = 4 + 4 + sessionIDSize + proofSize
	laneAnswerSize        = 4 + proofSize
)

// The labels of what lanes export for the proofs of the two ends.
const (
	labelLane   = "EXPORTER-tandem-lane"
	labelAnswer = "EXPORTER-tandem-lane-answer"
)

func (s *session) greet(l lane, limit time.Duration) error {
	secret, err := l.export(labelLane, 32)
	if err != nil {
		return err
	}
	expect, err := l.export(labelAnswer, 32)
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
	var a [laneAnswerSize]byte
	if _, err := io.ReadFull(l, a[:]); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(a[:]) != laneMagic || !sameProof([proofSize]byte(a[4:]), laneProof(s.key, expect)) {
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
		l.unmap()
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
	if s == nil || s.dialed || l.peer() != "" && l.peer() != s.peer.Worker {
		return &Error{Code: ErrIdentity, Peer: l.peer(), Detail: "lane of a connection that is not this peer's"}
	}
	secret, err := l.export(labelLane, 32)
	if err != nil {
		return err
	}
	answer, err := l.export(labelAnswer, 32)
	if err != nil {
		return err
	}
	if !sameProof(h.proof, laneProof(s.key, secret)) {
		return &Error{Code: ErrIdentity, Peer: l.peer(), Detail: "lane proof is wrong"}
	}
	s.mu.Lock()
	full := len(s.lanes) >= n.cfg.Lanes || !s.mode.has(LaneMode(l.kind()))
	s.mu.Unlock()
	if full {
		return &Error{Code: ErrLimit, Peer: l.peer(), Detail: "more lanes than this worker accepts"}
	}
	// In the pool before the answer: what the dialler says next must find it there.
	s.addLane(l, func() error {
		proof := laneProof(s.key, answer)
		if _, err := l.Write(append(b[:4:4], proof[:]...)); err != nil {
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
	t := &sharedLane{conn: l, pump: newPump(l, false)}
	own, theirs := l.shared()
	t.pump.own = own
	in := &intake{sess: s, conn: l, pump: t.pump, own: own, theirs: theirs}
	t.pump.sent = func(n int, d time.Duration) { s.measure(true, n, d) }
	t.pump.onFail = func(error) { s.dropLane(t) }
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		l.stop()
		l.unmap()
		return
	}
	s.lanes = append(s.lanes, t)
	s.worked = true
	s.mu.Unlock()
	if err := answer(); err != nil {
		t.pump.fail(err)
		l.unmap()
		return
	}
	written := make(chan struct{})
	s.n.spawn(func() {
		defer close(written)
		t.pump.run()
	})
	s.n.spawn(func() {
		defer func() {
			<-written
			l.unmap()
		}()
		err := in.run()
		t.pump.fail(err)
		for _, r := range s.receivers() {
			r.laneFailed(in, err)
		}
	})
}

// dropLane forgets a broken lane. When a session that had lanes loses the last one, the peer's process is probably gone:
// a ping finds out sooner than QUIC's own timeout would.
func (s *session) dropLane(t *sharedLane) {
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
	s.mu.Unlock()
	if dial {
		s.dialLanes(s.n.cfg.Timeouts.Handshake)
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
