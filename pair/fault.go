package pair

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/sample"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// The errors of this package itself, for errors.Is.
var (
	// ErrPeerGone: the child process ended.
	ErrPeerGone = errors.New("pair: the peer process is gone")
	// ErrTimeout: the child did not answer in time, and was ended.
	ErrTimeout = errors.New("pair: the peer process did not answer in time")
	// ErrCall: a call that does not fit what was done before.
	ErrCall = errors.New("pair: the call does not fit the state of the pair")
	// ErrAborted: the handoff was ended by the caller's own wish.
	ErrAborted = errors.New("pair: the handoff was ended on request")
)

// RemoteError is an error of the child process. errors.Is finds the sentinels that the error matched
// there, as far as sentinels names them.
type RemoteError struct {
	// Names are the names of the sentinels.
	Names []string `json:"names,omitempty"`
	// Text is the error's text. Errors of this module carry no content.
	Text string `json:"text"`
}

// Error returns the child's text.
func (e *RemoteError) Error() string { return "peer: " + e.Text }

// Is reports whether the error matched target in the child.
func (e *RemoteError) Is(target error) bool {
	for _, n := range e.Names {
		if sentinels[n] == target { //nolint:errorlint // sentinels are compared themselves
			return true
		}
	}
	return false
}

// remote makes an error ready to travel.
func remote(err error) *RemoteError {
	if err == nil {
		return nil
	}
	r := &RemoteError{Text: err.Error()}
	for name, s := range sentinels {
		if errors.Is(err, s) {
			r.Names = append(r.Names, name)
		}
	}
	return r
}

// HandoffError is a handoff that did not end in a commit: what each side says of it. A side that has
// nothing to say is nil.
type HandoffError struct {
	Source      error
	Destination error
}

// Error names both.
func (e *HandoffError) Error() string {
	switch {
	case e.Source == nil:
		return fmt.Sprintf("pair: handoff failed: destination: %v", e.Destination)
	case e.Destination == nil:
		return fmt.Sprintf("pair: handoff failed: source: %v", e.Source)
	}
	return fmt.Sprintf("pair: handoff failed: source: %v; destination: %v", e.Source, e.Destination)
}

// Unwrap gives both to errors.Is.
func (e *HandoffError) Unwrap() []error {
	var list []error
	if e.Source != nil {
		list = append(list, e.Source)
	}
	if e.Destination != nil {
		list = append(list, e.Destination)
	}
	return list
}

// sentinels are the errors that keep their identity between the processes.
var sentinels = map[string]error{
	"context.Canceled": context.Canceled, "context.DeadlineExceeded": context.DeadlineExceeded,

	"pair.ErrMessage": ErrMessage, "pair.ErrCall": ErrCall, "pair.ErrAborted": ErrAborted, "pair.ErrTimeout": ErrTimeout,

	"engine.ErrBatch": engine.ErrBatch, "engine.ErrSequence": engine.ErrSequence, "engine.ErrContext": engine.ErrContext,
	"engine.ErrNoCells": engine.ErrNoCells, "engine.ErrLost": engine.ErrLost, "engine.ErrFatal": engine.ErrFatal,
	"engine.ErrPayload": engine.ErrPayload, "engine.ErrCoverage": engine.ErrCoverage, "engine.ErrOutOfOrder": engine.ErrOutOfOrder,
	"engine.ErrImportDead": engine.ErrImportDead, "engine.ErrUnsupported": engine.ErrUnsupported,

	"sample.ErrState": sample.ErrState, "sample.ErrLogits": sample.ErrLogits,

	"state.ErrTruncated": state.ErrTruncated, "state.ErrTrailing": state.ErrTrailing, "state.ErrMagic": state.ErrMagic,
	"state.ErrSchema": state.ErrSchema, "state.ErrHeaderChecksum": state.ErrHeaderChecksum, "state.ErrReserved": state.ErrReserved,
	"state.ErrField": state.ErrField, "state.ErrUnknownTag": state.ErrUnknownTag, "state.ErrTagOrder": state.ErrTagOrder,
	"state.ErrMissingTag": state.ErrMissingTag, "state.ErrLimit": state.ErrLimit, "state.ErrIdentity": state.ErrIdentity,
	"state.ErrBinding": state.ErrBinding, "state.ErrPart": state.ErrPart, "state.ErrComponent": state.ErrComponent,
	"state.ErrCodec": state.ErrCodec, "state.ErrDType": state.ErrDType, "state.ErrLayers": state.ErrLayers,
	"state.ErrTokens": state.ErrTokens, "state.ErrOverlap": state.ErrOverlap, "state.ErrDuplicateUnit": state.ErrDuplicateUnit,
	"state.ErrDuplicateSnapshot": state.ErrDuplicateSnapshot, "state.ErrUnexpectedUnit": state.ErrUnexpectedUnit,
	"state.ErrSize": state.ErrSize, "state.ErrChecksum": state.ErrChecksum, "state.ErrDigest": state.ErrDigest,
	"state.ErrFinal": state.ErrFinal, "state.ErrDuplicateManifest": state.ErrDuplicateManifest, "state.ErrUnits": state.ErrUnits,
	"state.ErrComponents": state.ErrComponents, "state.ErrPosition": state.ErrPosition, "state.ErrMTP": state.ErrMTP,
	"state.ErrParts": state.ErrParts, "state.ErrMissingPages": state.ErrMissingPages,
	"state.ErrMissingSnapshot": state.ErrMissingSnapshot, "state.ErrMissingManifest": state.ErrMissingManifest,
	"state.ErrGeometry": state.ErrGeometry,
}

func init() {
	for c := wire.ErrConfig; c <= wire.ErrIdle; c++ {
		sentinels["wire."+c.Name()] = c
	}
}
