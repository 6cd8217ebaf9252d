package state

import "encoding/binary"

// A manifest's body is a sequence of tagged values. Bit 15 of the tag number on the wire says that
// a reader that does not know the tag may skip it; without the bit it must refuse. That is what
// makes the schema additive: a newer writer adds optional tags freely, and required ones only where
// ignoring them would be wrong.
type tag uint16

const tagOptional tag = 1 << 15

// The manifest's tags, in the order in which they are written: numbers ascend.
const (
	tagIdentity   tag = 1
	tagBinding    tag = 2
	tagPart       tag = 3
	tagUnits      tag = 4
	tagComponents tag = 5
	tagHistory    tag = 6
	tagPosition   tag = 7
	tagFirst      tag = 8
	tagGeneration tag = 9
	tagSampler    tag = 10
	tagUsage      tag = 11
	tagMTP        tag = 12
)

const lastRequiredTag = tagMTP

// tlvHeaderSize is u16 tag, u16 zero, u32 length.
const tlvHeaderSize = 8

func (t tag) String() string {
	names := [...]string{"", "identity", "binding", "part", "units", "components", "history", "position",
		"first_token", "generation", "sampler", "usage", "mtp"}
	if int(t) < len(names) && t > 0 {
		return names[t]
	}
	return "tag " + utoa(uint64(t&^tagOptional))
}

// appendTag appends a tag whose value is what fill appends.
func appendTag(b []byte, t tag, fill func([]byte) []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, uint16(t))
	b = append(b, 0, 0, 0, 0, 0, 0)
	start := len(b)
	b = fill(b)
	le.PutUint32(b[start-4:], uint32(len(b)-start))
	return b
}

// readTags calls value for every required tag of body, with a cursor over exactly the tag's bytes,
// and skips optional ones. It refuses tags that do not ascend, are required and unknown, or are
// missing. Each value must be read to its end.
func readTags(body []byte, what string, value func(tag, *cursor)) error {
	c := &cursor{b: body, what: what, at: "tag"}
	var last, next tag = 0, 1
	for len(c.b) > 0 && c.err == nil {
		c.at = "tag"
		t := tag(c.u16())
		if c.u16() != 0 {
			c.fail(ErrReserved, "", "")
		}
		n := c.u32()
		c.at = t.String()
		v := c.take(uint64(n))
		if c.err != nil {
			break
		}
		number := t &^ tagOptional
		if number <= last {
			c.fail(ErrTagOrder, "", "")
			break
		}
		last = number
		if t&tagOptional != 0 {
			continue
		}
		if t > lastRequiredTag {
			c.fail(ErrUnknownTag, "", "")
			break
		}
		if t != next {
			c.at = next.String()
			c.fail(ErrMissingTag, "", "")
			break
		}
		next = t + 1
		sub := &cursor{b: v, what: what, at: t.String()}
		value(t, sub)
		if err := sub.end(); err != nil {
			return err
		}
	}
	if c.err == nil && next <= lastRequiredTag {
		c.at = next.String()
		c.fail(ErrMissingTag, "", "")
	}
	return c.err
}
