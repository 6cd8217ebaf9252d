package wire

import (
	"fmt"
	"time"

	"github.com/tandem-llm/tandem/state"
)

// Receiver is a destination's end of one handoff. All methods are safe for concurrent use and never block.
type Receiver struct {
	exchange

	onPiece     func(h *state.UnitHeader, off int, piece []byte)
	onUnit      func(*Unit)
	onManifest  func([]byte)
	onCommitted func(Outcome)
	charge      *claim

	// The fields below are guarded by exchange.mu.

	wanted   bool // the host called Grant
	granted  bool // and the budget had room: credit was given
	grantAt  time.Time
	in       *intake // connection of the unit that is coming
	cur      *Unit   // the unit that is coming, or nil
	sum      uint32  // checksum of its bytes so far
	off      int
	begunAt  time.Time
	byteAt   time.Time // last byte of cur, or its header
	begun    int64     // payload bytes of all units begun
	released int64     // cost of the units whose buffers were let go
	man      *manifest
	complete bool // all units and the manifest were handed over
	commit   *commit
	gone     time.Time // when a lane ended before everything came, or zero
	retry    *time.Timer
	commitBy time.Time
	freed    bool // the budget's charge was returned
}

func newReceiver(n *Node, b state.Binding, ev ReceiverEvents) *Receiver {
	r := &Receiver{onPiece: ev.Piece, onUnit: ev.Unit, onManifest: ev.Manifest, onCommitted: ev.Committed}
	var open func(uint32) error
	if ev.Open != nil {
		open = func(uint32) error { return ev.Open() } // a source skips nothing
	}
	r.init(n, b, false, r, callbacks{open, ev.Opened, ev.Failed, ev.Quiesced})
	r.charge = &claim{need: min(n.cfg.charge(), n.cfg.Total), grant: r.credited}
	return r
}

// Grant starts credit: the source may write from now on. It may be called before Opened and takes effect then, in turn
// with other handoffs where Config.Total is short. A second call does nothing.
func (r *Receiver) Grant() {
	r.mu.Lock()
	first := !r.wanted && !r.ended
	r.wanted = true
	now := first && r.opened
	r.mu.Unlock()
	if now {
		r.n.budget.request(r.charge)
	}
}

func (r *Receiver) begin() {
	if r.wanted {
		r.n.spawn(func() { r.n.budget.request(r.charge) })
	}
}

// credited is called when the budget has room.
func (r *Receiver) credited() {
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		r.n.budget.release(r.charge)
		return
	}
	r.granted, r.grantAt = true, time.Now()
	r.tellCredit()
	r.mu.Unlock()
}

// tellCredit (mu) sends the cumulative credit.
func (r *Receiver) tellCredit() {
	if r.ctl != nil && r.granted && !r.ended {
		r.ctl.replace(credit{r.n.cfg.window(), r.released, r.n.cfg.LargestUnit}.encode())
	}
}

func (r *Receiver) handle(kind msgKind, p []byte) error {
	switch kind {
	case msgManifest:
		m, err := decodeManifest(p)
		if err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.ended {
			return nil
		}
		if r.man != nil || !r.granted {
			return r.errorf(ErrProtocol, "a second manifest, or one before the grant", nil)
		}
		r.man = &m
		return r.finish()
	case msgCommitAck:
		c, err := decodeCommit(p, kind)
		if err != nil {
			return err
		}
		r.answered(c.outcome)
		return nil
	}
	return r.errorf(ErrProtocol, fmt.Sprintf("message %d does not go to a destination", kind), nil)
}

// beginUnit makes room for the unit that comes next on in, or takes the place p where it lies already. It reports
// whether the unit began.
func (r *Receiver) beginUnit(in *intake, f *frame, raw []byte, p *sharedPart) bool {
	lim := r.n.limits
	h, err := state.DecodeUnitHeader(raw, &lim)
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		return false
	}
	size := cost(int(h.Length))
	var bad *Error
	switch {
	case err != nil:
		bad = r.errorf(ErrLimit, "unit header refused", err)
	case h.Handoff != r.b.Handoff:
		bad = r.errorf(ErrProtocol, "unit of another handoff", nil)
	case f.unit >= lim.Units:
		bad = r.errorf(ErrLimit, "more units than one handoff may have", nil)
	case r.cur != nil || f.unit != r.stats.Units || r.man != nil && f.unit >= r.man.units:
		bad = r.errorf(ErrProtocol, "units out of order, or more than the manifest says", nil)
	case !r.granted || r.stats.Held > 0 && r.stats.Held+size > r.n.cfg.window():
		bad = r.errorf(ErrCredit, fmt.Sprintf("a unit of %d bytes beside %d", size, r.stats.Held), nil)
	}
	if bad != nil {
		r.mu.Unlock()
		r.end(ending{err: bad, tell: &refusal{bad.Code, bad.Detail}})
		return false
	}
	now := time.Now()
	r.in, r.sum, r.off = in, 0, 0
	r.begunAt, r.byteAt, r.sign, r.signed = now, now, now, true
	if r.begun == 0 {
		r.stats.FirstByte = now.Sub(r.grantAt)
		r.stats.Lane = in.conn.kind()
	}
	r.begun += int64(h.Length)
	r.stats.Held += size
	r.stats.Peak = max(r.stats.Peak, r.stats.Held)
	// The header and the credit are checked: only now does the declared length cost memory.
	u := &Unit{Header: h, release: r.release}
	r.cur = u
	r.users++
	r.mu.Unlock()
	if p != nil {
		u.Payload, u.back = p.bytes, p.back
	} else {
		u.raw = r.n.pool.getUsed(int(h.Length))
		u.Payload = u.raw[:len(u.raw):len(u.raw)]
	}
	r.leave()
	return true
}

// leave ends one use of a buffer, and drops the unit that was coming if the handoff ended meanwhile.
func (r *Receiver) leave() {
	r.mu.Lock()
	r.users--
	f := func() {}
	if r.ended && r.users == 0 {
		f = r.drop()
	}
	r.mu.Unlock()
	f()
	r.mu.Lock()
	r.settle()
	r.mu.Unlock()
}

// claim returns the place for the next n bytes of a data frame of which done are read, or nil if they have none. The
// intake counts as a user of the buffer until filled.
func (r *Receiver) claim(in *intake, f *frame, done, n int) []byte {
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		return nil
	}
	if r.cur == nil || r.in != in || f.unit != r.stats.Units || f.offset+uint64(done) != uint64(r.off) || n > len(r.cur.Payload)-r.off {
		r.mu.Unlock()
		bad := r.errorf(ErrProtocol, "unit bytes out of order or past the unit's end", nil)
		r.end(ending{err: bad, tell: &refusal{bad.Code, bad.Detail}})
		return nil
	}
	r.users++
	b := r.cur.Payload[r.off : r.off+n]
	r.mu.Unlock()
	return b
}

// filled ends what claim began: b holds new bytes. ok says that all came.
func (r *Receiver) filled(b []byte, ok bool) {
	sum := state.UpdateChecksum(r.sum, b) // sum, off and cur change only here while users > 0
	r.mu.Lock()
	r.sum = sum
	r.off += len(b)
	now := time.Now()
	r.byteAt, r.sign = now, now
	r.stats.Bytes += int64(len(b))
	if r.onPiece != nil && !r.ended && r.cur.back == nil {
		// The event is a user of the buffer like the intake.
		u, off := r.cur, r.off-len(b)
		r.users++
		r.events.push(func() {
			r.onPiece(&u.Header, off, b)
			r.leave()
		})
	}
	var bad error
	if ok && !r.ended && r.off == len(r.cur.Payload) {
		bad = r.unitDone(now)
	}
	r.mu.Unlock()
	if bad != nil {
		e := r.wrap(bad)
		r.end(ending{err: e, tell: &refusal{codeOf(e), ""}})
	}
	r.leave()
}

// unitDone (mu) hands the current unit over.
func (r *Receiver) unitDone(now time.Time) error {
	u := r.cur
	if r.sum != u.Header.Checksum {
		return r.errorf(ErrChecksum, fmt.Sprintf("unit %d", u.Header.Index), nil)
	}
	r.cur = nil
	r.stats.Units++
	took := now.Sub(r.begunAt)
	r.stats.Wire += took
	if r.sess != nil {
		r.sess.measure(false, len(u.Payload), took)
	}
	f := r.onUnit
	if f == nil {
		f = (*Unit).Release
	}
	r.events.push(func() { f(u) })
	return r.finish()
}

// finish (mu) hands the manifest over once every unit it counts was.
func (r *Receiver) finish() error {
	if r.man == nil || r.stats.Units < r.man.units {
		return nil
	}
	if r.stats.Units > r.man.units || r.begun != r.man.bytes || r.cur != nil {
		return r.errorf(ErrProtocol, "manifest and units disagree about their number or size", nil)
	}
	r.complete = true
	body := r.man.body
	r.man.body = nil
	if f := r.onManifest; f != nil {
		r.events.push(func() { f(body) })
	}
	if r.ctl != nil {
		r.ctl.send(frameMsg(msgReceived, 0, nil))
	}
	r.free()
	return nil
}

// release is Unit.Release.
func (r *Receiver) release(u *Unit) {
	size := cost(len(u.Payload))
	if u.back != nil {
		u.back()
	} else {
		r.n.pool.putUsed(u.raw)
		u.raw = nil
	}
	r.mu.Lock()
	r.stats.Held -= size
	r.released += size
	r.tellCredit()
	r.free()
	r.mu.Unlock()
}

// free (mu) returns the budget's charge once no buffer is held and none can be needed any more.
func (r *Receiver) free() {
	if (r.complete || r.ended) && r.stats.Held == 0 && !r.freed {
		r.freed = true
		r.n.spawn(func() { r.n.budget.release(r.charge) })
	}
}

// over reports whether the handoff ended.
func (r *Receiver) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

func (r *Receiver) survives() bool { return r.complete }

func (r *Receiver) stalled(now time.Time) string {
	if r.cur != nil && now.Sub(r.byteAt) >= r.n.cfg.Timeouts.Progress {
		return "a unit is half received"
	}
	if !r.gone.IsZero() && now.Sub(r.gone) >= r.n.cfg.Timeouts.FirstByte {
		return "the bulk stream ended early"
	}
	return ""
}

// drop gives up the unit that is coming, unless an intake is inside it: that one calls drop when it leaves.
func (r *Receiver) drop() func() {
	if r.retry != nil {
		r.retry.Stop()
	}
	r.free()
	if r.cur == nil || r.users > 0 {
		return func() {}
	}
	u := r.cur
	r.cur = nil
	return u.Release
}

func (r *Receiver) interrupt(force bool) {
	r.mu.Lock()
	in, inside := r.in, r.users > 0
	r.mu.Unlock()
	if in == nil {
		return
	}
	if inside || in.single {
		in.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// laneFailed ends a handoff whose lane broke before everything came.
func (r *Receiver) laneFailed(in *intake, err error) {
	r.mu.Lock()
	hit := r.in == in && !r.complete && !r.ended
	r.mu.Unlock()
	if hit {
		e := r.errorf(ErrPeerLost, "the bulk lane broke", err)
		r.end(ending{err: e, tell: &refusal{e.Code, e.Detail}})
	}
}

// laneGone notes that the stream which carried this handoff ended before everything came. The control stream brings the
// reason; if it does not, the missing bytes are the peer's stall.
func (r *Receiver) laneGone(in *intake) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.in == in && !r.complete && r.gone.IsZero() {
		r.gone = time.Now()
	}
}

func codeOf(err error) Code {
	if e, ok := err.(*Error); ok {
		return e.Code
	}
	return ErrInternal
}
