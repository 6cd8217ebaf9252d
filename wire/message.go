package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/tandem-llm/tandem/handoff"
)

// The protocol version range that this build speaks.
const (
	versionMin uint16 = 1
	versionMax uint16 = 1
)

// msgKind is the type of a control message. On a stream a message is 8 bytes (kind, flags, payload length; little endian)
// and its payload. Payloads grow at their end only: a decoder ignores what follows the fields it knows.
type msgKind uint16

const (
	msgHello     msgKind = 1  // first on a connection, both ways
	msgRefused   msgKind = 2  // the answer no, to a hello or an open
	msgOpen      msgKind = 3  // first on a handoff's stream, from whoever dials
	msgOpened    msgKind = 4  // the answer yes
	msgCredit    msgKind = 5  // destination → source, cumulative
	msgManifest  msgKind = 6  // source → destination
	msgReceived  msgKind = 7  // destination → source: everything arrived
	msgCommit    msgKind = 8  // destination → source
	msgCommitAck msgKind = 9  // source → destination
	msgCancel    msgKind = 10 // either way
	msgQuiesced  msgKind = 11 // either way, last on the stream
	msgAlive     msgKind = 12 // either way
	msgLanes     msgKind = 13 // dialler → acceptor on the connection's first stream
	msgPing      msgKind = 14 // either way on the connection's first stream
	msgPong      msgKind = 15
)

// flagOptional marks a message that a receiver which does not know its kind skips.
const flagOptional uint16 = 1

const (
	msgHeaderSize = 8
	maxName       = 512     // bytes of a worker name or an address
	maxDetail     = 256     // bytes of a reason
	maxSmall      = 4 << 10 // payload of every message but manifest and ping
	maxPing       = 64 << 10
	maxSkip       = 1 << 20 // payload of an unknown optional message
)

// hello opens a connection.
type hello struct {
	min, max    uint16
	worker      string
	incarnation uint64
	want        uint64 // the incarnation of the other side that is expected, or 0
	lane        LaneMode
	endpoint    Endpoint
	local       string // name of a socket on this host, or empty
}

// refusal is the answer no, and the payload of a cancel.
type refusal struct {
	code   Code
	detail string
}

// open asks for a handoff. The ticket itself does not travel: proof is keyed with it, over the binding.
type open struct {
	handoff handoff.ID
	send    bool // the opener is the source
	mine    uint64
	yours   uint64 // both incarnations, to tell a stale peer from a wrong ticket
	proof   [proofSize]byte
	skip    uint32 // leading tokens that the opener, a destination, has already; 0 from a source
}

// maxTokens bounds what an open may skip: hosts count positions in an int32.
const maxTokens = math.MaxInt32

// credit is cumulative, so that a later one replaces an earlier one.
type credit struct {
	window   int64 // cost that may be outstanding; one larger unit may travel alone
	released int64 // cost of the units that the destination has let go so far
	largest  int64 // largest unit accepted
}

type manifest struct {
	units uint32
	bytes int64
	body  []byte
}

type commit struct {
	handoff handoff.ID
	outcome Outcome
}

// enc appends the little-endian encoding of messages to a byte slice.
type enc []byte

func (e *enc) u8(v uint8)   { *e = append(*e, v) }
func (e *enc) u16(v uint16) { *e = binary.LittleEndian.AppendUint16(*e, v) }
func (e *enc) u32(v uint32) { *e = binary.LittleEndian.AppendUint32(*e, v) }
func (e *enc) u64(v uint64) { *e = binary.LittleEndian.AppendUint64(*e, v) }
func (e *enc) raw(b []byte) { *e = append(*e, b...) }
func (e *enc) str(s string, limit int) {
	if len(s) > limit {
		s = s[:limit]
	}
	e.u16(uint16(len(s)))
	*e = append(*e, s...)
}

// frameMsg prepends the message header to a payload.
func frameMsg(kind msgKind, flags uint16, payload []byte) []byte {
	e := make(enc, 0, msgHeaderSize+len(payload))
	e.u16(uint16(kind))
	e.u16(flags)
	e.u32(uint32(len(payload)))
	e.raw(payload)
	return e
}

func (h hello) encode() []byte {
	var e enc
	e.u16(h.min)
	e.u16(h.max)
	e.str(h.worker, maxName)
	e.u64(h.incarnation)
	e.u64(h.want)
	e.str(string(h.lane), 16)
	e.str(h.endpoint.QUIC, maxName)
	e.str(h.endpoint.TLS, maxName)
	e.u8(uint8(h.endpoint.Lanes))
	e.str(h.local, maxName)
	return frameMsg(msgHello, 0, e)
}

func (r refusal) encode(kind msgKind) []byte {
	var e enc
	e.u16(uint16(r.code))
	e.str(printable(r.detail), maxDetail)
	return frameMsg(kind, 0, e)
}

func (o open) encode() []byte {
	var e enc
	e.raw(o.handoff[:])
	e.u8(b2u(o.send))
	e.u64(o.mine)
	e.u64(o.yours)
	e.raw(o.proof[:])
	e.u32(o.skip)
	return frameMsg(msgOpen, 0, e)
}

func (c credit) encode() []byte {
	var e enc
	e.u64(uint64(c.window))
	e.u64(uint64(c.released))
	e.u64(uint64(c.largest))
	return frameMsg(msgCredit, 0, e)
}

func (m manifest) encode() []byte {
	e := make(enc, 0, 12+len(m.body))
	e.u32(m.units)
	e.u64(uint64(m.bytes))
	e.raw(m.body)
	return frameMsg(msgManifest, 0, e)
}

func (c commit) encode(kind msgKind) []byte {
	var e enc
	e.raw(c.handoff[:])
	e.u8(uint8(c.outcome))
	return frameMsg(kind, 0, e)
}

// dec reads fields; after the first that is short, all are zero and bad is set.
type dec struct {
	b   []byte
	bad bool
}

func (d *dec) take(n int) []byte {
	if d.bad || len(d.b) < n {
		d.bad = true
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *dec) u8() uint8 {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *dec) u16() uint16 {
	if b := d.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (d *dec) u32() uint32 {
	if b := d.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *dec) u64() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// size reads a byte count; one that does not fit an int64 is bad.
func (d *dec) size() int64 {
	v := int64(d.u64())
	if v < 0 {
		d.bad = true
		return 0
	}
	return v
}

func (d *dec) str(limit int) string {
	n := int(d.u16())
	if n > limit {
		d.bad = true
		return ""
	}
	return string(d.take(n))
}

func (d *dec) err(kind msgKind) error {
	if d.bad {
		return &Error{Code: ErrProtocol, Detail: fmt.Sprintf("message %d is malformed", kind)}
	}
	return nil
}

func decodeHello(p []byte) (hello, error) {
	d := &dec{b: p}
	h := hello{min: d.u16(), max: d.u16(), worker: d.str(maxName), incarnation: d.u64(), want: d.u64()}
	if err := h.lane.UnmarshalText([]byte(d.str(16))); err != nil {
		d.bad = true
	}
	h.endpoint = Endpoint{QUIC: d.str(maxName), TLS: d.str(maxName), Lanes: int(d.u8())}
	h.local = d.str(maxName)
	return h, d.err(msgHello)
}

func decodeRefusal(p []byte, kind msgKind) (refusal, error) {
	d := &dec{b: p}
	r := refusal{code: Code(d.u16()), detail: printable(d.str(maxDetail))}
	return r, d.err(kind)
}

func decodeOpen(p []byte) (open, error) {
	d := &dec{b: p}
	var o open
	copy(o.handoff[:], d.take(len(o.handoff)))
	o.send = d.u8() != 0
	o.mine, o.yours = d.u64(), d.u64()
	copy(o.proof[:], d.take(len(o.proof)))
	if o.skip = d.u32(); o.skip > maxTokens || o.send && o.skip > 0 {
		d.bad = true
	}
	return o, d.err(msgOpen)
}

func decodeCredit(p []byte) (credit, error) {
	d := &dec{b: p}
	c := credit{window: d.size(), released: d.size(), largest: d.size()}
	return c, d.err(msgCredit)
}

func decodeManifest(p []byte) (manifest, error) {
	d := &dec{b: p}
	m := manifest{units: d.u32(), bytes: d.size()}
	m.body = d.b
	return m, d.err(msgManifest)
}

func decodeCommit(p []byte, kind msgKind) (commit, error) {
	d := &dec{b: p}
	var c commit
	copy(c.handoff[:], d.take(len(c.handoff)))
	c.outcome = Outcome(d.u8())
	if c.outcome > OutcomeReleased {
		d.bad = true
	}
	return c, d.err(kind)
}

// readMsg reads one message that this build knows; unknown optional ones are skipped. It allocates for a payload only as
// its bytes arrive. limit is the largest manifest.
func readMsg(r io.Reader, limit int) (msgKind, []byte, error) {
	for {
		var h [msgHeaderSize]byte
		if _, err := io.ReadFull(r, h[:]); err != nil {
			return 0, nil, err
		}
		kind := msgKind(binary.LittleEndian.Uint16(h[0:]))
		flags := binary.LittleEndian.Uint16(h[2:])
		n := int64(binary.LittleEndian.Uint32(h[4:]))
		known := kind >= msgHello && kind <= msgPong
		if !known && flags&flagOptional == 0 {
			return 0, nil, &Error{Code: ErrProtocol, Detail: fmt.Sprintf("message %d is not known and not optional", kind)}
		}
		top := int64(maxSmall)
		switch {
		case !known:
			top = maxSkip
		case kind == msgManifest:
			top = int64(limit) + 12
		case kind == msgPing || kind == msgPong:
			top = maxPing
		}
		if n > top {
			return 0, nil, &Error{Code: ErrLimit, Detail: fmt.Sprintf("message %d of %d bytes, at most %d are accepted", kind, n, top)}
		}
		if !known {
			if _, err := io.CopyN(io.Discard, r, n); err != nil {
				return 0, nil, eofIsUnexpected(err)
			}
			continue
		}
		p, err := readGrowing(r, int(n))
		return kind, p, err
	}
}

// readGrowing reads exactly n bytes, holding at most twice what has arrived plus 64 KiB.
func readGrowing(r io.Reader, n int) ([]byte, error) {
	p := make([]byte, 0, min(n, 64<<10))
	for len(p) < n {
		if len(p) == cap(p) {
			p = append(make([]byte, 0, min(n, 2*cap(p))), p...)
		}
		at := len(p)
		p = p[:min(n, cap(p))]
		if _, err := io.ReadFull(r, p[at:]); err != nil {
			return nil, eofIsUnexpected(err)
		}
	}
	return p, nil
}

func eofIsUnexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// printable cuts a reason to printable ASCII, because it ends in logs and may come from a peer.
func printable(s string) string {
	b := make([]byte, 0, min(len(s), maxDetail))
	for i := 0; i < len(s) && len(b) < maxDetail; i++ {
		if s[i] >= 0x20 && s[i] < 0x7f {
			b = append(b, s[i])
		} else {
			b = append(b, '?')
		}
	}
	return string(b)
}

func b2u(v bool) uint8 {
	if v {
		return 1
	}
	return 0
}
