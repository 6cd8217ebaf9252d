package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/state"
)

// intake reads the frames of one bulk connection straight into the units' buffers. One goroutine.
//
// A handoff that ends must not wait for the peer to send the rest of a frame: whoever ends it sets the connection's read
// deadline into the past. The intake then looks whether the handoff it reads for ended, and if so reads the rest into
// scratch space; bytes are never lost by that, so the lane goes on.
type intake struct {
	sess    *session
	conn    bulk
	pump    *pump     // of the same lane; nil for a single connection
	own     *arena    // memory shared with the peer: parts come back
	theirs  *mapping  // the peer's, or nil
	single  bool      // the connection is one handoff's
	owner   *Receiver // of a single connection, once known
	scratch []byte
	head    [frameSize]byte
	unit    [sharedSize]byte
}

// run reads until the connection ends or breaks the protocol.
func (in *intake) run() error {
	for {
		if _, err := in.full(in.head[:], nil); err != nil {
			return err
		}
		f, err := decodeFrame(&in.head)
		if err != nil {
			return err
		}
		if f.kind == frameBack {
			if in.own == nil || !in.own.returned(int64(f.offset)) {
				return &Error{Code: ErrProtocol, Detail: "the peer gives back memory that it does not have"}
			}
			continue
		}
		r := in.sess.receiver(f.handoff)
		if in.single {
			if r == nil || in.owner != nil && in.owner != r {
				return errStreamDone
			}
			in.owner = r
		}
		if r == nil {
			if err := in.stray(&f); err != nil {
				return err
			}
			continue
		}
		switch f.kind {
		case frameHeader:
			if _, err := in.full(in.unit[:state.HeaderSize], nil); err != nil {
				return err
			}
			r.beginUnit(in, &f, in.unit[:state.HeaderSize], nil)
		case frameShared:
			if err := in.shared(r, &f); err != nil {
				return err
			}
		case frameData:
			if err := in.data(r, &f); err != nil {
				return err
			}
		case frameEnd, frameReset:
			// The control stream says the same, with the reason; here it only means that nothing follows on this lane.
			if in.single {
				return errStreamDone
			}
			in.sess.through(f.handoff)
		}
	}
}

// shared takes a unit that lies in the peer's memory. Whatever becomes of it, the memory is given back once.
func (in *intake) shared(r *Receiver, f *frame) error {
	if _, err := in.full(in.unit[:], nil); err != nil {
		return err
	}
	if in.theirs == nil {
		return &Error{Code: ErrProtocol, Detail: "a unit in shared memory on a lane that has none"}
	}
	off := binary.LittleEndian.Uint64(in.unit[state.HeaderSize:])
	lim := in.sess.n.limits
	var b []byte
	if h, err := state.DecodeUnitHeader(in.unit[:state.HeaderSize], &lim); err == nil { // else beginUnit says what is wrong
		if b = in.theirs.slice(int64(off), int64(h.Length)); b == nil {
			return &Error{Code: ErrProtocol, Detail: "a unit outside of the shared memory"}
		}
	}
	in.theirs.hold() // for the host; the lane's own reference is there for as long as this goroutine
	p := &sharedPart{bytes: b, back: func() {
		in.theirs.drop()
		in.pump.giveBack(off)
	}}
	if r == nil || !r.beginUnit(in, f, in.unit[:state.HeaderSize], p) {
		p.back()
		return nil
	}
	for done := 0; done < len(b); {
		n := min(piece, len(b)-done)
		dst := r.claim(in, f, done, n)
		if dst == nil {
			return nil // the unit was given back with the handoff
		}
		r.filled(dst, true)
		done += n
	}
	return nil
}

// sharedPart is a unit's payload in the peer's memory; back gives it back.
type sharedPart struct {
	bytes []byte
	back  func()
}

// errStreamDone ends the intake of a single stream in order.
var errStreamDone = errors.New("wire: stream is done")

// data reads one data frame into its unit, piece by piece.
func (in *intake) data(r *Receiver, f *frame) error {
	for done := 0; done < int(f.length); {
		n := min(piece, int(f.length)-done)
		dst := r.claim(in, f, done, n)
		if dst == nil && in.single {
			return errStreamDone
		}
		if dst == nil {
			return in.discard(int(f.length) - done)
		}
		got, err := in.full(dst, r)
		r.filled(dst[:got], err == nil)
		done += got
		if err != nil && err != errEnded {
			return err
		}
	}
	return nil
}

// errEnded is full's answer when the handoff ended first.
var errEnded = errors.New("wire: handoff ended while its bytes came")

// full fills b, through any number of interruptions, and returns how many bytes it got. With r it stops when r ends.
func (in *intake) full(b []byte, r *Receiver) (int, error) {
	got := 0
	for got < len(b) {
		n, err := in.conn.Read(b[got:])
		got += n
		if err == nil || got == len(b) {
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			if got > 0 {
				err = eofIsUnexpected(err)
			}
			return got, err
		}
		// Clear first, then look: whoever ends a handoff marks it before it sets the deadline.
		in.conn.SetReadDeadline(time.Time{})
		if r != nil && r.over() {
			return got, errEnded
		}
		if in.owner != nil && in.owner.over() {
			return got, errStreamDone
		}
	}
	return got, nil
}

// stray reads a frame of a handoff that ended a moment ago. A source sends such frames until it hears of the end, but
// never more than it had credit for.
func (in *intake) stray(f *frame) error {
	if !in.sess.allowStray(f) {
		return &Error{Code: ErrProtocol, Detail: fmt.Sprintf("bulk frame of type %d for a handoff that is not open here", f.kind)}
	}
	if f.kind == frameShared {
		return in.shared(nil, f)
	}
	return in.discard(int(f.length))
}

// discard reads n bytes of state that nobody wants, and leaves none behind.
func (in *intake) discard(n int) error {
	if in.scratch == nil {
		in.scratch = make([]byte, 64<<10)
	}
	for n > 0 {
		b := in.scratch[:min(n, len(in.scratch))]
		got, err := in.full(b, nil)
		clear(b[:got])
		n -= got
		if err != nil {
			return err
		}
	}
	return nil
}

// strays remembers, for a bounded number of ended handoffs, how many bytes may still come.
type strays struct {
	left  map[handoff.ID]int64
	order []handoff.ID
}

const maxStrays = 1024

// strayFrames is how many frames without payload may come beside the bytes that were granted.
const strayFrames = 64 << 10

func (s *strays) add(id handoff.ID, bytes int64) {
	if s.left == nil {
		s.left = make(map[handoff.ID]int64)
	}
	if _, ok := s.left[id]; ok {
		return
	}
	if len(s.order) >= maxStrays {
		delete(s.left, s.order[0])
		s.order = s.order[1:]
	}
	s.left[id] = bytes
	s.order = append(s.order, id)
}

func (s *strays) allow(f *frame) bool {
	cost := int64(1)
	if f.kind == frameData {
		cost = int64(f.length)
	}
	left, ok := s.left[f.handoff]
	if !ok || left < cost {
		return false
	}
	s.left[f.handoff] = left - cost
	if f.kind == frameEnd || f.kind == frameReset {
		delete(s.left, f.handoff) // nothing may follow
	}
	return true
}
