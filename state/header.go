package state

import (
	"encoding/binary"

	"github.com/tandem-llm/tandem/handoff"
)

// SchemaVersion is the version that this build writes; SchemaMin the oldest that it reads. A
// worker advertises both and pairs only where the ranges meet.
const (
	SchemaVersion uint16 = 1
	SchemaMin     uint16 = 1
)

// HeaderSize is the encoded size of a UnitHeader, in bytes. It never changes within the magic
// number; new fields take reserved bytes under a new schema version.
const HeaderSize = 128

const headerMagic uint32 = 0x55444e54 // "TNDU" as little-endian bytes

// Byte offsets of the header's fields; docs/state-format.md has the same table.
const (
	offMagic      = 0
	offSchema     = 4
	offSize       = 6
	offHandoff    = 8
	offIdentity   = 24
	offPart       = 56
	offUnit       = 58
	offComponent  = 59
	offCodec      = 60
	offDType      = 61
	offDTypeV     = 62
	offFlags      = 63
	offIndex      = 64
	offLayerFirst = 68
	offLayerEnd   = 72
	offTokenFirst = 76
	offTokenEnd   = 80
	offPositions  = 84
	offLength     = 88
	offChecksum   = 96
	offReserved   = 100
	offHeaderCRC  = 124
)

const flagFinal = 1

// positionsDense says that token i of the range has position First+i, one position per token. It
// is the only position configuration of schema 1; rotary parameters are in the identity.
const positionsDense = 1

// UnitHeader describes one unit of transfer. On the wire it is HeaderSize bytes, fixed layout,
// little endian, guarded by its own CRC-32C.
type UnitHeader struct {
	// Handoff is the attempt that the unit belongs to.
	Handoff handoff.ID
	// Identity is the digest of the sender's identity.
	Identity Digest
	// Part is the source part (stage or rank) that sends the unit, from 0.
	Part uint16
	// Unit says page or snapshot.
	Unit UnitKind
	// Component is the paged component of a page, and KindNone for a snapshot.
	Component Kind
	// Codec says how the payload is laid out.
	Codec Codec
	// DType is the element type of keys (or of the only tensor), DTypeV that of values. Both are
	// DTypeNone for a snapshot.
	DType, DTypeV DType
	// Final is set on the part's last unit, the one with the highest index.
	Final bool
	// Index numbers the units of one part from 0, without gaps.
	Index uint32
	// Layers is the layer range of a page, or of everything in a snapshot.
	Layers Range
	// Tokens is the absolute token range of a page; for a snapshot [0, N), the tokens that its state
	// has consumed.
	Tokens Range
	// Length is the payload's length in bytes.
	Length uint64
	// Checksum is the CRC-32C (Castagnoli) of the payload.
	Checksum uint32
}

// Encode writes the header into dst, which must have at least HeaderSize bytes, and returns
// HeaderSize. It does not allocate. It panics if dst is shorter, which is a programming error.
func (h *UnitHeader) Encode(dst []byte) int {
	return encodeHeader(dst, *h)
}

func encodeHeader(dst []byte, h UnitHeader) int {
	b := dst[:HeaderSize]
	le := binary.LittleEndian
	le.PutUint32(b[offMagic:], headerMagic)
	le.PutUint16(b[offSchema:], SchemaVersion)
	le.PutUint16(b[offSize:], HeaderSize)
	copy(b[offHandoff:], h.Handoff[:])
	copy(b[offIdentity:], h.Identity[:])
	le.PutUint16(b[offPart:], h.Part)
	b[offUnit] = byte(h.Unit)
	b[offComponent] = byte(h.Component)
	b[offCodec] = byte(h.Codec)
	b[offDType] = byte(h.DType)
	b[offDTypeV] = byte(h.DTypeV)
	b[offFlags] = 0
	if h.Final {
		b[offFlags] = flagFinal
	}
	le.PutUint32(b[offIndex:], h.Index)
	le.PutUint32(b[offLayerFirst:], h.Layers.First)
	le.PutUint32(b[offLayerEnd:], h.Layers.End)
	le.PutUint32(b[offTokenFirst:], h.Tokens.First)
	le.PutUint32(b[offTokenEnd:], h.Tokens.End)
	le.PutUint32(b[offPositions:], positionsDense)
	le.PutUint64(b[offLength:], h.Length)
	le.PutUint32(b[offChecksum:], h.Checksum)
	clear(b[offReserved:offHeaderCRC])
	le.PutUint32(b[offHeaderCRC:], UpdateChecksum(0, b[:offHeaderCRC]))
	return HeaderSize
}

// DecodeUnitHeader reads a header from the first HeaderSize bytes of src, which may be longer. It
// refuses a damaged header, another schema, set reserved bits, unknown kinds and types, empty or
// inverted ranges, and a payload length over lim.UnitBytes; so a caller may allocate Length bytes
// after it. It does not allocate on success.
func DecodeUnitHeader(src []byte, lim *Limits) (UnitHeader, error) {
	var h UnitHeader
	if len(src) < HeaderSize {
		return UnitHeader{}, refuse(ErrTruncated, "header", "length", utoa(uint64(len(src))), utoa(HeaderSize))
	}
	b := src[:HeaderSize]
	le := binary.LittleEndian
	if le.Uint32(b[offMagic:]) != headerMagic {
		return UnitHeader{}, refuse(ErrMagic, "header", "magic", "", "")
	}
	if v := le.Uint16(b[offSchema:]); v < SchemaMin || v > SchemaVersion {
		return UnitHeader{}, refuse(ErrSchema, "header", "schema", utoa(uint64(v)), utoa(uint64(SchemaVersion)))
	}
	if v := le.Uint16(b[offSize:]); v != HeaderSize {
		return UnitHeader{}, refuse(ErrField, "header", "size", utoa(uint64(v)), utoa(HeaderSize))
	}
	if le.Uint32(b[offHeaderCRC:]) != UpdateChecksum(0, b[:offHeaderCRC]) {
		return UnitHeader{}, refuse(ErrHeaderChecksum, "header", "", "", "")
	}
	copy(h.Handoff[:], b[offHandoff:])
	copy(h.Identity[:], b[offIdentity:])
	h.Part = le.Uint16(b[offPart:])
	h.Unit = UnitKind(b[offUnit])
	h.Component = Kind(b[offComponent])
	h.Codec = Codec(b[offCodec])
	h.DType = DType(b[offDType])
	h.DTypeV = DType(b[offDTypeV])
	h.Final = b[offFlags]&flagFinal != 0
	h.Index = le.Uint32(b[offIndex:])
	h.Layers = Range{le.Uint32(b[offLayerFirst:]), le.Uint32(b[offLayerEnd:])}
	h.Tokens = Range{le.Uint32(b[offTokenFirst:]), le.Uint32(b[offTokenEnd:])}
	h.Length = le.Uint64(b[offLength:])
	h.Checksum = le.Uint32(b[offChecksum:])
	if b[offFlags]&^flagFinal != 0 {
		return UnitHeader{}, h.refuse(ErrReserved, "flags", "", "")
	}
	for _, x := range b[offReserved:offHeaderCRC] {
		if x != 0 {
			return UnitHeader{}, h.refuse(ErrReserved, "reserved", "", "")
		}
	}
	if v := le.Uint32(b[offPositions:]); v != positionsDense {
		return UnitHeader{}, h.refuse(ErrField, "positions", utoa(uint64(v)), utoa(positionsDense))
	}
	if err := h.Check(lim); err != nil {
		return UnitHeader{}, err
	}
	return h, nil
}

// Check reports what in the header the format does not allow, whatever the model: unknown kinds or
// types, empty ranges, a page of a component that has no pages, an empty payload, a length, index
// or part over the limits. It does not allocate on success.
func (h *UnitHeader) Check(lim *Limits) error {
	switch h.Unit {
	case UnitPage:
		if !h.Component.Paged() {
			return h.refuse(ErrField, "component", h.Component.String(), "a paged component")
		}
		if h.DType == DTypeNone {
			return h.refuse(ErrField, "dtype", h.DType.String(), "a type")
		}
	case UnitSnapshot:
		if h.Component != KindNone {
			return h.refuse(ErrField, "component", h.Component.String(), KindNone.String())
		}
		if h.DType != DTypeNone || h.DTypeV != DTypeNone {
			return h.refuse(ErrField, "dtype", h.DType.String(), DTypeNone.String())
		}
		if h.Tokens.First != 0 {
			return h.refuse(ErrField, "tokens", h.Tokens.String(), "a range from 0")
		}
	default:
		return h.refuse(ErrField, "unit", h.Unit.String(), "page or snapshot")
	}
	switch {
	case !h.Codec.known():
		return h.refuse(ErrField, "codec", h.Codec.String(), "a known codec")
	case !h.DType.known():
		return h.refuse(ErrField, "dtype", h.DType.String(), "a known type")
	case !h.DTypeV.known():
		return h.refuse(ErrField, "dtype_v", h.DTypeV.String(), "a known type")
	case h.Layers.Len() == 0:
		return h.refuse(ErrField, "layers", h.Layers.String(), "a range that is not empty")
	case h.Tokens.Len() == 0:
		return h.refuse(ErrField, "tokens", h.Tokens.String(), "a range that is not empty")
	case h.Length == 0:
		return h.refuse(ErrField, "length", "0", "a payload")
	case h.Length > lim.UnitBytes:
		return h.refuse(ErrLimit, "length", utoa(h.Length), "at most "+utoa(lim.UnitBytes))
	case h.Index >= lim.Units:
		return h.refuse(ErrLimit, "index", utoa(uint64(h.Index)), "below "+utoa(uint64(lim.Units)))
	case uint32(h.Part) >= lim.Parts:
		return h.refuse(ErrLimit, "part", utoa(uint64(h.Part)), "below "+utoa(uint64(lim.Parts)))
	}
	return nil
}

func (h *UnitHeader) refuse(reason error, field, got, want string) error {
	return &Error{Reason: reason, What: h.Unit.String(), Part: int64(h.Part), Unit: int64(h.Index), Field: field, Got: got, Want: want}
}
