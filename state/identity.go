package state

import (
	"strconv"
	"time"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/zeebo/blake3"
)

const (
	identityMagic uint32 = 0x49444e54 // "TNDI"
	bindingMagic  uint32 = 0x42444e54 // "TNDB"
)

// Endian is the byte order of payloads.
type Endian uint8

// The byte orders. Headers and manifests are little endian always.
const (
	LittleEndian Endian = 1
	BigEndian    Endian = 2
)

// RopeScaling is the kind of rotary position scaling in force.
type RopeScaling uint8

// The scalings that engines apply.
const (
	RopeUnscaled RopeScaling = 0
	RopeLinear   RopeScaling = 1
	RopeYarn     RopeScaling = 2
	RopeLong     RopeScaling = 3
)

// Rope is the rotary position configuration of a context, as the engine resolved it (model
// defaults filled in, so that a default and the same value given explicitly are equal).
type Rope struct {
	Scaling             RopeScaling
	FreqBase, FreqScale float32
	// ExtFactor, AttnFactor, BetaFast, BetaSlow and OrigContext are YaRN's parameters.
	ExtFactor, AttnFactor, BetaFast, BetaSlow float32
	OrigContext                               uint32
}

// Identity is everything that changes the numerics or the meaning of a sequence's state, and
// nothing else: not the context length, host names, paths, thread counts or backends. State moves
// only between equal identities. The zero value is not valid.
type Identity struct {
	// Schema is the state schema version: SchemaVersion.
	Schema uint16
	// Weights is the digest of the model file.
	Weights Digest
	// Tokenizer is the digest of the vocabulary, merges and special tokens.
	Tokenizer Digest
	// Architecture is the model's architecture name, for example "nemotron_h_moe".
	Architecture string
	// Layers is the number of trunk layers, speculation blocks excluded.
	Layers uint32
	// Rope is the position configuration.
	Rope Rope
	// KVTypeK and KVTypeV are the element types of cached keys and values.
	KVTypeK, KVTypeV DType
	// FlashAttention says whether values are stored untransposed for flash attention.
	FlashAttention bool
	// SWAFull says whether sliding-window layers keep every token.
	SWAFull bool
	// EngineBuild names the engine and its exact revision; EngineState is its state schema.
	EngineBuild string
	EngineState uint32
	// Endian is the byte order of payloads.
	Endian Endian
}

// fields lists every field in wire order. The unkeyed literals do not compile when a field was
// added to a struct and not here, and a test compares the list with the struct by reflection.
func (id *Identity) fields() []field {
	_ = Identity{
		id.Schema, id.Weights, id.Tokenizer, id.Architecture, id.Layers, id.Rope,
		id.KVTypeK, id.KVTypeV, id.FlashAttention, id.SWAFull,
		id.EngineBuild, id.EngineState, id.Endian,
	}
	r := &id.Rope
	_ = Rope{r.Scaling, r.FreqBase, r.FreqScale, r.ExtFactor, r.AttnFactor, r.BetaFast, r.BetaSlow, r.OrigContext}
	return []field{
		{"schema", &id.Schema},
		{"weights", &id.Weights},
		{"tokenizer", &id.Tokenizer},
		{"architecture", &id.Architecture},
		{"layers", &id.Layers},
		{"rope.scaling", &r.Scaling},
		{"rope.freq_base", &r.FreqBase},
		{"rope.freq_scale", &r.FreqScale},
		{"rope.ext_factor", &r.ExtFactor},
		{"rope.attn_factor", &r.AttnFactor},
		{"rope.beta_fast", &r.BetaFast},
		{"rope.beta_slow", &r.BetaSlow},
		{"rope.orig_context", &r.OrigContext},
		{"kv_type_k", &id.KVTypeK},
		{"kv_type_v", &id.KVTypeV},
		{"flash_attention", &id.FlashAttention},
		{"swa_full", &id.SWAFull},
		{"engine_build", &id.EngineBuild},
		{"engine_state", &id.EngineState},
		{"endian", &id.Endian},
	}
}

// Append appends the identity's encoding to b and returns it. Equal identities have equal bytes.
func (id Identity) Append(b []byte) []byte {
	b = append(b, byte(identityMagic&0xff), byte(identityMagic>>8&0xff), byte(identityMagic>>16&0xff), byte(identityMagic>>24))
	return appendFields(b, id.fields())
}

// Encode returns the identity's encoding.
func (id Identity) Encode() []byte { return id.Append(nil) }

// DecodeIdentity reads an identity. Every field is required and nothing may follow: a peer with a
// field that this build does not know cannot be shown to be equal, so its schema is refused.
func DecodeIdentity(b []byte, lim *Limits) (Identity, error) {
	var id Identity
	c := &cursor{b: b, what: "identity", at: "magic"}
	if c.u32() != identityMagic && c.err == nil {
		c.fail(ErrMagic, "", "")
	}
	c.at = "schema"
	if peek := c.b; len(peek) >= 2 {
		if v := uint16(peek[0]) | uint16(peek[1])<<8; v < SchemaMin || v > SchemaVersion {
			c.fail(ErrSchema, utoa(uint64(v)), utoa(uint64(SchemaVersion)))
		}
	}
	decodeFields(c, id.fields(), lim)
	if err := c.end(); err != nil {
		return Identity{}, err
	}
	return id, nil
}

// Digest returns the digest that unit headers carry: BLAKE3 of the encoding, under a context of
// its own. It says nothing about any request.
func (id Identity) Digest() Digest {
	h := blake3.NewDeriveKey(contextIdentity)
	h.Write(id.Append(nil))
	var d Digest
	h.Sum(d[:0])
	return d
}

// Match returns nil if other equals id, else an *Error with reason ErrIdentity that names the first
// field that differs; Got is other's value and Want is id's. Digests are not shown.
func (id Identity) Match(other Identity) error {
	a, b := id.fields(), other.fields()
	i := differs(a, b)
	if i < 0 {
		return nil
	}
	return refuse(ErrIdentity, "identity", a[i].name, fieldText(b[i].ptr), fieldText(a[i].ptr))
}

// Equal reports whether the identities are equal.
func (id Identity) Equal(other Identity) bool { return id.Match(other) == nil }

// fieldText formats a field's value for an error, and returns "" for digests.
func fieldText(p any) string {
	switch p := p.(type) {
	case *uint16:
		return utoa(uint64(*p))
	case *uint32:
		return utoa(uint64(*p))
	case *float32:
		return strconv.FormatFloat(float64(*p), 'g', -1, 32)
	case *bool:
		return strconv.FormatBool(*p)
	case *DType:
		return p.String()
	case *RopeScaling:
		return utoa(uint64(*p))
	case *Endian:
		return utoa(uint64(*p))
	case *string:
		return strconv.Quote(*p)
	}
	return ""
}

// Peer is one process: a worker's name and the number of its current life.
type Peer struct {
	Worker      string
	Incarnation uint64
}

// Binding ties state to one handoff: whose it is, from which process to which, and how long the
// attempt may take. Tickets and digest keys are made from the whole of it.
type Binding struct {
	Handoff handoff.ID
	Request string
	Tenant  string
	// Source and Destination are the two processes; a restarted process is another one.
	Source, Destination Peer
	// Deadline is the attempt's whole budget as the gateway set it, the same value on both sides:
	// a duration, because clocks are not shared. It is not what remains.
	Deadline time.Duration
}

// fields lists every field in wire order, guarded as Identity's are.
func (b *Binding) fields() []field {
	_ = Binding{b.Handoff, b.Request, b.Tenant, b.Source, b.Destination, b.Deadline}
	_ = Peer{b.Source.Worker, b.Source.Incarnation}
	return []field{
		{"handoff", &b.Handoff},
		{"request", &b.Request},
		{"tenant", &b.Tenant},
		{"source.worker", &b.Source.Worker},
		{"source.incarnation", &b.Source.Incarnation},
		{"destination.worker", &b.Destination.Worker},
		{"destination.incarnation", &b.Destination.Incarnation},
		{"deadline", &b.Deadline},
	}
}

// Append appends the binding's encoding to dst and returns it. Equal bindings have equal bytes.
func (b Binding) Append(dst []byte) []byte {
	dst = append(dst, byte(bindingMagic&0xff), byte(bindingMagic>>8&0xff), byte(bindingMagic>>16&0xff), byte(bindingMagic>>24))
	dst = append(dst, byte(SchemaVersion&0xff), byte(SchemaVersion>>8))
	return appendFields(dst, b.fields())
}

// Encode returns the binding's encoding.
func (b Binding) Encode() []byte { return b.Append(nil) }

// DecodeBinding reads a binding; nothing may follow it.
func DecodeBinding(src []byte, lim *Limits) (Binding, error) {
	var b Binding
	c := &cursor{b: src, what: "binding", at: "magic"}
	if c.u32() != bindingMagic && c.err == nil {
		c.fail(ErrMagic, "", "")
	}
	c.at = "schema"
	if v := c.u16(); c.err == nil && (v < SchemaMin || v > SchemaVersion) {
		c.fail(ErrSchema, utoa(uint64(v)), utoa(uint64(SchemaVersion)))
	}
	decodeFields(c, b.fields(), lim)
	if err := c.end(); err != nil {
		return Binding{}, err
	}
	return b, nil
}

// Match returns nil if other equals b, else an *Error with reason ErrBinding that names the first
// field that differs. Values are not shown.
func (b Binding) Match(other Binding) error {
	x, y := b.fields(), other.fields()
	if i := differs(x, y); i >= 0 {
		return refuse(ErrBinding, "binding", x[i].name, "", "")
	}
	return nil
}

// Equal reports whether the bindings are equal.
func (b Binding) Equal(other Binding) bool { return b.Match(other) == nil }
