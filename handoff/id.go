package handoff

import (
	"bytes"
	"encoding/hex"
	"fmt"
)

// ID names one attempt to move one sequence from a source to a destination. It
// is a UUIDv7, minted by the host (the gateway, or a seeded replay), never
// reused: a retry is a new ID. Everything persistent about a handoff is keyed
// by it. The zero ID means "none".
type ID [16]byte

// Mint makes an ID from the host's wall clock in Unix milliseconds and ten
// bytes of entropy that the host draws (crypto/rand live, a seeded generator in
// replay). It is pure: equal arguments give equal IDs.
func Mint(unixMilli uint64, entropy [10]byte) ID {
	var id ID
	id[0] = byte(unixMilli >> 40)
	id[1] = byte(unixMilli >> 32)
	id[2] = byte(unixMilli >> 24)
	id[3] = byte(unixMilli >> 16)
	id[4] = byte(unixMilli >> 8)
	id[5] = byte(unixMilli)
	copy(id[6:], entropy[:])
	id[6] = 0x70 | id[6]&0x0f // version 7
	id[8] = 0x80 | id[8]&0x3f // RFC 9562 variant
	return id
}

// UnixMilli returns the mint time in Unix milliseconds of the minting host's clock.
func (id ID) UnixMilli() uint64 {
	return uint64(id[0])<<40 | uint64(id[1])<<32 | uint64(id[2])<<24 |
		uint64(id[3])<<16 | uint64(id[4])<<8 | uint64(id[5])
}

// IsZero reports whether id is the zero ID, which names no handoff.
func (id ID) IsZero() bool { return id == ID{} }

// Compare orders IDs by mint time, then by entropy.
func (id ID) Compare(other ID) int { return bytes.Compare(id[:], other[:]) }

// String returns the canonical 36-character form.
func (id ID) String() string {
	text, _ := id.MarshalText()
	return string(text)
}

// MarshalText writes the canonical 36-character form.
func (id ID) MarshalText() ([]byte, error) {
	b := make([]byte, 36)
	hex.Encode(b[0:8], id[0:4])
	b[8] = '-'
	hex.Encode(b[9:13], id[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], id[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], id[8:10])
	b[23] = '-'
	hex.Encode(b[24:36], id[10:16])
	return b, nil
}

// UnmarshalText reads the form that MarshalText writes. The zero ID is accepted,
// any other value must be a version 7 UUID.
func (id *ID) UnmarshalText(text []byte) error {
	parsed, err := ParseID(string(text))
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}

// ParseID reads the canonical form. The error wraps ErrInvalid.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return ID{}, fmt.Errorf("handoff: id has %d characters, want a UUIDv7 as 8-4-4-4-12 hex digits: %w", len(s), ErrInvalid)
	}
	compact := s[0:8] + s[9:13] + s[14:18] + s[19:23] + s[24:36]
	if _, err := hex.Decode(id[:], []byte(compact)); err != nil {
		return ID{}, fmt.Errorf("handoff: id is not hexadecimal, want a UUIDv7: %w", ErrInvalid)
	}
	if !id.IsZero() && (id[6]>>4 != 7 || id[8]>>6 != 2) {
		return ID{}, fmt.Errorf("handoff: id is not a version 7 UUID; only ids made by Mint are accepted: %w", ErrInvalid)
	}
	return id, nil
}
