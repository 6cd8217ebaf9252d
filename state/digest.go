package state

import (
	"crypto/subtle"
	"hash/crc32"

	"github.com/zeebo/blake3"
)

// castagnoli is the CRC-32C table; crc32.Update uses the processor's instruction for it.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// UpdateChecksum adds p to a running CRC-32C and returns it; start from 0. Feeding a payload in
// pieces gives the same sum as feeding it whole.
func UpdateChecksum(sum uint32, p []byte) uint32 {
	for len(p) > checksumStep {
		load(p[:checksumStep])
		sum = crc32.Update(sum, castagnoli, p[:checksumStep])
		p = p[checksumStep:]
	}
	return crc32.Update(sum, castagnoli, p)
}

// checksumStep is how much is brought into the first-level cache before it is summed. The sum's
// three interleaved streams are too much for the hardware's prefetching: straight from memory they
// run at less than half of what a read in order and a sum in cache take together.
const checksumStep = 8 << 10

// load reads one byte of every cache line.
//
//go:noinline
func load(p []byte) (any byte) {
	for len(p) >= 256 {
		any |= p[0] | p[64] | p[128] | p[192]
		p = p[256:]
	}
	return any
}

// Digest is a 32-byte BLAKE3 digest. Comparing with == is fine for identities; use Same for keyed
// digests. It prints as a placeholder, because digests of content do not belong in logs: use Hex
// for those that may be shown.
type Digest [32]byte

// String returns a placeholder that says only whether the digest is set.
func (d Digest) String() string {
	if d == (Digest{}) {
		return "digest(unset)"
	}
	return "digest(set)"
}

// GoString keeps %#v from printing the bytes.
func (d Digest) GoString() string { return "state." + d.String() }

// Hex returns the digest in hexadecimal. Never call it on a digest of a request's content.
func (d Digest) Hex() string {
	const digits = "0123456789abcdef"
	b := make([]byte, 0, 2*len(d))
	for _, x := range d {
		b = append(b, digits[x>>4], digits[x&15])
	}
	return string(b)
}

// Same compares in constant time.
func (d Digest) Same(o Digest) bool { return subtle.ConstantTimeCompare(d[:], o[:]) == 1 }

// DigestKey keys the digests of one handoff, so that equal content in two handoffs has different
// digests and a digest reveals nothing without the key. It never prints.
type DigestKey [32]byte

// String returns a placeholder.
func (DigestKey) String() string { return "state.DigestKey(hidden)" }

// GoString returns a placeholder.
func (DigestKey) GoString() string { return "state.DigestKey(hidden)" }

// The contexts separate the uses of the hash; they are part of the format.
const (
	contextKey      = "tandem-llm 2025-01-01 handoff digest key v1"
	contextIdentity = "tandem-llm 2025-01-01 identity digest v1"
)

// DeriveKey returns the digest key of one handoff from the secret that its two workers share (the
// handoff's one-time ticket) and the whole binding, so that a digest made under one binding never
// verifies under another.
func DeriveKey(secret []byte, b Binding) DigestKey {
	h := blake3.NewDeriveKey(contextKey)
	var n [8]byte
	putUint64(n[:], uint64(len(secret)))
	h.Write(n[:])
	h.Write(secret)
	h.Write(b.Append(nil))
	var k DigestKey
	h.Sum(k[:0])
	return k
}

// Digester computes the keyed digest of one unit while its payload streams. One Digester serves
// many units of one key, one after the other; it is not safe for concurrent use. It allocates only
// when it is made.
type Digester struct {
	h   *blake3.Hasher
	buf [HeaderSize]byte
}

// NewDigester returns a digester for the handoff's key. Call Start before writing.
func NewDigester(key DigestKey) *Digester {
	h, err := blake3.NewKeyed(key[:])
	if err != nil {
		panic("state: blake3 refused a 32-byte key: " + err.Error()) // cannot happen: the key's length is its type
	}
	return &Digester{h: h}
}

// Start begins a unit. The digest covers the header too, up to and including the payload length
// but without the checksums, so that a payload cannot be presented under another header.
func (d *Digester) Start(h *UnitHeader) {
	d.h.Reset()
	encodeHeader(d.buf[:], *h)
	d.h.Write(d.buf[:offChecksum])
}

// Write adds the next piece of the payload. It never fails.
func (d *Digester) Write(p []byte) (int, error) { return d.h.Write(p) }

// overChecksum ends the input of a digest that covers the payload by its checksum.
const overChecksum = "payload by checksum"

// OverChecksum returns the digest of a unit whose payload is covered by the header's checksum alone:
// for links that no byte leaves the host on, where reading every byte a second time buys nothing.
// Whoever verifies it has verified the checksum. It equals no digest that covers the payload.
func (d *Digester) OverChecksum(h *UnitHeader) Digest {
	d.h.Reset()
	encodeHeader(d.buf[:], *h)
	d.h.Write(d.buf[:offChecksum+4])
	d.h.WriteString(overChecksum)
	return d.Sum()
}

// Piece adds the bytes from off on of a unit that is arriving; those at 0 begin it.
func (d *Digester) Piece(h *UnitHeader, off int, p []byte) {
	if off == 0 {
		d.Start(h)
	}
	d.h.Write(p)
}

// Arrived is the digest that the manifest must list for a unit whose last piece Piece was given, or,
// overChecksum, none of whose pieces.
func (d *Digester) Arrived(h *UnitHeader, overChecksum bool) Digest {
	if overChecksum {
		return d.OverChecksum(h)
	}
	return d.Sum()
}

// Sum returns the digest of what was written since Start.
func (d *Digester) Sum() Digest {
	var out Digest
	d.h.Sum(out[:0])
	return out
}
