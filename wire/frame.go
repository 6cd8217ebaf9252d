package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/state"
)

// Bulk bytes travel in frames: frameSize bytes of header, then length bytes. Frames of several handoffs may alternate on
// a lane; within a handoff units come one after the other and each unit's bytes in order, so an offset only confirms.
//
//	0 type  1 reserved(0)  4 unit u32  8 length u32  12 reserved(0)  16 offset u64  24 handoff 16 bytes   (little endian)
const frameSize = 40

// maxFrame bounds a data frame: a cancel or another handoff waits for at most so many bytes.
const maxFrame = 1 << 20

// piece is the step in which payload is read and its checksum updated, while it is still in cache.
const piece = 256 << 10

type frameKind uint8

const (
	frameHeader frameKind = 1 // a unit begins: payload is its encoded state.UnitHeader
	frameData   frameKind = 2 // the unit's next bytes
	frameEnd    frameKind = 3 // the handoff's last unit is complete, nothing follows
	frameReset  frameKind = 4 // the handoff ended early, nothing follows
	frameShared frameKind = 5 // a whole unit in shared memory: payload is its encoded state.UnitHeader and a u64, where it lies
	frameBack   frameKind = 6 // the unit at this offset of the receiver's own shared memory is free again; handoff is zero
)

// sharedSize is the payload of a frameShared.
const sharedSize = state.HeaderSize + 8

// frame is one frame's header. Unit counts the handoff's units from 0.
type frame struct {
	kind    frameKind
	unit    uint32
	length  uint32
	offset  uint64
	handoff handoff.ID
	wipe    bool // of the sender: the bytes may be zeroed once they are written
}

func (f *frame) encode(b *[frameSize]byte) {
	*b = [frameSize]byte{}
	b[0] = byte(f.kind)
	le := binary.LittleEndian
	le.PutUint32(b[4:], f.unit)
	le.PutUint32(b[8:], f.length)
	le.PutUint64(b[16:], f.offset)
	copy(b[24:], f.handoff[:])
}

// decodeFrame reads a header and refuses what no sender writes.
func decodeFrame(b *[frameSize]byte) (frame, error) {
	le := binary.LittleEndian
	f := frame{kind: frameKind(b[0]), unit: le.Uint32(b[4:]), length: le.Uint32(b[8:]), offset: le.Uint64(b[16:])}
	copy(f.handoff[:], b[24:])
	ok := b[1]|b[2]|b[3]|b[12]|b[13]|b[14]|b[15] == 0
	switch f.kind {
	case frameHeader:
		ok = ok && f.length == state.HeaderSize && f.offset == 0
	case frameData:
		ok = ok && f.length > 0 && f.length <= maxFrame && f.offset <= maxUnit
	case frameEnd, frameReset:
		ok = ok && f.length == 0 && f.offset == 0
	case frameShared:
		ok = ok && f.length == sharedSize && f.offset == 0
	case frameBack:
		ok = ok && f.length == 0 && f.unit == 0 && f.handoff.IsZero()
	default:
		ok = false
	}
	if !ok {
		return frame{}, &Error{Code: ErrProtocol, Detail: fmt.Sprintf("bulk frame of type %d with %d bytes is malformed", b[0], f.length)}
	}
	return f, nil
}
