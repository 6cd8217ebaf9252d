package state

import (
	"errors"
	"strconv"
	"strings"
)

// The reasons for which outside bytes or facts are refused. Every error of this package that
// concerns outside input is an [*Error] that wraps exactly one of them, so that callers classify
// with errors.Is. Each text says what to do next where there is something to do.
var (
	// ErrTruncated: the bytes end before the structure does.
	ErrTruncated = errors.New("bytes end too early; the sender or the link cut them, retry the handoff")
	// ErrTrailing: bytes follow the end of the structure.
	ErrTrailing = errors.New("bytes follow the end of the structure; sender and receiver disagree about its layout")
	// ErrMagic: the bytes are not what they should be at all.
	ErrMagic = errors.New("wrong magic number; the peer sent something else, or lost its place in the stream")
	// ErrSchema: the schema version is not one this build reads.
	ErrSchema = errors.New("schema version not supported; run the same Tandem version on both workers")
	// ErrHeaderChecksum: a unit header was damaged.
	ErrHeaderChecksum = errors.New("header checksum differs; retry the handoff")
	// ErrReserved: bytes or bits that must be zero are not.
	ErrReserved = errors.New("reserved bits are set; the sender uses a newer schema than it declares")
	// ErrField: a field holds a value that the format does not know or does not allow.
	ErrField = errors.New("field value not allowed")
	// ErrUnknownTag: a required tag that this build does not know.
	ErrUnknownTag = errors.New("required tag not known; run the same Tandem version on both workers")
	// ErrTagOrder: tags repeat or do not ascend.
	ErrTagOrder = errors.New("tags must ascend and not repeat")
	// ErrMissingTag: a required tag is absent.
	ErrMissingTag = errors.New("required tag is missing")
	// ErrLimit: a declared size is beyond the limits.
	ErrLimit = errors.New("declared size is over the limit; raise the limit on this worker if it is legitimate")
	// ErrIdentity: the two workers do not run the same model, configuration and engine.
	ErrIdentity = errors.New("identity differs; serve the same model file, context configuration and engine build on both workers")
	// ErrBinding: a unit or manifest belongs to another handoff, request, tenant or process.
	ErrBinding = errors.New("binding differs; the state belongs to another handoff")
	// ErrPart: a part number that the handoff does not have.
	ErrPart = errors.New("no such part in this handoff")
	// ErrComponent: a component that the inventory does not have, or has inactive.
	ErrComponent = errors.New("component is not in the inventory")
	// ErrCodec: the payload's codec is not the expected one.
	ErrCodec = errors.New("codec differs")
	// ErrDType: the payload's element types are not the expected ones.
	ErrDType = errors.New("element type differs")
	// ErrLayers: the layer range is not the component's.
	ErrLayers = errors.New("layer range differs")
	// ErrTokens: the token range is not inside what the handoff transfers.
	ErrTokens = errors.New("token range is outside the handoff")
	// ErrOverlap: a token range was already delivered.
	ErrOverlap = errors.New("token range overlaps one already received")
	// ErrDuplicateUnit: a unit index was already delivered.
	ErrDuplicateUnit = errors.New("unit was already received")
	// ErrDuplicateSnapshot: a second snapshot of one part.
	ErrDuplicateSnapshot = errors.New("snapshot was already received")
	// ErrUnexpectedUnit: a unit kind that this model family does not have.
	ErrUnexpectedUnit = errors.New("unit is not expected for this model")
	// ErrSize: a payload's length is not what the inventory says.
	ErrSize = errors.New("payload size differs from the inventory")
	// ErrChecksum: a payload was damaged.
	ErrChecksum = errors.New("payload checksum differs; retry the handoff")
	// ErrDigest: a keyed digest differs: bytes were changed, or belong to another handoff.
	ErrDigest = errors.New("keyed digest differs; retry the handoff")
	// ErrFinal: the final flag is on the wrong unit, or missing.
	ErrFinal = errors.New("final flag is not on the last unit")
	// ErrDuplicateManifest: a second manifest of one part.
	ErrDuplicateManifest = errors.New("manifest was already received")
	// ErrUnits: the manifest's list of units does not describe the units.
	ErrUnits = errors.New("manifest and units disagree")
	// ErrComponents: the manifest's list of components does not describe the snapshot.
	ErrComponents = errors.New("manifest and snapshot disagree about components")
	// ErrPosition: position, history and first token do not fit together, or not the prompt.
	ErrPosition = errors.New("position, history and prompt disagree")
	// ErrMTP: the manifest and this worker disagree about multi-token prediction.
	ErrMTP = errors.New("multi-token prediction is active on one side only; configure both workers alike")
	// ErrParts: manifests of several parts disagree about the sequence.
	ErrParts = errors.New("parts of one handoff disagree")
	// ErrMissingPages: tokens of a paged component never arrived.
	ErrMissingPages = errors.New("pages are missing")
	// ErrMissingSnapshot: the model has a snapshot and none arrived.
	ErrMissingSnapshot = errors.New("snapshot is missing")
	// ErrMissingManifest: a part's manifest did not arrive.
	ErrMissingManifest = errors.New("manifest is missing")
	// ErrGeometry: the model's dimensions cannot be turned into an inventory.
	ErrGeometry = errors.New("model geometry cannot be handed off")
)

// Error says what was wrong, where, and which values met. It never holds content: no token ids,
// text, payload bytes or content digests.
type Error struct {
	// Reason is one of the Err values of this package.
	Reason error
	// What names the structure: "header", "identity", "binding", "manifest", "unit", "part", …
	What string
	// Part is the part number and Unit the unit index, or −1 where none applies.
	Part, Unit int64
	// Field names the field, or is empty.
	Field string
	// Got and Want are the values that met, or empty where they may not be shown.
	Got, Want string
}

// Error returns "state: " and the details, ending with the reason.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("state: ")
	b.WriteString(e.What)
	if e.Part >= 0 {
		b.WriteString(" part ")
		b.WriteString(strconv.FormatInt(e.Part, 10))
	}
	if e.Unit >= 0 {
		b.WriteString(" unit ")
		b.WriteString(strconv.FormatInt(e.Unit, 10))
	}
	if e.Field != "" {
		b.WriteString(" field ")
		b.WriteString(e.Field)
	}
	if e.Got != "" {
		b.WriteString(" is ")
		b.WriteString(e.Got)
	}
	if e.Want != "" {
		b.WriteString(", want ")
		b.WriteString(e.Want)
	}
	b.WriteString(": ")
	b.WriteString(e.Reason.Error())
	return b.String()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Reason }

// refuse makes an Error without part and unit.
func refuse(reason error, what, field, got, want string) *Error {
	return &Error{Reason: reason, What: what, Part: -1, Unit: -1, Field: field, Got: got, Want: want}
}

func utoa(n uint64) string { return strconv.FormatUint(n, 10) }
