package state

import (
	"encoding/binary"
	"math"
)

const (
	manifestMagic uint32 = 0x4d444e54 // "TNDM"

	manifestHeaderSize = 12 // u32 magic, u16 schema, u16 zero, u32 body length
	manifestSealSize   = 32 // keyed BLAKE3 of everything before it

	unitRefSize      = 64
	componentRefSize = 32
)

// Encode returns the manifest's encoding, sealed with the handoff's key. It checks m first, as the
// receiver will. The Schema field is ignored: the encoding is SchemaVersion's.
func (m *Manifest) Encode(key DigestKey, lim *Limits) ([]byte, error) {
	if err := m.Check(lim); err != nil {
		return nil, err
	}
	b := make([]byte, 0, manifestHeaderSize+manifestSealSize+1024+
		len(m.Units)*unitRefSize+len(m.Components)*componentRefSize+4*len(m.History)+len(m.Sampler)+len(m.Generation.Params))
	b = m.appendUnsealed(b)
	if n := len(b) + manifestSealSize; uint64(n) > uint64(lim.ManifestBytes) {
		return nil, refuse(ErrLimit, "manifest", "length", utoa(uint64(n)), "at most "+utoa(uint64(lim.ManifestBytes)))
	}
	return seal(b, key), nil
}

// seal appends the keyed digest of b.
func seal(b []byte, key DigestKey) []byte {
	d := NewDigester(key)
	d.Write(b)
	s := d.Sum()
	return append(b, s[:]...)
}

func (m *Manifest) appendUnsealed(b []byte) []byte {
	// The literals do not compile when a field was added to a struct and not here.
	_ = Manifest{m.Schema, m.Identity, m.Binding, m.Part, m.Parts, m.Units, m.Components, m.History,
		m.Position, m.First, m.Generation, m.Sampler, m.Usage, m.MTP}
	_ = First{m.First.Index, m.First.Logprob, m.First.Top}
	_ = Usage{m.Usage.Prompt, m.Usage.Cached, m.Usage.Computed}
	_ = MTP{m.MTP.Active, m.MTP.Reason}

	le := binary.LittleEndian
	start := len(b)
	b = le.AppendUint32(b, manifestMagic)
	b = le.AppendUint16(b, SchemaVersion)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint32(b, 0)
	b = appendTag(b, tagIdentity, m.Identity.Append)
	b = appendTag(b, tagBinding, m.Binding.Append)
	b = appendTag(b, tagPart, func(b []byte) []byte {
		return le.AppendUint16(le.AppendUint16(b, m.Part), m.Parts)
	})
	b = appendTag(b, tagUnits, func(b []byte) []byte {
		for i := range m.Units {
			b = appendUnitRef(b, m.Units[i])
		}
		return b
	})
	b = appendTag(b, tagComponents, func(b []byte) []byte {
		for i := range m.Components {
			b = appendComponentRef(b, m.Components[i])
		}
		return b
	})
	b = appendTag(b, tagHistory, func(b []byte) []byte {
		for _, t := range m.History {
			b = le.AppendUint32(b, uint32(t))
		}
		return b
	})
	b = appendTag(b, tagPosition, func(b []byte) []byte { return le.AppendUint32(b, m.Position) })
	b = appendTag(b, tagFirst, func(b []byte) []byte {
		b = le.AppendUint32(b, m.First.Index)
		b = le.AppendUint32(b, math.Float32bits(m.First.Logprob))
		b = le.AppendUint32(b, uint32(len(m.First.Top)))
		for _, t := range m.First.Top {
			_ = TopToken{t.Token, t.Logprob}
			b = le.AppendUint32(b, uint32(t.Token))
			b = le.AppendUint32(b, math.Float32bits(t.Logprob))
		}
		return b
	})
	b = appendTag(b, tagGeneration, m.Generation.append)
	b = appendTag(b, tagSampler, func(b []byte) []byte { return append(b, m.Sampler...) })
	b = appendTag(b, tagUsage, func(b []byte) []byte {
		b = le.AppendUint32(b, m.Usage.Prompt)
		b = le.AppendUint32(b, m.Usage.Cached)
		return le.AppendUint32(b, m.Usage.Computed)
	})
	b = appendTag(b, tagMTP, func(b []byte) []byte {
		return appendString(append(b, boolByte(m.MTP.Active)), m.MTP.Reason)
	})
	le.PutUint32(b[start+8:], uint32(len(b)-start-manifestHeaderSize))
	return b
}

func (g *Generation) append(b []byte) []byte {
	_ = Generation{g.MaxTokens, g.MinTokens, g.Stop, g.IgnoreEOS, g.Logprobs, g.TopLogprobs, g.Params}
	le := binary.LittleEndian
	b = le.AppendUint32(b, g.MaxTokens)
	b = le.AppendUint32(b, g.MinTokens)
	b = append(b, boolByte(g.IgnoreEOS), boolByte(g.Logprobs))
	b = le.AppendUint32(b, g.TopLogprobs)
	b = le.AppendUint32(b, uint32(len(g.Stop)))
	for _, s := range g.Stop {
		b = appendString(b, s)
	}
	b = le.AppendUint32(b, uint32(len(g.Params)))
	return append(b, g.Params...)
}

func appendUnitRef(b []byte, u UnitRef) []byte {
	_ = UnitRef{u.Index, u.Unit, u.Component, u.Layers, u.Tokens, u.Length, u.Digest}
	le := binary.LittleEndian
	b = le.AppendUint32(b, u.Index)
	b = append(b, byte(u.Unit), byte(u.Component), 0, 0)
	b = le.AppendUint32(b, u.Layers.First)
	b = le.AppendUint32(b, u.Layers.End)
	b = le.AppendUint32(b, u.Tokens.First)
	b = le.AppendUint32(b, u.Tokens.End)
	b = le.AppendUint64(b, u.Length)
	return append(b, u.Digest[:]...)
}

func appendComponentRef(b []byte, r ComponentRef) []byte {
	_ = ComponentRef{r.Kind, r.Unit, r.Offset, r.Length, r.Layers}
	le := binary.LittleEndian
	b = append(b, byte(r.Kind), 0, 0, 0)
	b = le.AppendUint32(b, r.Unit)
	b = le.AppendUint64(b, r.Offset)
	b = le.AppendUint64(b, r.Length)
	b = le.AppendUint32(b, r.Layers.First)
	return le.AppendUint32(b, r.Layers.End)
}

// DecodeManifest verifies the seal of b with the handoff's key, decodes it and checks it against
// itself (see Check); an Assembly then checks it against the units. Nothing in the result aliases b.
func DecodeManifest(b []byte, key DigestKey, lim *Limits) (*Manifest, error) {
	body, err := manifestBody(b, lim)
	if err != nil {
		return nil, err
	}
	d := NewDigester(key)
	d.Write(b[:len(b)-manifestSealSize])
	if !d.Sum().Same(Digest(b[len(b)-manifestSealSize:])) {
		return nil, refuse(ErrDigest, "manifest", "seal", "", "")
	}
	return decodeManifestBody(body, lim)
}

// manifestBody checks the frame around the tags and returns them.
func manifestBody(b []byte, lim *Limits) ([]byte, error) {
	c := &cursor{b: b, what: "manifest", at: "length"}
	if uint64(len(b)) > uint64(lim.ManifestBytes) {
		c.fail(ErrLimit, utoa(uint64(len(b))), "at most "+utoa(uint64(lim.ManifestBytes)))
		return nil, c.err
	}
	c.at = "magic"
	if c.u32() != manifestMagic && c.err == nil {
		c.fail(ErrMagic, "", "")
	}
	c.at = "schema"
	if v := c.u16(); c.err == nil && (v < SchemaMin || v > SchemaVersion) {
		c.fail(ErrSchema, utoa(uint64(v)), utoa(uint64(SchemaVersion)))
	}
	c.at = "reserved"
	if c.u16() != 0 {
		c.fail(ErrReserved, "", "")
	}
	c.at = "body"
	body := c.take(uint64(c.u32()))
	c.at = "seal"
	c.take(manifestSealSize)
	return body, c.end()
}

func decodeManifestBody(body []byte, lim *Limits) (*Manifest, error) {
	m := &Manifest{Schema: SchemaVersion}
	err := readTags(body, "manifest", func(t tag, c *cursor) {
		switch t {
		case tagIdentity:
			var err error
			if m.Identity, err = DecodeIdentity(c.rest(), lim); err != nil {
				c.err = err
			}
		case tagBinding:
			var err error
			if m.Binding, err = DecodeBinding(c.rest(), lim); err != nil {
				c.err = err
			}
		case tagPart:
			m.Part, m.Parts = c.u16(), c.u16()
		case tagUnits:
			m.Units = decodeUnitRefs(c, lim)
		case tagComponents:
			m.Components = decodeComponentRefs(c, lim)
		case tagHistory:
			m.History = decodeTokens(c, lim.History)
		case tagPosition:
			m.Position = c.u32()
		case tagFirst:
			m.First.decode(c, lim)
		case tagGeneration:
			m.Generation.decode(c, lim)
		case tagSampler:
			if n := len(c.b); uint64(n) > uint64(lim.SamplerBytes) {
				c.fail(ErrLimit, utoa(uint64(n)), "at most "+utoa(uint64(lim.SamplerBytes)))
			}
			m.Sampler = clone(c.rest())
		case tagUsage:
			m.Usage = Usage{Prompt: c.u32(), Cached: c.u32(), Computed: c.u32()}
		case tagMTP:
			m.MTP.Active = c.boolean()
			m.MTP.Reason = c.str(lim.NameBytes)
		}
	})
	if err != nil {
		return nil, err
	}
	if err := m.Check(lim); err != nil {
		return nil, err
	}
	return m, nil
}

// rest returns all that is left, without copying.
func (c *cursor) rest() []byte { return c.take(uint64(len(c.b))) }

// clone copies p, and keeps nothing as nil.
func clone(p []byte) []byte { return append([]byte(nil), p...) }

// count returns how many records of size bytes are left, and fails on a part of one or on more than
// limit.
func (c *cursor) count(size int, limit uint32) int {
	n := len(c.b) / size
	if len(c.b)%size != 0 {
		c.fail(ErrTruncated, utoa(uint64(len(c.b)))+" bytes", "a multiple of "+utoa(uint64(size)))
		return 0
	}
	if uint64(n) > uint64(limit) {
		c.fail(ErrLimit, utoa(uint64(n)), "at most "+utoa(uint64(limit)))
		return 0
	}
	return n
}

func (c *cursor) zero(n uint64) {
	for _, x := range c.take(n) {
		if x != 0 {
			c.fail(ErrReserved, "", "")
			return
		}
	}
}

func decodeUnitRefs(c *cursor, lim *Limits) []UnitRef {
	n := c.count(unitRefSize, lim.Units)
	if n == 0 {
		return nil
	}
	out := make([]UnitRef, n)
	for i := range out {
		u := &out[i]
		u.Index = c.u32()
		u.Unit, u.Component = UnitKind(c.u8()), Kind(c.u8())
		c.zero(2)
		u.Layers = Range{c.u32(), c.u32()}
		u.Tokens = Range{c.u32(), c.u32()}
		u.Length = c.u64()
		copy(u.Digest[:], c.take(32))
	}
	return out
}

func decodeComponentRefs(c *cursor, lim *Limits) []ComponentRef {
	n := c.count(componentRefSize, lim.Components)
	if n == 0 {
		return nil
	}
	out := make([]ComponentRef, n)
	for i := range out {
		r := &out[i]
		r.Kind = Kind(c.u8())
		c.zero(3)
		r.Unit = c.u32()
		r.Offset, r.Length = c.u64(), c.u64()
		r.Layers = Range{c.u32(), c.u32()}
	}
	return out
}

func decodeTokens(c *cursor, limit uint32) []int32 {
	n := c.count(4, limit)
	if n == 0 {
		return nil
	}
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(c.u32())
	}
	return out
}

func (f *First) decode(c *cursor, lim *Limits) {
	f.Index = c.u32()
	f.Logprob = c.f32()
	declared := c.u32()
	n := c.count(8, lim.TopTokens)
	if c.err == nil && uint64(declared) != uint64(n) {
		c.fail(ErrField, utoa(uint64(declared))+" alternatives", utoa(uint64(n)))
	}
	if n == 0 || c.err != nil {
		return
	}
	f.Top = make([]TopToken, n)
	for i := range f.Top {
		f.Top[i] = TopToken{int32(c.u32()), c.f32()}
	}
}

func (g *Generation) decode(c *cursor, lim *Limits) {
	g.MaxTokens, g.MinTokens = c.u32(), c.u32()
	g.IgnoreEOS, g.Logprobs = c.boolean(), c.boolean()
	g.TopLogprobs = c.u32()
	n := c.u32()
	if n > lim.StopStrings {
		c.fail(ErrLimit, utoa(uint64(n))+" stop strings", "at most "+utoa(uint64(lim.StopStrings)))
		return
	}
	for i := uint32(0); i < n && c.err == nil; i++ {
		g.Stop = append(g.Stop, c.str(lim.StopBytes))
	}
	g.Params = clone(c.blob(lim.ParamsBytes))
}
