package state

import (
	"encoding/binary"
	"math"
	"time"
	"unicode/utf8"

	"github.com/tandem-llm/tandem/handoff"
)

// field is one field of a record that is encoded in a fixed order: its name on the wire's
// documentation and in errors, and a pointer to it. One list per record drives encoding, decoding
// and comparison, so that the three cannot disagree.
type field struct {
	name string
	ptr  any
}

func putUint64(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, v) }

// appendFields appends the record: scalars little endian, strings as a u32 length and bytes.
func appendFields(b []byte, fs []field) []byte {
	le := binary.LittleEndian
	for _, f := range fs {
		switch p := f.ptr.(type) {
		case *uint16:
			b = le.AppendUint16(b, *p)
		case *uint32:
			b = le.AppendUint32(b, *p)
		case *uint64:
			b = le.AppendUint64(b, *p)
		case *float32:
			b = le.AppendUint32(b, math.Float32bits(*p))
		case *bool:
			b = append(b, boolByte(*p))
		case *DType:
			b = append(b, byte(*p))
		case *RopeScaling:
			b = append(b, byte(*p))
		case *Endian:
			b = append(b, byte(*p))
		case *Digest:
			b = append(b, p[:]...)
		case *handoff.ID:
			b = append(b, p[:]...)
		case *time.Duration:
			b = le.AppendUint64(b, uint64(*p))
		case *string:
			b = appendString(b, *p)
		default:
			panic("state: field " + f.name + " has a type without an encoding") // a programming error, met by every test
		}
	}
	return b
}

// decodeFields reads the record from c. What names it in errors; lim bounds its strings.
func decodeFields(c *cursor, fs []field, lim *Limits) {
	for _, f := range fs {
		c.at = f.name
		switch p := f.ptr.(type) {
		case *uint16:
			*p = c.u16()
		case *uint32:
			*p = c.u32()
		case *uint64:
			*p = c.u64()
		case *float32:
			*p = c.f32()
		case *bool:
			*p = c.boolean()
		case *DType:
			if *p = DType(c.u8()); !p.known() {
				c.fail(ErrField, p.String(), "a known type")
			}
		case *RopeScaling:
			if *p = RopeScaling(c.u8()); *p > RopeLong {
				c.fail(ErrField, utoa(uint64(*p)), "a known scaling")
			}
		case *Endian:
			if *p = Endian(c.u8()); *p != LittleEndian && *p != BigEndian {
				c.fail(ErrField, utoa(uint64(*p)), "1 or 2")
			}
		case *Digest:
			copy(p[:], c.take(uint64(len(p))))
		case *handoff.ID:
			copy(p[:], c.take(uint64(len(p))))
		case *time.Duration:
			if *p = time.Duration(c.u64()); *p < 0 {
				c.fail(ErrField, "negative", "a duration")
			}
		case *string:
			*p = c.str(lim.NameBytes)
		default:
			panic("state: field " + f.name + " has a type without an encoding") // a programming error, met by every test
		}
	}
}

// differs returns the index of the first field that is not equal, or −1. Floats compare by bits.
func differs(a, b []field) int {
	for i := range a {
		if !fieldEqual(a[i].ptr, b[i].ptr) {
			return i
		}
	}
	return -1
}

func fieldEqual(a, b any) bool {
	switch p := a.(type) {
	case *uint16:
		return *p == *b.(*uint16)
	case *uint32:
		return *p == *b.(*uint32)
	case *uint64:
		return *p == *b.(*uint64)
	case *float32:
		return math.Float32bits(*p) == math.Float32bits(*b.(*float32))
	case *bool:
		return *p == *b.(*bool)
	case *DType:
		return *p == *b.(*DType)
	case *RopeScaling:
		return *p == *b.(*RopeScaling)
	case *Endian:
		return *p == *b.(*Endian)
	case *Digest:
		return p.Same(*b.(*Digest))
	case *handoff.ID:
		return *p == *b.(*handoff.ID)
	case *time.Duration:
		return *p == *b.(*time.Duration)
	case *string:
		return *p == *b.(*string)
	}
	return false
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

// cursor reads little-endian values from bytes. The first failure sticks and every later read
// returns zero, so that a decoder checks once at the end. It never allocates for a length that it
// has not compared with what is left and with a limit.
type cursor struct {
	b    []byte
	what string
	at   string
	err  error
}

func (c *cursor) fail(reason error, got, want string) {
	if c.err == nil {
		c.err = refuse(reason, c.what, c.at, got, want)
	}
	c.b = nil
}

// take returns the next n bytes without copying, or nil and fails.
func (c *cursor) take(n uint64) []byte {
	if n > uint64(len(c.b)) {
		c.fail(ErrTruncated, utoa(uint64(len(c.b)))+" bytes", utoa(n))
		return nil
	}
	p := c.b[:n:n]
	c.b = c.b[n:]
	return p
}

func (c *cursor) u8() uint8 {
	if p := c.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if p := c.take(2); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if p := c.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if p := c.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

// f32 reads a float and refuses NaN, which would never equal itself.
func (c *cursor) f32() float32 {
	v := math.Float32frombits(c.u32())
	if v != v {
		c.fail(ErrField, "NaN", "a number")
		return 0
	}
	return v
}

func (c *cursor) boolean() bool {
	v := c.u8()
	if v > 1 {
		c.fail(ErrField, utoa(uint64(v)), "0 or 1")
	}
	return v == 1
}

// blob reads a u32 length and that many bytes, at most limit, without copying.
func (c *cursor) blob(limit uint32) []byte {
	n := c.u32()
	if n > limit {
		c.fail(ErrLimit, utoa(uint64(n)), "at most "+utoa(uint64(limit)))
		return nil
	}
	return c.take(uint64(n))
}

// str reads a string as blob does, and copies it. It refuses what is not UTF-8.
func (c *cursor) str(limit uint32) string {
	p := c.blob(limit)
	if !utf8.Valid(p) {
		c.fail(ErrField, "not UTF-8", "UTF-8")
		return ""
	}
	return string(p)
}

// end fails if bytes are left, and returns the first failure.
func (c *cursor) end() error {
	if c.err == nil && len(c.b) > 0 {
		c.fail(ErrTrailing, utoa(uint64(len(c.b)))+" bytes", "")
	}
	return c.err
}
