package state

// Limits bounds what outside bytes may make this process allocate. Every decoder and the assembly
// check a declared size against them before they allocate or loop for it. The zero value of a
// field means "none allowed"; start from DefaultLimits.
type Limits struct {
	// UnitBytes is the largest payload of one unit, in bytes.
	UnitBytes uint64
	// Units is the largest number of units of one part.
	Units uint32
	// Parts is the largest number of parts of one handoff.
	Parts uint32
	// ManifestBytes is the largest encoded manifest, in bytes.
	ManifestBytes uint32
	// History is the largest number of tokens in a manifest's history.
	History uint32
	// Components is the largest number of component references in a manifest.
	Components uint32
	// StopStrings is the largest number of stop strings, StopBytes the largest length of one.
	StopStrings, StopBytes uint32
	// SamplerBytes and ParamsBytes bound the two opaque fields of the manifest.
	SamplerBytes, ParamsBytes uint32
	// TopTokens is the largest number of alternatives with logprobs for the first token.
	TopTokens uint32
	// NameBytes is the largest length of a request, tenant or worker name, of an architecture or
	// build name, and of the reason for which speculation is inactive.
	NameBytes uint32
}

// DefaultLimits returns limits that fit models of up to a million tokens of context and 2 GiB of
// fixed state, and bound one manifest to 16 MiB.
func DefaultLimits() Limits {
	return Limits{
		UnitBytes:     2 << 30,
		Units:         1 << 16,
		Parts:         64,
		ManifestBytes: 16 << 20,
		History:       1 << 20,
		Components:    4096,
		StopStrings:   64,
		StopBytes:     1024,
		SamplerBytes:  4 << 20,
		ParamsBytes:   1 << 20,
		TopTokens:     64,
		NameBytes:     512,
	}
}
