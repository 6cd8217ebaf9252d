package state

// UnitRef is the manifest's line about one unit.
type UnitRef struct {
	Index     uint32
	Unit      UnitKind
	Component Kind
	Layers    Range
	Tokens    Range
	Length    uint64
	// Digest is the keyed digest of header and payload, or of the header and the payload's checksum; see
	// Digester.
	Digest Digest
}

// ComponentRef says where one component lies inside a snapshot. The components of a snapshot are
// listed in order, start at offset 0, lie back to back, and end with the payload.
type ComponentRef struct {
	Kind Kind
	// Unit is the index of the unit that holds it.
	Unit uint32
	// Offset and Length are in bytes of the unit's payload, codec framing included.
	Offset, Length uint64
	Layers         Range
}

// TopToken is one alternative for the first token.
type TopToken struct {
	Token   int32
	Logprob float32
}

// First is what the source sampled: the token that the destination's first step consumes, with
// what a client may have asked to know about it. The token itself is History's last element.
type First struct {
	// Index is the token's absolute index in the answer; above 0 where earlier tokens were forced.
	Index uint32
	// Logprob and Top are set when the generation asks for logprobs.
	Logprob float32
	Top     []TopToken
}

// Generation is how to go on generating.
type Generation struct {
	// MaxTokens bounds the answer's tokens in all, those already sampled included. MinTokens is the
	// least before an end-of-generation token is honoured.
	MaxTokens, MinTokens uint32
	// Stop are the stop strings.
	Stop []string
	// IgnoreEOS keeps generating past end-of-generation tokens.
	IgnoreEOS bool
	// Logprobs asks for logprobs and TopLogprobs for that many alternatives.
	Logprobs    bool
	TopLogprobs uint32
	// Params is opaque to this package: whatever the worker's sampler needs besides its state.
	Params []byte
}

// Usage counts prompt tokens, for the client.
type Usage struct {
	// Prompt is the client's prompt in tokens; tokens of an earlier attempt that were forced are not
	// part of it. Cached of them came from a prefix cache, Computed were computed by this source.
	Prompt, Cached, Computed uint32
}

// MTP is the state of multi-token prediction.
type MTP struct {
	// Active says that speculation state is among the units.
	Active bool
	// Reason says why not.
	Reason string
}

// Manifest ends the stream of one part: everything that is not bulk, and the list of what is.
type Manifest struct {
	// Schema is the version it was written under; SchemaVersion when encoding.
	Schema   uint16
	Identity Identity
	Binding  Binding
	// Part is this part's number, of Parts in all.
	Part, Parts uint16
	// Units lists every unit of the part, by ascending index from 0 without gaps.
	Units []UnitRef
	// Components lists what is where in the snapshot; empty without one.
	Components []ComponentRef
	// History is every token of the sequence in order: the Position tokens that the state covers,
	// then the one that was sampled and not yet consumed.
	History []int32
	// Position is the number of tokens that the state covers, which is the position of the next row.
	Position uint32
	First    First
	// Generation says how to go on.
	Generation Generation
	// Sampler is the sampler's whole state, opaque to this package.
	Sampler []byte
	Usage   Usage
	MTP     MTP
}

// String describes the manifest without any of its content.
func (m Manifest) String() string {
	return "manifest of part " + utoa(uint64(m.Part)) + " of " + utoa(uint64(m.Parts)) + ": " +
		utoa(uint64(len(m.Units))) + " units, position " + utoa(uint64(m.Position))
}

// GoString keeps %#v from printing content.
func (m Manifest) GoString() string { return "state." + m.String() }
