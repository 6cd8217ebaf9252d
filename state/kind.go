package state

import "strconv"

// Kind names one component of a sequence's continuation state. The values are on the wire and
// never change meaning; zero is not a component.
type Kind uint8

// The component kinds. Those up to MTPHidden are bytes inside units; the others travel in the
// manifest.
const (
	// KindNone is the component of a unit that holds several (a snapshot).
	KindNone Kind = 0
	// AttentionKV is append-only attention state: keys and values per token and layer. It leaves in
	// pages while prefill computes.
	AttentionKV Kind = 1
	// WindowKV is sliding-window attention state, bounded by the window. It leaves with the snapshot.
	WindowKV Kind = 2
	// Recurrent is SSM state: fixed size, overwritten at every token. It leaves with the snapshot.
	Recurrent Kind = 3
	// Conv is the convolution state beside Recurrent: fixed size, overwritten at every token.
	Conv Kind = 4
	// MTPKV is the attention state of a multi-token-prediction block, append-only.
	MTPKV Kind = 5
	// MTPHidden is the pending hidden row of a multi-token-prediction block.
	MTPHidden Kind = 6
	// History is the token history: prompt and committed tokens.
	History Kind = 16
	// Position is the number of tokens that the state covers.
	Position Kind = 17
	// FirstToken is the token sampled by the source, with its logprobs.
	FirstToken Kind = 18
	// Sampler is the sampler's whole state.
	Sampler Kind = 19
	// Parameters is the generation parameters: limits, stop strings, what to report.
	Parameters Kind = 20
)

// String returns the stable name used in errors, metrics and inspection.
func (k Kind) String() string {
	switch k {
	case KindNone:
		return "none"
	case AttentionKV:
		return "attention_kv"
	case WindowKV:
		return "window_kv"
	case Recurrent:
		return "recurrent"
	case Conv:
		return "conv"
	case MTPKV:
		return "mtp_kv"
	case MTPHidden:
		return "mtp_hidden"
	case History:
		return "history"
	case Position:
		return "position"
	case FirstToken:
		return "first_token"
	case Sampler:
		return "sampler"
	case Parameters:
		return "parameters"
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// Bytes reports whether the kind is bytes inside a unit, as opposed to a field of the manifest.
func (k Kind) Bytes() bool { return k >= AttentionKV && k <= MTPHidden }

// Paged reports whether the kind grows with tokens and leaves in pages.
func (k Kind) Paged() bool { return k == AttentionKV || k == MTPKV }

// UnitKind says what a unit of transfer is. The values are on the wire.
type UnitKind uint8

const (
	// UnitPage is one paged component over one token range.
	UnitPage UnitKind = 1
	// UnitSnapshot is all components that are exported once, at the end, back to back.
	UnitSnapshot UnitKind = 2
)

// String returns "page" or "snapshot".
func (k UnitKind) String() string {
	switch k {
	case UnitPage:
		return "page"
	case UnitSnapshot:
		return "snapshot"
	}
	return "unit(" + strconv.Itoa(int(k)) + ")"
}

// Codec says how a payload's bytes are laid out. The values are on the wire.
type Codec uint8

const (
	// CodecRaw is plain component bytes, layer by layer, without framing.
	CodecRaw Codec = 1
	// CodecLlamaSeq is llama.cpp's per-sequence state blob. Its layout belongs to the engine build,
	// which the identity names.
	CodecLlamaSeq Codec = 2
)

// String returns the codec's stable name.
func (c Codec) String() string {
	switch c {
	case CodecRaw:
		return "raw"
	case CodecLlamaSeq:
		return "llama_seq"
	}
	return "codec(" + strconv.Itoa(int(c)) + ")"
}

func (c Codec) known() bool { return c == CodecRaw || c == CodecLlamaSeq }

// DType is the element type of a tensor. The values are on the wire and are Tandem's own.
type DType uint8

const (
	// DTypeNone is "no tensor" or "several, see the inventory".
	DTypeNone DType = 0
	// F32 is IEEE 754 single precision.
	F32 DType = 1
	// F16 is IEEE 754 half precision.
	F16 DType = 2
	// BF16 is bfloat16.
	BF16 DType = 3
	// Q8_0 is llama.cpp's block type of 32 8-bit integers and one F16 scale: 34 bytes.
	Q8_0 DType = 4
)

// String returns the type's stable name.
func (t DType) String() string {
	switch t {
	case DTypeNone:
		return "none"
	case F32:
		return "f32"
	case F16:
		return "f16"
	case BF16:
		return "bf16"
	case Q8_0:
		return "q8_0"
	}
	return "dtype(" + strconv.Itoa(int(t)) + ")"
}

// ParseDType returns the type that String names, or false.
func ParseDType(s string) (DType, bool) {
	for t := F32; t <= Q8_0; t++ {
		if t.String() == s {
			return t, true
		}
	}
	return DTypeNone, false
}

func (t DType) known() bool { return t <= Q8_0 }

// RowBytes returns the bytes of a row of n elements, and false if n is not a whole number of the
// type's blocks or the type is unknown or the result overflows.
func (t DType) RowBytes(n uint64) (uint64, bool) {
	const most = 1 << 56
	if n > most {
		return 0, false
	}
	switch t {
	case F32:
		return n * 4, true
	case F16, BF16:
		return n * 2, true
	case Q8_0:
		return n / 32 * 34, n%32 == 0
	}
	return 0, false
}

// Range is a half-open interval [First, End) of layers or of absolute token positions.
type Range struct {
	First, End uint32
}

// Len returns End − First, or 0 if the range is empty or inverted.
func (r Range) Len() uint32 {
	if r.End <= r.First {
		return 0
	}
	return r.End - r.First
}

// String returns "[first,end)".
func (r Range) String() string {
	return "[" + strconv.FormatUint(uint64(r.First), 10) + "," + strconv.FormatUint(uint64(r.End), 10) + ")"
}
